r"""The text of a critique → feedback, positive quotes, negative quotes.

In: the text z = [c; A(y)] of a critic (arXiv 2505.22338, section 3.4) of any form or length, or an object parsed from
JSON. Out: `ParsedCritique`. No text raises an error; a text that cannot be parsed gets the status `unparsable`.

The parser uses the first object in the text that has a key for spans, or else the first that has another known key.
Letter case, spaces, hyphens and underscores in keys do not matter.

feedback     textual_feedback, code_feedback, text_feedback, feedback, critique
positive     good_spans, positive_spans, positive, good, good_code, correct_code
negative     poor_spans, bad_spans, negative_spans, negative, poor, bad, wrong_code, wrong
both         spans, span_map, labels: quotes with labels
outcome      outcome, or else score

An object whose values are all labels is the map A(y): s_k → label. Quotes may be a list, one text, [quote, reason]
pairs, {"span": quote, "reason": ...} objects, or {quote: reason}; an object may give the place of its quote, as "start"
and "end", its "turn" of a conversation, which a quote "turn 2: ..." names, too, and its category and severity. Who
speaks and how much a quote weighs are read from objects of a program or a file (`said_about`), never from a text: a
model cannot speak for a person. In a list with labels, offsets may stand without a quote. A label in words decides
before a number beside it. If the object has no feedback, the feedback is the text before the object, or else the text
after it.

A number may be written as a text. An outcome or score that is no finite number, such as "50%", "8/10", true or NaN,
makes the critique `unparsable`; a score in words without a digit is none.

The end of a quote is never guessed: a quote that the end of the text cut off is dropped. A critique cut off before
spans and outcome is `unparsable`; its feedback is kept. So a run whose critic always stops there reports failures.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from text2grad.errors import CriticError
from text2grad.feedback.lenient_json import (
    MAX_DEPTH,
    Cut,
    CutObject,
    Reading,
    number_of,
    printable,
    read_objects,
    unescape,
)
from text2grad.feedback.quotes import is_finite, is_label, quotes_of, says_nothing
from text2grad.feedback.reasoning import answer_parts
from text2grad.types import Label, Status

MAX_CHARS = 100_000  # a longer text is `unparsable`: twenty times the longest critique of the paper's prompts


@dataclass(frozen=True, slots=True)
class ParsedCritique:
    """A parsed critique, before its quotes are located in the response.

    Attributes:
        feedback: the critique c in words; the whole text if it is unparsable.
        positive: positive quotes, as written, in order; without blank quotes; those with a place are `Placed`.
        negative: negative quotes, in the same way.
        status: `ok` for JSON with any text around it; `repaired` for any other form that could be parsed.
        outcome: the critic's finite number for the whole response; None without one.
        order: the labels of all quotes in the critic's order, if they stand in one list; empty for two lists.
        reason: why the outcome cannot be read, to stand before the feedback.
    """

    feedback: str
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    status: Status = "ok"
    outcome: float | None = None
    order: tuple[Label, ...] = ()
    reason: str = ""


def parse_critique_object(value: Mapping[str, Any]) -> ParsedCritique:
    """Read a critique that is a JSON object already; if it has no known key, its JSON text is parsed instead.

    Unlike `parse_critique`, it reads feedback of any length and keeps it unchanged, blank text and lone surrogates
    included.

    Example:
        >>> parse_critique_object({"Feedback": "Wrong city.", "bad-spans": ["Lyon"]}).negative
        ('Lyon',)
    """
    reading = _choose(iter([Reading(dict(value), 0, 0)]))
    return parse_critique(json.dumps(value, default=str)) if reading is None else _interpret(reading.value)


def parse_critique(text: str) -> ParsedCritique:
    """Parse the text of a critique.

    Args:
        text: any text: JSON, JSON in prose or fences, Python literals, a critique that was cut off.

    Raises:
        CriticError: if `text` is not a str.

    Example:
        >>> parsed = parse_critique("Wrong year. ```{'good_spans': ('in Paris',), 'poor_spans': ['19")
        >>> parsed.feedback, parsed.positive, parsed.negative, parsed.status
        ('Wrong year.', ('in Paris',), (), 'repaired')
    """
    if not isinstance(text, str):
        raise CriticError(f"a critique is text (str), got {type(text).__name__}; decode bytes first")
    text = printable(text)
    if len(text) <= MAX_CHARS:
        parts = answer_parts(text)
        whole = _first_reading(text) if parts and parts[-1][0] else None
        if whole and whole.start < parts[-1][0] <= whole.end and answer_parts(text[: whole.start + 1]):
            parts = [(0, len(text))]  # no end of reasoning, but a quote
        for start, end in reversed(parts):
            verdict = text[start:end]
            if reading := _first_reading(verdict):
                parsed = _interpret(reading.value)
                for quote in (*parsed.positive, *parsed.negative):
                    for name in ("rater", "source", "weight"):
                        getattr(quote, "about", {}).pop(name, None)
                if not parsed.feedback.strip():
                    parsed = replace(parsed, feedback=_prose(reading, verdict))
                repaired = parsed.status == "ok" and not is_json(verdict[reading.start : reading.end])
                return replace(parsed, status="repaired") if repaired else parsed
    return ParsedCritique(text.strip(), status="unparsable")


def _first_reading(text: str) -> Reading | None:
    """Return the critique's object in a text, by the strictest reader that finds one."""
    readers = (read_objects, partial(read_objects, lenient_ends=True), _escaped_twice)
    return next(filter(None, (_choose(read(text)) for read in readers)), None)


