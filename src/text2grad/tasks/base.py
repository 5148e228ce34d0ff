"""The base of embedded tasks, whose items follow from a seed, and the words and splits that they use.

`WORD` splits the text of a task into words and single punctuation marks; `Task.vocabulary()` lists every word and mark
of prompts, answers and critiques, so that a word-level tokenizer knows all of them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from text2grad.errors import DataError, check_known
from text2grad.tasks.program_critic import ProgramCritic, seeded_random
from text2grad.types import Example

WORD = re.compile(r"\w+|[^\w\s]")
MOST_REPEATS = 10_000  # draws in a row without a new prompt, after which a task has no more

Split = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The knobs of a task, which experiments set."""

    length: int = 0  # of an answer, in a unit of the task; 0 for the task's usual items
    faults: float = 1.0  # share of the usual rates of faults in demonstrations, in [0, 1]
    truths: bool = True  # critiques state the true fact beside each quote


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of `text`, each mark on its own.

    Example:
        >>> split_words("Not a bike, a boat.")
        ['Not', 'a', 'bike', ',', 'a', 'boat', '.']
    """
    return WORD.findall(text)


class Pair(NamedTuple):
    """Two word lists; a task combines a word of each."""

    left: tuple[str, ...]
    right: tuple[str, ...]


@cache
def pairs(pair: Pair, split: Split) -> tuple[tuple[str, str], ...]:
    """Return the combinations of one split. An eighth is held out; every combination is in exactly one split."""
    return tuple(
        (left, right)
        for i, left in enumerate(pair.left)
        for j, right in enumerate(pair.right)
        if ((i + j) % 8 == 0) == (split == "held_out")
    )


@dataclass(frozen=True, slots=True)
class Task(ABC):
    """One embedded task, on one split. It makes its own items from a seed; the two splits share no item."""

    split: Split = "train"
    seed: int = 0  # decides the items
    settings: TaskSettings = TaskSettings()  # of these, only the length changes the items

    name: ClassVar[str]  # name in recipes and results
    metric: ClassVar[str]  # the key of the main metric in the result of `score`
    judgements: ClassVar[Sequence[str]]  # every wording of a judgement
    tools: ClassVar[Sequence[Callable[..., Any]]] = ()  # what the policy may call; a demonstration is a `Conversation`
    chat_template: ClassVar[str] = ""  # of the policy; "": plain prompts
    symbols: ClassVar[Sequence[str]] = ()  # texts of chat template, calls and critiques that become one token each

    def __post_init__(self) -> None:
        """Refuse an unknown split."""
        check_known(f"the split of {self.name}", self.split, get_args(Split))

    def examples(self, n: int, seed: int = 0) -> list[Example]:
        """Return n items with distinct prompts; a smaller n gives the first of them.

        Raises:
            DataError: if the task has too few prompts.
        """
        rng = self._random("examples", seed)
        items: dict[str, Example] = {}
        repeats = 0
        while len(items) < n:
            example = self.draw(rng)
            repeats = repeats + 1 if example.prompt_text in items else 0
            if repeats > MOST_REPEATS:
                raise DataError(
                    f"the task {self.name} has too few prompts: {n} distinct prompts needed, {len(items)} found. "
                    "Lower the number of examples (quickstart.examples, or sft.steps × sft.batch_size)"
                )
            items.setdefault(example.prompt_text, example)
        return list(items.values())

    def _random(self, purpose: str, seed: int) -> Random:
        length = (f"length {self.settings.length}",) if self.settings.length else ()
        return seeded_random(purpose, self.split, "normal", self.seed, seed, *length)

    def errs(self, rate: float, rng: Random) -> bool:
        """Draw whether a demonstration has a fault whose usual rate is `rate`."""
        return rng.random() < rate * self.settings.faults

    def vocabulary(self) -> list[str]:
        """Return every word and punctuation mark of prompts, answers and critiques, of both splits, sorted."""
        return sorted({word for text in self.all_words() for word in split_words(text)})

    def verdicts(self) -> list[str]:
        """Return the texts that can follow a quote, from the closing quotation mark on, each once and sorted."""
        return sorted({'"' + wording.partition("{quote}")[2].partition(" {")[0] for wording in self.judgements})

    def demonstrations(self, examples: Sequence[Example], rng: Random) -> list[str]:
        """Return a demonstration of each example; in plain text a space parts it from the prompt."""
        answers = [self.demonstration(example, rng) for example in examples]
        return answers if self.chat_template else [f" {answer}" for answer in answers]

    def score_many(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, float]]:
        """Return `score` of each response."""
        return [self.score(example, response) for example, response in zip(examples, responses, strict=True)]

    @abstractmethod
    def critic(self) -> ProgramCritic:
        """Return the program critic, which states the truths if `settings.truths`."""

    @abstractmethod
    def draw(self, rng: Random) -> Example:
        """Draw one item."""

    @abstractmethod
    def demonstration(self, example: Example, rng: Random) -> str:
        """Return one noisy answer, as a person might have written it, for supervised fine-tuning."""

    @abstractmethod
    def corruption(self, example: Example, rng: Random) -> str:
        """Return an answer with faults that demonstrations seldom have, for the training of a reward model."""

    @abstractmethod
    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return the metrics of one response, the main one in [0, 1]."""

    @abstractmethod
    def all_words(self) -> Iterable[str]:
        """Return texts that together hold every word of prompts, answers and critiques."""
