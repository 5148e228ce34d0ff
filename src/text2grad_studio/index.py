"""An SQLite index of the responses of one source: filters, order, search and curves without reading the files again.

The index holds one short row per response, its text for search, and the place of its record (file, byte offset, size).
The numbers per token stay in the run's files and are read for the response on the screen. `update` reads only bytes
that were added since, so it follows a run that is being written; a line without its line break is not finished and
waits, unless it is the last of a file that a person named and holds a whole record. A file that was cut back (a resumed
run repeats steps) or replaced, or whose last line went on, makes the index anew.

Filters and orders run on `columns`, the numbers of all rows in memory; texts are searched in SQLite. The result, a
sequence of row numbers, is kept for the next pages.
"""

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from text2grad.errors import ConfigError, DataError
from text2grad.feedback import item_of
from text2grad.types import Conversation
from text2grad_studio.columns import KINDS, ORDERS, Columns, Filter, Mask, Result, bits_of
from text2grad_studio.sources import PER_TOKEN, Source, normalized

FORM = 3  # version of the tables; an index of another version is made anew
BATCH = 500  # responses per transaction: a reader never waits long
KEPT_SEARCHES = 8
REGEX_SECONDS = 2.0
TRIGRAM = 3
ADVANTAGE = "advantage_of_response"
EACH = "SELECT value FROM json_each(?)"  # the values of a JSON list

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE files (number INTEGER PRIMARY KEY, path TEXT, inode INTEGER, done INTEGER, tail TEXT);
CREATE TABLE prompts (id INTEGER PRIMARY KEY, digest TEXT UNIQUE, text TEXT);
CREATE TABLE rollouts (
  id INTEGER PRIMARY KEY, file INTEGER, at INTEGER, size INTEGER, step INTEGER, row INTEGER, prompt INTEGER,
  tokens INTEGER, reward REAL, kl REAL, peak REAL, positive INTEGER, negative INTEGER, unmatched INTEGER, status TEXT,
  truncated INTEGER, turns INTEGER, item TEXT
);
CREATE INDEX rollouts_prompt ON rollouts (prompt);
CREATE INDEX rollouts_place ON rollouts (step, row);
CREATE INDEX rollouts_item ON rollouts (item);
CREATE TABLE texts (id INTEGER PRIMARY KEY, response TEXT, feedback TEXT);
CREATE VIRTUAL TABLE search USING fts5(response, feedback, content='', tokenize='trigram');
CREATE VIRTUAL TABLE prompt_search USING fts5(text, content='', tokenize='trigram');
"""

ROW = (
    *("id", "file", "at", "size", "step", "row", "prompt", "tokens", "reward", "kl", "peak"),
    *("positive", "negative", "unmatched", "status", "truncated", "item"),
)
"""Columns of the table of responses."""


class RunIndex:
    """The index of one source."""

    def __init__(self, source: Source, path: Path) -> None:
        """Open the index of a source, or begin an empty one.

        Args:
            source: a run or a file.
            path: the SQLite file.
        """
        self.source, self.path = source, path
        self.problem, self.bad_lines = "", 0  # the first line that cannot be read, and the number of such lines
        self.trouble = ""  # why the files cannot be read
        self.generation = time.time_ns() // 1000  # a page that goes on after a restart of the server sees another
        self._local, self._writing = threading.local(), threading.Lock()
        self._columns, self._reading = Columns(), threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing:
            self._open()

    def _open(self) -> None:
        try:
            form = self._rows("SELECT value FROM meta WHERE key = 'form'")
            known = bool(form) and form[0][0] == f"{FORM} {self.source.path}"
        except sqlite3.OperationalError:  # an empty file
            known = False
        except sqlite3.DatabaseError:  # no index
            self._connection().close()
            self._local, known = threading.local(), False
            self.path.unlink()
        if not known:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Empty the index; readers find the empty tables at their next query."""
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")  # no reader finds a table missing
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        shadows = ("search_", "prompt_search_", "sqlite_")
        for name in names:
            if not name.startswith(shadows):
                connection.execute(f'DROP TABLE IF EXISTS "{name}"')
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('form', ?)", (f"{FORM} {self.source.path}",))
        with self._reading:
            connection.commit()
            self._columns = Columns()
        self.bad_lines, self.problem = 0, ""
        self.generation += 1

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = sqlite3.connect(self.path, timeout=30)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # a lost index is made again
            connection.execute("PRAGMA cache_size = -8000")
            connection.create_function("contains", 2, _contains, deterministic=True)
        return connection

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._connection().execute(sql, values).fetchall()

    def update(self, *, seconds: float = float("inf")) -> bool:
        """Read records that were added since; return whether all of them are read.

        Args:
            seconds: stop after about this time.
        """
        with self._writing:
            try:
                whole = self.source.convert()
            finally:  # files that can be read are
                end = time.monotonic() + seconds
                if self._changed_before_the_end():
                    self._begin_anew()
                done = all(self._read(number, path, end) for number, path in enumerate(self.source.files()))
            return done and whole

    def _changed_before_the_end(self) -> bool:
        """Return whether bytes that are indexed have been removed or changed."""
        files = self.source.files()
        for number, name, inode, done, tail in self._rows("SELECT * FROM files"):
            if number >= len(files) or str(files[number]) != name:
                return True
            state = files[number].stat()
            if state.st_ino != inode or state.st_size < done:
                return True
            last = self._rows("SELECT at, size FROM rollouts WHERE file = ? ORDER BY id DESC LIMIT 1", (number,))
            if last and _digest(_bytes(files[number], *last[0])) != tail:
                return True
            if done and _bytes(files[number], done - 1, 1) != b"\n" and _bytes(files[number], done, 1).strip():
                return True  # the last line had no line break, and went on
        return False

    def _read(self, number: int, path: Path, end: float) -> bool:
        known = self._rows("SELECT done FROM files WHERE number = ?", (number,))
        done = int(known[0][0]) if known else 0
        try:
            state = path.stat()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        if state.st_size <= done:
            return True
        with path.open("rb") as file:
            file.seek(done)
            while True:
                whole = [line for line in _lines(file, BATCH, to_the_end=self.source.kind == "file")]
                if not whole:
                    return True
                done = self._insert(number, path, state.st_ino, done, whole)
                if time.monotonic() > end:
                    return False

    def _insert(self, number: int, path: Path, inode: int, at: int, lines: Sequence[bytes]) -> int:
        """Index whole lines that begin at a byte; return where the next begins."""
        with self._connection() as connection:  # all of them, or none
            columns, tail = set(self.columns), ""
            for line in lines:
                if line.strip():
                    try:
                        record = _record(line)
                        figures = _figures(record)
                    except (DataError, ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
                        self.bad_lines += 1
                        self.problem = self.problem or f"{path.name}, byte {at}: {error}"
                    else:
                        self._insert_record(number, at, len(line), record, figures)
                        columns |= {name for name in PER_TOKEN if name in record}
                        tail = _digest(line)
                at += len(line)
            kept = self._rows("SELECT tail FROM files WHERE number = ?", (number,))
            tail = tail or (kept[0][0] if kept else "")
            connection.execute("REPLACE INTO files VALUES (?, ?, ?, ?, ?)", (number, str(path), inode, at, tail))
            connection.execute("REPLACE INTO meta VALUES ('columns', ?)", (" ".join(sorted(columns)),))
        self.generation += 1
        return at

    def _insert_record(
        self, file: int, at: int, size: int, record: Mapping[str, Any], figures: Mapping[str, Any]
    ) -> None:
        connection, step = self._connection(), figures["step"]
        [[row]] = self._rows("SELECT coalesce(max(row) + 1, 0) FROM rollouts WHERE step IS ?", (step,))
        said = record["response"]
        parts = [turn.text for turn in said.turns if turn.sampled] if isinstance(said, Conversation) else [said]
        prompt, response = _stored(record["prompt"]), _stored("\n".join(parts))
        feedback = _stored(str(record.get("critique", {}).get("feedback", "")))
        values = {
            **{"file": file, "at": at, "size": size, "row": row, "prompt": self._prompt(prompt)},
            "item": item_of(record["prompt"], record["response"]),
            **figures,
        }
        response, feedback = _searched(response), _searched(feedback)
        number = connection.execute(
            f"INSERT INTO rollouts ({', '.join(values)}) VALUES ({_marks(values)})", tuple(values.values())
        ).lastrowid
        connection.execute("INSERT INTO texts VALUES (?, ?, ?)", (number, response, feedback))
        connection.execute(
            "INSERT INTO search (rowid, response, feedback) VALUES (?, ?, ?)", (number, response, feedback)
        )

    def _prompt(self, text: str) -> int:
        digest = sha256(text.encode()).hexdigest()[:32]
        rows = self._rows("SELECT id FROM prompts WHERE digest = ?", (digest,))
        if rows:
            return int(rows[0][0])
        connection, text = self._connection(), _searched(text)
        number = connection.execute("INSERT INTO prompts VALUES (NULL, ?, ?)", (digest, text)).lastrowid
        connection.execute("INSERT INTO prompt_search (rowid, text) VALUES (?, ?)", (number, text))
        assert number is not None
        return number

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers per token that records have."""
        rows = self._rows("SELECT value FROM meta WHERE key = 'columns'")
        return tuple(rows[0][0].split()) if rows else ()

    def columns_now(self) -> Columns:
        """Return the numbers of all responses that are indexed now."""
        with self._reading:
            rows = self._rows(
                f"SELECT {', '.join(KINDS)} FROM rollouts WHERE id > ? ORDER BY id", (self._columns.count,)
            )
            self._columns = self._columns.extended(rows)
            return self._columns

    def state(self) -> dict[str, Any]:
        """Return counts for the page: responses, steps, bytes indexed and all bytes, numbers recorded, bad lines."""
        columns = self.columns_now()
        steps = columns["step"][~np.isnan(columns["step"])]
        [[done]] = self._rows("SELECT coalesce(sum(done), 0) FROM files")
        return {
            "rollouts": columns.count,
            "steps": [int(steps.min()), int(steps.max())] if len(steps) else [None, None],
            "bytes": [done, sum(_size(path) for path in self.source.files())],
            "columns": list(self.columns),
            "statuses": [name for name in columns.statuses if name],
            "bad_lines": self.bad_lines,
            "problem": self.problem,
            "trouble": self.trouble,
            "generation": self.generation,
        }

    def find(self, wanted: Filter) -> Result:
        """Return the responses that meet the conditions.

        Raises:
            ConfigError: if the regular expression is invalid, or the order is unknown.
        """
        columns, key = self.columns_now(), astuple(wanted)
        kept = columns.results.get(key)  # one look: another thread may drop it before a second one
        if kept is not None:
            return kept
        if wanted.order not in ORDERS:
            raise ConfigError(f"there is no order {wanted.order!r}; choose one of {', '.join(ORDERS)}")
        mask = columns.mask(wanted)
        if wanted.text:
            mask &= self._containing(wanted.text, columns)
        if wanted.items is not None:
            mask &= columns.mask_of(self._numbers_of(wanted.items))
        if wanted.without:
            mask &= ~columns.mask_of(self._numbers_of(wanted.without))
        result = Result(columns.ordered(mask, wanted.order))
        if wanted.regex:
            result = self._matching(result.page(), wanted.regex)
        columns.keep(key, result)
        return result

    def _containing(self, text: str, columns: Columns) -> Mask:
        """Return the responses in which a text occurs, in prompt, response or critique; kept for the next filters."""
        mask = columns.searches.get(text)
        if mask is None:
            in_texts, in_prompts = _text_queries(text)
            numbers = [row[0] for row in self._connection().execute(*in_texts)]
            prompts = [row[0] for row in self._connection().execute(*in_prompts)]
            mask = columns.mask_of(numbers) | np.isin(columns["prompt"], prompts)
            columns.searches[text] = mask
            while len(columns.searches) > KEPT_SEARCHES:
                columns.searches.popitem(last=False)
        return mask

    def _numbers_of(self, items: Sequence[str]) -> list[int]:
        digests = json.dumps(items)
        return [row[0] for row in self._rows(f"SELECT id FROM rollouts WHERE item IN ({EACH})", (digests,))]

    def _matching(self, ids: Sequence[int], pattern: str) -> Result:
        """Return the responses in which a regular expression matches; the time it takes is bounded."""
        import regex

        try:
            compiled = regex.compile(pattern)
        except regex.error as error:
            raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error
        end, matches = time.monotonic() + REGEX_SECONDS, list[int]()
        for done, (number, text) in enumerate(self._texts(ids)):
            left = end - time.monotonic()
            try:
                if left <= 0:
                    return Result(np.array(matches, np.int32), unread=len(ids) - done)
                if compiled.search(text, timeout=left, concurrent=True):
                    matches.append(number)
            except TimeoutError:
                return Result(np.array(matches, np.int32), unread=len(ids) - done)
        return Result(np.array(matches, np.int32))

    def _texts(self, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
        for start in range(0, len(ids), BATCH):
            chunk = ids[start : start + BATCH]
            texts = dict(self._rows(f"SELECT id, response FROM texts WHERE id IN ({_marks(chunk)})", tuple(chunk)))
            yield from ((number, texts[number]) for number in chunk)

    def rows(self, ids: Iterable[int], *, preview: int = 160) -> list[dict[str, Any]]:
        """Return the short rows of some responses, in this order, with the beginnings of their texts."""
        wanted = tuple(ids)
        names = [name for name in ROW if name not in ("file", "at", "size")]
        rows = self._rows(
            f"SELECT {', '.join('r.' + name for name in names)}, substr(t.response, 1, ?), substr(p.text, 1, ?) "
            "FROM rollouts r JOIN texts t ON t.id = r.id JOIN prompts p ON p.id = r.prompt "
            f"WHERE r.id IN ({_marks(wanted)})",
            (preview, preview, *wanted),
        )
        by_id = {row[0]: dict(zip([*names, "response", "prompt_text"], row, strict=True)) for row in rows}
        return [by_id[number] for number in wanted if number in by_id]

    def item(self, number: int) -> str:
        """Return the digest of the response with a number; "" if the number is unknown."""
        rows = self._rows("SELECT item FROM rollouts WHERE id = ?", (number,))
        return str(rows[0][0]) if rows else ""

    def record(self, number: int, item: str = "") -> dict[str, Any]:
        """Return the whole record of a response, with its number, place, prompt number and digest.

        Args:
            number: of the response.
            item: its digest, by which a page knows it; "" takes any.

        Raises:
            DataError: if the number is unknown, belongs to another response by now, or the file changed.
        """
        rows = self._rows("SELECT file, at, size, step, row, prompt, item FROM rollouts WHERE id = ?", (number,))
        if not rows:
            raise DataError(
                f"{self.source.name} has no response {number}; the run may have begun anew: reload the page"
            )
        file, at, size, step, row, prompt, digest = rows[0]
        if item not in ("", digest):
            raise DataError(
                f"{self.source.name} was made anew: response {number} is another one now. Choose it in the list"
            )
        files = self.source.files()
        if file >= len(files):
            raise DataError(f"a file of {self.source.path} is gone; if the run is made anew, try once more")
        try:
            record = _record(_bytes(files[file], at, size), parse_float=_finite)
            if item_of(record["prompt"], record["response"]) != digest:
                raise ValueError("another response")
        except ValueError as error:
            raise DataError(
                f"{files[file]}, byte {at}: {error}; the file changed, and is read again: try once more"
            ) from error
        except OSError as error:
            raise DataError(f"cannot read {files[file]}: {error.strerror}") from error
        own = {"id": number, "place": [step, row], "prompt_number": prompt, "item": digest}
        return {**record, **own, "source": self.source.name}

    def at_place(self, step: int | None, row: int) -> int | None:
        """Return the number of the response at a place, which links name: its step and its row in the step."""
        rows = self._rows("SELECT id FROM rollouts WHERE step IS ? AND row = ?", (step, row))
        return int(rows[0][0]) if rows else None

    def prompt_number(self, text: str) -> int | None:
        """Return the number of a prompt with this very text, to find it in another run."""
        digest = sha256(_stored(text).encode()).hexdigest()[:32]
        rows = self._rows("SELECT id FROM prompts WHERE digest = ?", (digest,))
        return int(rows[0][0]) if rows else None


def _finite(text: str) -> float | None:
    """Return a number, or null for one beyond any float, as 1e999."""
    number = float(text)
    return number if math.isfinite(number) else None


def _record(line: bytes, parse_float: Callable[[str], float | None] | None = None) -> dict[str, Any]:
    """Return the record of a line; NaN and Infinity, which are no JSON, are null.

    Args:
        line: of a file.
        parse_float: reads a number with a fraction or an exponent; None for Python's own, which is faster.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError, RecursionError: if the line holds none.
    """
    return normalized(json.loads(line, parse_constant=lambda name: None, parse_float=parse_float))


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a record by the names of their columns.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError: if a part of the record has another shape, or a number is
            too large.
    """
    step, critique = record.get("step"), record.get("critique", {})
    labels = [span.get("label") for span in critique.get("spans", ())]
    advantages = _known(record.get("advantage", [record.get(ADVANTAGE)]))
    figures = {
        "step": step if isinstance(step, int) and abs(step) < 2**53 else None,
        "tokens": len(record.get("offsets", ())),
        "reward": sum(_known(record["reward"])) if "reward" in record else record.get("reward_of_response"),
        "kl": sum(_known(record["kl"])) if "kl" in record else None,
        "peak": max(map(abs, advantages), default=None),
        "positive": labels.count("positive"),
        "negative": labels.count("negative"),
        "unmatched": len(critique.get("unmatched", ())),
        "status": _stored(str(critique.get("status", "ok"))) if critique else "",
        "truncated": bool(record.get("truncated")),
        "turns": bits_of(span.get("turn") for span in critique.get("spans", ())),
    }
    infinite = {name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)}
    return figures | dict.fromkeys(infinite)


