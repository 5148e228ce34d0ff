"""Our own JSONL, and tables whose columns are mapped to its names.

A record with a response and feedback becomes an annotation: "critique", or "feedback", "spans", "good_spans",
"poor_spans", "outcome" (see `feedback/records.py`). With a better response in "refinement", its changes become the
spans of feedback without spans. A record without feedback becomes an example: "prompt", "reference", "tests"; a
response goes into its `meta`. In text tables, lists are JSON, and empty cells are missing values.
"""

import json
from collections.abc import Iterator
from typing import Any

from text2grad.feedback.examples import is_chat
from text2grad.feedback.record_files import Object, keys_of
from text2grad.feedback.records import BESIDE, Annotation, parse_record
from text2grad.feedback.sources.base import NOT_JUDGED, Item, Loss, Row
from text2grad.feedback.sources.people import grounded
from text2grad.types import Example

COLUMNS = ("prompt", "response", "critique", *BESIDE, "refinement", "reference", "tests")
UNREADABLE = "critiques that cannot be read: their words are kept, δ is 0"
NO_RESPONSE = "feedback without a response, which is empty or missing: examples, no annotations"
NOT_FOUND = "quotes that the response does not contain: no span"

_LISTS = ("spans", "good_spans", "poor_spans", "positive", "negative", "critique", "prompt")
_FEEDBACK = ("critique", *BESIDE)


def read_table(row: Row) -> Iterator[Item]:
    """Yield the item of one record."""
    record = _renamed(row)
    given = {key: record[key] for key in _FEEDBACK if key in record}
    if "response" not in record or not given:
        yield _example(row, record)
        return
    read = parse_record(row.number, row.where, record, match=row.options.match)
    critique = read.critique
    if set(given) == {"feedback"}:
        better = record.get("refinement") or ""
        if not isinstance(better, str):
            raise row.bad(f'"{row.name("refinement")}" must be a text')
        yield grounded(row, (read.prompt, read.response), critique.feedback, better)
        return
    losses = [Loss(NOT_FOUND, quote) for quote in critique.unmatched]
    losses += [Loss(UNREADABLE, critique.feedback)] if critique.failed else []
    yield Item(Annotation(read.prompt, read.response, critique), tuple(losses))


def _renamed(row: Row) -> Object:
    """Return the record under our names, without missing values."""
    mapped = row.options.columns
    absent = [theirs for theirs in mapped.values() if theirs not in row.record]
    if absent:
        ours = next(name for name, theirs in mapped.items() if theirs == absent[0])
        raise row.bad(f'there is no column "{absent[0]}" for "{ours}"; the record has {keys_of(row.record)}')
    taken = set(mapped.values())
    plain = {key: value for key, value in row.record.items() if key not in taken}
    renamed = {**plain, **{ours: row.record[theirs] for ours, theirs in mapped.items()}}
    return {key: _cell(key, value) for key, value in renamed.items() if value is not None and value != ""}


def _cell(key: str, value: Any) -> Any:
    """Return the value of a cell of a text table."""
    if not isinstance(value, str):
        return value
    if key == "outcome" or (key in _LISTS and value.lstrip()[:1] in ("[", "{")):
        try:
            read = json.loads(value)
        except ValueError:
            return value
        return value if key == "prompt" and not is_chat(read) else read
    return value


def _example(row: Row, record: Object) -> Item:
    """Return a record without feedback as an example."""
    if "prompt" not in record:
        raise row.bad(
            'there is neither a "response" with feedback nor a "prompt"; '
            f"the record has {keys_of(row.record)}. Say which columns they are with --column response=NAME"
        )
    for key in ("reference", "tests"):
        if not isinstance(record.get(key), str | None):
            raise row.bad(f'"{row.name(key)}" must be a text')
    if not isinstance(record["prompt"], str | list):
        raise row.bad(f'"{row.name("prompt")}" must be a text or a chat')
    meta = {key: value for key, value in record.items() if key not in ("prompt", "reference", "tests")}
    losses = (Loss(NOT_JUDGED),) if "response" in meta else (Loss(NO_RESPONSE),) * any(key in meta for key in _FEEDBACK)
    return Item(Example(record["prompt"], record.get("reference"), record.get("tests"), meta), losses)
