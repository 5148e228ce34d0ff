"""Counts per item → figures, each with a bootstrap interval over items; differences of paired items.

An item is a response, or a question with its answers. A figure is a statistic of the weighted counts, such as a rate: a
sum of counts divided by a sum of counts. A resample draws whole items, because the tokens of one response are not
independent; it only changes the weight of each item. Two sets of counts of the same items get the same resamples, so
their difference is paired.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from text2grad.errors import ShapeError

DRAWS, LEVEL = 2_000, 0.95
_Z = 1.959964  # 97.5 % quantile of the normal distribution
_AT_ONCE = 100  # resamples held in memory together

Rows = Sequence[Mapping[str, float]]  # the counts of each item; a missing count is 0


class Statistic(Protocol):
    """A figure of weighted items."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the counts that it reads; each once."""

    def values(self, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the figure for each weighting, [B], NaN where it is undefined: [items, names], [B, items]."""


class Ratio(NamedTuple):
    """A rate: sum of the counts in `top` / sum of the counts in `bottom`. A name that occurs twice counts twice."""

    top: tuple[str, ...]
    bottom: tuple[str, ...]
    exp: bool = False  # e to the power of the quotient, as in perplexity
    share: bool = False  # the rate of every item is in [0, 1]; see `_with_intervals`

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the counts that it reads."""
        return tuple(sorted({*self.top, *self.bottom}))

    def values(self, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the rate for each weighting; NaN where the denominator is zero."""
        sums = weights @ counts
        above, below = (
            sums @ np.array([names.count(name) for name in self.names], dtype=float)
            for names in (self.top, self.bottom)
        )
        quotients: np.ndarray = np.divide(above, below, out=np.full(below.shape, np.nan), where=below != 0)
        return np.exp(quotients) if self.exp else quotients


class Estimate(NamedTuple):
    """A rate over all responses, and the bounds of its interval."""

    value: float
    low: float
    high: float


def estimate(
    rows: Rows, statistics: Mapping[str, Statistic], *, minus: Rows | None = None, draws: int = DRAWS, seed: int = 0
) -> dict[str, Estimate]:
    """Return figures with percentile-bootstrap intervals of 95 %; an undefined figure is left out.

    Of the `draws` resamples, those in which a figure is undefined are left out for this figure; if all are, both bounds
    are the value. With `minus`, other counts of the same items, the figures are the differences of both.

    Example:
        >>> rows = [{"right": 1, "all": 1}, {"right": 0, "all": 1}]
        >>> estimate(rows, {"accuracy": Ratio(("right",), ("all",))})["accuracy"]
        Estimate(value=0.5, low=0.0, high=1.0)
    """
    drawn = _resampled(rows, statistics, draws, seed)
    if minus is not None:
        if len(rows) != len(minus):
            raise ShapeError(
                f"a paired difference needs counts of the same items, got {len(rows)} and {len(minus)} items"
            )
        others = _resampled(minus, statistics, draws, seed)
        drawn = {name: values - others[name] for name, values in drawn.items()}
    least = 0.0 if minus is None else -1.0
    known = {name: values for name, values in drawn.items() if not np.isnan(values[0])}
    return {name: _with_interval(values, rows, statistics[name], least) for name, values in known.items()}


def _resampled(rows: Rows, statistics: Mapping[str, Statistic], draws: int, seed: int) -> dict[str, np.ndarray]:
    """Return each figure over all items, then over each resample, [1 + draws]; equal seeds draw equal weights."""
    if not rows:
        return {}
    counts = {
        name: np.array([[row.get(key, 0.0) for key in statistic.names] for row in rows], dtype=float)
        for name, statistic in statistics.items()
    }
    generator, uniform = np.random.default_rng(seed), np.full(len(rows), 1 / len(rows))
    figures = {
        name: [statistic.values(counts[name], np.ones((1, len(rows))))] for name, statistic in statistics.items()
    }
    for start in range(0, draws, _AT_ONCE):
        weights = generator.multinomial(len(rows), uniform, size=min(_AT_ONCE, draws - start)).astype(float)
        for name, statistic in statistics.items():
            figures[name].append(statistic.values(counts[name], weights))
    return {name: np.concatenate(values) for name, values in figures.items()}


def _with_interval(values: np.ndarray, rows: Rows, statistic: Statistic, least: float) -> Estimate:
    """Return a figure with the quantiles of its resamples; `values` are of `_resampled`.

    Where a share of n items is the same in each resample, as with 0 of 10, the quantiles show nothing. Its bounds
    are then z² / (n + z²) away on both sides, as in Wilson's interval for 0 of n, but within [`least`, 1].
    """
    value, known = float(values[0]), values[1:][~np.isnan(values[1:])]
    if not len(known):
        return Estimate(value, value, value)
    if isinstance(statistic, Ratio) and statistic.share and known.min() == known.max() == value:
        items = sum(any(row.get(key, 0.0) > 0 for key in statistic.bottom) for row in rows)
        reach = _Z**2 / (items + _Z**2)
        return Estimate(value, max(least, value - reach), min(1.0, value + reach))
    return Estimate(value, *map(float, np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])))


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values, such as of seeds, with Student's interval of 95 %.

    A single value has no interval: both bounds are the value.

    Example:
        >>> [round(x, 3) for x in mean_interval([1.0, 2.0, 3.0])]  # 2 ± 4.303 · 1 / √3
        [2.0, -0.484, 4.484]
    """
    known = np.array(values, dtype=float)
    mean = float(known.mean())
    reach = float(student(len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else 0.0
    return Estimate(mean, mean - reach, mean + reach)


@lru_cache(maxsize=128)
def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t, which also may have broken degrees of freedom.

    Example:
        >>> round(student(4), 3)
        2.776
    """
    # With t = √ν tan θ the density of θ is cos(θ)^(ν − 1), on a bounded range.
    angles = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.cumsum(density) - (density + density[0]) / 2  # trapezoids
    return float(np.sqrt(freedom) * np.tan(np.interp((1 + LEVEL) / 2, below / below[-1], angles)))
