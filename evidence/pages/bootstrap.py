"""Seeds and their held-out items → values, differences and ratios with intervals of 95 %.

The value of a method is the mean over seeds s of the mean over the items i of this seed, m = 1/S Σ_s 1/N_s Σ_i x_si.

**Hierarchical bootstrap.** A resample draws S seeds with replacement, then for each drawn seed N_s of its items with
replacement; the bounds are the 2.5 % and 97.5 % quantiles of the statistic over the resamples. Two methods with the
same seeds, items and start weights share every draw, which makes the comparison paired. Seeds that were evaluated on
the same items share the draw of the items (seeds and items are crossed, not nested). Seeds that share a part of their
items share the weights of these items; weights are then Poisson numbers of mean 1, and a seed's mean is the weighted
mean of its items. The variance over resamples is, with the variance s² of the seeds' means (divisor S) and the
variances v_s of the items (divisor N_s),

    Var = 1/S (s² + mean_s v_s / N_s)          (nested items)

while the variance of m is 1/S (σ_seed² + σ_item²/N). The expectation of s² is (S - 1)/S (σ_seed² + σ_item²/N), so
that few seeds make the interval too narrow: by √(4/5) at five seeds and √(2/3) at three, and by as much again because
the quantiles are those of a normal distribution. Noise of the items acts against it, because a resample draws items
from seeds' means that have this noise already. Measured on normal seeds and items (tests): where seeds differ more
than the means of their items are uncertain, the interval holds the truth in about 84 of 100 cases with five seeds and
75 with three; where the items decide, in 95 and more.

**Student's t over seeds** treats each seed's value as one observation. For normal seeds it is exact at any number of
seeds; it is Welch's for two methods that are not paired. Pages show both intervals.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from text2grad.evaluation import LEVEL, mean_interval
from text2grad.evaluation.intervals import student

DRAWS = 4_000

Statistic = Callable[[np.ndarray], np.ndarray]
"""Means [..., columns] → the statistic [...]."""

Items = tuple[Hashable, ...]
"""Names of the held-out items of a seed."""


class Interval(NamedTuple):
    """A value, its bootstrap interval, and Student's interval over seeds (equal bounds if there is a single seed).

    Attributes:
        value: over all seeds and items.
        low: bound of the bootstrap.
        high: bound of the bootstrap.
        student_low: bound of Student's t over the seeds; None for a statistic that single seeds do not have.
        student_high: the other bound.
        seeds: number of seeds; of the smaller group for methods that are not paired.
        paired: False if two methods were resampled independently.
    """

    value: float
    low: float
    high: float
    student_low: float | None
    student_high: float | None
    seeds: int
    paired: bool = True

    @property
    def student_is_wider(self) -> bool:
        """Whether Student's interval is the wider one."""
        if self.student_low is None or self.student_high is None:
            return False
        return self.student_high - self.student_low > self.high - self.low


