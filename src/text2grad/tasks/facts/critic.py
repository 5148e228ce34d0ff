"""The program critic of answers that state facts: `FactReader` finds, `FactWriter` puts the findings into words."""

from abc import abstractmethod
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from text2grad.tasks.facts.reading import FactReader, Facts
from text2grad.tasks.facts.wording import FactWriter
from text2grad.tasks.program_critic import Judgement, ProgramCritic
from text2grad.types import Example


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
