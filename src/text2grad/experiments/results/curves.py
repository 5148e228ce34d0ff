"""Curves of evaluations → where a level is first reached, and the gain that a method makes at a given KL.

A value between two evaluations is interpolated linearly, unless the policy changes at the evaluations alone. All
functions take leading axes, such as resamples.
"""

from itertools import permutations

import numpy as np


def first_reached(x: np.ndarray, y: np.ndarray, level: np.ndarray | float, *, between: bool = True) -> np.ndarray:
    """Return the first x at which a curve reaches a level; infinity if it never does.

    Args:
        x: shape [..., points], not falling.
        y: shape [..., points].
        level: shape [...].
        between: interpolate; False for a method that learns at the ends of rounds, where it has no policies between.

    Example:
        >>> first_reached(np.array([0.0, 10.0, 20.0]), np.array([0.2, 0.4, 0.8]), 0.6)
        array(15.)
    """
    x, y = np.broadcast_arrays(x, y)
    level = np.asarray(level, dtype=float)[..., None]
    above = y >= level
    found = above.any(axis=-1)
    after = above.argmax(axis=-1)[..., None]
    before = np.maximum(after - 1, 0)
    x0, x1 = np.take_along_axis(x, before, -1), np.take_along_axis(x, after, -1)
    y0, y1 = np.take_along_axis(y, before, -1), np.take_along_axis(y, after, -1)
    if not between:
        return np.where(found, x1[..., 0], np.inf)
    rise = y1 - y0  # 0 only at the first point
    share = np.divide(level - y0, rise, out=np.ones(np.broadcast(level, rise).shape), where=rise > 0)
    reached: np.ndarray = np.where(found, (x0 + share * (x1 - x0))[..., 0], np.inf)
    return reached


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
    for first, second in permutations(range(kl.shape[-2]), 2):
        x0, x1, y0, y1 = kl[..., first, :], kl[..., second, :], gain[..., first, :], gain[..., second, :]
        between = (x0 < grid) & (grid < x1)
        share = np.divide(grid - x0, x1 - x0, out=np.zeros(between.shape), where=between)
        found = np.where(between, np.maximum(found, y0 + share * (y1 - y0)), found)
    return found
