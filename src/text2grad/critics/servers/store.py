"""The answers of a server in an SQLite file: an answer is on disk before it is used, and is never requested again.

The key of an answer is a hash of everything that it depends on (`Request.key`), so an equal request finds it, from any
recipe or run. The file contains neither keys nor addresses of servers.

`put` returns when the answer is committed. The file is a write-ahead log with synchronous=FULL: neither a killed
process nor a power cut loses an answer for which `put` returned (if the disk flushes as it reports). Requests whose
answers had not arrived are lost.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.errors import DataError
from text2grad.files import exclusive

VERSION = 1
LOCKED_S = 60.0  # seconds to wait for another process that has locked the file
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    prompt_tokens INTEGER, completion_tokens INTEGER, received REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion, which may be empty.

    `finish` tells why it ended: "stop", "length", "refused", or the server's own word; for an answer without text, what
    the server put beside it may follow: "stop, 45 characters of reasoning_content".
    """

    text: str
    finish: str
    prompt_tokens: int | None = None  # as counted by the server; where it does not count, the most possible, negative
    completion_tokens: int | None = None


class Store(AbstractContextManager["Store"]):
    """The file of answers. Use it in a `with` statement; any number of processes may share it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it.

        Raises:
            DataError: if it cannot be opened, or is not a store.
        """
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="text2grad-store")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with exclusive(path.parent):  # one process creates the file
                self._writer, self._reader = _connect(path), _connect(path)
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot open the answers in {path}: {error}. Choose another directory") from error

    def __exit__(self, *_: object) -> None:
        """Close the file after the answers that are being written."""
        self._thread.shutdown()
        self._reader.close()
        self._writer.close()

    def get(self, key: str) -> Answer | None:
        """Return the stored answer of a key, or None."""
        row = self._reader.execute(
            "SELECT text, finish, prompt_tokens, completion_tokens FROM answers WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else Answer(*row)

    async def put(self, key: str, answer: Answer, *, model: str, sample: int = 0) -> None:
        """Store an answer, unless there is one of this key; return when it is on disk.

        Raises:
            DataError: if it cannot be written.
        """
        counts = (answer.prompt_tokens, answer.completion_tokens)
        row = (key, model, sample, answer.text, answer.finish, *counts, time.time())
        statement = "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, statement, [row])
        try:
            await asyncio.shield(writing)  # it is written even if nobody waits for it any more
        except sqlite3.Error as error:
            raise DataError(
                f"cannot write answers to {self.path}: {error}. Free some space, then run the command again"
            ) from error

    def tokens(self, model: str | None = None) -> tuple[int, int]:
        """Return the prompt tokens and completion tokens of all stored answers (of one model), or the most they had."""
        prompt_tokens, completion_tokens = self._reader.execute(
            "SELECT total(abs(prompt_tokens)), total(abs(completion_tokens)) FROM answers "
            "WHERE ?1 IS NULL OR model = ?1",
            (model,),
        ).fetchone()
        return int(prompt_tokens), int(completion_tokens)

    def outcome(self, key: str) -> Any:
        """Return the outcome that `keep_outcomes` stored under a key, or None."""
        row = self._reader.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def keep_outcomes(self, outcomes: Mapping[str, Any]) -> None:
        """Store outcomes of unit tests: another run may print something else, which would make another request."""
        rows = [(key, json.dumps(outcome)) for key, outcome in outcomes.items()]
        self._commit("INSERT OR IGNORE INTO outcomes VALUES (?, ?)", rows)

    def _commit(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._writer:
            self._writer.executemany(statement, rows)


def hash_of(*parts: Any) -> str:
    """Return a hash of JSON data that does not depend on the order of keys."""
    return sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file; the connection may be used by one thread at a time."""
    connection = sqlite3.connect(path, timeout=LOCKED_S, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise DataError(
                f"{path} contains answers of format {version}, but this version of text2grad reads format {VERSION}. "
                "Update text2grad, or choose another directory"
            )
        if version == 0:
            connection.executescript(f"{_SCHEMA}PRAGMA user_version = {VERSION};")
    except BaseException:
        connection.close()
        raise
    return connection
