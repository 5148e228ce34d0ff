"""Figures of counts with bootstrap intervals, and paired differences: by hand, and against the tools' own numbers."""

import numpy as np
import pytest

from text2grad.errors import ShapeError
from text2grad.evaluation.intervals import Estimate, Ratio, estimate

ACCURACY = {"accuracy": Ratio(("right",), ("all",))}


def rows(*right: int) -> list[dict[str, float]]:
    return [{"right": float(one), "all": 1.0} for one in right]


def test_a_difference_is_paired() -> None:
    """The second model errs on one question more: every resample differs by the weight of this question alone."""
    first, second = rows(1, 1, 0, 0, 1, 0, 1, 0), rows(1, 1, 0, 0, 1, 0, 0, 0)
    found = estimate(first, ACCURACY, minus=second, draws=4_000)["accuracy"]
    assert found.value == 1 / 8
    weights = np.random.default_rng(0).multinomial(8, [1 / 8] * 8, size=4_000)[:, 6] / 8
    assert found[1:] == pytest.approx(np.quantile(weights, [0.025, 0.975]), abs=1 / 16)
    apart = estimate(first, ACCURACY)["accuracy"].high - estimate(second, ACCURACY)["accuracy"].low
    assert found.high - found.low < apart


def test_a_difference_has_the_sign_of_first_minus_second() -> None:
    found = estimate(rows(1, 1), ACCURACY, minus=rows(0, 0))["accuracy"]
    assert found == Estimate(1.0, 1.0, 1.0)
    assert estimate(rows(0, 0), ACCURACY, minus=rows(1, 1))["accuracy"].value == -1.0


def test_a_ratio_with_an_exponent_is_a_perplexity() -> None:
    # e^((2 + 4) / (2 + 1)) = e^2
    counts = [{"nats": 2.0, "tokens": 2.0}, {"nats": 4.0, "tokens": 1.0}]
    found = estimate(counts, {"perplexity": Ratio(("nats",), ("tokens",), exp=True)})["perplexity"]
    assert found.value == pytest.approx(np.exp(2.0))
    assert found.low == pytest.approx(np.e)  # only the first: e^(2 / 2)
    assert found.high == pytest.approx(np.exp(4.0))


def test_an_undefined_figure_is_left_out_and_sizes_must_agree() -> None:
    assert estimate([{"all": 0.0}], ACCURACY) == {}
    assert estimate([], ACCURACY) == {}
    assert estimate(rows(1), ACCURACY, minus=[{"all": 0.0}]) == {}
    with pytest.raises(ShapeError, match=r"^a paired difference needs counts of the same items, got 1 and 2 items$"):
        estimate(rows(1), ACCURACY, minus=rows(1, 1))


def test_a_share_that_all_items_agree_on_has_wilsons_bounds() -> None:
    """0 of 10: 1.96² / (10 + 1.96²) = 3.8415 / 13.8415 = 0.2775."""
    share = {"solved": Ratio(("right",), ("all",), share=True)}
    none, all_right = rows(*[0] * 10), rows(*[1] * 10)
    assert estimate(none, share)["solved"] == pytest.approx((0.0, 0.0, 0.2775), abs=1e-4)
    assert estimate(all_right, share)["solved"] == pytest.approx((1.0, 0.7225, 1.0), abs=1e-4)
    assert estimate([*none, {"all": 0.0}], share)["solved"].high == pytest.approx(0.2775, abs=1e-4)  # 10 items count
    assert estimate(none, share, minus=none)["solved"] == pytest.approx((0.0, -0.2775, 0.2775), abs=1e-4)
    assert estimate(none, share, minus=all_right)["solved"] == pytest.approx((-1.0, -1.0, -0.7225), abs=1e-4)
    assert estimate(none, ACCURACY)["accuracy"].high == 0.0  # no share is promised
    mixed = estimate(rows(1, 0, 0, 0), share)["solved"]
    assert mixed == estimate(rows(1, 0, 0, 0), ACCURACY)["accuracy"]
