"""The interface of an embedded task, and the words, splits and random numbers that all tasks use.

`WORD` splits the text of a task into words and single punctuation marks; `Task.vocabulary()` lists every word and mark
of prompts, answers and critiques, so that a word-level tokenizer knows all of them.
"""

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from random import Random
from typing import Literal, NamedTuple, Protocol

from text2grad.feedback import Critic
from text2grad.types import Example

WORD = re.compile(r"\w+|[^\w\s]")

Split = Literal["train", "held_out"]


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


def seeded_random(*parts: object) -> Random:
    """Return a generator that is seeded by the parts alone: the same on every machine and in every process."""
    return Random(sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest())


class Task(Protocol):
    """One embedded task, on one split."""

    @property
    def name(self) -> str:
        """The task's name in recipes and results."""

    @property
    def metric(self) -> str:
        """The key of the main metric in the result of `score`."""

    def examples(self, n: int, seed: int = 0) -> list[Example]:
        """Return n distinct items of the split; the same seed gives the same items."""

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return one noisy answer, as a person might have written it, for supervised fine-tuning."""

    def corruption(self, example: Example, rng: Random) -> str:
        """Return an answer with faults that demonstrations seldom have, for the training of a reward model."""

    def critic(self) -> Critic:
        """Return the program critic."""

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return the task's metrics of one response, each in [0, 1]."""

    def score_many(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, float]]:
        """Return the metrics of each response."""

    def vocabulary(self) -> list[str]:
        """Return every word and punctuation mark of prompts, answers and critiques, of both splits."""

    def verdicts(self) -> list[str]:
        """Return the texts that can follow a quote in a critique, from the closing quotation mark on."""

    def texts(self, n: int, seed: int = 0) -> list[str]:
        """Return n texts to train a tokenizer on, each a prompt, an answer and its critique."""
