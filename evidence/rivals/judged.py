"""Judged responses of a round, and the choice of the best of them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from text2grad.types import Critique, Rollout


class Judged(NamedTuple):
    """A response with its critique and its reward, Σ_t r_t before the KL term as [reward] says."""

    rollout: Rollout
    critique: Critique
    reward: float


def groups(judged: Sequence[Judged], size: int) -> Iterator[list[Judged]]:
    """Yield the responses to each prompt that have a critique; `size` neighbours are a group."""
    for start in range(0, len(judged), size):
        yield [one for one in judged[start : start + size] if not one.critique.failed]


def best(judged: Sequence[Judged], share: float, group_size: int) -> list[Judged]:
    """Return the best share of each prompt's responses by reward, at least one; of all responses without groups.

    Equal rewards keep their order. A prompt's equal responses count once.
    """
    found: list[Judged] = []
    for group in groups(judged, group_size if group_size > 1 else max(len(judged), 1)):
        different = {(one.rollout.prompt_ids, one.rollout.response): one for one in reversed(group)}
        ordered = sorted(reversed(different.values()), key=lambda one: -one.reward)
        found += ordered[: math.ceil(share * len(group))]
    return found
