"""Curves of evaluations → where a level is first reached.

A value between two evaluations is interpolated linearly, unless the policy changes at the evaluations alone.
"""

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
