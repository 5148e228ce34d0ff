"""Why a token moved as it did: a regression of its change of log p on what acts on it in the update.

    own         its advantage A_t, and its push A_t (1 − p_t): the gradient of log p vanishes as p nears 1
    kl          the KL term in its advantage, −Σ_{k≥t} (γλ)^(k−t) KL_k
    neighbours  the pushes before and after it, weighted by (γλ)^distance (by 0.5^distance if that reaches further)
    shared      mean push, elsewhere in the batch, of the same token, of the same token after the same two tokens, and
                of other tokens after the same two tokens, which compete with it for probability

Tokens share all weights, so an update of one moves the others. AdamW's momentum of earlier updates moves them, too; its
part is measured, not estimated (`rl.update_effect`), and the regression explains the rest of the change. The rest and
the regressors are in units of their step's deviation, and the regression is one for all steps. The R² is shared out
among the four causes as the mean of what each adds over all orders of adding them (Lindeman, Merenda and Gold; the
Shapley value of R²): no order is preferred.

A token that moved the wrong way was nearly certain ("certain": p > 0.9, so that its own push was small and others
decided); or without the momentum of earlier updates it would not have gone there ("momentum"); or it is explained if
the regression predicts the direction in which it went: its cause is then the one that pushes it furthest in this
direction, or the mean change of all tokens ("drift"). Tokens that did not move are left out.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evidence.analysis.rollouts import Batch, Floats
from evidence.analysis.signals import discounted

CAUSES: Mapping[str, Sequence[str]] = {
    "own": ("advantage", "push"),
    "kl": ("kl",),
    "neighbours": ("before", "after"),
    "shared": ("same_token", "same_context", "competing"),
}
FEATURES = tuple(name for names in CAUSES.values() for name in names)
LEAST_REACH = 0.5
CERTAIN = 0.9  # probability above which a token's own push is small
STILL = 1e-5  # nats: a smaller change is rounding


class MovedTokens(NamedTuple):
    """Tokens whose log-probs were logged before and after an update; each [N].

    Attributes:
        step: number of the step.
        change: log p after minus before, nats.
        fresh: the same without the momentum of earlier updates; NaN where it was not logged.
        advantage: A_t of the update.
        deviation: of the step's advantages.
        label: −1, 0 or 1.
        length: tokens of the response.
        probability: of the token before the update.
        features: the regressors in the order of `FEATURES`, [N, features].
    """

    step: NDArray[np.int64]
    change: Floats
    fresh: Floats
    advantage: Floats
    deviation: Floats
    label: NDArray[np.int64]
    length: NDArray[np.int64]
    probability: Floats
    features: Floats

    @classmethod
    def joined(cls, parts: "Sequence[MovedTokens]") -> "MovedTokens":
        """Return the tokens of several steps as one."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def features(batch: Batch, *, factor: float) -> Floats:
    """Return the regressors of every token of a step, [N, features]; a mean over no token is 0."""
    mask, ids, columns = batch.mask, batch.ids, batch.columns
    advantages = np.where(mask, columns["advantage"], 0.0)
    pushes = np.where(mask, advantages * (1.0 - np.exp(np.minimum(columns["logp"], 0.0))), 0.0)
    reach = min(max(factor, LEAST_REACH), 0.99)
    after = discounted(pushes, reach) - pushes
    before = discounted(pushes[:, ::-1], reach)[:, ::-1] - pushes
    known = np.where(mask, ids, -1)
    previous = np.full((2, *ids.shape), -1)
    previous[0, :, 1:], previous[1, :, 2:] = known[:, :-1], known[:, :-2]
    push = pushes[mask]
    contexts = np.stack([*(one[mask] for one in previous), ids[mask]])
    context, token_in_context = _keys(contexts[:2]), _keys(contexts)
    columns_of = {
        "advantage": advantages[mask],
        "push": push,
        "kl": -discounted(np.where(mask, columns["kl"], 0.0), factor)[mask],
        "before": before[mask],
        "after": after[mask],
        "same_token": _others(push, _keys(contexts[2:])),
        "same_context": _others(push, token_in_context),
        "competing": _remaining(push, context, token_in_context),
    }
    found: Floats = np.stack([columns_of[name] for name in FEATURES], axis=1)
    return found


