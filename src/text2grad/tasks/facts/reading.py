"""Reading an answer of one sentence that states facts: response, true facts → findings.

The reader goes from left to right with a table of known phrases and takes the longest that fits. A phrase states a
fact, is vague about a fact, or is chatter. Words that fit no phrase are garbled; words after the first full stop are
extra.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from text2grad.tasks.base import WORD, split_words
from text2grad.tasks.program_critic import Finding

HALVES = ("first", "last")  # parts of a name
STOPS = frozenset(".!?")


class Reading(NamedTuple):
    """The findings in one answer."""

    findings: list[Finding]
    missing: list[str]  # slots that no phrase mentions
    finished: bool  # a full stop ends the sentence


class Word(NamedTuple):
    """A word or a mark, characters [start, end)."""

    text: str
    start: int
    end: int


class Phrase(NamedTuple):
    """The meaning of some words.

    Attributes:
        kind: "fact"; "vague" or "half" (of a name), which are faults; "bare" for a phrase that is always misplaced;
            or "chatter".
        slot: the fact that the phrase is about, or "".
        value: the stated value of the fact.
        quoted: the words that a critique quotes: "Friday" of "on Friday".
    """

    kind: str
    slot: str = ""
    value: str = ""
    quoted: slice = slice(None)


Facts = Mapping[str, str]
Phrases = Mapping[tuple[str, ...], Phrase]


def key(text: str) -> tuple[str, ...]:
    """Return the words under which a phrase is stored."""
    return tuple(split_words(text.lower()))


@dataclass(frozen=True, slots=True)
class FactReader:
    """Reads answers of one sentence.

    Attributes:
        phrases: () → every known phrase by its words in lower case.
        leads: slot → the slots that may come right before, "" for the start; a slot without an entry may come anywhere.
        longest_phrase: words of the longest known phrase.
        longest_quote: words of the longest quote; a longer piece is quoted in parts.
    """

    phrases: Callable[[], Phrases]
    leads: Mapping[str, Sequence[str]]
    longest_phrase: int
    longest_quote: int

    def read(self, response: str, facts: Facts) -> Reading:
        """Judge every piece of an answer against the facts."""
        words = [Word(match[0], *match.span()) for match in WORD.finditer(response)]
        length = _sentence_length(words, response)
        finished = length < len(words) and words[length].text in STOPS
        findings, seen = self._judge(words[:length], facts)
        for chunk in self._chunks(words[length + finished :], response):
            findings.append(Finding("extra", chunk[0].start, chunk[-1].end))
        return Reading(findings, [slot for slot in facts if slot not in seen], finished)

    def pieces(self, response: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield characters [start, end) in pieces that a critique can quote."""
        words = [Word(match[0], *match.span()) for match in WORD.finditer(response, start, end)]
        for chunk in self._chunks(words, response):
            yield chunk[0].start, chunk[-1].end

    def _judge(self, words: list[Word], facts: Facts) -> tuple[list[Finding], set[str]]:
        """Judge the pieces of a sentence in order; return the findings and the mentioned slots."""
        findings: list[Finding] = []
        seen: set[str] = set()
        last = ""
        for known, piece in self._pieces(words):
            if known is None:
                findings += self._garbled(piece)
            elif known.kind == "chatter":
                findings.append(Finding("chatter", piece[0].start, piece[-1].end))
            else:
                findings += _findings(known, self._kind(known, last, seen, facts), piece[known.quoted], facts)
                seen.add(known.slot)
                last = known.slot
        return findings, seen

    def _kind(self, known: Phrase, last: str, seen: set[str], facts: Facts) -> str:
        """Return the kind of a phrase after slot `last`: a repetition or a wrong place outweighs a right value."""
        if known.slot in seen:
            return "duplicate"
        if known.kind == "bare" or last not in self.leads.get(known.slot, (last,)):
            return "misplaced"
        if known.slot not in facts:
            return "unasked"
        if known.kind != "fact":
            return known.kind
        return "right" if known.value == facts[known.slot] else "wrong"

    def _pieces(self, words: list[Word]) -> Iterator[tuple[Phrase | None, list[Word]]]:
        """Cut a sentence into known phrases, longest first, and runs of words that fit no phrase."""
        stray: list[Word] = []
        i = 0
        while i < len(words):
            size = self._match(words[i : i + self.longest_phrase])
            if not size:
                stray.append(words[i])
            else:
                if stray:
                    yield None, stray
                stray = []
                yield self.phrases()[_lower(words[i : i + size])], words[i : i + size]
            i += size or 1
        if stray:
            yield None, stray

    def _match(self, words: list[Word]) -> int:
        """Return the length of the longest known phrase that `words` begin with, or 0."""
        return next((size for size in range(len(words), 0, -1) if _lower(words[:size]) in self.phrases()), 0)

    def _garbled(self, words: list[Word]) -> Iterator[Finding]:
        """Yield findings for words that fit no phrase; a lone comma between phrases is no fault."""
        if any(word.text != "," for word in words):
            for i in range(0, len(words), self.longest_quote):
                yield Finding("garbled", words[i].start, words[i : i + self.longest_quote][-1].end)

    def _chunks(self, words: Sequence[Word], response: str) -> Iterator[Sequence[Word]]:
        """Cut a run of words into pieces that a critique can quote: within one line and not too long."""
        start = 0
        for i in range(1, len(words) + 1):
            full = i == len(words) or i - start == self.longest_quote
            if full or "\n" in response[words[i - 1].end : words[i].start]:
                yield words[start:i]
                start = i


def _sentence_length(words: list[Word], response: str) -> int:
    """Return how many words come before the first full stop or line break."""
    for i, word in enumerate(words):
        if word.text in STOPS or (i and "\n" in response[words[i - 1].end : word.start]):
            return i
    return len(words)


def _lower(words: list[Word]) -> tuple[str, ...]:
    return tuple(word.text.lower() for word in words)


def _findings(known: Phrase, kind: str, quoted: list[Word], facts: Facts) -> Iterator[Finding]:
    """Yield the finding of one phrase; a full name is judged half by half, because one half may be right."""
    if known.slot == "who" and kind in ("right", "wrong"):
        for half, said, true, word in zip(HALVES, known.value.split(), facts["who"].split(), quoted, strict=True):
            yield Finding("right" if said == true else "wrong", word.start, word.end, half)
    else:
        yield Finding(kind, quoted[0].start, quoted[-1].end, known.slot)
