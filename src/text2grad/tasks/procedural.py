"""What the embedded tasks have in common: items that follow from a seed, and a critic that is a program."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import ClassVar, NamedTuple, get_args

from text2grad.errors import ConfigError, DataError
from text2grad.tasks.base import Finding, Split, verdicts
from text2grad.types import Critique, Example, Span


class Judgement(NamedTuple):
    """What a program says of an answer: in words, by what it quotes, and how much is left out without a word."""

    feedback: str
    findings: Sequence[Finding]
    omissions: int


@dataclass(frozen=True, slots=True)
class ProgramCritic(ABC):
    """Judges answers in words: `critic(examples, responses)` returns one critique each.

    Attributes:
        omission_penalty: with a value above 0, each omission takes this much off the critique's `outcome`; an
            omission has no span. At 0 the outcome is None.
    """

    omission_penalty: float = 0.0

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            DataError: if the lengths differ or an example is not of this task.
        """
        if len(examples) != len(responses):
            raise DataError(f"got {len(examples)} examples and {len(responses)} responses")
        return [self._critique(example, response) for example, response in zip(examples, responses, strict=True)]

    def _critique(self, example: Example, response: str) -> Critique:
        feedback, findings, omissions = self.judge(example, response, generator(example.prompt_text, response))
        spans = tuple(
            Span(finding.start, finding.end, "positive" if finding.kind == "right" else "negative")
            for finding in findings
        )
        return Critique(feedback, spans, -self.omission_penalty * omissions if self.omission_penalty else None)

    @abstractmethod
    def judge(self, example: Example, response: str, rng: Random) -> Judgement:
        """Judge one response; the generator draws among wordings."""


@dataclass(frozen=True, slots=True)
class ProceduralTask(ABC):
    """A task that makes its own items, on one split; the two splits share none.

    Attributes:
        split: "train" or "held_out".
        difficulty: a key of `difficulties`.
        seed: with another seed, every item is another.
    """

    split: Split = "train"
    difficulty: str = "normal"
    seed: int = 0

    name: ClassVar[str]
    metric: ClassVar[str]
    difficulties: ClassVar[Mapping[str, object]]
    judgements: ClassVar[Sequence[str]]  # every wording of a judgement

    def __post_init__(self) -> None:
        """Refuse unknown settings."""
        for what, value, known in (
            ("split", self.split, get_args(Split)),
            ("difficulty", self.difficulty, tuple(self.difficulties)),
        ):
            if value not in known:
                raise ConfigError(f"{self.name} has no {what} {value!r}; known: {', '.join(known)}")

    def examples(self, n: int, seed: int = 0) -> list[Example]:
        """Return n items with distinct prompts; a shorter list is the beginning of a longer one."""
        rng = generator("examples", self.split, self.difficulty, self.seed, seed)
        items: dict[str, Example] = {}
        while len(items) < n:
            example = self.draw(rng)
            items.setdefault(example.prompt_text, example)
        return list(items.values())

    def texts(self, n: int, seed: int = 0) -> list[str]:
        """Return n texts, each a prompt, an answer and its critique; every second answer is a corruption."""
        rng = generator("texts", self.split, self.difficulty, self.seed, seed)
        examples = self.examples(n, seed)
        answers = [(self.corruption if i % 2 else self.demonstration)(e, rng) for i, e in enumerate(examples)]
        critiques = self.critic()(examples, answers)
        return [
            f"{example.prompt_text} {answer}\n{critique.feedback}"
            for example, answer, critique in zip(examples, answers, critiques, strict=True)
        ]

    def verdicts(self) -> list[str]:
        """Return what critiques say right after a quote, from its closing mark on."""
        return verdicts(self.judgements)

    def score_many(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, float]]:
        """Return `score` of each response."""
        return [self.score(example, response) for example, response in zip(examples, responses, strict=True)]

    @abstractmethod
    def draw(self, rng: Random) -> Example:
        """Draw one item."""

    @abstractmethod
    def demonstration(self, example: Example, rng: Random) -> str:
        """Return one noisy answer as a person might have written it."""

    @abstractmethod
    def corruption(self, example: Example, rng: Random) -> str:
        """Return an answer with faults that demonstrations seldom have."""

    @abstractmethod
    def critic(self) -> ProgramCritic:
        """Return the programmatic critic."""

    @abstractmethod
    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return the task's metrics of one response, each in [0, 1]."""


def generator(*parts: object) -> Random:
    """Return a generator seeded by the parts alone: the same on every machine and in every process."""
    return Random(sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest())
