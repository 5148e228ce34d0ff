"""The pace of requests: turns, the limit after "too many requests", pauses, budgets; by the loop's own clock."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from text2grad.critics.servers.client import _count, _retry_after
from text2grad.critics.servers.pace import MOST_BEFORE_ANSWER, Pace, Usage
from text2grad.errors import RequestError


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_no_more_requests_are_under_way_than_allowed() -> None:
    async def scenario() -> None:
        pace, most = Pace(3, Usage()), 0

        async def request() -> None:
            nonlocal most
            async with pace.turn():
                most = max(most, pace.active)
                await asyncio.sleep(0)

        await asyncio.gather(*(request() for _ in range(20)))
        assert (most, pace.active) == (3, 0)

    run(scenario)


def test_a_few_requests_are_under_way_until_the_server_has_answered() -> None:
    async def scenario() -> None:
        pace, seen = Pace(8, Usage()), list[int]()

        async def request() -> None:
            async with pace.turn():
                await asyncio.sleep(0)
                seen.append(pace.active)
                if len(seen) == 6:
                    pace.speed_up()

        await asyncio.gather(*(request() for _ in range(30)))
        assert max(seen[:6]) == MOST_BEFORE_ANSWER
        assert max(seen) == 8

    run(scenario)


def test_too_many_requests_halve_the_limit_once_and_answers_raise_it_by_one_a_round() -> None:
    async def scenario() -> None:
        pace = Pace(8, Usage())
        now = asyncio.get_running_loop().time()
        for _ in range(5):  # five of those that were sent together are refused
            pace.slow_down(now, 0.0)
        assert pace.limit == 4.0
        for _ in range(4):  # 4 + 1/4 + 1/4.25 + 1/4.485 + 1/4.708
            pace.speed_up()
        assert pace.limit == pytest.approx(4.9206, abs=1e-4)
        for _ in range(100):
            pace.speed_up()
        assert pace.limit == 8.0
        for _ in range(10):
            pace.slow_down(asyncio.get_running_loop().time(), 0.0)
            await asyncio.sleep(0.001)
        assert pace.limit == 1.0

    run(scenario)


def test_nobody_asks_before_the_pause_is_over() -> None:
    async def scenario() -> None:
        pace, loop = Pace(2, Usage()), asyncio.get_running_loop()
        begun = loop.time()
        pace.slow_down(begun, 0.05)
        async with pace.turn() as sent_at:
            assert sent_at - begun >= 0.05
        pace.slow_down(begun, 300.0)
        pace.slow_down(begun, 0.0)  # a shorter one does not shorten it
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), pace.turn():
                raise AssertionError("let through")

    run(scenario)


def test_a_request_waits_until_those_under_way_leave_room_in_the_budget() -> None:
    async def scenario() -> None:
        pace, order = Pace(8, Usage(), 1.0), list[str]()

        async def first() -> None:
            async with pace.turn(0.6):
                await asyncio.sleep(0.01)
                pace.usage.cost += 0.1  # it came to less than it could have
                order.append("first ends")

        async def second() -> None:
            await asyncio.sleep(0)
            async with pace.turn(0.6):  # 0.6 + 0.6 > 1, but 0.1 + 0.6 is not
                order.append("second begins")

        await asyncio.gather(first(), second())
        assert order == ["first ends", "second begins"]
        assert pace.usage.reserved == 0
        with pytest.raises(RequestError, match="the budget of 1 US dollars leaves no room for a request"):
            async with pace.turn(0.95):
                order.append("never")

    run(scenario)


def test_a_budget_has_room_for_what_it_comes_to_exactly() -> None:
    pace = Pace(1, Usage(cost=0.5, reserved=0.25), 1.0)  # 0.5 + 0.25 + 0.25 = 1
    assert pace.has_room(0.25)
    assert not pace.has_room(0.251)


def test_no_pause_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2grad.critics.servers.pace.LONGEST_PAUSE_S", 0.01)

    async def scenario() -> None:
        async with asyncio.timeout(30):
            await Pace(1, Usage()).sleep(300.0)

    run(scenario)


def test_to_stop_wakes_whoever_waits_and_lets_nobody_through() -> None:
    async def scenario() -> None:
        pace = Pace(1, Usage())
        pace.slow_down(asyncio.get_running_loop().time(), 300.0)

        async def request() -> None:
            async with pace.turn():
                raise AssertionError("let through")

        waiting = asyncio.create_task(request())
        await asyncio.sleep(0.01)
        pace.stop("enough")
        pace.stop("again")
        async with asyncio.timeout(30):
            with pytest.raises(RequestError, match="not_asked: enough"):
                await waiting

    run(scenario)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_the_time_to_wait_is_read_from_the_headers(headers: dict[str, str], seconds: float) -> None:
    assert _retry_after(headers) == seconds


def test_a_number_of_tokens_is_one_that_can_be_kept() -> None:
    told = [20, 0, -1, True, "20", 2.0, 2**63 - 1, 2**63]  # SQLite has no greater integer than 2^63 - 1
    assert [_count(one) for one in told] == [20, 0, None, None, None, None, 2**63 - 1, None]
