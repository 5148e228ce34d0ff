"""Gain against KL: the best that the evaluations along a run offer at a KL of at most a given one."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np


def frontier(kl: np.ndarray, gain: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the largest gain that the points of a curve offer at a KL of at most each value of a grid.

    A policy that answers with one of two points by chance has the mean of their gains and at most the mean of their
    KLs, because the KL is convex. So the frontier is the upper concave hull of the points, and does not fall. The order
    of the points means nothing: the KL term pulls a policy back, so the KL may fall while the gain rises. Before the
    least KL of the points the gain is -infinity.

    Args:
        kl: shape [..., points].
        gain: shape [..., points].
        grid: values of KL, rising.

    Returns:
        Gain, shape [..., grid].

    Example:
        >>> frontier(np.array([0.0, 0.2, 0.1]), np.array([0.0, 0.4, 0.5]), np.array([0.05, 0.1, 0.3]))
        array([0.25, 0.5 , 0.5 ])
    """
    kl, gain = kl[..., :, None], gain[..., :, None]
    found: np.ndarray = np.where(kl <= grid, gain, -np.inf).max(axis=-2)
    order = np.argsort(kl, axis=-2, kind="stable")
    kl, gain = np.take_along_axis(kl, order, -2), np.take_along_axis(gain, order, -2)
    for first, second in combinations(range(kl.shape[-2]), 2):
        x0, x1, y0, y1 = kl[..., first, :], kl[..., second, :], gain[..., first, :], gain[..., second, :]
        between = (x0 < grid) & (grid < x1)
        share = np.divide(grid - x0, x1 - x0, out=np.zeros(between.shape), where=between)
        found = np.where(between, np.maximum(found, y0 + share * (y1 - y0)), found)
    return found


def value_of(curve: Sequence[Mapping[str, Any]], *, at_kl: float | None = None, minimise: bool = False) -> float:
    """Return the value by which a search compares runs: the final one, or the best within a KL (`frontier`).

    The best within a KL is at least the value of the first evaluation, which needs no training.

    Args:
        curve: evaluations in the order of the steps, each with "value" and "kl_per_token" (nats).
        at_kl: KL per token from the reference, in nats; None takes the final value.
        minimise: whether a small value is good.

    Example:
        >>> curve = [{"value": 0.5, "kl_per_token": 0.0}, {"value": 0.9, "kl_per_token": 0.4}]
        >>> value_of(curve), value_of(curve, at_kl=0.1)
        (0.9, 0.6)
    """
    if at_kl is None:
        return float(curve[-1]["value"])
    sign = -1.0 if minimise else 1.0
    values, kl = (np.array([point[name] for point in curve], dtype=float) for name in ("value", "kl_per_token"))
    gain = frontier(kl, sign * (values - values[0]), np.array([at_kl]))[0]
    return float(values[0] + sign * max(0.0, gain))
