"""The advantages that other signals would have given on the same rollouts.

    logged           A_t of the run: with its value function or group baseline, KL term and whitening
    spans            A_t = Σ_{k≥t} (γλ)^(k−t) r_k    rewards on their tokens, V = 0 (Appendix A, setting A)
    number           A_t = Σ_k r_k − baseline        one number per response, γ = λ = 1: PPO without value function;
                                                     the baseline is the mean over a prompt's responses, if several
    number_at_end    A_t = (γλ)^(T−t) Σ_k r_k        one number on the last token (Appendix A, setting B)

r_k: reward of a token before the KL term. KL and value function are left out of the last three, so that they differ in
the placement of the reward alone.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from evidence.analysis.rollouts import Batch, Floats
from text2grad.config import Recipe

SIGNALS = {
    "spans": "spans",
    "number": "one number",
    "number_at_end": "one number at the end",
    "logged": "as trained",
}
"""Signals → their names in tables."""


def signals(batch: Batch, recipe: Recipe, *, factor: float) -> Mapping[str, Floats]:
    """Return the advantages of each signal, [B, T], 0 outside the mask.

    Args:
        batch: the tokens of a step.
        recipe: of the run: the rewards of positive, negative and unlabelled tokens.
        factor: γλ of the spans.
    """
    rewards, mask = placed_rewards(batch, recipe), batch.mask
    total = rewards.sum(1)
    number = total - group_means(total, batch.prompts) if batch.grouped else total
    after = batch.lengths[:, None] - 1 - np.arange(mask.shape[1])  # tokens after each
    at_end = total[:, None] * np.where(mask, np.power(float(factor), np.maximum(after, 0)), 0.0)
    return {
        "spans": discounted(rewards, factor),
        "number": number[:, None] * mask,
        "number_at_end": at_end,
        "logged": batch.columns["advantage"],
    }


def placed_rewards(batch: Batch, recipe: Recipe) -> Floats:
    """Return the reward of each token before the KL term, on the token, [B, T].

    A run with another `reward.placement` than "spans" logs sums or a verdict. There the rewards follow from δ, and the
    rest of the logged reward of the response (an outcome, a truncation) stays on the last token.
    """
    logged = batch.columns["reward"]
    if recipe.reward.placement == "spans":
        return logged
    delta, reward = batch.columns["delta"], recipe.reward
    placed: Floats = reward.positive * delta.clip(min=0) + reward.negative * (-delta).clip(min=0)
    placed = placed + reward.unlabelled * ((delta == 0) & batch.mask)
    explained = placed.sum(1)
    if reward.placement == "verdict":
        explained = np.where((delta < 0).any(1), reward.negative, reward.positive * (delta > 0).any(1))
    rows = np.flatnonzero(batch.lengths)
    placed[rows, batch.lengths[rows] - 1] += (logged.sum(1) - explained)[rows]
    return placed


def discounted(rewards: Floats, factor: float) -> Floats:
    """Return Σ_{k≥t} factor^(k−t) r_k, [B, T].

    Example:
        >>> discounted(np.array([[0.0, 1.0, -1.0]]), 0.5)
        array([[ 0.25,  0.5 , -1.  ]])
    """
    found = np.zeros_like(rewards)
    running = np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + factor * running
        found[:, t] = running
    return found


def group_means(values: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return the mean over each value's group, [B]."""
    found: Floats = (np.bincount(groups, values) / np.maximum(np.bincount(groups), 1))[groups]
    return found
