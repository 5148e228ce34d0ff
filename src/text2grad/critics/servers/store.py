"""The answers of a server in an SQLite file: an answer is on disk before it is used, and is never requested again.

The key of an answer is a hash of the model, the messages, the parameters and the number of the sample, so an equal
request finds it, from any recipe or run. The file contains neither keys nor addresses of servers.

`put` returns when the answer is committed. The file is a write-ahead log with synchronous=FULL: neither a killed
process nor a power cut loses an answer for which `put` returned (if the disk flushes as it reports). Requests whose
answers had not arrived are lost. Answers that arrive together share one commit.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.errors import DataError

VERSION = 1
LOCKED_S = 60.0
"""Seconds to wait for another process that has locked the file."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, sample INTEGER NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    prompt_tokens INTEGER, completion_tokens INTEGER, received REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion.

    Attributes:
        text: its text; may be empty.
        finish: why it ended: "stop", "length", "refused", or the server's own word.
        prompt_tokens: as counted by the server; None if it does not count.
        completion_tokens: likewise.
    """

    text: str
    finish: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


Prompt = tuple[Mapping[str, str], ...] | str
"""Chat messages, or a text to continue."""


@dataclass(frozen=True)
class Request:
    """A request for a completion.

    Attributes:
        model: name of the model on the server.
        prompt: chat messages, or a text to continue.
        parameters: everything else that the answer depends on.
        sample: number of the answer among several answers to the same prompt, from 0.
    """

    model: str
    prompt: Prompt
    parameters: Mapping[str, Any]
    sample: int = 0

    @cached_property
    def key(self) -> str:
        """The hash under which its answer is stored."""
        prompt = self.prompt if isinstance(self.prompt, str) else [dict(message) for message in self.prompt]
        return hash_of(self.model, prompt, dict(self.parameters), self.sample)


class Store(AbstractContextManager["Store"]):
    """The file of answers. Use it in a `with` statement; any number of processes may share it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it.

        Raises:
            DataError: if it cannot be opened, or is not a store.
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

    def close(self) -> None:
        """Close the file after the answers that are being written."""
        self._thread.shutdown()
        self._reader.close()
        self._writer.close()

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def get(self, request: Request) -> Answer | None:
        """Return the stored answer to a request, or None."""
        row = self._reader.execute(
            "SELECT text, finish, prompt_tokens, completion_tokens FROM answers WHERE key = ?", (request.key,)
        ).fetchone()
        return None if row is None else Answer(*row)

    async def put(self, request: Request, answer: Answer) -> None:
        """Store an answer; return when it is on disk.

        Raises:
            DataError: if it cannot be written.
        """
        row = (
            *(request.key, request.model, request.sample, answer.text, answer.finish),
            *(answer.prompt_tokens, answer.completion_tokens, time.time()),
        )
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        """Commit all waiting answers together, until no answer waits."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            rows, problem = [row for row, _ in batch], None
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, rows)
            except sqlite3.Error as error:
                problem = DataError(
                    f"cannot write answers to {self.path}: {error}. Free some space, then run the command again"
                )
            for done in (done for _, done in batch if not done.cancelled()):
                if problem is None:
                    done.set_result(None)
                else:
                    done.set_exception(problem)

    def _commit(self, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._writer:  # the first answer to a request stays
            self._writer.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def tokens(self, model: str | None = None) -> tuple[int, int]:
        """Return the prompt tokens and completion tokens of all stored answers (of one model)."""
        prompt_tokens, completion_tokens = self._reader.execute(
            "SELECT total(prompt_tokens), total(completion_tokens) FROM answers WHERE ?1 IS NULL OR model = ?1",
            (model,),
        ).fetchone()
        return int(prompt_tokens), int(completion_tokens)

    def mean_answer(self, model: str) -> float | None:
        """Return the mean number of tokens of a model's stored answers; None if there is no answer with a count."""
        row = self._reader.execute("SELECT avg(completion_tokens) FROM answers WHERE model = ?", (model,)).fetchone()
        return None if row[0] is None else float(row[0])

    def outcome(self, key: str) -> Any:
        """Return the outcome that `keep_outcomes` stored under a key, or None."""
        row = self._reader.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def keep_outcomes(self, outcomes: Mapping[str, Any]) -> None:
        """Store outcomes of unit tests: another run may print something else, which would make another request."""
        rows = [(key, json.dumps(outcome)) for key, outcome in outcomes.items()]
        with self._writer:
            self._writer.executemany("INSERT OR IGNORE INTO outcomes VALUES (?, ?)", rows)


def hash_of(*parts: Any) -> str:
    """Return a hash of JSON data that does not depend on the order of keys."""
    return sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file; the connection may be used by one thread at a time."""
    connection = sqlite3.connect(path, timeout=LOCKED_S, check_same_thread=False)
    try:
        _write_ahead(connection)
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


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log; SQLite itself does not wait while another process does this."""
    give_up = time.monotonic() + LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(0.01)
