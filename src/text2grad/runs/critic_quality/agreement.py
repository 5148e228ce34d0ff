"""Ratings of the same items by several raters → share of correct items, and agreement between raters (table 16).

correct      share of all ratings that are "correct", with a bootstrap interval over items
majority     share of items that more than half of their raters rated correct
agreement    mean over items of the share of pairs of raters with equal ratings
kappa        Fleiss' kappa (1971) over the items that every rater rated
alpha        Krippendorff's alpha for categories, over all ratings, by the package `krippendorff`

Kappa and alpha are None if chance agreement cannot be estimated: all ratings are equal, or no item was rated twice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from text2grad.errors import require
from text2grad.evaluation import Estimate, Ratio, estimate

Ratings = Sequence[Sequence[bool | None]]
"""For each rater one rating per item; None if the rater left it out."""


class Agreement(NamedTuple):
    """The numbers that the docstring of the module defines, with the counts behind them."""

    items: int
    raters: int
    ratings: int
    correct: Estimate | None
    majority: float | None
    agreement: float | None
    kappa: float | None
    alpha: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON data."""
        return {**self._asdict(), "correct": self.correct._asdict() if self.correct else None}


def measure_agreement(ratings: Ratings) -> Agreement:
    """Measure the agreement between raters; `ratings` are [raters][items].

    Raises:
        ConfigError: if `krippendorff` is not installed.
    """
    by_item = [[rating for rating in item if rating is not None] for item in zip(*ratings, strict=True)]
    counts = np.array([[sum(item), len(item) - sum(item)] for item in by_item], dtype=float).reshape(-1, 2)
    rows = [{"right": right, "all": right + wrong} for right, wrong in counts.tolist()]
    rated, several = counts[counts.sum(1) > 0], counts[counts.sum(1) > 1]
    return Agreement(
        items=len(by_item),
        raters=len(ratings),
        ratings=int(counts.sum()),
        correct=estimate(rows, {"correct": Ratio(("right",), ("all",))}).get("correct"),
        majority=float((rated[:, 0] > rated[:, 1]).mean()) if len(rated) else None,
        agreement=float(_pairs_alike(several).mean()) if len(several) else None,
        kappa=fleiss_kappa(counts[counts.sum(1) == len(ratings)]) if len(ratings) > 1 else None,
        alpha=alpha(ratings, "the agreement of raters") if len(several) else None,
    )


def fleiss_kappa(counts: Any) -> float | None:
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


def _pairs_alike(counts: Any) -> Any:
    """Return for each item the share of pairs of raters with equal ratings, [items]."""
    raters = counts.sum(1)
    return (counts * (counts - 1)).sum(1) / (raters * (raters - 1))


def alpha(codes: Sequence[Sequence[float | None]], purpose: str) -> float | None:
    """Return Krippendorff's alpha of categories, [raters, items]; None where it is not defined.

    It is not defined if all codes of items with several ratings are equal, or no item has several.

    Raises:
        ConfigError: if `krippendorff` is not installed.
    """
    require("krippendorff", extra="eval", purpose=purpose)
    import krippendorff

    data = np.array(codes, dtype=float)  # None becomes NaN
    several = data[:, (~np.isnan(data)).sum(0) > 1]
    if len(np.unique(several[~np.isnan(several)])) < 2:
        return None
    return float(krippendorff.alpha(reliability_data=data, level_of_measurement="nominal"))
