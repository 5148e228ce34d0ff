"""The critic's eyes: what it finds in a summary, before it puts that into words.

A response is read from left to right with a table of known phrases, longest first. Each phrase states a
fact, is vague about one, or is chatter; words that fit no phrase are garbled, and whatever follows the
first full stop is extra. A fact is judged against the event; a second mention of a slot, or a phrase
where the sentence has no place for it, is a fault even when its value is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from text2grad.tasks._summarization_world import (
    CHATTER,
    FILLERS,
    FIRST_NAMES,
    LAST_NAMES,
    NAMES,
    SLOTS,
    VALUES,
    Facts,
    phrase,
    with_article,
)
from text2grad.tasks.base import WORD, same_halves, split_words

Kind = Literal["right", "wrong", "vague", "half", "duplicate", "misplaced", "chatter", "garbled", "extra"]

LONGEST_QUOTE = 8
LONGEST_PHRASE = 5
HALVES = ("first", "last")  # of a name
STOPS = frozenset(".!?")
# What may be said right before: a person opens the sentence or follows a time or a place, never a deed.
LEADS = {"who": ("", "where", "when", "why"), "did": ("", "who"), "what": ("", "did")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged piece of a response, characters [start, end).

    Attributes:
        kind: the judgement; only "right" is praise.
        start: where the quote starts.
        end: where it ends, exclusive.
        slot: the fact that it is about, or ""; of a full name its half.
    """

    kind: Kind
    start: int
    end: int
    slot: str = ""


class Reading(NamedTuple):
    """What a critic saw in one response."""

    findings: list[Finding]
    missing: list[str]  # slots that are not mentioned at all
    finished: bool  # a full stop ends the sentence


class Word(NamedTuple):
    text: str
    start: int
    end: int


class _Phrase(NamedTuple):
    kind: str  # "fact", "half", "vague" or "chatter"
    slot: str
    value: str
    lead: int  # leading words that are not quoted: "at", "on", "because of"


class _Segment(NamedTuple):
    phrase: _Phrase | None  # None: words that fit no phrase
    words: tuple[Word, ...]


@cache
def _phrases() -> dict[tuple[str, ...], _Phrase]:
    """Return every known phrase by its words in lower case."""
    table = {_key(name): _Phrase("half", "who", name, 0) for name in FIRST_NAMES + LAST_NAMES}
    values = {**VALUES, "who": tuple(f"{first} {last}" for first in NAMES.left for last in NAMES.right)}
    for slot in SLOTS:
        for value in values[slot]:
            key = _key(phrase(slot, value))
            table[key] = _Phrase("fact", slot, value, len(key) - len(_key(with_article(slot, value))))
    table |= {_key(text): _Phrase("vague", slot, "", 0) for slot, text in FILLERS.items()}
    return table | {_key(text): _Phrase("chatter", "", "", 0) for text in CHATTER}


def _key(text: str) -> tuple[str, ...]:
    return tuple(split_words(text.lower()))


def read(response: str, facts: Facts) -> Reading:
    """Judge every piece of a response against the facts of the event."""
    words = [Word(match[0], *match.span()) for match in WORD.finditer(response)]
    length = _sentence_length(words, response)
    finished = length < len(words) and words[length].text in STOPS
    findings, seen = _judge(list(_segments(words[:length])), facts)
    for chunk in _chunks(words[length + finished :], response):
        findings.append(Finding("extra", chunk[0].start, chunk[-1].end))
    return Reading(findings, [slot for slot in SLOTS if slot not in seen], finished)


def _sentence_length(words: list[Word], response: str) -> int:
    """Return how many words come before the first full stop or line break."""
    for i, word in enumerate(words):
        if word.text in STOPS or (i and "\n" in response[words[i - 1].end : word.start]):
            return i
    return len(words)


def _segments(words: list[Word]) -> Iterator[_Segment]:
    """Cut a sentence into known phrases, longest first, and runs of words between them."""
    stray: list[Word] = []
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


def _match(words: list[Word]) -> int:
    """Return the length of the longest known phrase that `words` begin with, or 0."""
    return next((size for size in range(len(words), 0, -1) if _lower(words[:size]) in _phrases()), 0)


def _lower(words: list[Word]) -> tuple[str, ...]:
    return tuple(word.text.lower() for word in words)


def _chunks(words: Sequence[Word], response: str) -> Iterator[Sequence[Word]]:
    """Cut a run of words into pieces that a critique can quote: within one line and not too long."""
    start = 0
    for i in range(1, len(words) + 1):
        if i == len(words) or i - start == LONGEST_QUOTE or "\n" in response[words[i - 1].end : words[i].start]:
            yield words[start:i]
            start = i


def _judge(segments: list[_Segment], facts: Facts) -> tuple[list[Finding], set[str]]:
    """Judge the segments of a sentence in order; return the findings and the slots that were mentioned."""
    findings: list[Finding] = []
    seen: set[str] = set()
    last = ""  # the slot mentioned last
    for known, words in segments:
        if known is None or known.kind == "chatter":
            findings += _noise(known, words)
            continue
        kind = _verdict(known, last, seen, facts)
        if known.slot == "who" and kind in ("right", "wrong"):
            right = same_halves(known.value, facts["who"])
            findings += [
                Finding("right" if same else "wrong", word.start, word.end, half)
                for half, same, word in zip(HALVES, right, words, strict=True)
            ]
        else:
            findings.append(Finding(kind, words[known.lead].start, words[-1].end, known.slot))
        seen.add(known.slot)
        last = known.slot
    return findings, seen


def _noise(known: _Phrase | None, words: tuple[Word, ...]) -> Iterator[Finding]:
    """Find chatter or garbled words; a lone comma between phrases is no fault."""
    if known is not None:
        yield Finding("chatter", words[0].start, words[-1].end)
    elif any(word.text != "," for word in words):
        for i in range(0, len(words), LONGEST_QUOTE):
            yield Finding("garbled", words[i].start, words[i : i + LONGEST_QUOTE][-1].end)


def _verdict(known: _Phrase, last: str, seen: set[str], facts: Facts) -> Kind:
    """Judge one phrase; a second mention and a wrong place in the sentence outweigh a right value."""
    if known.slot in seen:
        return "duplicate"
    if last not in LEADS.get(known.slot, (*SLOTS, "")):
        return "misplaced"
    if known.kind == "half":
        return "half"
    if known.kind == "vague":
        return "vague"
    return "right" if known.value == facts[known.slot] else "wrong"
