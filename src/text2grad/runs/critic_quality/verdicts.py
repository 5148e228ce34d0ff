"""Verdicts of judges on pairs of texts → wins, ties and losses with intervals, position bias, agreement of judges.

win, tie, loss   shares of the first text, as in tables 1 and 4 of the paper, with bootstrap intervals over pairs
inconsistent     pairs whose two orders had different verdicts; they are ties
first_place      share of the verdicts for a place that are for the first place: 0.5 without position bias
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from text2grad.critics.servers import Preference, Side
from text2grad.evaluation import Ratio, estimate
from text2grad.runs.critic_quality.agreement import measure_agreement
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
    return {" and ".join(group): measure_agreement([codes[name] for name in group])._asdict() for group in groups}


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
        head = ("judges", "verdicts", "same verdict", "kappa", "alpha")
        keys = ("agreement", "kappa", "alpha")
        each = [[name, f"{own['ratings']:,}", *(_number(own[key]) for key in keys)] for name, own in agreement.items()]
        tables.append(Table("Agreement of judges: share of pairs, Fleiss' kappa, Krippendorff's alpha", head, each))
    return tables


def _percent(rate: Mapping[str, float] | None) -> str:
    return "–" if rate is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in rate.values()))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
