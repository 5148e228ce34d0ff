"""Which way the tokens of an update moved: log p after all epochs minus log p before, against the advantage's sign.

A token moved right if its log-prob changed in the direction of its advantage. Tokens that did not move (|change| ≤ 1e-5
nats, as those of probability 1) are counted apart. Tokens whose advantage is far from zero, |A| > σ/2 (σ: the deviation
of the step's advantages), are counted again for themselves, since noise decides the sign of a small advantage; and of
these the open ones, whose probability was at most 0.9. The same tokens are counted once more by their change without
the momentum that AdamW kept of earlier updates, where that was logged. `explanation` tells why tokens moved the other
way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidence.analysis.explanation import CERTAIN, STILL, MovedTokens, explained, features
from evidence.analysis.noise import LABELS
from evidence.analysis.rollouts import Batch, Floats

FAR = 0.5  # deviations of the advantage
NORMS = ("update/gradient_norm", "update/gradient_norm_labelled", "update/gradient_norm_unlabelled")


def moved_tokens(batch: Batch, *, factor: float) -> MovedTokens | None:
    """Return the tokens of a step whose update was logged and moved the policy, or None.

    Args:
        batch: the tokens of the step.
        factor: γλ.
    """
    mask, columns = batch.mask, batch.columns
    if "logp_after" not in columns:
        return None
    change, advantages = (columns["logp_after"] - columns["logp"])[mask], columns["advantage"][mask]
    if not (np.abs(change) > STILL).any():  # only the value function learned (optim.value_warmup_steps)
        return None
    fresh = columns["logp_without_momentum"] - columns["logp"] if "logp_without_momentum" in columns else None
    return MovedTokens(
        step=np.full(len(advantages), batch.step),
        change=change,
        fresh=np.full(len(change), np.nan) if fresh is None else fresh[mask],
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
        tokens, still (share that did not move), mean_change (nats); of the tokens that moved and have A ≠ 0: right
        (share that moved right), far and far_right (number and share of those with |A| > σ/2), open and open_right (of
        these with p ≤ 0.9), and far_distance (share of Σ |change| of the far tokens that went right); of the change
        without the momentum of earlier updates: fresh_right, fresh_open_right and fresh_distance, in the same way, of
        the far and open tokens that it moves.
    """
    change, advantage = tokens.change[rows], tokens.advantage[rows]
    moved = (np.abs(change) > STILL) & (advantage != 0)
    far = moved & (np.abs(advantage) > FAR * tokens.deviation[rows])
    is_open = far & (tokens.probability[rows] <= CERTAIN)
    right = change * advantage > 0
    fresh = tokens.fresh[rows]
    fresh_right, fresh_far = fresh * advantage > 0, far & (np.abs(fresh) > STILL)
    return {
        "tokens": len(change),
        "still": _mean(np.abs(change) <= STILL),
        "mean_change": _mean(change),
        "right": _mean(right[moved]),
        "far": int(far.sum()),
        "far_right": _mean(right[far]),
        "open": int(is_open.sum()),
        "open_right": _mean(right[is_open]),
        "far_distance": _share_of_way(change[far], right[far]),
        "fresh_right": _mean(fresh_right[fresh_far]),
        "fresh_open_right": _mean(fresh_right[fresh_far & is_open]),
        "fresh_distance": _share_of_way(fresh[fresh_far], fresh_right[fresh_far]),
    }


def _share_of_way(change: Floats, right: NDArray[np.bool_]) -> float | None:
    """Return the share of Σ |change| that went right."""
    way = float(np.abs(change).sum())
    return float(np.abs(change[right]).sum()) / way if way else None


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
