"""The critic's pen, where one sentence states facts: findings become English sentences that quote each span.

A critique goes through the answer in its order. Each remark first says what is true and then what of it the answer
has: a model that learns to write such critiques has the truth beside the quote when it judges. The choice among
wordings is drawn from the given generator, which the critic seeds with the prompt and the answer: the same answer
always gets the same words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from text2grad.tasks.base import Finding, bare, remarks
from text2grad.tasks.facts.reading import HALVES, Facts, Reading

STYLES = 2  # a critique keeps to one: what is left to chance is noise for whoever learns to write critiques
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
class FactPen:
    """Writes critiques of answers of one sentence.

    Attributes:
        truths: by slot, how a critique states the fact, in each style.
        nouns: by slot, what the fact is called.
        empty: what is said of an answer without words.
        most_faults: how many faults a critique tells.
        verdicts: by kind of finding, how a critique states it, in each style.
    """

    truths: Mapping[str, tuple[str, str]]
    nouns: Mapping[str, str]
    empty: str
    most_faults: int
    verdicts: Mapping[str, tuple[str, str]]

    def quotable(self, reading: Reading) -> list[Finding]:
        """Return the findings a critique has room for: all praise and the first faults."""
        praise = [finding for finding in reading.findings if finding.kind == "right"]
        faults = [finding for finding in reading.findings if finding.kind != "right"]
        return sorted(praise + faults[: self.most_faults], key=lambda finding: finding.start)

    def write(self, reading: Reading, response: str, facts: Facts, rng: Random) -> str:
        """Put a reading into words; every quotable finding is quoted as the answer has it."""
        if not response.strip():
            return self.empty
        style, kept = rng.randrange(STYLES), self.quotable(reading)
        facts = {**facts, **dict(zip(HALVES, facts["who"].split(), strict=True))}
        truths = {slot: self.truths[slot][style].format(**facts) for slot in facts}

        def verdict(finding: Finding) -> str:
            quote = f'"{response[finding.start : finding.end]}"'
            return self.verdicts[finding.kind][style].format(quote=quote, noun=self.nouns.get(finding.about))

        text = remarks(kept, lambda finding: truths.get(finding.about), verdict)
        text += [MORE] if len(kept) < len(reading.findings) else []
        text += [] if reading.finished else [UNFINISHED]
        text += [f"{truths[slot]}: {MISSING[style]}." for slot in reading.missing]
        return " ".join(text)

    def judgements(self) -> list[str]:
        """Return every wording of a judgement."""
        return [wording for choices in self.verdicts.values() for wording in choices]

    def words(self) -> list[str]:
        """Return texts that hold every word of critiques, but for facts and what they quote."""
        truths = [wording for choices in self.truths.values() for wording in choices]
        wordings = [*truths, *self.judgements(), *MISSING]
        return [*map(bare, wordings), *self.nouns.values(), UNFINISHED, self.empty, MORE, '" and: ']
