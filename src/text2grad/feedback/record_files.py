"""Files and data sets → records, each with its place for messages.

.jsonl           one JSON value per line
.json            a list of records, an object of records by id, or one record per line
.csv .tsv        a header, then one record per row. In a .csv the delimiter is the comma; if the header is one field
                 with semicolons, or with tabs, it is that character; a first line "sep=;", Excel's, names it. In a
                 .tsv, quotation marks are part of the text, unless all are those of CSV; a message says which. A
                 header may end with a comment ("# ..."). .tab, and .txt that is no JSON, are as .tsv
.parquet         read in batches
a directory      that `datasets` saved or can load
OWNER/NAME       a data set of the Hugging Face hub, OWNER/NAME:CONFIG if it has several configurations

Text may be compressed by gzip, bzip2, xz or zstd, as its first bytes tell, and have .gz, .bz2, .xz or .zst behind its
name. Lines are returned as bytes, so that one broken line can be skipped. `datasets` finds the files of a data set;
those of text (.jsonl, .json, .csv, .tsv) are read here, since its loaders change texts such as NA and 2024-01-01.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from text2grad.errors import DataError, require
from text2grad.files import refuse_binary, refuse_waiting
from text2grad.progress import note
from text2grad.types import HALF_PAIR

Object = dict[str, Any]
T = TypeVar("T")

WAY_OUT = "Mend or remove the record"

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_TEXTS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".tab", ".txt")
_PACKED = re.compile(r"\.(gz|bz2|xz|zst)\Z")
_CELL = re.compile(r'"(?>(?:[^"]|"")*)"')
_CELLS = re.compile(rf'(?>(?:(?:{_CELL.pattern}|[^"\t\r\n]*+)(?:\t|\r?\n|\r))*)(?:{_CELL.pattern}|[^"\t\r\n]*+)')
_BOM = b"\xef\xbb\xbf"


class Entry(NamedTuple):
    """A record of a file."""

    number: int  # its line or position, from 1
    where: str  # file and number, for messages
    record: Any  # the record; for a line of JSON, its bytes; for a row that is no record, its error


def read_entries(path: str | Path, *, split: str = "train") -> Iterator[Entry]:
    """Yield the records of a file or a data set, in a format of the module's docstring.

    Args:
        path: a file, a directory, or the name of a data set on the hub.
        split: the split of a data set.

    Raises:
        DataError: if it cannot be read.
        ConfigError: if a required library is missing.
    """
    file = Path(path)
    if not str(path):
        raise DataError("the path of the source is empty")
    known = _kind(file.name) in (*_TEXTS, ".parquet")
    if file.is_dir() or (not file.exists() and _HUB_NAME.fullmatch(str(path)) and not known):
        return _dataset(str(path), split)
    return _parquet(file) if _kind(file.name) == ".parquet" else _text_file(file, _kind(file.name))


def _kind(name: str) -> str:
    """Return the suffix of a file's name, without that of compression."""
    return Path(_PACKED.sub("", name.lower())).suffix


def _text_file(file: Path, kind: str) -> Iterator[Entry]:
    """Yield the records of a file of text."""
    if kind == ".txt":
        with _opened(file) as opened:
            kind = ".jsonl" if opened.readline().removeprefix(_BOM).lstrip()[:1] in b"{[" else ".tsv"
    if kind in (".csv", ".tsv", ".tab"):
        return _table(file, kind)
    return _json_file(file) if kind == ".json" else read_lines(file)


def read_lines(path: Path) -> Iterator[Entry]:
    """Yield the non-blank lines of a file as bytes; of Parquet the rows, without the keys that other rows have.

    Raises:
        DataError: if it cannot be read.
    """
    with _opened(path) as file:
        if file.peek(4).startswith(b"PAR1"):
            yield from (row._replace(record=_as_json(row.record, _given)) for row in _parquet(path))
            return
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(_BOM)
            if text.strip():
                yield Entry(number, f"{path}:{number}", text)


