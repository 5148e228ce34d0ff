"""The rounds of a rival: the steps after which it learns, from all responses since the round before."""

from itertools import pairwise

from evidence.rivals.settings import rival_of
from text2grad.config import Recipe

EACH_STEP = 2**31
USUAL_ROUNDS = {"dpo": 12, "sft_best": 12, "ilf": 1, "reflection": 1, "sdpo": EACH_STEP}
"""Method → rounds where rival.rounds = 0; at most one per step."""


def round_of(step: int, *, steps: int, rounds: int) -> tuple[int, int]:
    """Return the first step of the round of a step, and the first step after it.

    Example:
        >>> [round_of(step, steps=5, rounds=2) for step in range(5)]
        [(0, 2), (0, 2), (2, 5), (2, 5), (2, 5)]
    """
    ends = [number * steps // rounds for number in range(rounds + 1)]
    return next((start, end) for start, end in pairwise(ends) if start <= step < end)


def rounds_of(recipe: Recipe, method: str = "") -> int:
    """Return the number of rounds of a run: the recipe's, or the usual number of the method, at most one per step.

    Args:
        recipe: of the run.
        method: a rival; "" takes `rival.method`.
    """
    return rival_of(recipe).rounds or min(USUAL_ROUNDS[method or str(rival_of(recipe).method)], recipe.run.steps)
