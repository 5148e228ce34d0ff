"""Weights of the tokens of a span (arXiv 2505.22338, appendix I.1).

In: the texts of the n tokens of one span, in order. Out: their n weights in [0, 1].

    uniform        w_i = 1, as in the paper's main results
    linear_decay   w_i = 1 − (i − 1)·0.9 / (n − 1), i = 1..n: from 1 down to 0.1; 1 if n = 1
"""

from collections.abc import Callable, Sequence

from text2grad.errors import check_known

Weigh = Callable[[list[str]], Sequence[float]]
Weighting = str | Weigh


def uniform(texts: list[str]) -> list[float]:
    """Return weight 1 for each token [n].

    Example:
        >>> uniform([" two", " words"])
        [1.0, 1.0]
    """
    return [1.0] * len(texts)


def linear_decay(texts: list[str]) -> list[float]:
    """Return weights [n] that fall linearly from 1 at the first token to 0.1 at the last.

    Example:
        >>> [round(weight, 2) for weight in linear_decay(["a", "b", "c", "d"])]
        [1.0, 0.7, 0.4, 0.1]
    """
    steps = max(len(texts) - 1, 1)
    return [1.0 - 0.9 * i / steps for i in range(len(texts))]


WEIGHTINGS: dict[str, Callable[[], Weigh]] = {"uniform": lambda: uniform, "linear_decay": lambda: linear_decay}
"""The value of `reward.weighting` → what makes the function, or raises if a package is missing; others may be added."""


def resolve(weighting: Weighting) -> Weigh:
    """Return the function of a weighting's name; a function is returned unchanged.

    Raises:
        ConfigError: if the name is unknown, or its weighting cannot be made.
    """
    if callable(weighting):
        return weighting
    check_known("weighting", weighting, tuple(WEIGHTINGS))
    return WEIGHTINGS[weighting]()
