"""Answers of one sentence that states facts: their reading, the program critic, the metric, and noise.

The reader goes through an answer from left to right with a table of known phrases and takes the longest that fits. A
phrase states a fact, is vague about a fact, or is chatter. Words that fit no phrase are garbled; words after the first
full stop are extra. The writer puts these findings into English sentences that quote each span.
"""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import ClassVar, NamedTuple

from text2grad.tasks.base import WORD, split_words
from text2grad.tasks.program_critic import STYLES, Finding, ProgramCritic, bare, judged, sentences
from text2grad.types import Critique, Example

HALVES = ("first", "last")  # parts of a name
STOPS = frozenset(".!?")

MISSING = ("it is missing", "nothing names it")
MISSING_UNSTATED = ("The {noun} is missing", "The {noun}: nothing names it")  # where the truth is not stated
UNFINISHED = "The sentence breaks off."
MORE = "There is more like this."
VERDICTS = {
    "right": ("{quote} is right", "{quote} is correct"),
    "wrong": ("{quote} is wrong", "{quote} is the wrong {noun}"),
    "vague": ("{quote} is vague", "{quote} is too vague"),
    "half": ("{quote} is half a name", "{quote} is only half a name"),
    "duplicate": ("{quote} is one {noun} too many", "{quote} is a second {noun}"),
    "misplaced": ("{quote} is out of place", "{quote} is in the wrong place"),
    "chatter": ("{quote} is chatter", "{quote} is no fact"),
    "garbled": ("{quote} is garbled", "{quote} is nonsense"),
    "extra": ("{quote} is extra", "{quote} is after the end"),
}


class Reading(NamedTuple):
    """The findings in one answer."""

    findings: list[Finding]
    missing: list[str]  # slots that no phrase mentions
    finished: bool  # a full stop ends the sentence


class Phrase(NamedTuple):
    """The meaning of some words.

    The kind is "fact"; "vague" or "half" (of a name), which are faults; "bare", a phrase that is always misplaced; or
    "chatter".
    """

    kind: str
    slot: str = ""  # the fact that the phrase is about
    value: str = ""  # the stated value of the fact
    quoted: slice = slice(None)  # the words that a critique quotes: "Friday" of "on Friday"


Facts = Mapping[str, str]
Phrases = Mapping[tuple[str, ...], Phrase]
Words = Sequence[re.Match[str]]


def key(text: str) -> tuple[str, ...]:
    """Return the words and marks under which a phrase is stored; spaces and case do not count."""
    return tuple(split_words(text.lower()))


@dataclass(frozen=True, slots=True)
class FactReader:
    """Reads answers of one sentence.

    `leads` has for a slot the slots that may come right before, "" for the start; others may come anywhere.
    """

    phrases: Phrases  # every known phrase by its words in lower case
    leads: Mapping[str, Sequence[str]]
    longest_quote: int  # in words; a longer piece is quoted in parts

    def read(self, response: str, facts: Facts, start: int, end: int) -> Reading:
        """Judge every piece of characters [start, end) of a response against the facts."""
        words = list(WORD.finditer(response, start, end))
        length = _sentence_length(words, response)
        finished = length < len(words) and words[length][0] in STOPS
        findings, seen, last = list[Finding](), set[str](), ""
        for known, piece in self._pieces(words[:length]):
            if known is None:
                if any(word[0] != "," for word in piece):  # a lone comma between phrases is no fault
                    findings += self.cut("garbled", piece, response)
            elif known.kind == "chatter":
                findings.append(Finding("chatter", piece[0].start(), piece[-1].end()))
            else:
                findings += _findings(known, self._kind(known, last, seen, facts), piece[known.quoted], facts)
                seen.add(known.slot)
                last = known.slot
        findings += self.cut("extra", words[length + finished :], response)
        return Reading(findings, [slot for slot in facts if slot not in seen], finished)

    def cut(self, kind: str, words: Words, response: str) -> Iterator[Finding]:
        """Yield findings of one kind for a run of words: each can be quoted, within one line and not too long."""
        start = 0
        for i in range(1, len(words) + 1):
            full = i == len(words) or i - start == self.longest_quote
            if full or "\n" in response[words[i - 1].end() : words[i].start()]:
                yield Finding(kind, words[start].start(), words[i - 1].end())
                start = i

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

    def _pieces(self, words: Words) -> Iterator[tuple[Phrase | None, Words]]:
        """Cut a sentence into known phrases, longest first, and runs of words that fit no phrase."""
        texts, longest = tuple(word[0].lower() for word in words), max(map(len, self.phrases))
        stray = i = 0
        while i < len(words):
            ends = range(min(i + longest, len(words)), i, -1)
            end = next((end for end in ends if texts[i:end] in self.phrases), i)
            if end > i:
                if stray < i:
                    yield None, words[stray:i]
                yield self.phrases[texts[i:end]], words[i:end]
                stray = end
            i = max(end, i + 1)
        if stray < i:
            yield None, words[stray:]


