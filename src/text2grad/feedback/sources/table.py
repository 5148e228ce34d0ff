"""Our own JSONL, and tables whose columns are mapped to its names.

A record with a response and feedback becomes an annotation: "critique", or "feedback", "spans", "good_spans",
"poor_spans", "outcome" (see `feedback/records.py`). With a better response in "refinement", its changes become the
spans of feedback without spans. A record without feedback becomes an example: "prompt", "reference", "tests"; a
response goes into its `meta`. In text tables, lists are JSON, and empty cells are missing values; the prompt of an
annotation may be empty. `Item.unread` names the columns that an annotation cannot hold.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from text2grad.feedback.critique_text import parse_critique_object
from text2grad.feedback.examples import is_chat
from text2grad.feedback.record_files import Object, keys_of, shown
from text2grad.feedback.records import BESIDE, QUOTES, Annotation, means_offsets, parse_record
from text2grad.feedback.sources.base import ADDED, NOT_JUDGED, WORDS_ONLY, Item, Loss, Row
from text2grad.feedback.words import words_of
from text2grad.types import Critique, Example, Span

COLUMNS = ("prompt", "response", "critique", *BESIDE, "refinement", "reference", "tests")
UNREADABLE = "critiques that cannot be read: their words are kept, δ is 0"
NO_RESPONSE = "feedback without a response, which is empty or missing: examples, no annotations"
NOT_FOUND = "quotes that the response does not contain: no span"
NO_QUOTE = 'entries of quotes that are no text: no span; offsets are "spans": [[start, end, "positive" or "negative"]]'
NO_LABEL = 'entries of "spans" that are no quote with the label positive or negative: no span'
CHAT_JOINED = (
    "chats as prompts, joined to one text that names who spoke: a policy would be asked without their turns; give "
    "[data] train a file with the messages"
)

_BREAK = re.compile(r"(?:[ \t\r]*\n)+(?P<indent>[ \t]*)(?=\S)")
_LISTS = ("spans", *QUOTES, "critique", "prompt")
_FEEDBACK = ("critique", *BESIDE)


def read_table(row: Row) -> Iterator[Item]:
    """Yield the item of one record."""
    record = _renamed(row)
    given = {key: record[key] for key in _FEEDBACK if key in record}
    if "response" not in record or not given:
        yield _example(row, record)
        return
    if "prompt" not in record:
        raise row.bad(
            f'there is no "prompt"; the record has {keys_of(row.record)}. Say which column it is with --column '
            "prompt=NAME, or add an empty one"
        )
    in_words = "feedback" in given and set(given) <= {"feedback", "outcome"}  # none of it has a place in the response
    used = ("critique",) if "critique" in record else ("refinement", *BESIDE) if in_words else BESIDE
    unread = tuple(row.name(key) for key in record if key not in ("prompt", "response", *used))
    judged = record.get("critique", record)
    losses = list[Loss]()
    if isinstance(judged, dict):
        judged, losses = _read_quotes(judged)
        record = {**record, "critique": judged} if "critique" in record else judged
    read = parse_record(row.where, record)
    losses += [Loss(CHAT_JOINED)] if _has_turns(record["prompt"]) else []
    critique = read.critique
    if in_words:
        better = record.get("refinement") or ""
        if not isinstance(better, str):
            raise row.bad(f'"{row.name("refinement")}" must be a text')
        item = _grounded(read.prompt, read.response, critique, better)
        yield item._replace(losses=(*losses, *item.losses), unread=unread)
        return
    losses += [Loss(NOT_FOUND, quote) for quote in critique.unmatched]
    losses += [Loss(UNREADABLE, critique.feedback)] if critique.failed else []
    yield Item(Annotation(read.prompt, read.response, critique), tuple(losses), unread=unread)


def _has_turns(prompt: Any) -> bool:
    """Return True for a chat that is more than a text by the user."""
    return isinstance(prompt, list) and [message.get("role") for message in prompt] != ["user"]


def _read_quotes(given: Object) -> tuple[Object, list[Loss]]:
    """Return the parts of a critique without the entries of its lists that would vanish, and these as losses."""
    kept, losses = dict(given), list[Loss]()
    for key in (*QUOTES, "spans"):
        value = given.get(key)
        if value is None or value == {} or (key == "spans" and not isinstance(value, list)):
            continue
        entries = value if isinstance(value, list) else [value]
        lost = [entry for entry in entries if not _is_quote(key, entry, whole=entries is not value)]
        if lost:
            kept[key] = [entry for entry in entries if entry not in lost]
            losses += [Loss(NO_LABEL if key == "spans" else NO_QUOTE, f"{key}: {shown(entry)}") for entry in lost]
    return kept, losses


def _is_quote(key: str, entry: Any, *, whole: bool) -> bool:
    """Return True if an entry of a list, or the value of a key, is a quote, a blank text, or offsets in "spans"."""
    if isinstance(entry, str) and (key != "spans" or not entry.strip()):
        return True
    if means_offsets(entry):
        return key == "spans"
    parsed = parse_critique_object({key: entry if whole else [entry]})
    return bool(parsed.positive or parsed.negative)


def _renamed(row: Row) -> Object:
    """Return the record under our names, without missing values; only a prompt may be empty."""
    mapped = row.options.columns
    absent = [theirs for theirs in mapped.values() if theirs not in row.record]
    if absent:
        ours = next(name for name, theirs in mapped.items() if theirs == absent[0])
        raise row.bad(f'there is no column "{absent[0]}" for "{ours}"; the record has {keys_of(row.record)}')
    taken = set(mapped.values())
    plain = {key: value for key, value in row.record.items() if key not in taken}
    renamed = {**plain, **{ours: row.record[theirs] for ours, theirs in mapped.items()}}
    kept = {key: value for key, value in renamed.items() if value is not None and (value != "" or key == "prompt")}
    cells = {key: _cell(key, value) for key, value in kept.items()}
    if isinstance(cells.get("outcome"), str | bool) or (row.options.labels and "outcome" in cells):
        cells["outcome"] = row.outcome(kept["outcome"])
    return cells


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
    if record.get("prompt", "") == "":
        raise row.bad(
            f'there is neither a "response" with feedback nor a "prompt"; the record has {keys_of(row.record)}. Say '
            "which columns they are with --column prompt=NAME --column response=NAME --column feedback=NAME"
        )
    for key in ("reference", "tests"):
        if not isinstance(record.get(key), str | None):
            raise row.bad(f'"{row.name(key)}" must be a text')
    if not isinstance(record["prompt"], str | list):
        raise row.bad(f'"{row.name("prompt")}" must be a text or a chat')
    meta = {key: value for key, value in record.items() if key not in ("prompt", "reference", "tests")}
    losses = (Loss(NOT_JUDGED),) if "response" in meta else (Loss(NO_RESPONSE),) * any(key in meta for key in _FEEDBACK)
    return Item(Example(record["prompt"], record.get("reference"), record.get("tests"), meta), losses)


def _grounded(prompt: str, response: str, critique: Critique, better: str) -> Item:
    """Return feedback in words as an annotation; the changes of a better response ("" for none) become spans."""
    if not better:
        return Item(Annotation(prompt, response, critique), (Loss(WORDS_ONLY),))
    spans, added = changed_spans(response, better)
    losses = [Loss(ADDED)] * added
    losses += [] if spans else [Loss(WORDS_ONLY)]
    return Item(Annotation(prompt, response, replace(critique, spans=tuple(spans))), tuple(losses))


class _Piece(NamedTuple):
    key: str
    start: int
    end: int


def changed_spans(response: str, better: str) -> tuple[list[Span], int]:
    r"""Return the changed or deleted parts of a response as negative spans, and the number of added pieces of text.

    difflib compares words, signs, and line breaks with the indentation after them; white space within a line does not
    count. Text that the corrected response only adds has no place in the response.

    Example:
        >>> response = "def add(a, b):\n    return a - b"
        >>> spans, added = changed_spans(response, "def add(a, b):\n    return a + b\n")
        >>> [response[span.start : span.end] for span in spans], added
        (['-'], 0)
        >>> changed_spans("Lyon.", "Lyon, on Friday.")
        ([], 1)
    """
    old, new = _pieces(response), _pieces(better)
    matcher = SequenceMatcher(None, [piece.key for piece in old], [piece.key for piece in new], autojunk=False)
    spans, added = [], 0
    for tag, begin, end, _, _ in matcher.get_opcodes():
        if tag == "insert":
            added += 1
        elif tag != "equal":
            spans.append(_span(response, old, begin, end))
    return spans, added


def _pieces(text: str) -> list[_Piece]:
    """Split a text into words, signs, and line breaks with the indentation after them."""
    breaks = _BREAK.finditer("\n" + text)  # so that the first line has an indentation too
    pieces = [_Piece("\n" + match["indent"], max(match.start() - 1, 0), match.end() - 1) for match in breaks]
    pieces += [_Piece(text[start:end], start, end) for start, end in words_of(text)]
    return sorted(pieces, key=lambda piece: (piece.start, piece.end))


def _span(response: str, pieces: Sequence[_Piece], begin: int, end: int) -> Span:
    """Return the span of some pieces, without white space around it; a changed indentation marks the next word."""
    start, stop = pieces[begin].start, pieces[end - 1].end
    if not response[start:stop].strip():
        return Span(pieces[begin].end, pieces[min(end, len(pieces) - 1)].end, "negative")
    text = response[start:stop]
    return Span(start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip()), "negative")
