"""Records with a passage → passages with a question and a gold answer, for the task of grounded answers.

table         any JSONL, JSON, CSV, Parquet or data set: "passage", and optionally "question" and "answer"
qa_feedback   Fine-Grained RLHF (arXiv 2306.01693): retrieved passages with titles, question, gold answer
faithbench    FaithBench (arXiv 2410.13210): source texts, to be summarized; each source once
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError, check_known
from text2grad.feedback.record_files import Entry, bad_record, json_object, read_entries, refuse_half_pairs
from text2grad.feedback.sources.base import Options, Row

COLUMNS = ("passage", "question", "answer")
NO_PASSAGE = "records without a passage"
SAME_TEXT = "records whose text came before"


class Passage(NamedTuple):
    """One passage, and the task that goes with it.

    Attributes:
        where: name of the file and number of the record.
        text: the passage.
        question: the question; empty for a summary.
        answer: the gold answer, or None.
        subject: equal for records that must stay on one side of a split: the title of the first passage, or the text.
    """

    where: str
    text: str
    question: str
    answer: str | None
    subject: str


class Passages(NamedTuple):
    """The passages of a source, and the number of records that were left out, by reason."""

    kept: list[Passage]
    left_out: Counter[str]


def read_passages(
    path: str | Path, *, format: str = "table", columns: Mapping[str, str] | None = None, split: str = "train"
) -> Passages:
    """Return the passages of a source.

    Args:
        path: a file, a directory of `datasets`, or the name of a data set on the Hugging Face hub.
        format: a name of the module's docstring.
        columns: for a table, our column name → the source's column name.
        split: the split of a data set.

    Raises:
        ConfigError: if the format or a column is unknown.
        DataError: if the source cannot be read, or a record cannot be used.
    """
    check_known("format", format, tuple(_READERS))
    for name in columns or {}:
        check_known("column", name, COLUMNS if format == "table" else ())
    options, seen = Options(columns or {}), set[tuple[str, str]]()
    kept, left_out = [], Counter[str]()
    for _, where, entry in _with_place(read_entries(path, split=split), path):
        found = _READERS[format](Row(where, json_object(entry, where), options))
        if not found.text:
            left_out[NO_PASSAGE] += 1
        elif (found.text, found.question) in seen:
            left_out[SAME_TEXT] += 1
        else:
            refuse_half_pairs(where, passage=found.text, question=found.question, answer=found.answer or "")
            seen.add((found.text, found.question))
            kept.append(found)
    if not kept and not left_out:
        raise DataError(f"{path} has no records")
    return Passages(kept, left_out)


def _with_place(entries: Iterator[Entry], path: str | Path) -> Iterator[Entry]:
    """Yield entries whose place names the file without its directory: it goes into the prepared file."""
    for entry in entries:
        yield entry._replace(where=entry.where.replace(str(path), Path(path).name))


def _of_table(row: Row) -> Passage:
    text, question = row.words("passage"), row.words("question")
    if "passage" not in row.options.columns and not text and row.get("passage") is None:
        row.text("passage")  # a file without this column is refused, not counted record by record
    return Passage(row.where, text, question, row.words("answer") or None, text)


def _of_qa_feedback(row: Row) -> Passage:
    titles, paragraphs = [], []
    for passage in row.listed("passages"):
        if not isinstance(passage, list) or not passage or not all(isinstance(one, str) for one in passage):
            raise bad_record(row.where, '"passages" must be lists of a title and sentences')
        title, sentences = passage[0], [one.removeprefix(f"{passage[0]}\n\n").strip() for one in passage[1:]]
        titles.append(title)
        paragraphs.append(f"{title}: {' '.join(sentences)}" if sentences else "")
    text = "\n".join(one for one in paragraphs if one)
    return Passage(row.where, text, row.text("question"), row.words("gold") or None, titles[0] if titles else "")


def _of_faithbench(row: Row) -> Passage:
    text = row.words("source")
    return Passage(row.where, text, "", None, text)


_READERS: Mapping[str, Callable[[Row], Any]] = {
    "table": _of_table,
    "qa_feedback": _of_qa_feedback,
    "faithbench": _of_faithbench,
}
PASSAGE_FORMATS = tuple(_READERS)
"""Formats that `read_passages` knows."""