def _keys(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each different column, [N]."""
    found: NDArray[np.int64] = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
    return found


def _others(values: Floats, keys: NDArray[np.int64]) -> Floats:
    """Return the mean of the values with the same key, without the value itself."""
    count = np.bincount(keys)[keys] - 1
    total = np.bincount(keys, values)[keys] - values
    found: Floats = np.divide(total, count, out=np.zeros_like(values), where=count > 0)
    return found


def _remaining(values: Floats, wider: NDArray[np.int64], keys: NDArray[np.int64]) -> Floats:
    """Return the mean of the values with the same wider key and another key."""
    count = np.bincount(wider)[wider] - np.bincount(keys)[keys]
    total = np.bincount(wider, values)[wider] - np.bincount(keys, values)[keys]
    found: Floats = np.divide(total, count, out=np.zeros_like(values), where=count > 0)
    return found


def explained(steps: Sequence[MovedTokens]) -> dict[str, Any]:
    """Return the R² of the change of log p with its parts by cause, and the causes of moves in the wrong direction.

    Returns:
        "r2": of the whole regression; "parts": of it by cause, which add up to it; "wrong" and "far_wrong": of all
        tokens that moved against their advantage, and of those whose advantage is beyond half a deviation, "tokens"
        (their number) and "causes" (share by cause: those of `CAUSES` but "own", "certain", "momentum", "drift" and
        "unexplained").
    """
    fresh = [np.where(np.isnan(one.fresh), one.change, one.fresh) for one in steps]
    x = np.concatenate([_in_deviations(one.features) for one in steps])
    y = np.concatenate([_in_deviations(one[:, None])[:, 0] for one in fresh])
    columns = {cause: [FEATURES.index(name) for name in names] for cause, names in CAUSES.items()}
    parts = _shapley(x, y, columns)
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    whole = MovedTokens.joined(steps)
    deviations = np.concatenate([np.full(len(one), one.std()) for one in fresh])
    pushes = {cause: x[:, chosen] @ weights[chosen] * deviations for cause, chosen in columns.items()}  # nats
    pushes["drift"] = np.concatenate([np.full(len(one), one.mean()) for one in fresh])
    alone = np.concatenate(fresh)
    turned = whole.change * np.where(np.abs(alone) > STILL, alone, 0.0) <= 0
    wrong = (whole.change * whole.advantage < 0) & (np.abs(whole.change) > STILL)
    far = wrong & (np.abs(whole.advantage) > whole.deviation / 2)
    return {
        "r2": sum(parts.values()),
        "parts": parts,
        **{
            name: {
                "tokens": int(rows.sum()),
                "causes": _causes(
                    {cause: push[rows] for cause, push in pushes.items()},
                    whole.change[rows],
                    certain=whole.probability[rows] > CERTAIN,
                    momentum=turned[rows],
                ),
            }
            for name, rows in (("wrong", wrong), ("far_wrong", far))
        },
    }


def _causes(
    pushes: Mapping[str, Floats], change: Floats, *, certain: NDArray[np.bool_], momentum: NDArray[np.bool_]
) -> dict[str, float]:
    """Return the share of moves by cause; the token's own advantage pushes it the right way and is no cause.

    Args:
        pushes: part of each move by cause, nats.
        change: the moves.
        certain: whether the token was nearly certain.
        momentum: whether it would not have moved in this direction without the momentum of earlier updates.
    """
    momentum = momentum & ~certain
    rest = ~certain & ~momentum
    found = (sum(pushes.values()) * change > 0) & rest
    others = [name for name in pushes if name != "own"]
    furthest = np.stack([pushes[name] * np.sign(change) for name in others]).argmax(0)
    total = max(len(change), 1)
    known = {"certain": certain, "momentum": momentum}
    known |= {name: found & (furthest == n) for n, name in enumerate(others)}
    known["unexplained"] = rest & ~found
    return {name: float(rows.sum() / total) for name, rows in known.items()}


def _in_deviations(values: Floats) -> Floats:
    """Return columns about their mean in units of their deviation; a column that does not vary is 0."""
    centred = values - values.mean(0)
    deviation = centred.std(0)
    found: Floats = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 1e-12)
    return found


def _shapley(x: Floats, y: Floats, groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return each group's share of R², averaged over all orders of adding the groups."""
    total = float((y**2).sum())
    names, fits = list(groups), dict[frozenset[str], float]()
    for size in range(len(names) + 1):
        for chosen in combinations(names, size):
            columns = [column for name in chosen for column in groups[name]]
            fitted = x[:, columns] @ np.linalg.lstsq(x[:, columns], y, rcond=None)[0] if columns else np.zeros_like(y)
            fits[frozenset(chosen)] = 1.0 - float(((y - fitted) ** 2).sum()) / total if total else 0.0
    shares = dict.fromkeys(names, 0.0)
    for before, fit in fits.items():
        for name in set(names) - before:
            weight = factorial(len(before)) * factorial(len(names) - len(before) - 1) / factorial(len(names))
            shares[name] += weight * (fits[before | {name}] - fit)
    return shares
