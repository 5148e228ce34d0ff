"""The quotes in a critic's list: of each its label, its place, its turn, and what is said about it.

In: the value of a key of a critique (`critique_text`), a list of entries or one of them, in any form. Out: quotes with
their labels. An entry is a text, a [quote, label or reason] pair, {quote: label or reason}, or an object with the quote
under one of many names, or with offsets alone.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from text2grad.feedback.lenient_json import MINUS_SIGNS, Cut, CutObject, number_of
from text2grad.types import Label, Span


class Quote(str):
    """A quote, and what the critic says about it: attributes of `Span` by name."""

    about: dict[str, Any]


class Placed(Quote):
    """A quote with its place [start, end), its turn in a conversation, or both; offsets alone are `bare`: "[3, 7]"."""

    place: tuple[int, int] | None = None
    bare: bool = False
    turn: int | None = None  # -1 if what the critic gave is no number of a turn


def quotes_of(value: Any, label: Label | None) -> Iterator[tuple[str, Label | None]]:
    """Yield the quotes in the value of a key with the key's label; if it is None, with their own labels."""
    if isinstance(value, list):
        for entry in value:
            yield from _entry(entry, label)
    elif isinstance(value, dict) and not (_quote_key(value) or place_of(value)):
        if label is None or not isinstance(value, CutObject):  # a cut object may be a {"reason": ...}
            for quote, beside in value.items():
                yield _with(_reason(beside), quote), label or _label([beside])
    elif not says_nothing(value) or isinstance(value, dict):
        yield from _entry(value, label)


def _entry(entry: Any, label: Label | None) -> Iterator[tuple[str, Label | None]]:
    """Yield the quote of one entry: a text, the first of a pair, the span or the only key of an object.

    An object whose own label, in words, contradicts that of its list has none. What it says about the quote goes with
    it; behind a quote in a list, that is a text which is no label.
    """
    about: dict[str, Any] = said_about(entry) if isinstance(entry, dict) else {}
    beside: list[Any] = []  # the values beside the quote, which may hold its label
    place, is_object = place_of(entry), isinstance(entry, dict)
    own = _quote_key(entry, _MORE_QUOTE_KEYS * (not place and len(entry) > 1)) if is_object else None
    turn = _turn_of(entry) if own or (is_object and place) else None
    if isinstance(entry, list) and entry:
        entry, *beside = entry
        about = next(filter(None, map(_reason, beside)), {})
        if place:  # behind a quote, or in its place
            beside = beside[2:3] if isinstance(entry, str) else beside[1:2]
    elif isinstance(entry, CutObject):  # its label, or the place of its quote, may be missing
        entry = None
    elif isinstance(entry, dict) and (place or own):
        named = {name.casefold(): item for name, item in entry.items() if item is not None}
        sure = number_of(named.get("score"))
        chance = is_finite(sure) and 0 < sure < 1 and not named.keys().isdisjoint(KIND_KEYS)
        keys = LABEL_KEYS[:-1] if chance else LABEL_KEYS
        entry, beside = named.get(own), [named[key] for key in keys if key in named][:1]
        if label and beside and _LABELS.get(_word(beside[0])) not in (label, None):
            return
    elif isinstance(entry, dict) and len(entry) == 1:
        ((entry, value),) = entry.items()
        beside, about = [value], _reason(value)
    bare = place and not isinstance(entry, str) and (is_object or label is None)
    if bare or (_is_whole(entry) and (place or turn is not None)):
        quote = Placed(list(place) if place and bare else entry)
        quote.place, quote.bare, quote.turn = place, bool(bare), turn
        entry = quote
    if _is_whole(entry):
        yield _with(about, entry), label or _label(beside)


def _with(about: dict[str, Any], quote: str) -> str:
    """Return a quote with what is said about it."""
    if about:
        quote = quote if isinstance(quote, Quote) else Quote(quote)
        quote.about = about
    return quote


def _reason(beside: Any) -> dict[str, Any]:
    """Return a text beside a quote as the reason; a label is none."""
    return {"reason": beside} if _word(beside) not in ("", *_LABELS) and not is_finite(number_of(beside)) else {}