def read_each(
    path: str | Path,
    entries: Iterable[Entry],
    read: Callable[[Entry, Object], T],
    *,
    limit: int | None = None,
    on_bad: Callable[[DataError], None] | None = None,
) -> Iterator[T]:
    """Yield what a function makes of each record.

    Args:
        path: the source of the records, for messages.
        entries: its records.
        read: makes a value of an entry and its JSON object, or raises `DataError`.
        limit: the maximum number of records to read.
        on_bad: called with the error of each record that cannot be used; without it, the first error is raised.

    Raises:
        DataError: if there are no records, or one of them cannot be used.
    """
    entry = None
    for entry in islice(entries, limit):
        try:
            yield read(entry, json_object(entry.record, entry.where))
        except DataError as error:
            if on_bad is None:
                raise
            on_bad(error)
    if entry is None:
        raise DataError(f"{path} has no records")


def json_object(record: Any, where: str) -> Object:
    """Return a record, or the bytes of a line, as a JSON object.

    Raises:
        DataError: if it is not a JSON object; if it is an error, that error.
    """
    if isinstance(record, DataError):
        raise record
    if isinstance(record, bytes):
        try:
            record = JSON.decode(record.decode())
        except (ValueError, RecursionError) as error:
            raise bad_record(where, _why(error)) from error
    if not isinstance(record, dict):
        raise bad_record(where, f"a record is a JSON object, got {type(record).__name__}")
    return record


def _each_once(pairs: list[tuple[str, Any]]) -> Object:
    """Return the object of pairs; a key with two values, of which JSON would keep the last, is a `ValueError`."""
    record = dict(pairs)
    for key, value in pairs if len(record) < len(pairs) else ():
        if record[key] != value:
            raise ValueError(f"the key {shown(key)} stands twice with two values")
    return record


JSON = json.JSONDecoder(object_pairs_hook=_each_once)
"""Reads JSON; other texts, and objects that have a key twice with two values, are a `ValueError`."""


def is_text(value: Any) -> bool:
    """Return True for a text."""
    return isinstance(value, str)


def optional(
    record: Mapping[str, Any], key: str, where: str, fits: Callable[[Any], bool], wanted: str, default: Any = None
) -> Any:
    """Return a value of a record, or the default if the record has no such key.

    Raises:
        DataError: if the value does not fit what is wanted.
    """
    value = record.get(key, default)
    if key in record and not fits(value):
        raise bad_record(where, f'"{key}" {wanted} got {shown(value)}')
    return value


def bad_record(where: str, what: str) -> DataError:
    """Return the error for a record that cannot be used."""
    return DataError(f"{where}: {what}. {WAY_OUT}")


def refuse_half_pairs(where: str, **texts: str) -> None:
    """Refuse texts that hold half of a surrogate pair, which JSON can escape but no tokenizer and no server can encode.

    Raises:
        DataError: if one does.
    """
    for key, text in texts.items():
        if half := HALF_PAIR.search(text):
            raise bad_record(where, f'"{key}" holds {half[0]!r}, half of a surrogate pair, which nothing can encode')


def shown(value: Any) -> str:
    """Return a value as JSON of at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def keys_of(record: Mapping[str, Any]) -> str:
    """Return the keys of a record, for messages."""
    return "the keys " + ", ".join(map(shown, record)) if record else "no keys"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file, and what is compressed in it; what fails in reading it is a `DataError`."""
    refuse_waiting(path)
    try:
        with path.open("rb") as raw, _unpacked(raw) as file:
            refuse_binary(file.peek(4)[:4], path)  # a pipe has no way back
            yield file
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _unreadable(path, error) from error


