"""What every embedded task offers: examples, demonstrations, a critic and a metric.

The text of a task splits into words and single punctuation marks with `WORD`; `vocabulary()` lists every
type that its posts, answers and critiques can contain, so that a word-level tokenizer knows them all.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from text2grad.feedback import Critic
from text2grad.types import Example

WORD = re.compile(r"\w+|[^\w\s]")

Split = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged piece of an answer, characters [start, end).

    Attributes:
        kind: the judgement; only "right" is praise.
        start: where the quote starts.
        end: where it ends, exclusive.
        about: the fact or the step that it is about, or None.
    """

    kind: str
    start: int
    end: int
    about: Any = None


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of `text`, each mark on its own.

    Example:
        >>> split_words("Not a bike, a boat.")
        ['Not', 'a', 'bike', ',', 'a', 'boat', '.']
    """
    return WORD.findall(text)


class Pair(NamedTuple):
    """Two word lists that are combined."""

    left: tuple[str, ...]
    right: tuple[str, ...]


@cache
def pairs(pair: Pair, split: Split) -> tuple[tuple[str, str], ...]:
    """Return the combinations of one split, an eighth of them held out; together the splits leave none out."""
    return tuple(
        (left, right)
        for i, left in enumerate(pair.left)
        for j, right in enumerate(pair.right)
        if ((i + j) % 8 == 0) == (split == "held_out")
    )


def same_words(reference: str, response: str) -> bool:
    """Tell whether two texts have the same words and marks, spacing and case aside."""
    return split_words(reference.lower()) == split_words(response.lower())


def remarks(
    findings: Iterable[Finding], truth: Callable[[Finding], str | None], verdict: Callable[[Finding], str]
) -> list[str]:
    """Return one sentence for each run of findings with one truth: the truth, then what is said of each quote.

    Args:
        findings: in the order of the answer.
        truth: says what is true where the finding is, or None if there is nothing to say.
        verdict: says what a critique says of the quote.
    """
    sentences = []
    for said, run in groupby(findings, key=truth):
        judged = [verdict(finding) for finding in run]
        sentences += [f"{one}." for one in judged] if said is None else [f"{said}: {' and '.join(judged)}."]
    return sentences


def bare(wording: str) -> str:
    """Return a wording without its gaps.

    Example:
        >>> bare("{quote} is the wrong {noun}")
        ' is the wrong '
    """
    return re.sub(r"\{\w+\}", "", wording)


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


def half_of_both(name: str, other: str, rng: Random, unseen: Collection[tuple[str, str]] = ()) -> str:
    """Return another full name, or as often one that shares the first or the last with the name.

    Args:
        name: a full name.
        other: another.
        rng: makes the choice.
        unseen: names that must not come out of it; the other one does instead.
    """
    (first, last), (another, surname) = name.split(), other.split()
    chosen = rng.choice(((another, surname), (another, surname), (first, surname), (another, last)))
    return other if chosen in unseen else " ".join(chosen)


def chatty(sentence: str, phrases: Sequence[str], line: str, rng: Random) -> str:
    """End a sentence with an empty phrase, or follow it by an empty line."""
    ending = rng.choice((*phrases, None))
    return f"{sentence}. {line}" if ending is None else f"{sentence} {ending}."


def scrambled(answer: str, other: str, rng: Random) -> str:
    """Return an answer that came out garbled: cut, spliced with another, with words left out, doubled or shuffled."""
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
