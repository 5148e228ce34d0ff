"""The store of answers: what is put is found again, by whoever asks the very same, and survives what it must."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from text2grad.config.server import Endpoint
from text2grad.critics.servers.cached_client import Request, ResponseFormat
from text2grad.critics.servers.store import Answer, Store, hash_of
from text2grad.errors import DataError


def put(store: Store, *pairs: tuple[str, Answer]) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(store.put(key, answer, model="m") for key, answer in pairs))

    asyncio.run(all_at_once())


def test_what_is_put_is_found_by_another_connection_at_once(tmp_path: Path) -> None:
    answer = Answer("Yes: ü \0 \U0001f600", "stop", 7, None)
    with Store(tmp_path / "a.sqlite") as store, Store(tmp_path / "a.sqlite") as other:
        put(store, ("a", answer))
        assert other.get("a") == answer
        assert other.get("b") is None


def test_an_answer_is_found_by_model_messages_parameters_and_sample_alone() -> None:
    endpoint, chat = Endpoint(model="m", temperature=0.3, max_tokens=5), ({"role": "user", "content": "Good?"},)
    base = Request(chat)
    assert base.key(endpoint) == base.key(
        endpoint.model_copy(update={"base_url": "http://other/v1", "concurrency": 1, "timeout_s": 3.0})
    )
    others = [
        Request(({"role": "user", "content": "Good? "},)),
        Request(({"role": "system", "content": "Good?"},)),
        Request("Good?"),
        Request(chat, sample=1),
        Request(chat, ResponseFormat("schema", {})),
        Request(chat, more={"seed": 1}),
    ]
    keys = [request.key(endpoint) for request in (base, *others)]
    keys += [
        base.key(endpoint.model_copy(update=other))
        for other in ({"model": "n"}, {"temperature": 0.4}, {"max_tokens": 6})
    ]
    assert len(set(keys)) == 10


def test_a_hash_knows_where_parts_end_and_not_the_order_of_keys() -> None:
    assert hash_of({"a": 1, "b": [2]}) == hash_of({"b": [2], "a": 1})
    assert (
        len({hash_of("ab", "c"), hash_of("a", "bc"), hash_of(["ab", "c"]), hash_of("abc"), hash_of(1), hash_of("1")})
        == 6
    )


def test_many_answers_are_committed_and_the_first_stays(tmp_path: Path) -> None:
    pairs = [(str(row), Answer(f"answer {row}", "stop", 10, 2)) for row in range(300)]
    with Store(tmp_path / "a.sqlite") as store:
        put(store, *pairs)
        put(store, ("7", Answer("another", "stop", 99, 99)))
        assert [store.get(asked) for asked, _ in pairs] == [answer for _, answer in pairs]
        assert store.tokens() == (3_000, 600)


def test_put_returns_only_when_the_answer_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"

    async def put_while_locked(store: Store) -> bool:
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")  # nobody else can write now
        task = asyncio.create_task(store.put("a", Answer("x", "stop"), model="m"))
        await asyncio.sleep(0.05)
        waited = not task.done()
        lock.execute("ROLLBACK")
        lock.close()
        await task
        return waited

    with Store(path) as store:
        assert asyncio.run(put_while_locked(store))
        assert store.get("a") == Answer("x", "stop")


def test_an_answer_that_cannot_be_written_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        store._writer.execute("DROP TABLE answers")
        with pytest.raises(DataError, match=r"cannot write answers to .*a\.sqlite: no such table"):
            put(store, ("a", Answer("x", "stop")), ("2", Answer("y", "stop")))


@pytest.mark.parametrize("works", [True, False])
def test_who_waits_no_more_keeps_nobody_else_waiting(tmp_path: Path, works: bool) -> None:
    async def scenario(store: Store) -> None:
        keys = ["given up", "waited for"]
        first, second = (asyncio.create_task(store.put(key, Answer("x", "stop"), model="m")) for key in keys)
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(30):
            await second

    with Store(tmp_path / "a.sqlite") as store:
        if works:
            asyncio.run(scenario(store))
            assert store.get("waited for") == store.get("given up") == Answer("x", "stop")
        else:
            store._writer.execute("DROP TABLE answers")
            with pytest.raises(DataError, match="cannot write answers"):
                asyncio.run(scenario(store))


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("This is no database, and it is long enough to be seen as none." * 20)
    with pytest.raises(DataError, match=r"cannot open the answers in .*: file is not a database"):
        Store(tmp_path / "text")
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 2")
    newer.close()
    with pytest.raises(DataError, match="contains answers of format 2, but this version of text2grad reads format 1"):
        Store(tmp_path / "newer")


def test_answers_survive_a_power_cut_as_far_as_sqlite_promises_it(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_outcomes_of_tests_are_kept_and_the_first_stays(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        store.keep_outcomes({"k": "All tests passed."})
        store.keep_outcomes({"k": "They did not."})
        assert (store.outcome("k"), store.outcome("other")) == ("All tests passed.", None)


def test_processes_that_make_a_file_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from text2grad.critics.servers.store import Store\n"
    script += "for number in range(20):\n    with Store(Path(sys.argv[1], f'{number}.sqlite')) as store:\n"
    script += "        store.keep_outcomes({sys.argv[2]: number})"
    names = ["a", "b", "c", "d"]
    processes = [subprocess.Popen([sys.executable, "-c", script, tmp_path, name]) for name in names]
    assert [process.wait() for process in processes] == [0] * 4
    for number in range(20):
        with Store(tmp_path / f"{number}.sqlite") as store:
            assert [store.outcome(name) for name in names] == [number] * 4