def _unpacked(raw: io.BufferedReader) -> Any:
    """Return the file that is compressed in another, as its first bytes tell, or this file."""
    start = raw.peek(6)
    if start.startswith((b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")):  # zstd, pzstd
        require("pyarrow", extra="train", purpose="a file that zstd compressed")
        from pyarrow import CompressedInputStream

        return io.BufferedReader(io.BytesIO(CompressedInputStream(raw, "zstd").read()))  # which has a way back
    kinds: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    return next((read(raw) for mark, read in kinds.items() if start.startswith(mark)), raw)


def _given(item: Object) -> Object:
    """Return an object without its null keys, which Parquet adds; the content of a call of tools stays null."""
    return {key: value for key, value in item.items() if value is not None or key == "content"}


def _unreadable(path: str | Path, error: Exception) -> DataError:
    return DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")


def _json_file(path: Path) -> Iterator[Entry]:
    """Yield the records of a .json file: one JSON value, or several, one per line."""
    with _opened(path) as file:
        data = file.read().removeprefix(_BOM).strip()
    try:
        value, end = JSON.raw_decode(text := data.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {_why(error)}") from error
    if end < len(text):
        yield from read_lines(path)
    elif isinstance(value, dict) and value and all(isinstance(entry, dict) for entry in value.values()):
        for number, (key, entry) in enumerate(value.items(), start=1):
            yield Entry(number, f"{path}: record {key}", {"id": key, **entry})
    else:
        yield from _numbered(path, value if isinstance(value, list) else [value])


def _numbered(path: str | Path, entries: Any) -> Iterator[Entry]:
    for number, entry in enumerate(entries, start=1):
        yield Entry(number, f"{path}: record {number}", entry)


def _why(error: Exception) -> str:
    """Return why bytes are not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.pos + 1}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 ({error.reason}); save the file as UTF-8"
    return "nested too deeply" if isinstance(error, RecursionError) else f"not JSON that can be read: {error}"


def _table(path: Path, kind: str) -> Iterator[Entry]:
    """Yield the rows of a text table; the record of a row of another length than the header is its error."""
    csv.field_size_limit(2**31 - 1)  # of characters in a cell; the default refuses long responses
    number = 0
    try:
        with _opened(path) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as file:
            rows = _csv_rows(file) if kind == ".csv" else _tab_rows(path, file.read())
            header = [name.strip() for name in next(rows, [])]
            if twice := [name for name, count in Counter(header).items() if name and count > 1]:
                raise DataError(f"{path}:1: the header names the column {shown(twice[0])} twice; rename one of them")
            for row in filter(None, rows):
                number = rows.line_num
                where = f"{path}:{number}"
                what = f"a row of another length than the header, which has {len(header)} columns"
                fits = len(row) in _widths(header)
                yield Entry(number, where, dict(zip(header, row, strict=False)) if fits else bad_record(where, what))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}; save the table as UTF-8") from error
    except csv.Error as error:
        raise _unreadable(f"{path}, after line {number}", error) from error


def _widths(header: Sequence[str]) -> tuple[int, int]:
    """Return the lengths that a row may have: with and without the comments at the end of the header."""
    named = next((place for place in range(len(header), 0, -1) if not header[place - 1].startswith("# ")), 0)
    return len(header), named


def _tab_rows(path: Path, text: str) -> Any:
    """Return the reader of a table with tabs; quotation marks are those of CSV if every one of them can only be that.

    In each line the cells with quotation marks are then cells of CSV, and one of them, or the header, shows it by
    its form; or the lines have other lengths than the header, and the rows of CSV do not.
    """

    def reader(**dialect: Any) -> Any:
        return csv.reader(io.StringIO(text, newline=""), delimiter="\t", **dialect)

    plain = [row for row in reader(quoting=csv.QUOTE_NONE) if row]
    marked = [cell for row in plain for cell in row if '"' in cell]
    quoted = False
    if marked and all(len(row) in _widths(plain[0]) for row in plain):
        shows = any('""' in cell[1:-1] for cell in marked) or all(cell.startswith('"') for cell in plain[0])
        quoted = shows and all(map(_CELL.fullmatch, marked))
    elif marked:
        rows = [row for row in reader() if row]
        quoted = _CELLS.fullmatch(text) is not None and all(len(row) in _widths(rows[0]) for row in rows)
    what = "quote cells" if quoted else "are part of the text; if they quote cells, name the table .csv"
    if marked:
        note(f"{path}: its quotation marks {what}")
    return reader(strict=True) if quoted else reader(quoting=csv.QUOTE_NONE)


def _csv_rows(file: IO[str]) -> Any:
    """Return the reader of a .csv file, with the delimiter by the rule of the module's docstring."""
    header = next(csv.reader(file), [])  # lenient: a quoted field may end at another delimiter
    file.seek(0)
    told = re.fullmatch("sep=(.)", ",".join(header))
    marks = [told[1]] if told else [mark for mark in ";\t" if len(header) == 1 and mark in header[0]]
    rows = csv.reader(file, delimiter=marks[0] if len(marks) == 1 else ",", strict=True)
    if told:
        next(rows)
    return rows


def _as_json(row: Any, of_each: Callable[[Object], Object] | None = None) -> Any:
    """Return a row with texts for dates, decimals and bytes, which JSON does not have, and with new objects."""
    return json.loads(json.dumps(row, default=str), object_hook=of_each)


def _parquet(path: Path) -> Iterator[Entry]:
    """Yield the rows of a Parquet file."""
    require("pyarrow", extra="train", purpose="a Parquet file")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with _opened(path) as opened, ParquetFile(opened) as file:
            rows = (row for batch in file.iter_batches(batch_size=1_000) for row in map(_as_json, batch.to_pylist()))
            yield from _numbered(path, rows)
    except ArrowException as error:
        raise _unreadable(path, error) from error


def _dataset(path: str, split: str) -> Iterator[Entry]:
    """Yield the records of a data set, on this machine or on the hub."""
    require("datasets", extra="train", purpose="a data set")
    import datasets

    name, _, config = (path, "", "") if Path(path).is_dir() else path.partition(":")
    texts = list[tuple[Path, str]]()
    try:
        if any((Path(path) / saved).exists() for saved in ("state.json", "dataset_dict.json")):
            splits: Any = datasets.load_from_disk(path)
        elif splits := _text_parts(datasets.load_dataset_builder(name, config or None)):
            download = datasets.DownloadManager().download
            texts = [(Path(it if Path(it).exists() else download(it)), _kind(it)) for it in splits.get(split, ())]
        else:
            splits = datasets.load_dataset(name, config or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        if "script" in why:  # `datasets` refuses to run the code of a data set, and so do we
            why += (
                ". Download its data files, name them train.jsonl, validation.jsonl and so on, and give their directory"
            )
        raise DataError(f"cannot load the data set {path}: {why}") from error
    if isinstance(splits, dict) and split not in splits:
        raise DataError(f"the data set {path} has no split {split!r}; it has {', '.join(map(str, splits))}")
    chosen = splits[split] if isinstance(splits, dict) else splits
    yield from _numbered(f"{path} [{split}]", _filled(texts) if texts else map(_as_json, chosen))


def _text_parts(builder: Any) -> Object:
    """Return the files of each split of a data set; none if they are no text, or have settings that only it knows."""
    config, names = builder.config, {"name", "data_files", "description", "sep", "features"}
    special = [each for each in fields(config) if each.name not in names and getattr(config, each.name) != each.default]
    parts = {str(split): list(map(str, files)) for split, files in (config.data_files or {}).items()}
    known = builder.name in ("csv", "json") and {_kind(name) for part in parts.values() for name in part} <= {*_TEXTS}
    return parts if known and not special else {}


def _filled(files: Sequence[tuple[Path, str]]) -> Iterator[Any]:
    """Yield the records of files of a kind each, with all keys that any record has, as `datasets` does."""

    def each() -> Iterator[Any]:
        for file, kind in files:
            for entry in _text_file(file, kind):
                try:
                    yield json_object(entry.record, entry.where)
                except DataError as error:
                    yield error

    keys = dict.fromkeys(key for record in each() if isinstance(record, dict) for key in record)
    yield from ({**keys, **record} if isinstance(record, dict) else record for record in each())
