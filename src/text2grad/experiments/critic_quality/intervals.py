"""Counts per response → rates, each with a bootstrap interval over responses.

A rate is a sum of counts divided by a sum of counts, or the area under a curve of sums. A resample draws responses,
because the tokens of one response are not independent; it only changes the weight of each response in the sums.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

DRAWS, LEVEL = 2_000, 0.95
_AT_ONCE = 100  # resamples held in memory together


class Ratio(NamedTuple):
    """A rate: sum of the counts in `top` / sum of the counts in `bottom`. A name that occurs twice counts twice.

    Attributes:
        top: names of counts.
        bottom: names of counts.
        exp: True gives e to the power of the quotient, as in perplexity.
    """

    top: tuple[str, ...]
    bottom: tuple[str, ...]
    exp: bool = False

    def of(self, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the rate for each resample, from the sums of the counts by name, each [B]; NaN for 0 / 0."""
        above, below = (sum(sums[name] for name in names) for names in (self.top, self.bottom))
        quotient: np.ndarray = np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)
        return np.exp(quotient) if self.exp else quotient


class Area(NamedTuple):
    """The area under the ROC curve: how probably a score is higher where the truth holds; equal scores count half.

    Attributes:
        true: names of the counts of units where the truth holds, by rising score.
        other: names of the counts of all other units, by the same scores.
    """

    true: tuple[str, ...]
    other: tuple[str, ...]

    def of(self, sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the area for each resample, from the sums of the counts by name, each [B]; NaN where one is empty."""
        true, other = (np.stack([sums[name] for name in names]) for names in (self.true, self.other))  # [scores, B]
        below = np.cumsum(other, axis=0) - other
        pairs = true.sum(axis=0) * other.sum(axis=0)
        won = (true * (below + other / 2)).sum(axis=0)
        area: np.ndarray = np.divide(won, pairs, out=np.full(pairs.shape, np.nan), where=pairs != 0)
        return area


class Estimate(NamedTuple):
    """A rate over all responses, and the bounds of its interval."""

    value: float
    low: float
    high: float


def estimate(
    rows: Sequence[Mapping[str, float]], rates: Mapping[str, Ratio | Area], *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Estimate]:
    """Return rates with percentile-bootstrap intervals of 95 %; a rate with denominator zero is left out.

    Args:
        rows: the counts of each response; a missing count is 0.
        rates: by name.
        draws: number of resamples. Resamples in which the denominator of a rate is zero are left out for this rate; if
            all are, both bounds are the value.
        seed: of the resamples.

    Example:
        >>> rows = [{"right": 1, "all": 1}, {"right": 0, "all": 1}]
        >>> estimate(rows, {"accuracy": Ratio(("right",), ("all",))})["accuracy"]
        Estimate(value=0.5, low=0.0, high=1.0)
    """
    names = sorted({name for rate in rates.values() for part in rate[:2] for name in part})
    counts = np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=float).reshape(-1, len(names))

    def measured(weights: np.ndarray) -> np.ndarray:  # [B, rows] -> [B, rates]
        sums = dict(zip(names, (weights @ counts).T, strict=True))
        return np.stack([rate.of(sums) for rate in rates.values()], axis=-1)

    values = measured(np.ones((1, len(counts))))[0]
    known = ~np.isnan(values)
    if not known.any():
        return {}
    generator, uniform = np.random.default_rng(seed), np.full(len(counts), 1 / len(counts))
    sizes = [min(_AT_ONCE, draws - start) for start in range(0, draws, _AT_ONCE)]
    drawn = np.concatenate([measured(generator.multinomial(len(counts), uniform, size=size)) for size in sizes])
    undefined = np.isnan(drawn).all(axis=0)
    drawn[:, undefined] = values[undefined]
    low, high = np.full((2, len(values)), np.nan)
    tail = (1 - LEVEL) / 2
    low[known], high[known] = np.nanquantile(drawn[:, known], [tail, 1 - tail], axis=0)
    found = zip(rates, values, low, high, strict=True)
    return {name: Estimate(float(v), float(a), float(b)) for name, v, a, b in found if not np.isnan(v)}


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values, such as of seeds, with Student's interval of 95 %.

    A single value has no interval: both bounds are the value.

    Example:
        >>> [round(x, 3) for x in mean_interval([1.0, 2.0, 3.0])]  # 2 ± 4.303 · 1 / √3
        [2.0, -0.484, 4.484]
    """
    found = np.array(values, dtype=float)
    mean = float(found.mean())
    if len(found) == 1:
        return Estimate(mean, mean, mean)
    reach = float(student(len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
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
