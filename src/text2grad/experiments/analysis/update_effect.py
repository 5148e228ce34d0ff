"""Which way the tokens of an update moved: log p after all epochs minus log p before, against the advantage's sign.

A token moved right if its log-prob changed in the direction of its advantage. Tokens whose advantage is far from zero,
|A| > σ/2 (σ: the deviation of the step's advantages), are counted again for themselves: noise decides the sign of a
small advantage. `explanation` tells why tokens moved the other way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from text2grad.experiments.analysis.explanation import MovedTokens, explained, features
from text2grad.experiments.analysis.noise import LABELS
from text2grad.experiments.analysis.rollouts import Batch, Floats

FAR = 0.5  # deviations of the advantage
NORMS = ("update/gradient_norm", "update/gradient_norm_labelled", "update/gradient_norm_unlabelled")


def moved_tokens(batch: Batch, *, factor: float) -> MovedTokens | None:
    """Return the tokens of a step whose update was logged, or None.

    Args:
        batch: the tokens of the step.
        factor: γλ.
    """
    if "logp_after" not in batch.columns or not batch.mask.any():
        return None
    mask, columns = batch.mask, batch.columns
    advantages = columns["advantage"][mask]
    return MovedTokens(
        step=np.full(len(advantages), batch.step),
        change=(columns["logp_after"] - columns["logp"])[mask],
        advantage=advantages,
        deviation=np.full(len(advantages), advantages.std()),
        label=batch.labels[mask],
        length=np.broadcast_to(batch.lengths[:, None], mask.shape)[mask],
        probability=np.exp(columns["logp"][mask]),
        features=features(batch, factor=factor),
    )


def update_effect(tokens: Sequence[MovedTokens], metrics: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    """Return shares of tokens that moved right, their mean change, what explains the others, and gradient norms.

    Args:
        tokens: of the steps whose update was logged.
        metrics: of all steps, for the gradient norms.

    Returns:
        "all", "labels", "lengths" and "steps", each with the figures of `_figures`; "explanation" (see `explained`);
        and "gradient", or None for norms that were not logged. None if no update was logged.
    """
    if not tokens:
        return None
    whole = MovedTokens.joined(tokens)
    buckets = _buckets(whole.length)
    return {
        "all": _figures(whole, np.ones(len(whole.change), bool)),
        "labels": {name: _figures(whole, whole.label == label) for name, label in LABELS.items()},
        "lengths": {name: _figures(whole, chosen) for name, chosen in buckets.items()},
        "steps": {str(int(one.step[0])): _of_step(one) for one in tokens},
        "explanation": explained(tokens),
        "gradient": _gradient(metrics),
    }


def _of_step(tokens: MovedTokens) -> dict[str, Any]:
    chosen = {name: tokens.label == label for name, label in LABELS.items()}
    means = {f"change_{name}": _mean(tokens.change[rows]) for name, rows in chosen.items()}
    return {**_figures(tokens, np.ones(len(tokens.change), bool)), **means}


def _figures(tokens: MovedTokens, rows: NDArray[np.bool_]) -> dict[str, float | int | None]:
    """Return figures of some tokens; a share is None where there is no token.

    Returns:
        tokens, mean_change (nats), right (share of the tokens with A ≠ 0 that moved right), far_tokens and far_right
        (the same of tokens with |A| > σ/2), and right_distance (share of the sum of |change| that went right).
    """
    change, advantage = tokens.change[rows], tokens.advantage[rows]
    far = np.abs(advantage) > FAR * tokens.deviation[rows]
    right = change * advantage > 0
    signed = advantage != 0
    distance = np.abs(change)[signed]
    return {
        "tokens": len(change),
        "mean_change": _mean(change),
        "right": _mean(right[signed]),
        "far_tokens": int(far.sum()),
        "far_right": _mean(right[far]),
        "right_distance": float(distance[right[signed]].sum() / distance.sum()) if distance.sum() > 0 else None,
    }


def _mean(values: Floats | NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None


def _buckets(lengths: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Return the tokens of responses of 1–8, 9–16, 17–32 … tokens."""
    upper = np.maximum(2 ** np.ceil(np.log2(np.maximum(lengths, 1))).astype(int), 8)
    return {f"{1 if end == 8 else end // 2 + 1}–{end}": upper == end for end in sorted(set(upper.tolist()))}


def _gradient(metrics: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Return mean norms, and the share of the gradient that labelled tokens make: l·w / w² for l + u = w."""
    found = np.array([[line[name] for name in NORMS] for line in metrics if all(name in line for name in NORMS)])
    found = found.reshape(-1, len(NORMS))
    found = found[found[:, 0] > 0]
    if not len(found):
        return None
    whole, labelled, unlabelled = found.T
    share = (whole**2 + labelled**2 - unlabelled**2) / (2 * whole**2)
    names = ("norm", "norm_labelled", "norm_unlabelled")
    means = dict(zip(names, found.mean(0).tolist(), strict=True))
    return {**means, "labelled_share": float(share.mean()), "steps": len(found)}
