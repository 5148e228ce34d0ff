"""The program critic of answers that state facts: findings → English sentences that quote each span."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from text2grad.tasks.facts.reading import HALVES, FactReader, Facts, Reading
from text2grad.tasks.program_critic import STYLES, Finding, Judgement, ProgramCritic, bare, sentences
from text2grad.types import Example

MISSING = ("it is missing", "nothing names it")
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
    """Writes critiques of answers of one sentence.

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

    def write(self, reading: Reading, response: str, facts: Facts, rng: Random) -> str:
        """Return the critique; each quotable finding is quoted exactly as it stands in the answer."""
        if not response.strip():
            return self.empty
        style, kept = rng.randrange(STYLES), self.quotable(reading)
        facts = {**facts, **dict(zip(HALVES, facts["who"].split(), strict=True))}
        truths = {slot: self.truths[slot][style].format(**facts) for slot in facts}

        def verdict(finding: Finding) -> str:
            quote = f'"{response[finding.start : finding.end]}"'
            return self.verdicts[finding.kind][style].format(quote=quote, noun=self.nouns.get(finding.about))

        text = sentences(kept, lambda finding: truths.get(finding.about), verdict)
        text += [MORE] if len(kept) < len(reading.findings) else []
        text += [] if reading.finished else [UNFINISHED]
        text += [f"{truths[slot]}: {MISSING[style]}." for slot in reading.missing]
        return " ".join(text)

    def judgements(self) -> list[str]:
        """Return every wording of a judgement."""
        return [wording for choices in self.verdicts.values() for wording in choices]

    def words(self) -> list[str]:
        """Return texts that hold every word of critiques, apart from facts and quotes."""
        truths = [wording for choices in self.truths.values() for wording in choices]
        wordings = [*truths, *self.judgements(), *MISSING]
        return [*map(bare, wordings), *self.nouns.values(), UNFINISHED, self.empty, MORE, '" and: ']


@dataclass(frozen=True, slots=True)
class FactCritic(ProgramCritic):
    """Judges each phrase of an answer against the facts; a fact without a phrase is an omission."""

    reader: ClassVar[FactReader]
    writer: ClassVar[FactWriter]

    def judge(self, example: Example, response: str, rng: Random) -> Judgement:
        """Judge one answer."""
        facts = self.facts(example)
        reading = self.reader.read(response, facts)
        feedback = self.writer.write(reading, response, facts, rng)
        return Judgement(feedback, self.writer.quotable(reading), len(reading.missing))

    @abstractmethod
    def facts(self, example: Example) -> Facts:
        """Return the true facts of an example, by slot."""
