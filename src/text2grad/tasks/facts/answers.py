"""Noisy answers: the faults of demonstrations and corruptions, and the comparison with the reference."""

from collections.abc import Collection, Sequence
from random import Random

from text2grad.tasks.base import split_words


def same_words(reference: str, response: str) -> bool:
    """Tell whether two texts have the same words and marks; spaces and case do not count."""
    return split_words(reference.lower()) == split_words(response.lower())


def half_of_both(name: str, other: str, rng: Random, unseen: Collection[tuple[str, str]] = ()) -> str:
    """Return another full name; half of the draws keep the first or the last part of `name`.

    Args:
        name: a full name.
        other: a different full name.
        rng: makes the choice.
        unseen: (first, last) names that must not be returned; `other` is returned instead.
    """
    (first, last), (another, surname) = name.split(), other.split()
    chosen = rng.choice(((another, surname), (another, surname), (first, surname), (another, last)))
    return other if chosen in unseen else " ".join(chosen)


def chatty(sentence: str, phrases: Sequence[str], line: str, rng: Random) -> str:
    """End a sentence with a phrase that states nothing, or add a second sentence that states nothing."""
    ending = rng.choice((*phrases, None))
    return f"{sentence}. {line}" if ending is None else f"{sentence} {ending}."


def scrambled(answer: str, other: str, rng: Random) -> str:
    """Return a garbled answer: cut, spliced with another, or with words left out, doubled or shuffled."""
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
