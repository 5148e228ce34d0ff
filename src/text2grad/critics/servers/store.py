"""Answers that were paid for, in an SQLite file: each is there before anything uses it, and is never asked for again.

An answer's key is a hash of the model, the messages, the parameters and the number of the sample, so whoever asks the
same again finds it, whichever recipe or run it was. No key of a server, and no address, is in the file.

`put` returns when the answer is committed. The file is a write-ahead log with synchronous=FULL: neither a killed
process nor a power cut loses what `put` returned for (as far as the disk keeps its word). What they can lose is what
was still on its way: requests whose answers had not arrived. Many answers that come together share one commit.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from text2grad.errors import DataError

VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    prompt_tokens INTEGER, completion_tokens INTEGER, received REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered.

    Attributes:
        text: its words; empty where it gave none.
        finish: why it ended: "stop", "length", "refused", "too_long" (beyond what is read), or the server's own word.
        prompt_tokens: as the server counts them; None where it does not.
        completion_tokens: likewise.
    """

    text: str
    finish: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


Asked = tuple[Mapping[str, str], ...] | str
"""A conversation, or a text to go on with."""


@dataclass(frozen=True)
class Question:
    """What a model is asked.

    Attributes:
        model: its name on the server.
        messages: the conversation, or the text that it is to go on with.
        parameters: whatever else the answer depends on.
        sample: which of several answers to the same; they count from 0.
    """

    model: str
    messages: Asked
    parameters: Mapping[str, Any]
    sample: int = 0

    @cached_property
    def key(self) -> str:
        """The hash by which its answer is found."""
        asked = self.messages if isinstance(self.messages, str) else [dict(one) for one in self.messages]
        return hash_of(self.model, asked, dict(self.parameters), self.sample)


class Store:
    """The file. Use it in a `with` statement; any number of processes may share it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it.

        Raises:
            DataError: if it cannot be opened, or is no store.
        """
        self.path = path
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="text2grad-store")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer, self._reader = _connect(path), _connect(path)
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot open the answers in {path}: {error}. Choose another directory") from error

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file, once what is being written is written."""
        self._thread.shutdown()
        self._reader.close()
        self._writer.close()

    def get(self, question: Question) -> Answer | None:
        """Return the answer to a question, or None where it was never answered."""
        row = self._reader.execute(
            "SELECT text, finish, prompt_tokens, completion_tokens FROM answers WHERE key = ?", (question.key,)
        ).fetchone()
        return None if row is None else Answer(*row)

    async def put(self, question: Question, answer: Answer) -> None:
        """Return when an answer is on disk.

        Raises:
            DataError: if it cannot be written.
        """
        row = (
            *(question.key, question.model, question.sample, answer.text, answer.finish),
            *(answer.prompt_tokens, answer.completion_tokens, time.time()),
        )
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        """Commit what waits, together, until nothing does."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            rows, problem = [row for row, _ in batch], None
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, rows)
            except sqlite3.Error as error:
                problem = DataError(f"cannot write answers to {self.path}: {error}. Make room, then run it again")
            for done in (done for _, done in batch if not done.cancelled()):
                if problem is None:
                    done.set_result(None)
                else:
                    done.set_exception(problem)

    def _commit(self, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._writer:  # the first answer to a question stays
            self._writer.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def tokens(self) -> tuple[int, int]:
        """Return how many tokens of prompts and of answers were paid for in all."""
        row = self._reader.execute("SELECT total(prompt_tokens), total(completion_tokens) FROM answers").fetchone()
        return int(row[0]), int(row[1])

    def outcome(self, key: str) -> Any:
        """Return what `keep_outcome` was given under a key, or None."""
        row = self._reader.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def keep_outcome(self, outcomes: Mapping[str, Any]) -> None:
        """Keep what tests came to: their output may differ the next time, and would make another question."""
        rows = [(key, json.dumps(outcome)) for key, outcome in outcomes.items()]
        with self._writer:
            self._writer.executemany("INSERT OR IGNORE INTO outcomes VALUES (?, ?)", rows)


def hash_of(*parts: Any) -> str:
    """Return a hash of JSON data, the order of keys aside."""
    return sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file; the connection may move to another thread, one at a time."""
    connection = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise DataError(f"{path} holds answers of form {version}; this text2grad reads form {VERSION}")
        if version == 0:
            connection.executescript(f"{_SCHEMA}PRAGMA user_version = {VERSION};")
    except BaseException:
        connection.close()
        raise
    return connection
