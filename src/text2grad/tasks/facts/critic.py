"""The program critic of answers that state facts: findings → English sentences that quote each span."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, NamedTuple

from text2grad.tasks.facts.parts import Line, lines_of, parts_of
from text2grad.tasks.facts.reading import HALVES, FactReader, Facts, Reading
from text2grad.tasks.program_critic import STYLES, Finding, Judgement, ProgramCritic, bare, sentences
from text2grad.types import Example

MISSING = ("it is missing", "nothing names it")
MISSING_UNSTATED = ("The {noun} is missing", "The {noun}: nothing names it")  # where the truth is not stated
UNFINISHED = "The sentence breaks off."
MORE = "There is more like this."
LINE = "Line {label}."
LINE_MISSING = ("Line {label} is missing", "Line {label}: nothing names it")
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

    def words(self, *, labelled: bool = False) -> list[str]:
        """Return texts that hold every word of critiques, apart from facts, quotes and labels.

        Args:
            labelled: whether the answers have several lines.
        """
        truths = [wording for choices in self.truths.values() for wording in choices]
        wordings = [*truths, *self.judgements(), *MISSING, *MISSING_UNSTATED]
        parts = [*LINE_MISSING, LINE] if labelled else []
        return [*map(bare, [*wordings, *parts]), *self.nouns.values(), UNFINISHED, self.empty, MORE, '" and: ']


class _Judged(NamedTuple):
    text: list[str]  # sentences
    findings: list[Finding]
    omissions: int


@dataclass(frozen=True, slots=True)
class FactCritic(ProgramCritic):
    """Judges each phrase of an answer against the facts; a fact without a phrase is an omission.

    An answer of several parts has a line for each, with its label. A line without a label, or with a label that is
    unknown, repeated or out of order, is out of place.
    """

    reader: ClassVar[FactReader]
    writer: ClassVar[FactWriter]

    def judge(self, example: Example, response: str, rng: Random) -> Judgement:
        """Judge one answer."""
        style, parts = rng.randrange(STYLES), parts_of(example)
        if parts:
            return self._judge_lines(parts, response, style)
        judged = self._judge_sentence(example, response, 0, len(response), style)
        return Judgement(" ".join(judged.text), judged.findings, judged.omissions)

    def _judge_sentence(self, example: Example, response: str, start: int, end: int, style: int) -> _Judged:
        """Judge characters [start, end) of a response: an answer of one sentence."""
        facts = self.facts(example)
        read = self.reader.read(response[start:end], facts)
        moved = [replace(finding, start=finding.start + start, end=finding.end + start) for finding in read.findings]
        reading = read._replace(findings=moved)
        text = [self.writer.empty]
        if response[start:end].strip():
            text = self.writer.write(reading, response, facts, style, truths=self.truths)
        return _Judged(text, self.writer.quotable(reading), len(reading.missing))

    def _judge_lines(self, parts: Mapping[str, Example], response: str, style: int) -> Judgement:
        """Judge each line by its label; a part without a line has as many omissions as facts."""
        if not response.strip():
            return Judgement(self.writer.empty, (), sum(len(self.facts(part)) for part in parts.values()))
        text: list[str] = []
        findings: list[Finding] = []
        omissions, ahead, seen = 0, list(parts), set[str]()
        for line in lines_of(response):
            if line.label in ahead:
                del ahead[: ahead.index(line.label) + 1]
                seen.add(line.label)
                judged = self._judge_sentence(parts[line.label], response, line.text, line.end, style)
                text.append(LINE.format(label=line.label))
            else:
                judged = self._misplaced(response, line, style)
            text += judged.text
            findings += judged.findings
            omissions += judged.omissions
        missing = [label for label in parts if label not in seen]
        text += [f"{LINE_MISSING[style].format(label=label)}." for label in missing]
        omissions += sum(len(self.facts(parts[label])) for label in missing)
        return Judgement(" ".join(text), findings, omissions)

    def _misplaced(self, response: str, line: Line, style: int) -> _Judged:
        """Judge a line without a label, or with a label that is unknown, repeated or out of order."""
        pieces = list(self.reader.pieces(response, line.start, line.end))
        misplaced = [Finding("misplaced", start, end) for start, end in pieces[: self.writer.most_faults]]
        text = [f"{self.writer.verdict(finding, response, style)}." for finding in misplaced]
        return _Judged(text + [MORE] * (len(misplaced) < len(pieces)), misplaced, 0)

    @abstractmethod
    def facts(self, example: Example) -> Facts:
        """Return the true facts of an example of one sentence, by slot."""
