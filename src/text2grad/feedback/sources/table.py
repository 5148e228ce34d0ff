"""Records with columns of any name: our own JSONL, and tables whose columns are mapped to it.

A record with a response and feedback becomes an annotation: "critique", or "feedback", "spans", "good_spans",
"poor_spans", "outcome" (see `text2grad.records`). With "refinement", a better response, words without spans are
grounded in what it changed. A record without feedback becomes an example: "prompt", "reference", "tests"; a response
stays in its `meta`. In text tables, lists are written as JSON and empty cells are missing ones.
"""

import json
from collections.abc import Iterator
from typing import Any

from text2grad.feedback.record_files import Object, keys_of
from text2grad.feedback.records import BESIDE, Annotation, parse_record
from text2grad.feedback.sources.base import NOT_JUDGED, Item, Loss, Row
from text2grad.feedback.sources.people import grounded
from text2grad.types import Example

COLUMNS = ("prompt", "response", "critique", *BESIDE, "refinement", "reference", "tests")
UNREADABLE = "critiques that cannot be read: their words are kept, δ is 0"
NOT_FOUND = "quotes that the response does not contain: no span"

_LISTS = ("spans", "good_spans", "poor_spans", "positive", "negative", "critique", "prompt")
_FEEDBACK = ("critique", *BESIDE)


def read_table(row: Row) -> Iterator[Item]:
    """Yield what one record holds."""
    record = _renamed(row)
    said = {key: record[key] for key in _FEEDBACK if key in record}
    if "response" not in record or not said:
        yield _example(row, record)
        return
    judged = parse_record(row.number, row.where, record, match=row.options.match)
    critique = judged.critique
    if set(said) == {"feedback"}:
        better = record.get("refinement") or ""
        if not isinstance(better, str):
            raise row.bad(f'"{row.name("refinement")}" must be a text')
        yield grounded(row, (judged.prompt, judged.response), critique.feedback, better)
        return
    losses = [Loss(NOT_FOUND, quote) for quote in critique.unmatched]
    losses += [Loss(UNREADABLE, critique.feedback)] if critique.failed else []
    yield Item(Annotation(judged.prompt, judged.response, critique), tuple(losses))


def _renamed(row: Row) -> Object:
    """Return the record under our names, without what is missing."""
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
    """Return a cell of a text table as the value that it stands for."""
    if not isinstance(value, str):
        return value
    if key == "outcome" or (key in _LISTS and value.lstrip()[:1] in ("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _example(row: Row, record: Object) -> Item:
    """Return a record without feedback."""
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
    losses = (Loss(NOT_JUDGED),) if "response" in meta else ()
    return Item(Example(record["prompt"], record.get("reference"), record.get("tests"), meta), losses)
