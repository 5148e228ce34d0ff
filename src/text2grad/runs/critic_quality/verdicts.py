"""Verdicts of judges on pairs of texts → wins, ties and losses, and the agreement of judges or raters (table 16).

win, tie, loss   shares of the first text, as in tables 1 and 4 of the paper, with bootstrap intervals over pairs
inconsistent     pairs whose two orders had different verdicts; they are ties
first_place      share of the verdicts for a place that are for the first place: 0.5 without position bias
agreement        mean over items of the share of pairs of raters with equal ratings
alpha            Krippendorff's alpha for categories, over all ratings, by the package `krippendorff`

Agreement is None where it is not defined: no item was rated, or rated twice, or all ratings are equal (alpha, which
needs chance agreement).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from text2grad.critics.servers import Preference, Side
from text2grad.errors import require
from text2grad.evaluation import Ratio, estimate
from text2grad.runs.reports.html import Table

_SIDES: Mapping[str, Side] = {"win": "first", "tie": "tie", "loss": "second"}
_CODES: Mapping[Side | None, float | None] = {"second": 0.0, "tie": 1.0, "first": 2.0, None: None}
_RATES = {**{name: Ratio((name,), ("pairs",)) for name in _SIDES}, "first_place": Ratio(("first place",), ("places",))}


def summary(preferences: Sequence[Preference]) -> dict[str, Any]:
    """Return wins, ties and losses of the first set, with intervals; pairs without a verdict are excluded."""
    judged = [preference for preference in preferences if preference.better is not None]
    sides = Counter(preference.better for preference in judged)
    return {
        **{"pairs": len(judged), "wins": sides["first"], "ties": sides["tie"], "losses": sides["second"]},
        "rates": {name: rate._asdict() for name, rate in estimate(list(map(_counts, judged)), _RATES).items()},
        "inconsistent": sum(preference.inconsistent for preference in judged),
        "failed": len(preferences) - len(judged),
    }


def _counts(preference: Preference) -> dict[str, float]:
    places = Counter(preference.places)
    return {
        **{name: float(preference.better == side) for name, side in _SIDES.items()},
        **{"pairs": 1.0, "first place": float(places["first"]), "places": float(places["first"] + places["second"])},
    }


def judges_agreement(verdicts: Mapping[str, Sequence[Preference]]) -> dict[str, dict[str, Any]]:
    """Return the agreement of each two judges, and of all if there are more, on the same pairs in the same order."""
    codes = {name: [_CODES[preference.better] for preference in given] for name, given in verdicts.items()}
    groups = [*combinations(codes, 2), *([tuple(codes)] if len(codes) > 2 else [])]
    return {" and ".join(group): measure_agreement([codes[name] for name in group]) for group in groups}


def measure_agreement(codes: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Measure the agreement between raters; `codes`, [raters][items], are categories as numbers, None if left out.

    Raises:
        ConfigError: if `krippendorff` is not installed.
    """
    data = np.array(codes, dtype=float)  # [raters, items]; None becomes NaN
    categories = np.unique(data[~np.isnan(data)])
    counts = (data[:, :, None] == categories).sum(0).astype(float)  # [items, categories]
    several = counts[counts.sum(1) > 1]
    return {
        "items": data.shape[1],
        "raters": len(data),
        "ratings": int(counts.sum()),
        "agreement": float(pairs_alike(several).mean()) if len(several) else None,
        "alpha": _alpha(data) if (several.sum(0) > 0).sum() > 1 else None,
    }


def pairs_alike(counts: np.ndarray) -> np.ndarray:
    """Return for each item the share of pairs of raters with equal ratings, [items]; counts are [items, categories]."""
    raters = counts.sum(1)
    alike: np.ndarray = (counts * (counts - 1)).sum(1) / (raters * (raters - 1))
    return alike


def _alpha(data: np.ndarray) -> float:
    require("krippendorff", extra="eval", purpose="the agreement of raters")
    import krippendorff

    return float(krippendorff.alpha(reliability_data=data, level_of_measurement="nominal"))


def verdict_tables(results: Mapping[str, Mapping[str, Any]], agreement: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return the table of judges, and for several judges the table of their agreement."""
    rows = [
        [
            name,
            *(_percent(result["rates"].get(rate)) for rate in _RATES),
            *(f"{result[key]:,}" for key in ("pairs", "inconsistent", "failed")),
        ]
        for name, result in results.items()
    ]
    columns = ("judge", "win", "tie", "loss", "first place", "pairs", "inconsistent", "no verdict")
    tables = [Table("Shares of pairs in %; [low, high]: 95 % intervals over pairs", columns, rows)]
    if agreement:
        head, shown = ("judges", "verdicts", "same verdict", "alpha"), ("agreement", "alpha")
        each = [[name, f"{own['ratings']:,}", *(_number(own[key]) for key in shown)] for name, own in agreement.items()]
        tables.append(Table("Agreement of judges: share of pairs, Krippendorff's alpha", head, each))
    return tables


def _percent(rate: Mapping[str, float] | None) -> str:
    return "–" if rate is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in rate.values()))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
