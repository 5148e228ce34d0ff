"""Rate and budget of the requests to a server.

The number of requests under way is limited, to a few before the first answer. After status 429 (too many requests) no
request starts until the pause that the server asks for is over, and the limit is halved, as after a timeout. Each
answer then raises the limit by 1 / limit, up to the maximum: additive increase, multiplicative decrease, as in TCP.

A budget is never overspent: a request starts only if the budget suffices when it and all requests under way cost their
maximum (an answer of `max_tokens`, one token per byte of the prompt). Otherwise it waits until requests under way have
cost less than that; if no request is under way, the run stops.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from text2grad.errors import RequestError

LONGEST_PAUSE_S = 600.0
MOST_BEFORE_ANSWER = 4  # requests under way: all of them may meet the same error


@dataclass(slots=True)
class Usage:
    """Counts of a run, and what it has spent."""

    cost: float = 0.0  # US dollars for all answers in the store, also of earlier runs
    reserved: float = 0.0  # maximum cost of the requests under way, in US dollars
    requests: int = 0  # requests sent
    retried: int = 0  # requests that were repeated
    reused: int = 0  # requests that the store answered
    prompt_tokens: int = 0  # of the server's answers in this run
    completion_tokens: int = 0  # likewise


class Pace:
    """Decides when a request may start. It belongs to one event loop.

    Attributes:
        limit: largest number of requests under way at present.
        active: number of requests under way.
        stopped: why no request starts any more; empty while requests may start.
        answered: True once the server has answered a request.
    """

    def __init__(self, max_active: int, usage: Usage, budget: float | None = None) -> None:
        """Take the largest number of requests under way, and what `usage` may cost in US dollars; None for no limit."""
        self.max_active, self.usage, self.budget = max_active, usage, budget
        self.limit, self.active, self.stopped, self.answered = float(max_active), 0, "", False
        self._resume_at = self._slowed_at = float("-inf")
        self._freed, self._end = asyncio.Event(), asyncio.Event()

    def has_room(self, max_cost: float) -> bool:
        """Return True if the budget suffices for a request of this maximum cost beside those under way."""
        return self.budget is None or self.usage.cost + self.usage.reserved + max_cost <= self.budget

    @asynccontextmanager
    async def turn(self, max_cost: float = 0.0) -> AsyncIterator[float]:
        """Wait until a request may start, then yield the time; inside, it is under way and costs at most `max_cost`.

        Raises:
            RequestError: of kind not_asked, if the run was stopped.
        """
        await self._wait(max_cost)
        self.active += 1
        self.usage.reserved += max_cost
        try:
            yield asyncio.get_running_loop().time()
        finally:
            self.active -= 1
            self.usage.reserved -= max_cost
            self._freed.set()

    async def _wait(self, max_cost: float) -> None:
        while True:
            if not self.has_room(max_cost) and not self.active:
                self.stop(f"the budget of {self.budget:g} US dollars leaves no room for a request")
            if self.stopped:
                raise RequestError("not_asked", self.stopped)
            limit, pause = int(self.limit), self._resume_at - asyncio.get_running_loop().time()
            if pause > 0:
                await self.sleep(pause)
            elif self.active < (limit if self.answered else min(limit, MOST_BEFORE_ANSWER)) and self.has_room(max_cost):
                return
            else:
                self._freed.clear()
                await self._freed.wait()

    def slow_down(self, sent_at: float, pause_s: float) -> None:
        """Halve the limit after a request that the server was too busy for, and start none for some seconds.

        Requests sent before the last halving do not halve the limit again.
        """
        now = asyncio.get_running_loop().time()
        self._resume_at = max(self._resume_at, now + pause_s)
        if sent_at >= self._slowed_at:
            self.limit, self._slowed_at = max(1.0, self.limit / 2), now

    def speed_up(self) -> None:
        """Raise the limit after an answer."""
        self.answered = True
        self.limit = min(float(self.max_active), self.limit + 1 / self.limit)

    def stop(self, reason: str) -> None:
        """Start no more requests; requests under way may end."""
        self.stopped = self.stopped or reason
        self._end.set()
        self._freed.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep, or return early if the run is stopped."""
        try:
            async with asyncio.timeout(min(seconds, LONGEST_PAUSE_S)):
                await self._end.wait()
        except TimeoutError:
            return