class Resamples:
    """The draws of one design, used for every quantity of it, so that all are paired."""

    def __init__(self, items: Sequence[Items], *, draws: int = DRAWS, seed: int = 0) -> None:
        """Draw.

        Args:
            items: names of the held-out items of each seed; items of two seeds with the same name are the same item.
            draws: number of resamples.
            seed: of the random generator.
        """
        rng, count = np.random.default_rng(seed), len(items)
        self.draws = draws
        self._chosen = rng.integers(0, count, size=(draws, count))  # seed in each place of each resample
        self._rows: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        crossed: dict[Items, np.ndarray] = {}
        single: dict[Hashable, np.ndarray] = {}
        seeds_with = Counter(name for own in items for name in set(own))
        for number, own in enumerate(items):
            rows = np.nonzero(self._chosen == number)[0]
            shared = {name for name in own if seeds_with[name] > 1}
            if not shared:
                weights = _weights(rng, len(own), len(rows))
            elif all(one == own or shared.isdisjoint(one) for one in items):
                if own not in crossed:
                    crossed[own] = _weights(rng, len(own), draws)
                weights = crossed[own][rows]
            else:
                for name in own:
                    if name in shared and name not in single:
                        single[name] = rng.poisson(1.0, size=draws).astype(np.uint16)
                weights = rng.poisson(1.0, size=(len(rows), len(own))).astype(np.uint16)
                for place, name in enumerate(own):
                    if name in shared:
                        weights[:, place] = single[name][rows]
                weights[weights.sum(axis=1) == 0] = 1  # a few items may all have the weight 0
            self._rows.append(rows)
            self._weights.append(weights)

    def means(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the means of the resamples, shape [draws, columns], from the items of each seed, [items, columns]."""
        total = np.zeros((self.draws, values[0].shape[1]))
        for rows, weights, of_seed in zip(self._rows, self._weights, values, strict=True):
            shares = weights.astype(float)
            np.add.at(total, rows, shares @ of_seed / shares.sum(axis=1, keepdims=True))
        return total / len(values)

    @property
    def seed_weights(self) -> np.ndarray:
        """Return the weight of each seed in each resample, shape [draws, seeds]; rows sum to 1."""
        count = self._chosen.shape[1]
        weights: np.ndarray = np.stack([(self._chosen == n).sum(axis=1) for n in range(count)], axis=1) / count
        return weights


def _weights(rng: np.random.Generator, size: int, draws: int) -> np.ndarray:
    """Return how often each item is drawn, shape [draws, items]; small, because several designs are kept."""
    return rng.multinomial(size, np.full(size, 1 / size), size=draws).astype(np.uint16)


@lru_cache(maxsize=64)
def resamples(items: tuple[Items, ...], draws: int = DRAWS, seed: int = 0) -> Resamples:
    """Return the draws of a design; designs are kept, because making one takes longer than using it.

    A page comes back to its designs; one of five seeds and 100 items has 4 MB.
    """
    return Resamples(items, draws=draws, seed=seed)


def own_items(sizes: Sequence[int]) -> tuple[Items, ...]:
    """Return names of items for seeds that have no item in common."""
    return tuple(tuple((number, place) for place in range(size)) for number, size in enumerate(sizes))


def interval(
    values: Sequence[np.ndarray],
    statistic: Statistic = lambda means: means[..., 0],
    *,
    items: Sequence[Items] | None = None,
    draws: int = DRAWS,
) -> Interval:
    """Return a statistic of means with both intervals.

    Args:
        values: for each seed an array [items, columns], such as the values of two methods on the same items.
        statistic: means [..., columns] → values [...]; the default takes the first column.
        items: names of the items of each seed, as of `Resamples`; None if no two seeds share an item.
        draws: number of resamples.

    Example:
        >>> interval([np.array([[0.0], [1.0]]), np.array([[1.0], [1.0]])]).value
        0.75
    """
    named = own_items([len(of_seed) for of_seed in values]) if items is None else tuple(items)
    drawn = statistic(resamples(named, draws).means(values))
    of_seeds = np.stack([of_seed.mean(axis=0) for of_seed in values])
    over_seeds = mean_interval(list(map(float, statistic(of_seeds))))
    value = float(statistic(of_seeds.mean(axis=0)))
    return Interval(value, *bounds(drawn), over_seeds.low, over_seeds.high, len(values))


def difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray], *, draws: int = DRAWS) -> Interval:
    """Return the difference, first minus second, of methods whose seeds or items do not belong together.

    Args:
        first: the items of each seed.
        second: of the other method; the number of seeds may differ.
        draws: number of resamples of each.
    """
    drawn, means = [], []
    for number, values in enumerate((first, second)):
        columns = [of_seed[:, None] for of_seed in values]
        design = own_items([len(of_seed) for of_seed in values])
        drawn.append(resamples(design, draws, number + 1).means(columns)[:, 0])
        means.append(np.array([of_seed.mean() for of_seed in values]))
    value = float(means[0].mean() - means[1].mean())
    low, high = bounds(drawn[0] - drawn[1])
    return Interval(value, low, high, *_welch(value, means), min(len(first), len(second)), paired=False)


def _welch(value: float, means: Sequence[np.ndarray]) -> tuple[float, float]:
    if min(map(len, means)) < 2:
        return value, value
    parts = [of_method.var(ddof=1) / len(of_method) for of_method in means]
    if not sum(parts):
        return value, value
    freedom = sum(parts) ** 2 / sum(part**2 / (len(m) - 1) for part, m in zip(parts, means, strict=True))
    reach = student(freedom) * float(np.sqrt(sum(parts)))
    return value - reach, value + reach


def bounds(drawn: np.ndarray) -> tuple[float, float]:
    """Return the bounds of 95 % of values, which may hold infinity (a level that was never reached) but not NaN."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)
