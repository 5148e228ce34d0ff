"""Verdicts of judges on pairs of texts → wins, ties and losses with intervals, position bias, agreement of judges.

win, tie, loss   shares of the first text, as in tables 1 and 4 of the paper, with bootstrap intervals over pairs
inconsistent     pairs whose two orders had different verdicts; they are ties
first_place      share of the verdicts for a place that are for the first place: 0.5 without position bias
agreement        share of pairs with the same verdict by both judges
alpha            Krippendorff's alpha for categories (win, tie, loss); missing verdicts allowed
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from text2grad.critics.servers import Preference, Side
from text2grad.evaluation import Ratio, estimate
from text2grad.runs.critic_quality.agreement import alpha
from text2grad.runs.reports.html import Table

_SIDES: Mapping[str, Side] = {"win": "first", "tie": "tie", "loss": "second"}
_CODES: Mapping[Side | None, float | None] = {"second": 0.0, "tie": 1.0, "first": 2.0, None: None}
_PLURAL = {"win": "wins", "tie": "ties", "loss": "losses"}


def summary(preferences: Sequence[Preference]) -> dict[str, Any]:
    """Return wins, ties and losses of the first set, with intervals; pairs without a verdict are excluded."""
    judged = [preference for preference in preferences if preference.better is not None]
    rows = [_counts(preference) for preference in judged]
    rates = estimate(rows, {name: Ratio((name,), ("pairs",)) for name in _SIDES})
    bias = estimate(rows, {"first_place": Ratio(("first place",), ("places",))}).get("first_place")
    inconsistent = [preference for preference in judged if preference.inconsistent]
    contrary = Counter(preference.verdicts for preference in inconsistent)
    return {
        "pairs": len(judged),
        **{_PLURAL[name]: sum(int(row[name]) for row in rows) for name in _SIDES},
        "rates": {name: rate._asdict() for name, rate in rates.items()},
        "inconsistent": len(inconsistent),
        "first_place_twice": contrary["first", "second"],
        "second_place_twice": contrary["second", "first"],
        "first_place": bias._asdict() if bias else None,
        "alike": sum(preference.better == "tie" and not preference.verdicts for preference in judged),
        "failed": len(preferences) - len(judged),
    }


def _counts(preference: Preference) -> dict[str, float]:
    places = Counter(preference.places)
    return {
        **{name: float(preference.better == side) for name, side in _SIDES.items()},
        **{"pairs": 1.0, "first place": float(places["first"]), "places": float(places["first"] + places["second"])},
    }


def judges_agreement(verdicts: Mapping[str, Sequence[Preference]]) -> dict[str, Any] | None:
    """Return the agreement of judges on the same pairs in the same order; None for fewer than two judges.

    Returns:
        "alpha" of all judges, and by "pairs" of judges the number of pairs of texts that both judged, the share with
        the same verdict and alpha. Alpha is None where it is not defined: all verdicts equal, or none judged twice.

    Raises:
        ConfigError: if `krippendorff` is not installed.
    """
    if len(verdicts) < 2:
        return None
    codes = {name: [_CODES[preference.better] for preference in given] for name, given in verdicts.items()}
    pairs = []
    for first, second in combinations(codes, 2):
        both = [(x, y) for x, y in zip(codes[first], codes[second], strict=True) if x is not None and y is not None]
        same = sum(x == y for x, y in both) / len(both) if both else None
        of_two = alpha([codes[first], codes[second]], "the agreement of judges")
        pairs.append({"judges": [first, second], "both": len(both), "agreement": same, "alpha": of_two})
    return {"alpha": alpha(list(codes.values()), "the agreement of judges"), "pairs": pairs}


def verdict_tables(results: Mapping[str, Mapping[str, Any]], agreement: Mapping[str, Any] | None) -> list[Table]:
    """Return the table of judges, and for several judges the table of their agreement."""
    columns = ("judge", "win", "tie", "loss", "pairs", "inconsistent", "first place", "no verdict")
    rows = [
        (
            name,
            *(_percent(result["rates"].get(rate)) for rate in _SIDES),
            *(
                f"{result['pairs']:,}",
                f"{result['inconsistent']:,}",
                _percent(result["first_place"]),
                f"{result['failed']:,}",
            ),
        )
        for name, result in results.items()
    ]
    tables = [Table("Shares of pairs in %; [low, high]: 95 % intervals over pairs", columns, rows)]
    if agreement:
        all_judges = ("all judges", "", "", _number(agreement["alpha"]))
        each = [
            (" and ".join(pair["judges"]), f"{pair['both']:,}", _share(pair["agreement"]), _number(pair["alpha"]))
            for pair in agreement["pairs"]
        ]
        head = ("judges", "pairs", "same verdict", "Krippendorff's alpha")
        tables.append(Table("Agreement of judges", head, [*each, *([all_judges] if len(each) > 1 else [])]))
    return tables


def _percent(rate: Mapping[str, float] | None) -> str:
    return "–" if rate is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in rate.values()))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