def _known(values: Iterable[Any]) -> list[float]:
    """Return the numbers that were recorded; SQLite holds no large integers."""
    return [1.0 * value for value in values if value is not None]


def _stored(text: str) -> str:
    """Return text that SQLite can hold: halves of surrogate pairs become their escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _searched(text: str) -> str:
    """Return a text for lists and searches: for SQLite's functions a NUL ends a text, so it becomes its picture."""
    return text.replace("\0", "␀")


def _contains(text: str, part: str) -> bool:
    return part.lower() in text.lower()


def _text_queries(text: str) -> tuple[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]]]:
    """Return the queries for responses and prompts that contain a text, by trigrams if it has three characters."""
    if len(text) < TRIGRAM and not text.isascii():  # LIKE knows the case of ASCII letters alone
        return (
            ("SELECT id FROM texts WHERE contains(response, ?) OR contains(feedback, ?)", (text, text)),
            ("SELECT id FROM prompts WHERE contains(text, ?)", (text,)),
        )
    if len(text) < TRIGRAM:
        like = f"%{text.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
        return (
            ("SELECT id FROM texts WHERE response LIKE ? ESCAPE '!' OR feedback LIKE ? ESCAPE '!'", (like, like)),
            ("SELECT id FROM prompts WHERE text LIKE ? ESCAPE '!'", (like,)),
        )
    phrase = '"' + text.replace('"', '""') + '"'
    return (
        ("SELECT rowid FROM search WHERE search MATCH ?", (phrase,)),
        ("SELECT rowid FROM prompt_search WHERE prompt_search MATCH ?", (phrase,)),
    )


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)


def _lines(file: Any, most: int, *, to_the_end: bool) -> Iterator[bytes]:
    """Yield at most so many whole lines.

    A last line without line break is left in the file, unless `to_the_end` is set and the line is a JSON object, which
    nothing can continue.
    """
    for _ in range(most):
        line = file.readline()
        if not line.endswith(b"\n") and not (to_the_end and _is_object(line)):
            file.seek(-len(line), 1)
            return
        yield line


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _size(path: Path) -> int:
    """Return the size of a file; 0 if it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _bytes(path: Path, at: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(size)


def _digest(line: bytes) -> str:
    return sha256(line).hexdigest()[:16]
