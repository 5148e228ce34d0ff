"""Intervals: against closed forms, coverage on simulated data, pairing, crossed items, Welch's t."""

import numpy as np
import pytest
from scipy import stats

from evidence.pages.bootstrap import Interval, Resamples, bounds, difference, interval, own_items
from text2grad.evaluation.intervals import student


def seeds_of(rng: np.random.Generator, seeds: int, items: int, *, of_seed: float, of_item: float) -> list[np.ndarray]:
    """Return normal data with variance components of seeds and of items; the truth is 0."""
    return [(rng.normal(0, of_seed) + rng.normal(0, of_item, items))[:, None] for _ in range(seeds)]


def test_the_variance_of_the_resamples_is_the_formula() -> None:
    values = seeds_of(np.random.default_rng(0), 5, 30, of_seed=1.0, of_item=3.0)
    drawn = Resamples(own_items([30] * 5), draws=40_000).means(values)[:, 0]
    means, within = np.array([v.mean() for v in values]), np.array([v.var() for v in values])
    expected = (means.var() + within.mean() / 30) / 5  # as in the docstring of the module
    assert drawn.var() == pytest.approx(expected, rel=0.03)
    assert drawn.mean() == pytest.approx(means.mean(), abs=0.01)


def test_items_that_all_seeds_share_are_drawn_once() -> None:
    """Seeds that differ by a constant: of the variance, the items' part stays whole with more seeds."""
    items = np.random.default_rng(0).normal(0, 1, (50, 1))
    values = [items + 0.0 for _ in range(8)]
    crossed = Resamples([tuple(range(50))] * 8, draws=20_000).means(values)[:, 0]
    nested = Resamples(own_items([50] * 8), draws=20_000).means(values)[:, 0]
    assert crossed.var() == pytest.approx(items.var() / 50, rel=0.05)
    assert nested.var() == pytest.approx(items.var() / 50 / 8, rel=0.05)


def test_items_that_some_seeds_share_have_one_weight() -> None:
    """Two seeds have three of four items in common, whose noise is not averaged out.

    With the weights w the mean is Σ w x / 800 over 100 items of each seed alone, and Σ w x / 400 over 300 shared
    items; a weight has the variance 1, so that the variance is Σ x² / 800² and Σ x² / 400² (their mean is nearly 0).
    """
    rng = np.random.default_rng(0)
    alone, shared = rng.normal(0, 1, (2, 100)), rng.normal(0, 1, 300)
    names = [tuple(range(400)), (*range(100, 400), *range(400, 500))]
    values = [np.concatenate([alone[0], shared])[:, None], np.concatenate([shared, alone[1]])[:, None]]
    drawn = Resamples(names, draws=20_000)
    both = (drawn.seed_weights == 0.5).all(axis=1)
    found = drawn.means(values)[both, 0]
    expected = ((alone**2).sum() / 4 + (shared**2).sum()) / 400**2
    assert found.var() == pytest.approx(expected, rel=0.1)
    apart = Resamples(own_items([400, 400]), draws=20_000).means(values)[both, 0]
    assert found.var() > 1.3 * apart.var()


def test_items_of_one_seed_alone_are_drawn_for_each_place_also_beside_shared_ones() -> None:
    """With one of 400 items in common, the variance is nearly that of seeds without; all crossed it were 1.5 times."""
    values = [np.random.default_rng(n).normal(0, 1, (400, 1)) for n in range(2)]
    values = [one - one.mean() for one in values]
    found = Resamples([tuple(range(400)), tuple(range(399, 799))], draws=20_000).means(values)
    assert found.var() == pytest.approx(Resamples(own_items([400, 400]), draws=20_000).means(values).var(), rel=0.06)


def test_seeds_with_the_same_items_share_weights_with_a_third_one() -> None:
    """Half of each seed's 100 items are those of all (Σ x = 0): the mean is 3 Σ w x / 300, its variance Σ x² / 100²."""
    shared = np.random.default_rng(0).normal(0, 1, 50)
    of_seed = np.concatenate([shared - shared.mean(), np.zeros(50)])[:, None]
    drawn = Resamples([tuple(range(100))] * 2 + [(*range(50), *range(100, 150))], draws=20_000)
    every = (drawn.seed_weights > 0).all(axis=1)
    found = drawn.means([of_seed] * 3)[every, 0]
    assert found.var() == pytest.approx((of_seed**2).sum() / 100**2, rel=0.1)


