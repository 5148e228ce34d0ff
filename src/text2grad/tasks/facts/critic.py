"""The program critic of answers that state facts: findings → English sentences that quote each span."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, NamedTuple

from text2grad.tasks.facts.reading import HALVES, FactReader, Facts, Reading
from text2grad.tasks.program_critic import STYLES, Finding, Judgement, ProgramCritic, bare, sentences
from text2grad.types import Example

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


@dataclass(frozen=True, slots=True)
class FactWriter:
    """Writes the critique of one sentence.

    Attributes:
        truths: slot → the wording of the true fact, in each style.
        nouns: slot → the noun of the fact.
        empty: the critique of an answer without words.
        most_faults: the most faults that a critique quotes.
        verdicts: kind of finding → the wording of the judgement, in each style.
    """

    truths: Mapping[str, tuple[str, str]]
    nouns: Mapping[str, str]
    empty: str
    most_faults: int
    verdicts: Mapping[str, tuple[str, str]]

    def quotable(self, reading: Reading) -> list[Finding]:
        """Return the findings that the critique quotes: all positive ones and the first faults."""
        positive = [finding for finding in reading.findings if finding.kind == "right"]
        faults = [finding for finding in reading.findings if finding.kind != "right"]
        return sorted(positive + faults[: self.most_faults], key=lambda finding: finding.start)

    def write(self, reading: Reading, response: str, facts: Facts, style: int, *, truths: bool = True) -> list[str]:
        """Return the sentences of the critique; each quotable finding is quoted exactly as it stands in the answer.

        Args:
            reading: of one sentence.
            response: the text that holds the findings.
            facts: the true facts of the sentence, by slot.
            style: the choice among the wordings.
            truths: whether to state the true facts.
        """
        kept = self.quotable(reading)
        facts = {**facts, **dict(zip(HALVES, facts["who"].split(), strict=True))}
        stated = {slot: self.truths[slot][style].format(**facts) for slot in facts} if truths else {}
        text = sentences(
            kept, lambda finding: stated.get(finding.about), lambda finding: self.verdict(finding, response, style)
        )
        text += [MORE] if len(kept) < len(reading.findings) else []
        text += [] if reading.finished else [UNFINISHED]
        return text + [self._missing(slot, stated, style) for slot in reading.missing]

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

    def words(self) -> list[str]:
        """Return texts that hold every word of critiques, apart from facts and quotes."""
        truths = [wording for choices in self.truths.values() for wording in choices]
        wordings = [*truths, *self.judgements(), *MISSING, *MISSING_UNSTATED]
        return [*map(bare, wordings), *self.nouns.values(), UNFINISHED, self.empty, MORE, '" and: ']


class JudgedSentence(NamedTuple):
    """The critique of a sentence, in sentences, the findings that it quotes, and the number of omissions."""

    text: list[str]
    findings: list[Finding]
    omissions: int


@dataclass(frozen=True, slots=True)
class FactCritic(ProgramCritic):
    """Judges each phrase of an answer against the facts; a fact without a phrase is an omission."""

    reader: ClassVar[FactReader]
    writer: ClassVar[FactWriter]

    def judge(self, example: Example, response: str, rng: Random) -> Judgement:
        """Judge one answer."""
        judged = self.judge_sentence(example, response, 0, len(response), rng.randrange(STYLES))
        return Judgement(" ".join(judged.text), judged.findings, judged.omissions)

    def judge_sentence(self, example: Example, response: str, start: int, end: int, style: int) -> JudgedSentence:
        """Judge characters [start, end) of a response: an answer of one sentence."""
        facts = self.facts(example)
        read = self.reader.read(response[start:end], facts)
        moved = [replace(finding, start=finding.start + start, end=finding.end + start) for finding in read.findings]
        reading = read._replace(findings=moved)
        text = [self.writer.empty]
        if response[start:end].strip():
            text = self.writer.write(reading, response, facts, style, truths=self.truths)
        return JudgedSentence(text, self.writer.quotable(reading), len(reading.missing))

    @abstractmethod
    def facts(self, example: Example) -> Facts:
        """Return the true facts of an example of one sentence, by slot."""