def _escaped_twice(text: str) -> Iterator[Reading]:
    r"""Yield the object of a text that is an escaped string: `{\"good_spans\": ...`."""
    if match := _ESCAPED_OBJECT.search(text):
        for reading in read_objects(unescape(text[match.start() :].rstrip("\\"))):  # an escape that was cut off
            yield Reading(reading.value, match.start(), len(text))


def _choose(readings: Iterator[Reading]) -> Reading | None:
    """Return the first object with spans, at any depth; else the first object with a known key."""
    second: Reading | None = None
    for reading in (outer._replace(value=item) for outer in readings for item in _objects(outer.value)):
        parts = _parts(reading.value)
        if not _SPAN_PARTS.isdisjoint(parts):
            return reading
        second = second or (reading if parts else None)
    return second


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield an object and all objects inside it, breadth first."""
    waiting = [value]
    for item in waiting:  # which grows
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _parts(item: Mapping[str, Any], depth: int = 0) -> dict[str, list[Any]]:
    """Group the values of an object by the part of a critique that each key names."""
    parts: dict[str, list[Any]] = {}
    for key, value in item.items():
        part = _PARTS.get("_".join(_KEY_WORD.findall(key.casefold())))
        inner = _parts(value, depth + 1) if part == "spans" and isinstance(value, dict) and depth < MAX_DEPTH else {}
        if "positive" in inner or "negative" in inner:  # {"spans": {"good": [...], "poor": [...]}}
            for inner_part, values in inner.items():
                parts.setdefault(inner_part, []).extend(values)
        elif part and (part == "feedback" or not isinstance(value, Cut)):
            parts.setdefault(part, []).append(value)
    labels = [is_label(value) for value in item.values() if not isinstance(value, Cut)]
    return parts or ({"spans": [item]} if labels and all(labels) else {})  # {quote: label}


def _interpret(value: Mapping[str, Any]) -> ParsedCritique:
    """Return the critique in an object with known keys."""
    parts = _parts(value)
    given = parts.get("feedback", ())
    lists = [value if isinstance(value, list) else [value] for value in given]
    texts = ["\n".join(str(text) for text in texts if isinstance(text, str)) for texts in lists]
    feedback = next(filter(str.strip, texts), "".join(texts[:1]))
    told = [[number_of(it) for it in parts.get(name, ()) if it not in (None, [], {})] for name in ("outcome", "score")]
    outcomes = [it for it in told[0] if not isinstance(it, str) or not says_nothing(it)]
    scores = [it for it in told[1] if not isinstance(it, str) or any(map(str.isnumeric, it))]
    numbers = [it for it in outcomes if is_finite(it) or not isinstance(it, float)] or scores or outcomes
    odd = [it for it in numbers if not is_finite(it)]
    reason = (
        f"the outcome {str(odd[0])[:60] if isinstance(odd[0], str | float) else 'given'} is no number: " if odd else ""
    )
    cut = isinstance(value, CutObject) and _SPAN_PARTS.isdisjoint(parts)
    if reason or len({*numbers}) > 1 or (cut and not numbers):  # "outcome" and "Outcome"
        return ParsedCritique(feedback, status="unparsable", reason=reason)

    def listed(part: str, label: Label | None) -> list[tuple[str, Label]]:
        pairs = [pair for value in parts.get(part, ()) for pair in quotes_of(value, label)]
        return [(quote, own) for quote, own in pairs if quote.strip() and own is not None]

    named = listed("positive", "positive") + listed("negative", "negative")
    mixed = listed("spans", None)
    return ParsedCritique(
        feedback=feedback,
        positive=tuple(quote for quote, label in named + mixed if label == "positive"),
        negative=tuple(quote for quote, label in named + mixed if label == "negative"),
        outcome=float(numbers[0]) if numbers else None,
        order=() if named else tuple(label for _, label in mixed),
    )


def _prose(reading: Reading, text: str) -> str:
    """Return the text before an object, else the text after it, without the fence; empty if it has no word."""
    before = _FENCE_BEFORE.sub("", text[: reading.start]).strip()
    after = text[reading.end :].strip().removeprefix("```").strip()
    return next((prose for prose in (before, after) if any(map(str.isalnum, prose))), "")


def is_json(text: str) -> bool:
    """Return True if a text is strict JSON (RFC 8259), which has no NaN."""
    try:
        json.loads(text, parse_constant=int)  # int("NaN") is a ValueError
    except ValueError:
        return False
    return True


_ESCAPED_OBJECT = re.compile(r"""\{(?>(?:\s|\\[nrt])*)\\["']""")
_FENCE_BEFORE = re.compile(r"```\w*+\s*+\Z")
_KEY_WORD = re.compile(r"[^\W_]++")

_PARTS = {
    key: part
    for part, keys in {
        "feedback": "textual_feedback code_feedback text_feedback feedback critique",
        "positive": "good_spans positive_spans positive good good_code correct_code",
        "negative": "poor_spans bad_spans negative_spans negative poor bad wrong_code wrong",
        "spans": "spans span_map labels",
        "outcome": "outcome",
        "score": "score",
    }.items()
    for key in keys.split()
}
_SPAN_PARTS = {"positive", "negative", "spans"}
