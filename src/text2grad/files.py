"""Atomic writes of files and directories, and strict JSON."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError, DataError, Text2GradError

_BOM = b"\xef\xbb\xbf"
_LOCKS: list[int] = []  # the open lock files of the directories that this process has locked


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: it is complete, or unchanged after an error."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Create a directory and write files by name, each atomically.

    Raises:
        DataError: if the directory or a file cannot be written.
    """
    for name, data in contents.items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / name, data)
        except OSError as error:
            raise DataError(f"cannot write {directory / name}: {error.strerror}") from error


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as JSON lines, atomically."""
    write_atomically(path, json_lines(records))


def append_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records as JSON lines to a file, which need not exist, and flush it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(b"\n" + to_json(record) for record in records))  # the newline ends a line that was cut off
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def readable(path: Path, way_out: str, kind: type[Text2GradError] = DataError) -> Iterator[None]:
    """Raise an error of ours where the block cannot read a file that we wrote, or misses a part of it.

    Args:
        path: the file.
        way_out: what to do then, a sentence without its full stop.
        kind: the class of the error.
    """
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"it holds no {error}" if isinstance(error, KeyError) else error
        raise kind(f"cannot read {path}: {reason}. {way_out}") from error


def appended_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of `append_records`, which need not exist; lines cut off by a crash are ignored."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:  # not JSON, or not UTF-8: a crash can leave NUL bytes
            continue


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return one line of JSON for each record."""
    return b"".join(to_json(record) + b"\n" for record in records)


def to_json(value: Any, *, indent: int | None = None) -> bytes:
    """Return strict JSON in ASCII; other characters, lone surrogates included, are escaped."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent).encode("ascii")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark.

    Raises:
        DataError: if it cannot be read or is not UTF-8.
    """
    refuse_waiting(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    refuse_binary(data, path)
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error


def refuse_waiting(path: Path) -> None:
    """Refuse a device, and a FIFO with a name, which may wait for ever; pipes of a shell have no file and are read."""
    real = Path(os.path.realpath(path))
    if real.is_fifo() or real.is_char_device() or real.is_block_device():
        raise DataError(f"{path} is a FIFO or a device, which may never end; give a file with its text")


def refuse_binary(start: bytes, path: Path) -> None:
    """Refuse a file whose first bytes are a ZIP archive, or UTF-16 text: a mark of two bytes, or a NUL.

    Raises:
        DataError: if they are.
    """
    if start.startswith(b"PK\x03\x04"):
        raise DataError(f"{path} is a workbook (.xlsx, .ods) or a ZIP archive; save its table as CSV, or unpack it")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start[:2]:
        raise DataError(f"{path} is UTF-16, or binary; save it as UTF-8")


@contextmanager
def published(final: Path) -> Iterator[Path]:
    """Yield a temporary path for a directory; rename it to `final` when it is complete and on disk, or remove it.

    A directory that has the name `final` already is removed only after the new directory is in its place.
    """
    temporary, old = (final.with_name(f".{final.name}.{end}") for end in ("tmp", "old"))
    for left in (temporary, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        yield temporary
        flush(temporary)
        if final.exists():
            final.rename(old)
        temporary.rename(final)
    except BaseException as error:  # also Ctrl-C
        if old.exists() and not final.exists():
            old.rename(final)
        if isinstance(error, Exception):
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    _flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def flush(directory: Path) -> None:
    """Flush every file below a directory to disk."""
    for root, _, files in os.walk(directory):
        for path in (*(Path(root) / name for name in files), Path(root)):
            _flush(path)


def _flush(path: Path) -> None:
    """Flush a file or the entries of a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed_since(directory: Path, written: Mapping[str, str]) -> str | None:
    """Return what is wrong with files of a directory whose SHA-256 was written down by name; None if nothing is."""
    for name, digest in written.items():
        if not (directory / name).exists() or sha256_of(directory / name) != digest:
            return f"{name} is not what was written (its SHA-256 is another)"
    return None


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory for a moment, in which other processes and threads that ask for it wait."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def claim(path: Path, identity: Mapping[str, Any], *, holds: str, way_out: str) -> None:
    """Write the identity of what a directory holds, or check that the file has it already.

    Args:
        path: a JSON file in the directory, which need not exist.
        identity: everything that the results beside the file depend on, as JSON.
        holds: what the directory holds if the file has another identity, for the message.
        way_out: what to do then, for the message.

    Raises:
        ConfigError: if the file has another identity, or cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, to_json(identity))
        known, identity = json.loads(path.read_bytes()), json.loads(to_json(identity))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use {path}: {error}. Choose another --out") from error
    differing = [key for key in {**known, **identity} if known.get(key) != identity.get(key)]
    if differing:
        was, now = ({key: of.get(key) for key in differing} for of in (known, identity))
        raise ConfigError(
            f"{path.parent} holds {holds}: {json.dumps(was)}, now {json.dumps(now)}. Choose another --out, or {way_out}"
        )


def lock_directory(directory: Path) -> None:
    """Create a directory and lock it for this process, until the process ends in any way.

    Raises:
        ConfigError: if it cannot be created, or another process holds the lock.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write to the directory {directory}: {error.strerror}; choose another") from error
    if any(os.path.sameopenfile(lock, held) for held in _LOCKS):  # a path may lead to a new directory since
        os.close(lock)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(lock, 20).decode() or "unknown"
        os.close(lock)
        raise ConfigError(
            f"another run is writing to {directory} (process {owner}); wait until it ends, or choose another directory"
        ) from error
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    _LOCKS.append(lock)
