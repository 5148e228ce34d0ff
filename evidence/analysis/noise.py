"""Variance, signal-to-noise ratio and autocorrelation of the advantages of one step.

The critique says which tokens are good and poor; an advantage should say the same. So the signal is the part of the
advantages' variance that a token's label (positive, negative, none) explains, and the noise is the rest:

    signal = Var(E[A | label])        noise = E[Var(A | label)]        signal-to-noise ratio = signal / noise

The tokens of a response are not independent: where one number stands on all of them, the means of labels differ by
chance. The jackknife over responses removes this bias up to order 1/B²; an estimate of the signal may be below 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evidence.analysis.rollouts import Floats

LABELS = {"negative": -1, "positive": 1, "unlabelled": 0}
LAGS = 24


class Parts(NamedTuple):
    """The variance of advantages: explained by the tokens' labels, and the rest."""

    signal: float
    noise: float


def variance_parts(advantages: Floats, labels: NDArray[np.int64], mask: NDArray[np.bool_]) -> Parts:
    """Return signal and noise of a step's advantages.

    Args:
        advantages: A_t, [B, T].
        labels: −1, 0 or 1, [B, T].
        mask: True on tokens, [B, T].

    Example:
        >>> labels = np.array([[1, -1]] * 4)
        >>> variance_parts(labels.astype(float), labels, labels != 0)
        Parts(signal=1.0, noise=0.0)
    """
    chosen = np.stack([mask & (labels == label) for label in LABELS.values()])  # [3, B, T]
    counts = chosen.sum(2).T.astype(float)  # [B, 3]
    sums = (chosen * advantages).sum(2).T
    squares = (mask * advantages**2).sum(1)  # [B]
    some = counts.sum(1) > 0
    counts, sums, squares = counts[some], sums[some], squares[some]
    responses = len(counts)
    if responses < 2:
        return Parts(0.0, 0.0)
    whole = np.array(_parts(counts.sum(0), sums.sum(0), squares.sum()))
    without = np.array(_parts(counts.sum(0) - counts, sums.sum(0) - sums, squares.sum() - squares))
    signal, variance = responses * whole - (responses - 1) * without.mean(1)
    return Parts(float(signal), float(max(variance - signal, 0.0)))


def _parts(counts: Floats, sums: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Return the variance between labels and the whole variance; the last axis of counts and sums is the label."""
    tokens = counts.sum(-1)
    mean = sums.sum(-1) / tokens
    between = np.divide(sums**2, counts, out=np.zeros_like(sums), where=counts > 0).sum(-1) / tokens - mean**2
    return between, squares / tokens - mean**2


class Autocorrelation(NamedTuple):
    """Autocorrelation of advantages within responses, with the number of pairs, by lag from 1 on."""

    values: Floats
    pairs: Floats


def autocorrelation(advantages: Floats, mask: NDArray[np.bool_], *, lags: int = LAGS) -> Autocorrelation:
    """Return corr(A_t, A_{t+j}) for j = 1 … lags, about the mean of all tokens; 0 where nothing varies.

    Example:
        >>> autocorrelation(np.array([[1.0, -1.0, 1.0, -1.0]]), np.ones((1, 4), bool), lags=2).values
        array([-1.,  1.])
    """
    centred = np.where(mask, advantages - advantages[mask].mean(), 0.0) if mask.any() else advantages
    values, pairs = np.zeros(lags), np.zeros(lags)
    for j in range(1, min(lags, mask.shape[1] - 1) + 1):
        both = mask[:, :-j] & mask[:, j:]
        earlier, later = centred[:, :-j][both], centred[:, j:][both]
        pairs[j - 1] = both.sum()
        scale = float(np.sqrt((earlier**2).sum() * (later**2).sum()))
        values[j - 1] = float((earlier * later).sum()) / scale if scale > 0 else 0.0
    return Autocorrelation(values, pairs)


def mean_autocorrelation(steps: Sequence[Autocorrelation]) -> list[float]:
    """Return the mean over steps, each weighted by its pairs, up to the last lag with a pair."""
    pairs = np.sum([one.pairs for one in steps], axis=0)
    total = np.sum([one.values * one.pairs for one in steps], axis=0)
    return [float(value / count) for value, count in zip(total, pairs, strict=True) if count]
