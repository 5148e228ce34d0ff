"""The readers by format name, and the functions that read a source with them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from text2grad.errors import ConfigError, DataError, check_known
from text2grad.feedback.record_files import Entry, Object, read_each, read_entries
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import ADDED, NO_PLACE, Item, Meaning, Options, Row, Source
from text2grad.feedback.sources.mqm import gather_mqm, read_mqm
from text2grad.feedback.sources.qa_feedback import read_qa_feedback
from text2grad.feedback.sources.table import COLUMNS, read_table
from text2grad.feedback.sources.tools import read_argilla, read_label_studio
from text2grad.types import Example

SOURCES: dict[str, Source] = {  # readers by the names that `text2grad feedback import` knows
    "table": Source("our JSONL, or any table or data set with a column mapping", read_table, COLUMNS, labels=True),
    "qa_feedback": Source("Fine-Grained RLHF: errors as ranges, missing facts as words", read_qa_feedback),
    "mqm": Source("MQM: translation errors by professional raters", read_mqm, gather=gather_mqm),
    "label_studio": Source("Label Studio, exported as JSON", read_label_studio, ("prompt", "response"), labels=True),
    "argilla": Source(
        "Argilla 2, exported by records.to_datasets().to_parquet()", read_argilla, ("prompt", "response"), labels=True
    ),
}


def read_source(
    path: str | Path,
    *,
    format: str = "table",
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, Meaning | float] | None = None,
    split: str = "train",
) -> list[Annotation | Example]:
    """Return the annotations of a source; records without feedback become examples.

    Args:
        path: a file, a directory, or the name of a data set on the Hugging Face hub.
        format: a name of `SOURCES`.
        columns: our column name → the source's column name.
        labels: a label of the source → "positive", "negative" or "ignore"; a value of a table's outcome → its number.
        split: the split of a data set.

    Raises:
        DataError: if it cannot be read, or a record cannot be used. `read_items` can skip bad records, and reports
            the losses of each record.
        ConfigError: if a setting has an unknown value.
    """
    options = Options(columns or {}, labels or {})
    return [item.made for item in read_items(path, format, options, split=split)]


def read_items(
    path: str | Path,
    format: str,
    options: Options | None = None,
    *,
    split: str = "train",
    limit: int | None = None,
    on_bad: Callable[[DataError], None] | None = None,
) -> Iterator[Item]:
    """Yield the items of a source, with losses; arguments and errors are those of `read_source` and `read_each`."""
    check_known("format", format, tuple(SOURCES))
    source, options = SOURCES[format], options or Options()
    for name in options.columns:
        if not source.columns:
            raise ConfigError(f'format "{format}" has columns of its own and takes no column mapping, got {name!r}')
        check_known("column", name, source.columns)
    if options.labels and not source.labels:
        raise ConfigError(f'format "{format}" has no labels to give a meaning to, got {next(iter(options.labels))!r}')
    if split != "train" and Path(path).is_file():
        raise ConfigError(
            f"{path} is a file, which has no split {split!r}; leave the split out, or give a directory or a data set"
        )

    def read(entry: Entry, record: Object) -> list[Item]:
        items = source.read(Row(entry.where, record, options))
        origin = None if format == "table" else format  # a table may be our own
        return [_finished(item._replace(where=entry.where), origin, options.missing_outcome) for item in items]

    for items in read_each(path, source.gather(read_entries(path, split=split)), read, limit=limit, on_bad=on_bad):
        yield from items


def _finished(item: Item, origin: str | None, missing_outcome: float | None) -> Item:
    """Return an item whose spans name their source; `missing_outcome` is added for each error without a place."""
    if not isinstance(item.made, Annotation):
        return item
    critique = item.made.critique
    spans = tuple(replace(span, source=origin) if origin else span for span in critique.spans)
    missing, outcome = sum(loss.reason in (NO_PLACE, ADDED) for loss in item.losses), critique.outcome
    if missing and missing_outcome is not None:
        outcome = (outcome or 0.0) + missing_outcome * missing
    critique = replace(critique, spans=spans, outcome=outcome)
    return item._replace(made=item.made._replace(critique=critique))
