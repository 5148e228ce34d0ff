"""One bad rater among ten is found in a few seeds; evidence/results/raters.json has sixty."""

import json

import pytest

from evidence.benchmarks.raters import KINDS, SETUPS, auroc, measure
from places import ROOT


def test_the_area_counts_equal_strengths_half() -> None:
    assert auroc([2.0, 1.0], [1.0, 0.0]) == (1 + 1 + 0.5 + 1) / 4


@pytest.mark.parametrize("kind", ["flips", "everything", "name"])
def test_a_bad_rater_is_found_in_a_few_seeds(kind: str) -> None:
    figures = measure(kind, "shared", range(2))
    assert figures["auroc"] >= 0.95
    assert figures["found"] == 1.0
    assert figures["false_alarms"] <= 0.15


def test_the_record_has_all_kinds_and_meets_the_goal() -> None:
    record = json.loads((ROOT / "evidence" / "results" / "raters.json").read_text("utf-8"))
    assert (record["raters"], record["answers"]) == (10, 40)
    assert all(set(KINDS) == set(record[setup]) for setup in SETUPS)
    assert all(record["shared"][kind]["auroc"] >= 0.95 for kind in ("flips", "everything", "name"))
