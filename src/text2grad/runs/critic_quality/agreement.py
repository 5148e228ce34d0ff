"""Ratings of the same items by several raters or judges → agreement between them (table 16).

agreement    mean over items of the share of pairs of raters with equal ratings
kappa        Fleiss' kappa (1971) over the items that every rater rated
alpha        Krippendorff's alpha for categories, over all ratings, by the package `krippendorff`

A number is None where it is not defined: no item was rated, or rated twice, or all ratings are equal (kappa and alpha,
which need chance agreement).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from text2grad.errors import require


class Agreement(NamedTuple):
    """The numbers that the docstring of the module defines, with the counts behind them."""

    items: int
    raters: int
    ratings: int
    agreement: float | None
    kappa: float | None
    alpha: float | None


def measure_agreement(codes: Sequence[Sequence[float | None]]) -> Agreement:
    """Measure the agreement between raters; `codes`, [raters][items], are categories as numbers, None if left out.

    Raises:
        ConfigError: if `krippendorff` is not installed.
    """
    data = np.array(codes, dtype=float)  # [raters, items]; None becomes NaN
    categories = np.unique(data[~np.isnan(data)])
    counts = (data[:, :, None] == categories).sum(0).astype(float)  # [items, categories]
    several = counts[counts.sum(1) > 1]
    return Agreement(
        items=data.shape[1],
        raters=len(data),
        ratings=int(counts.sum()),
        agreement=float(_pairs_alike(several).mean()) if len(several) else None,
        kappa=fleiss_kappa(counts[counts.sum(1) == len(data)]) if len(data) > 1 else None,
        alpha=_alpha(data) if (several.sum(0) > 0).sum() > 1 else None,
    )


def fleiss_kappa(counts: np.ndarray) -> float | None:
    """Return Fleiss' kappa, (P − P_e) / (1 − P_e), or None where P_e is 1 or there is no item.

    Args:
        counts: how many raters chose each category [items, categories]; every item has the same number of raters.

    Example:
        >>> fleiss_kappa(np.array([[2.0, 0.0], [1.0, 1.0]]))  # P = (1 + 0) / 2, P_e = (3/4)² + (1/4)² = 5/8
        -0.3333333333333333
    """
    if not len(counts):
        return None
    observed = float(_pairs_alike(counts).mean())
    expected = float(((counts.sum(0) / counts.sum()) ** 2).sum())
    return None if expected == 1.0 else (observed - expected) / (1 - expected)


def _pairs_alike(counts: np.ndarray) -> np.ndarray:
    """Return for each item the share of pairs of raters with equal ratings, [items]."""
    raters = counts.sum(1)
    alike: np.ndarray = (counts * (counts - 1)).sum(1) / (raters * (raters - 1))
    return alike


def _alpha(data: np.ndarray) -> float:
    require("krippendorff", extra="eval", purpose="the agreement of raters")
    import krippendorff

    return float(krippendorff.alpha(reliability_data=data, level_of_measurement="nominal"))