def test_two_seeds_with_an_item_in_common_have_a_mean_in_every_resample() -> None:
    drawn = Resamples([("a", "b"), ("b", "c")], draws=4_000).means([np.array([[0.0], [1.0]]), np.array([[1.0], [2.0]])])
    assert np.isfinite(drawn).all()
    assert drawn.mean() == pytest.approx(1.0, abs=0.05)
    assert (drawn.min(), drawn.max()) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("seeds", "of_item", "least", "most"),
    [(3, 1.0, 0.68, 0.82), (5, 1.0, 0.78, 0.90), (5, 16.0, 0.93, 1.0), (20, 1.0, 0.89, 0.98)],
)
def test_coverage_is_the_one_that_pages_state(seeds: int, of_item: float, least: float, most: float) -> None:
    rng, trials = np.random.default_rng(7), 250
    found = [interval(seeds_of(rng, seeds, 20, of_seed=1.0, of_item=of_item), draws=300) for _ in range(trials)]
    assert least <= np.mean([one.low <= 0 <= one.high for one in found]) <= most
    student_holds = [one.student_low is not None and one.student_low <= 0 <= (one.student_high or 0) for one in found]
    assert 0.91 <= np.mean(student_holds) <= 0.98


def test_pairing_uses_that_items_are_difficult_for_both() -> None:
    rng = np.random.default_rng(1)
    difficulty = [rng.normal(0, 1, 60) + rng.normal(0, 0.5) for _ in range(5)]
    first = [d + 0.1 + rng.normal(0, 0.1, 60) for d in difficulty]
    second = [d + rng.normal(0, 0.1, 60) for d in difficulty]
    paired = interval([np.stack(p, axis=1) for p in zip(first, second, strict=True)], lambda m: m[..., 0] - m[..., 1])
    apart = difference(first, second)
    assert paired.value == pytest.approx(apart.value)
    assert paired.paired
    assert not apart.paired
    assert paired.high - paired.low < 0.2 * (apart.high - apart.low)
    assert paired.low > 0 > apart.low


def test_student_of_a_pair_and_welch_are_those_of_scipy() -> None:
    rng = np.random.default_rng(2)
    first, second = [rng.normal(1, s, 10) for s in (1, 2, 3)], [rng.normal(0, 1, 10) for _ in range(5)]
    a, b = ([float(v.mean()) for v in side] for side in (first, second))
    found = difference(first, second)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (found.student_low, found.student_high) == pytest.approx((expected.low, expected.high), rel=1e-6)
    pair = interval([np.stack([v, v * 0.5], axis=1) for v in first], lambda m: m[..., 0] - m[..., 1])
    one = stats.ttest_1samp([0.5 * m for m in a], 0).confidence_interval()
    assert (pair.student_low, pair.student_high) == pytest.approx((one.low, one.high), rel=1e-6)
    assert student(3.7) == pytest.approx(stats.t.ppf(0.975, 3.7), rel=1e-6)


def test_the_difference_is_the_first_minus_the_second() -> None:
    found = difference([np.ones(4), np.ones(4)], [np.zeros(4)])
    assert found[:3] == (1.0, 1.0, 1.0)
    assert found.seeds == 1


def test_one_seed_has_an_interval_of_items_alone() -> None:
    found = interval([np.array([[0.0], [1.0], [1.0], [0.0]])])
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.student_low == found.student_high == 0.5
    assert not found.student_is_wider


def test_the_same_data_give_the_same_interval() -> None:
    values = seeds_of(np.random.default_rng(3), 4, 10, of_seed=1, of_item=1)
    assert interval(values) == interval(values)


def test_bounds_hold_infinity() -> None:
    assert bounds(np.array([1.0] * 50 + [np.inf] * 50)) == (1.0, np.inf)


def test_which_interval_is_wider_is_told() -> None:
    assert Interval(0, -1, 1, -1.5, 1, 5).student_is_wider
    assert not Interval(0, -1, 1, -0.5, 1, 5).student_is_wider
    assert not Interval(0, -1, 1, None, None, 5).student_is_wider
