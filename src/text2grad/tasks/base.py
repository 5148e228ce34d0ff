"""What every embedded task offers: examples, demonstrations, a critic and a metric.

The text of a task splits into words and single punctuation marks with `WORD`; `vocabulary()` lists every
type that its posts, answers and critiques can contain, so that a word-level tokenizer knows them all.
"""

import re
from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol

from text2grad.critics import Critic
from text2grad.types import Example

WORD = re.compile(r"\w+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of `text`, each mark on its own.

    Example:
        >>> split_words("Not a bike, a boat.")
        ['Not', 'a', 'bike', ',', 'a', 'boat', '.']
    """
    return WORD.findall(text)


def verdicts(wordings: Iterable[str]) -> list[str]:
    """Return the closing quotation mark and the words after it in wordings of a judgement, each once.

    Example:
        >>> verdicts(["{quote} is right", "{quote} is the wrong {noun}"])
        ['" is right', '" is the wrong']
    """
    return sorted({'"' + wording.partition("{quote}")[2].partition(" {")[0] for wording in wordings})


def same_halves(name: str, truth: str) -> tuple[bool, bool]:
    """Return whether the first and whether the last name is the true one: of "Tom Weber" one half may be wrong.

    Example:
        >>> same_halves("Tom Weber", "Tom Chen")
        (True, False)
    """
    first, last = (said == true for said, true in zip(name.split(), truth.split(), strict=True))
    return first, last


def half_of_both(name: str, other: str, rng: Random) -> str:
    """Return another full name, or as often one that shares the first or the last with the name."""
    (first, last), (another, surname) = name.split(), other.split()
    return rng.choice((other, other, f"{first} {surname}", f"{another} {last}"))


class Task(Protocol):
    """One embedded task, on one split."""

    @property
    def name(self) -> str:
        """The task's name in recipes and results."""

    @property
    def metric(self) -> str:
        """The key of the main number in what `score` returns."""

    def examples(self, n: int, seed: int = 0) -> list[Example]:
        """Return n distinct items of the split; the same seed gives the same items."""

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return one noisy answer as a person might have written it, for supervised fine-tuning."""

    def corruption(self, example: Example, rng: Random) -> str:
        """Return a garbled answer, for a reward model to learn what garbled answers look like."""

    def critic(self) -> Critic:
        """Return the programmatic critic."""

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return the task's metrics of one response, each in [0, 1]."""

    def score_many(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, float]]:
        """Return the metrics of several responses, one each."""

    def vocabulary(self) -> list[str]:
        """Return every word and punctuation type of prompts, answers and critiques, of both splits."""

    def verdicts(self) -> list[str]:
        """Return what critiques say right after a quote, from its closing mark on."""

    def texts(self, n: int, seed: int = 0) -> list[str]:
        """Return n texts, each a prompt, an answer and its critique, to train a tokenizer on."""
