"""The critic's eyes: what it finds in an answer, before it puts that into words.

An answer is read from left to right with a table of known phrases, longest first. Each phrase makes a claim, is vague
about one, or is chatter; words that fit no phrase are garbled, and whatever follows the first full stop is extra. A
claim is judged against the open row; one that nobody asked for, that comes a second time, or that stands where the
sentence has no place for it is a fault even when its value is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from text2grad.tasks._qa_world import (
    CHATTER,
    FILLERS,
    FIRST_NAMES,
    LAST_NAMES,
    SLOTS,
    VALUES,
    VERB,
    phrase,
    said,
)
from text2grad.tasks.base import WORD, same_halves, split_words

Kind = Literal["right", "wrong", "vague", "half", "duplicate", "misplaced", "unasked", "chatter", "garbled", "extra"]

LONGEST_QUOTE = 6
LONGEST_PHRASE = 5
HALVES = ("first", "last")  # of a name
STOPS = frozenset(".!?")
# What may be said right before: a person never follows a subject, and a subject follows a person alone.
LEADS = {"who": ("", "where", "when", "price"), "what": ("who",)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged piece of an answer, characters [start, end).

    Attributes:
        kind: the judgement; only "right" is praise.
        start: where the quote starts.
        end: where it ends, exclusive.
        slot: the claim that it is about, or ""; of a full name its half.
    """

    kind: Kind
    start: int
    end: int
    slot: str = ""


class Reading(NamedTuple):
    """What a critic saw in one answer."""

    findings: list[Finding]
    missing: list[str]  # slots that were asked for and are not mentioned at all
    finished: bool  # a full stop ends the sentence


class _Word(NamedTuple):
    text: str
    start: int
    end: int


class _Phrase(NamedTuple):
    kind: str  # "claim", "half" (of a name), "bare" (a name without the verb), "vague" or "chatter"
    slot: str
    value: str
    quoted: slice  # its words without "at", "on", "teaches"


class _Segment(NamedTuple):
    phrase: _Phrase | None  # None: words that fit no phrase
    words: tuple[_Word, ...]


def _key(text: str) -> tuple[str, ...]:
    return tuple(split_words(text.lower()))


@cache
def _phrases() -> dict[tuple[str, ...], _Phrase]:
    """Return every known phrase by its words in lower case."""
    full = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    persons = [("half", name) for name in FIRST_NAMES + LAST_NAMES] + [("claim", name) for name in full]
    table: dict[tuple[str, ...], _Phrase] = {}
    for kind, name in persons:
        quoted = slice(0, len(_key(name)))
        table[_key(name)] = _Phrase("bare" if kind == "claim" else kind, "who", name, quoted)
        table[_key(f"{name} {VERB}")] = _Phrase(kind, "who", name, quoted)
    for slot, values in VALUES.items():
        for value in values:
            key = _key(phrase(slot, value))
            table[key] = _Phrase("claim", slot, value, slice(len(key) - len(_key(said(slot, value))), None))
    for slot, text in FILLERS.items():
        verb = f" {VERB}" if slot == "who" else ""
        table[_key(text + verb)] = _Phrase("vague", slot, "", slice(0, len(_key(text))))
    return table | {_key(text): _Phrase("chatter", "", "", slice(None)) for text in CHATTER}


def read(response: str, facts: dict[str, str]) -> Reading:
    """Judge every piece of an answer against the claims that were asked for."""
    words = [_Word(match[0], *match.span()) for match in WORD.finditer(response)]
    length = _sentence_length(words, response)
    finished = length < len(words) and words[length].text in STOPS
    findings, seen = _judge(_segments(words[:length]), facts)
    for chunk in _chunks(words[length + finished :], response):
        findings.append(Finding("extra", chunk[0].start, chunk[-1].end))
    return Reading(findings, [slot for slot in facts if slot not in seen], finished)


def _sentence_length(words: list[_Word], response: str) -> int:
    """Return how many words come before the first full stop or line break."""
    for i, word in enumerate(words):
        if word.text in STOPS or (i and "\n" in response[words[i - 1].end : word.start]):
            return i
    return len(words)


def _segments(words: list[_Word]) -> Iterator[_Segment]:
    """Cut a sentence into known phrases, longest first, and runs of words between them."""
    stray: list[_Word] = []
    i = 0
    while i < len(words):
        size = _match(words[i : i + LONGEST_PHRASE])
        if not size:
            stray.append(words[i])
        else:
            if stray:
                yield _Segment(None, tuple(stray))
            stray = []
            yield _Segment(_phrases()[_lower(words[i : i + size])], tuple(words[i : i + size]))
        i += size or 1
    if stray:
        yield _Segment(None, tuple(stray))


def _match(words: list[_Word]) -> int:
    """Return the length of the longest known phrase that `words` begin with, or 0."""
    return next((size for size in range(len(words), 0, -1) if _lower(words[:size]) in _phrases()), 0)


def _lower(words: list[_Word]) -> tuple[str, ...]:
    return tuple(word.text.lower() for word in words)


def _chunks(words: Sequence[_Word], response: str) -> Iterator[Sequence[_Word]]:
    """Cut a run of words into pieces that a critique can quote: within one line and not too long."""
    start = 0
    for i in range(1, len(words) + 1):
        if i == len(words) or i - start == LONGEST_QUOTE or "\n" in response[words[i - 1].end : words[i].start]:
            yield words[start:i]
            start = i


def _judge(segments: Iterator[_Segment], facts: dict[str, str]) -> tuple[list[Finding], set[str]]:
    """Judge the segments of a sentence in order; return the findings and the slots that were mentioned."""
    findings: list[Finding] = []
    seen: set[str] = set()
    last = ""  # the slot mentioned last
    for known, words in segments:
        if known is None or known.kind == "chatter":
            findings += _noise(known, words)
            continue
        quoted = words[known.quoted]
        kind = _verdict(known, last, seen, facts)
        if known.slot == "who" and kind in ("right", "wrong"):
            right = same_halves(known.value, facts["who"])
            findings += [
                Finding("right" if same else "wrong", word.start, word.end, half)
                for half, same, word in zip(HALVES, right, quoted, strict=True)
            ]
        else:
            findings.append(Finding(kind, quoted[0].start, quoted[-1].end, known.slot))
        seen.add(known.slot)
        last = known.slot
    return findings, seen


def _noise(known: _Phrase | None, words: tuple[_Word, ...]) -> Iterator[Finding]:
    """Find chatter or garbled words; a lone comma between phrases is no fault."""
    if known is not None:
        yield Finding("chatter", words[0].start, words[-1].end)
    elif any(word.text != "," for word in words):
        for i in range(0, len(words), LONGEST_QUOTE):
            yield Finding("garbled", words[i].start, words[i : i + LONGEST_QUOTE][-1].end)


def _verdict(known: _Phrase, last: str, seen: set[str], facts: dict[str, str]) -> Kind:
    """Judge one phrase; a second mention, a wrong place and a lack of interest outweigh a right value."""
    if known.slot in seen:
        return "duplicate"
    if known.kind == "bare" or last not in LEADS.get(known.slot, (*SLOTS, "")):
        return "misplaced"
    if known.slot not in facts:
        return "unasked"
    if known.kind == "half":
        return "half"
    if known.kind == "vague":
        return "vague"
    return "right" if known.value == facts[known.slot] else "wrong"
