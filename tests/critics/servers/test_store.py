"""The store of answers: what is put is found again, by whoever asks the very same, and survives what it must."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from text2grad.critics.servers import store as store_module
from text2grad.critics.servers.store import Answer, Request, Store, hash_of
from text2grad.errors import DataError


def question(text: str = "Good?", *, model: str = "m", sample: int = 0, **parameters: Any) -> Request:
    return Request(model, ({"role": "user", "content": text},), parameters, sample)


def put(store: Store, *pairs: tuple[Request, Answer]) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(store.put(asked, answer) for asked, answer in pairs))

    asyncio.run(all_at_once())


def test_what_is_put_is_found_by_another_connection_at_once(tmp_path: Path) -> None:
    answer = Answer("Yes: ü \0 \U0001f600", "stop", 7, None)
    with Store(tmp_path / "a.sqlite") as store, Store(tmp_path / "a.sqlite") as other:
        put(store, (question(), answer))
        assert other.get(question()) == answer
        assert other.get(question("Bad?")) is None


def test_an_answer_is_found_by_model_messages_parameters_and_sample_alone() -> None:
    base = question(temperature=0.3, max_tokens=5)
    assert base.key == question(max_tokens=5, temperature=0.3).key
    others = [
        question("Good? ", temperature=0.3, max_tokens=5),
        question(model="n", temperature=0.3, max_tokens=5),
        question(temperature=0.4, max_tokens=5),
        question(temperature=0.3),
        question(temperature=0.3, max_tokens=5, sample=1),
        Request("m", ({"role": "system", "content": "Good?"},), base.parameters),
    ]
    assert len({one.key for one in (base, *others)}) == 7


def test_a_hash_knows_where_parts_end_and_not_the_order_of_keys() -> None:
    assert hash_of({"a": 1, "b": [2]}) == hash_of({"b": [2], "a": 1})
    assert (
        len({hash_of("ab", "c"), hash_of("a", "bc"), hash_of(["ab", "c"]), hash_of("abc"), hash_of(1), hash_of("1")})
        == 6
    )


def test_many_answers_are_committed_together_and_the_first_stays(tmp_path: Path) -> None:
    pairs = [(question(str(row)), Answer(f"answer {row}", "stop", 10, 2)) for row in range(300)]
    with Store(tmp_path / "a.sqlite") as store:
        put(store, *pairs)
        put(store, (question("7"), Answer("another", "stop", 99, 99)))
        assert [store.get(asked) for asked, _ in pairs] == [answer for _, answer in pairs]
        assert store.tokens() == (3_000, 600)


def test_put_returns_only_when_the_answer_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"

    async def put_while_locked(store: Store) -> bool:
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")  # nobody else can write now
        task = asyncio.create_task(store.put(question(), Answer("x", "stop")))
        await asyncio.sleep(0.05)
        waited = not task.done()
        lock.execute("ROLLBACK")
        lock.close()
        await task
        return waited

    with Store(path) as store:
        assert asyncio.run(put_while_locked(store))
        assert store.get(question()) == Answer("x", "stop")


def test_an_answer_that_cannot_be_written_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        store._writer.execute("DROP TABLE answers")
        with pytest.raises(DataError, match=r"cannot write answers to .*a\.sqlite: no such table"):
            put(store, (question(), Answer("x", "stop")), (question("2"), Answer("y", "stop")))


@pytest.mark.parametrize("works", [True, False])
def test_who_waits_no_more_keeps_nobody_else_waiting(tmp_path: Path, works: bool) -> None:
    async def scenario(store: Store) -> None:
        asked = [question("given up"), question("waited for")]
        first, second = (asyncio.create_task(store.put(one, Answer("x", "stop"))) for one in asked)
        await asyncio.sleep(0)  # now both wait for one commit
        first.cancel()
        async with asyncio.timeout(30):
            await second

    with Store(tmp_path / "a.sqlite") as store:
        if works:
            asyncio.run(scenario(store))
            assert store.get(question("waited for")) == Answer("x", "stop")
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


class Locked:
    """A connection to a file that another process locks for a number of statements."""

    def __init__(self, times: int, code: int = sqlite3.SQLITE_BUSY) -> None:
        self.left, self.code = times, code

    def execute(self, statement: str) -> None:
        assert statement == "PRAGMA journal_mode = WAL"
        if self.left:
            self.left -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error


def test_a_file_that_another_process_makes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: Any = Locked(3, sqlite3.SQLITE_BUSY_RECOVERY)
    store_module._write_ahead(locked)
    assert locked.left == 0
    with pytest.raises(sqlite3.OperationalError):
        store_module._write_ahead(Locked(1, sqlite3.SQLITE_READONLY))  # type: ignore[arg-type]
    monkeypatch.setattr(store_module, "LOCKED_S", 0.0)
    with pytest.raises(sqlite3.OperationalError):
        store_module._write_ahead(Locked(10**9))  # type: ignore[arg-type]