def said_about(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an object says about its quote or offsets, as arguments of `Span`: texts, and "weight" as it stands.

    Example:
        >>> said_about({"quote": "Lyon", "Severity": "major", "comment": "It is Nice.", "annotator": 7})
        {'reason': 'It is Nice.', 'rater': '7', 'severity': 'major'}
    """
    given = {key.casefold(): value for key, value in entry.items()}
    about = dict[str, Any]()
    for name, keys in _ABOUT.items():
        value = next((given[key] for key in keys if given.get(key) is not None), None)
        if name == "weight" and value is not None:
            about[name] = number_of(value)
        elif _word(value) or is_finite(value):
            about[name] = str(value)
    return about


def _turn_of(entry: Any) -> int | None:
    """Return the number of the turn that an object names, -1 if it is none; None without one."""
    given = [number_of(value) for key, value in entry.items() if key.casefold() == "turn" and value is not None]
    fits = given and is_finite(given[0]) and given[0] == int(given[0])
    return int(given[0]) if fits else -1 if given else None


def place_of(entry: Any) -> tuple[int, int] | None:
    """Return the offsets of an entry, whole numbers; None without them.

    They are its "start" and "end", also by names that tools give them, or the first of a list, or behind its quote.
    """
    bounds: Any = entry[:2] if isinstance(entry, list | tuple) else ()
    if isinstance(entry, dict):
        if _STATED.issuperset(entry) and type(entry.get("start")) is type(entry.get("end")) is int:
            return entry["start"], entry["end"]  # as this project writes spans: most of the entries of a large file
        quote = _quote_key(entry)
        given = {key.casefold(): value for key, value in entry.items()}
        inner: Any = next((given[key] for key in _RANGE_KEYS if isinstance(given.get(key), list | dict)), None)
        inner = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
        given = {**inner, **given} if isinstance(inner, dict) else given
        sure = {key for key in given if quote or key not in ("from", "to")}  # else texts may be wrong and right words
        read = {key: number_of(value) if key in sure else value for key, value in given.items()}
        named = {_OF_PLACE.sub("", key) or key: value for key, value in read.items()}
        both: list[Any] = [next((named[key] for key in keys if key in named), None) for keys in _PLACE_KEYS]
        length = named.get("length", len(str(given[quote])) if quote else None)
        if both[1] is None and is_finite(both[0]) and is_finite(length):
            both[1] = both[0] + length
        bounds = inner if isinstance(inner, list) else both
    elif bounds and isinstance(bounds[0], str):  # two numbers behind a quote may be labels
        bounds = entry[1:3] if all(map(is_finite, entry[1:3])) and entry[1:2] < entry[2:3] else ()
    whole = len(bounds) == 2 and all(is_finite(bound) and bound == int(bound) for bound in bounds)
    return (int(bounds[0]), int(bounds[1])) if whole else None


def _label(values: list[Any]) -> Label | None:
    """Return the label of the first value that is a known word or a number's sign; None without a label."""
    for value in values:
        number, word = number_of(value), _word(value)
        if is_finite(number):
            return "positive" if number > 0 else "negative" if number < 0 else None
        if word in _LABELS:
            return _LABELS[word]
    return None


def _word(value: Any) -> str:
    """Return a complete text in lower case, with "-" as the minus sign, for lookup; empty for any other value."""
    return value.strip().casefold().translate(MINUS_SIGNS) if _is_whole(value) else ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Cut)


def _quote_key(item: dict[str, Any], more: Sequence[str] = ()) -> str | None:
    """Return the key of an object's quote, one of `QUOTE_KEYS`, or else the first of `more`."""
    names = [key.casefold() for key, text in item.items() if isinstance(text, str)]
    return next((name for name in (*filter(QUOTE_KEYS.__contains__, names), *more) if name in names), None)


def is_label(value: Any) -> bool:
    """Return whether a value is a word, or the text of a sign, that stands for a label."""
    return _word(value) in _LABELS


def says_nothing(value: Any) -> bool:
    """Return whether a value is a text that stands for nothing, such as "none", or no whole text."""
    return _word(value) in _NOTHING


def is_finite(value: Any) -> bool:
    """Return True for a number that a float can hold, other than NaN and ±∞; booleans are no numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


LABEL_KEYS = ("label", "sentiment", "polarity", "score")
KIND_KEYS = ("labels", "severity", "category", "type", "tag", "entity", "entity_group")
"""Keys of a label that is a tool's own word; a score from 0 to 1 beside one is a probability, and no label."""
TOOL_KEYS = (*LABEL_KEYS[:-1], *KIND_KEYS)
QUOTE_KEYS = ("span", "quote", "text", "code", "snippet")
_MORE_QUOTE_KEYS = (  # in an entry with other keys and no place: alone, such a key may be a quoted word
    *("exact", "quoted_text", "selected_text", "span_text", "original", "phrase", "excerpt", "substring", "fragment"),
    *("word", "token", "mention", "string", "content", "value"),
)
_ABOUT = {  # an attribute of a span → the keys that give it
    "reason": ("reason", "explanation", "comment", "note", "why"),
    "category": ("category", "error_type", "aspect", "type"),
    "rater": ("rater", "annotator"),
    **{name: (name,) for name in ("severity", "weight", "source")},
}
_STATED = frozenset(field.name for field in fields(Span))
_PLACE_KEYS = (("start", "begin", "from", "offset", "s"), ("end", "stop", "to", "e"))
_RANGE_KEYS = ("span", "position", "range", "offsets", "offset", "location", "loc", "indices", "interval")
_OF_PLACE = re.compile(r"_i\Z|char(?:acter)?|index|idx|offset|position|pos|span|[\W_]")  # beside "start" in a key
_NOTHING = {"", "none", "null", "n/a", "nothing"}
_LABELS: Mapping[str, Label | None] = {
    **dict.fromkeys(("positive", "good", "+1", "+"), "positive"),
    **dict.fromkeys(("negative", "poor", "bad", "wrong", "-1", "-"), "negative"),
    **dict.fromkeys(("neutral", "0"), None),
}