def _sentence_length(words: Words, response: str) -> int:
    """Return how many words come before the first full stop or line break."""
    for i, word in enumerate(words):
        if word[0] in STOPS or (i and "\n" in response[words[i - 1].end() : word.start()]):
            return i
    return len(words)


def _findings(known: Phrase, kind: str, quoted: Words, facts: Facts) -> Iterator[Finding]:
    """Yield the finding of one phrase; a full name is judged half by half, because one half may be right."""
    if known.slot == "who" and kind in ("right", "wrong"):
        for half, said, true, word in zip(HALVES, known.value.split(), facts["who"].split(), quoted, strict=True):
            yield Finding("right" if said == true else "wrong", *word.span(), half)
    else:
        yield Finding(kind, quoted[0].start(), quoted[-1].end(), known.slot)


@dataclass(frozen=True, slots=True)
class FactWriter:
    """Writes the critique of one sentence."""

    truths: Mapping[str, tuple[str, str]]  # slot → the wording of the true fact, in each style
    nouns: Mapping[str, str]  # slot → the noun of the fact
    empty: str  # the critique of an answer without words
    most_faults: int  # that a critique quotes
    verdicts: Mapping[str, tuple[str, str]]  # kind of finding → the wording of the judgement, in each style

    def quotable(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings that the critique quotes: all positive ones and the first faults."""
        numbers = count(1)  # of the faults
        return [finding for finding in findings if finding.kind == "right" or next(numbers) <= self.most_faults]

    def write(self, reading: Reading, response: str, facts: Facts, style: int, *, truths: bool) -> str:
        """Return the critique of one sentence in wordings of a style, with the true facts if `truths`.

        Each quotable finding is quoted exactly as it stands in the answer.
        """
        kept = self.quotable(reading.findings)
        facts = {**facts, **dict(zip(HALVES, facts["who"].split(), strict=True))}
        stated = {slot: self.truths[slot][style].format(**facts) for slot in facts} if truths else {}
        text = sentences(
            kept, lambda finding: stated.get(finding.about), lambda finding: self.verdict(finding, response, style)
        )
        text += [MORE] if len(kept) < len(reading.findings) else []
        text += [] if reading.finished else [UNFINISHED]
        return " ".join(text + [self._missing(slot, stated, style) for slot in reading.missing])

    def verdict(self, finding: Finding, response: str, style: int) -> str:
        """Return the quote of a finding and the judgement on it."""
        quote = f'"{response[finding.start : finding.end]}"'
        return self.verdicts[finding.kind][style].format(quote=quote, noun=self.nouns.get(finding.about))

    def _missing(self, slot: str, stated: Facts, style: int) -> str:
        if slot in stated:
            return f"{stated[slot]}: {MISSING[style]}."
        return f"{MISSING_UNSTATED[style].format(noun=self.nouns[slot])}."

    def judgements(self) -> list[str]:
        """Return every wording of a judgement."""
        return [wording for choices in self.verdicts.values() for wording in choices]

    def symbols(self) -> list[str]:
        """Return what sentences of critiques share: words before a fact, before a quote, and behind it."""
        openings = [wording.partition(" {")[0] for choices in self.truths.values() for wording in choices]
        ends = ['"' + wording.partition("{quote}")[2] + "." for wording in self.judgements() if "{noun}" not in wording]
        return [': "', *ends, *openings, *(f" {opening}" for opening in openings)]

    def words(self) -> list[str]:
        """Return texts that hold every word of critiques, apart from facts and quotes."""
        truths = [wording for choices in self.truths.values() for wording in choices]
        wordings = [*truths, *self.judgements(), *MISSING, *MISSING_UNSTATED]
        return [*map(bare, wordings), *self.nouns.values(), UNFINISHED, self.empty, MORE, '" and: ']


@dataclass(frozen=True, slots=True)
class FactCritic(ProgramCritic):
    """Judges each phrase of an answer against the facts, and names the facts without a phrase."""

    reader: ClassVar[FactReader]
    writer: ClassVar[FactWriter]

    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge one answer."""
        return self.judge_sentence(example, response, 0, len(response), rng.randrange(STYLES))

    def judge_sentence(self, example: Example, response: str, start: int, end: int, style: int) -> Critique:
        """Judge characters [start, end) of a response: an answer of one sentence."""
        facts = self.facts(example)
        reading = self.reader.read(response, facts, start, end)
        if not response[start:end].strip():
            return Critique(self.writer.empty)
        feedback = self.writer.write(reading, response, facts, style, truths=self.truths)
        return judged(feedback, self.writer.quotable(reading.findings))

    @abstractmethod
    def facts(self, example: Example) -> Facts:
        """Return the true facts of an example of one sentence, by slot."""


class ClaimMetric:
    r"""The claims of an answer, found by one pattern for each slot anywhere in it, against the true facts.

        precision = right / claimed,  recall = right / facts,  F1 = 2 · right / (claimed + facts)

    A claim counts each time it is made, so a repeated or superfluous claim costs precision; a fact that is left out
    costs recall. A vague filler claims nothing. The metric shares no code with the critic, which never sees it.

    Example:
        >>> metric = ClaimMetric({"what": r"\bteaches (chess|yoga)\b", "when": r"\bon (Monday|Friday)\b"})
        >>> metric.claims("Ann teaches chess on Friday .")
        [('what', 'chess'), ('when', 'friday')]
        >>> metric.scores([({"what": "chess", "when": "Monday"}, "Ann teaches chess on Friday.")])
        {'f1': 0.5, 'precision': 0.5, 'recall': 0.5}
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        """Compile the patterns: slot → regular expression whose only group is the claimed value."""
        self._patterns = {slot: re.compile(pattern, re.IGNORECASE) for slot, pattern in patterns.items()}

    def claims(self, response: str) -> list[tuple[str, str]]:
        """Return every claim of an answer as (slot, value in lower case)."""
        text = " ".join(split_words(response))
        return [(slot, value.lower()) for slot, pattern in self._patterns.items() for value in pattern.findall(text)]

    def scores(self, parts: Iterable[tuple[Facts, str]]) -> dict[str, float]:
        """Return F1, precision and recall of all claims, each part of the answer judged by facts of its own."""
        stated, true, right = 0, 0, 0
        for facts, text in parts:
            claims = self.claims(text)
            stated, true = stated + len(claims), true + len(facts)
            right += len({(slot, value.lower()) for slot, value in facts.items()} & set(claims))
        return {
            "f1": 2 * right / (stated + true),
            "precision": right / stated if stated else 0.0,
            "recall": right / true,
        }


def half_of_both(name: str, other: str, rng: Random, unseen: Collection[tuple[str, str]] = ()) -> str:
    """Return a full name; half of the draws keep the first or the last part of `name`, the others return `other`.

    `unseen` are (first, last) names that must not be returned; `other` is returned instead.
    """
    (first, last), (another, surname) = name.split(), other.split()
    chosen = rng.choice(((another, surname), (another, surname), (first, surname), (another, last)))
    return other if chosen in unseen else " ".join(chosen)


def chatty(sentence: str, phrases: Sequence[str], line: str, rng: Random) -> str:
    """End a sentence with a phrase that states nothing, or add a second sentence that states nothing."""
    ending = rng.choice((*phrases, None))
    return f"{sentence}. {line}" if ending is None else f"{sentence} {ending}."


def scrambled(answer: str, other: str, rng: Random) -> str:
    """Return a garbled answer: cut, spliced with another, or with words left out, doubled or shuffled."""
    words, others = answer.split(), other.split()
    i, j = sorted((rng.randrange(len(words)), rng.randrange(len(words))))
    kinds = (
        words[:i],
        words[:i] + others[i:],
        words[:i] + words[i + 1 :],
        words[:j] + words[i:],
        [*words[:i], words[j], *words[i + 1 : j], words[i], *words[j + 1 :]],
        rng.sample(words, len(words)),
    )
    return " ".join(rng.choice(kinds))
