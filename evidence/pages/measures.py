"""What a page says of the methods of a condition: values, leads, costs until a level, gains at equal KL.

Every lead is positive where the first method is better, also for metrics whose best value is 0. Curves have means per
evaluation, no items; their intervals come from resampled seeds alone.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evidence.analysis.formula import predicted_ratio
from evidence.pages.bootstrap import DRAWS, Interval, Items, bounds, difference, interval, own_items, resamples
from evidence.pages.curves import first_reached
from evidence.pages.records import Record
from evidence.pages.selection import Group, learns_in_rounds
from evidence.plans.frontier import frontier
from text2grad.evaluation import mean_interval

COSTS = ("rollouts", "tokens", "steps", "seconds")
_COLUMN = {"rollouts": "rollouts", "tokens": "tokens", "steps": "step", "seconds": "seconds"}
FRONTIER_POINTS = 48
_GAMMA, _LAM = 0.5, 0.95  # of the recipes, from which records tell differences


class Reach(NamedTuple):
    """The cost of a method until its curve first reaches a level.

    Attributes:
        costs: by name of `COSTS`, on the mean curve; infinity if the mean curve does not reach the level.
        low: bound for the rollouts, of resampled seeds; infinity if the resample does not reach the level.
        high: the other bound.
        spent: all rollouts of a run.
        of_seeds: rollouts of each seed; infinity for a seed that does not reach the level (censored at `spent`).
    """

    costs: Mapping[str, float]
    low: float
    high: float
    spent: float
    of_seeds: Sequence[float]


class Frontiers(NamedTuple):
    """Gain at equal KL of two methods.

    Attributes:
        grid: KL, nats per token, up to the smaller of the methods' largest KLs.
        gains: of each method, shape [2, grid].
        low: bounds of the gains, shape [2, grid].
        high: the other bounds.
        leads: first minus second, at `at`.
        at: an eighth, a quarter, a half and all of the grid's range.
    """

    grid: np.ndarray
    gains: np.ndarray
    low: np.ndarray
    high: np.ndarray
    leads: Sequence[Interval]
    at: Sequence[float]


def final(runs: Mapping[int, Record]) -> Interval:
    """Return the final value of a method."""
    return interval([np.array(run.items, dtype=float)[:, None] for run in runs.values()], items=_items(runs))


def repair(group: Group, method: str) -> Interval:
    """Return the relative repair, (end - start) / (best - start) with the values before and after training."""
    runs = group.runs[method]
    values = [np.stack([run.items, run.items_at_start], axis=1).astype(float) for run in runs.values()]

    def share(means: np.ndarray) -> np.ndarray:
        possible = group.best - means[..., 1]
        gained = means[..., 0] - means[..., 1]
        repaired: np.ndarray = np.divide(gained, possible, out=np.zeros_like(gained), where=possible != 0)
        return repaired

    return interval(values, share, items=_items(runs))


def lead(group: Group, first: str, second: str) -> Interval:
    """Return by how much the first method ends above the second: paired if seeds, items and start weights agree."""
    mine, other = group.runs[first], group.runs[second]
    if paired(mine, other):
        mine, other = _on_common_seeds(mine, other)
        values = [np.stack([mine[seed].items, other[seed].items], axis=1).astype(float) for seed in mine]
        return interval(values, lambda means: group.sign * (means[..., 0] - means[..., 1]), items=_items(mine))
    sides = (mine, other) if group.sign > 0 else (other, mine)
    return difference(*([np.array(run.items, float) for run in runs.values()] for runs in sides))


def paired(first: Mapping[int, Record], second: Mapping[int, Record]) -> bool:
    """Whether two methods have seeds in common, all with the same start weights and held-out items."""
    common = [seed for seed in first if seed in second]
    return bool(common) and all(
        (first[seed].start, first[seed].eval_seed, len(first[seed].items), *first[seed].item_ids)
        == (second[seed].start, second[seed].eval_seed, len(second[seed].items), *second[seed].item_ids)
        for seed in common
    )


def _on_common_seeds(
    first: Mapping[int, Record], second: Mapping[int, Record]
) -> tuple[Mapping[int, Record], Mapping[int, Record]]:
    """Return the runs of both methods on the seeds that both have, in one order."""
    common = [seed for seed in first if seed in second]
    return {seed: first[seed] for seed in common}, {seed: second[seed] for seed in common}


def _items(runs: Mapping[int, Record]) -> list[Items]:
    """Return the names of each seed's items; in records without digests of prompts the set of items and the place."""
    return [
        tuple(run.item_ids) or tuple((run.eval_seed, place) for place in range(len(run.items))) for run in runs.values()
    ]


def mean_curve(runs: Mapping[int, Record], column: str) -> np.ndarray:
    """Return a column of the curves at the steps that all finished seeds have, shape [seeds, points].

    A run that stopped with an error keeps its last value, at the cost of a finished run.
    """
    finished = [run for run in runs.values() if not run.error] or list(runs.values())
    steps = sorted(set.intersection(*({point["step"] for point in run.curve} for run in finished)))
    costs = {point["step"]: point for point in finished[0].curve}
    rows = []
    for run in runs.values():
        found = {point["step"]: point for point in run.curve}
        last = max((step for step in found if step <= steps[-1]), default=steps[0])
        points = [found.get(step) or (costs[step] if column in _COLUMN.values() else found[last]) for step in steps]
        rows.append([float(point[column] or 0.0) for point in points])
    return np.array(rows)


def band(runs: Mapping[int, Record], column: str = "value") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean curve and the bounds of its bootstrap over seeds."""
    values = mean_curve(runs, column)
    drawn = _seed_weights(len(values)) @ values
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return values.mean(axis=0), low, high


def _seed_weights(seeds: int, seed: int = 0) -> np.ndarray:
    """Return weights [draws, seeds] of resampled seeds."""
    return resamples(own_items([1] * seeds), DRAWS, seed).seed_weights


def reach(group: Group, method: str, rival: str) -> Reach:
    """Return the cost until a method's curve reaches the rival's final value.

    The level is the final value of the rival on the seeds that both have, in each resample that of the resample.
    """
    runs, others = _compared(group, method, rival)
    level = _end(group, others)
    costs = {cost: _cost_of_mean(group, method, runs, _COLUMN[cost], level) for cost in COSTS}
    rollouts, values = mean_curve(runs, "rollouts"), group.sign * mean_curve(runs, "value")
    of_seeds = _reached(method, rollouts, values, np.full(len(values), level))
    spent = float(rollouts[:, -1].mean())
    return Reach(costs, *bounds(_drawn_rollouts(group, method, rival)[0]), spent, list(map(float, of_seeds)))


def _cost_of_mean(group: Group, method: str, runs: Mapping[int, Record], column: str, level: np.ndarray) -> float:
    """Return the cost until the mean curve of some runs reaches a level."""
    values = group.sign * mean_curve(runs, "value").mean(axis=0)
    return float(_reached(method, mean_curve(runs, column).mean(axis=0), values, level))


def _compared(group: Group, method: str, rival: str) -> tuple[Mapping[int, Record], Mapping[int, Record]]:
    """Return the runs of a method, and the rival's: on the seeds of the method where both are paired."""
    runs, others = group.runs[method], group.runs[rival]
    return runs, _on_common_seeds(runs, others)[1] if paired(runs, others) else others


def _end(group: Group, runs: Mapping[int, Record]) -> np.ndarray:
    """Return the last value of the mean curve, higher is better; shape []."""
    ends: np.ndarray = group.sign * mean_curve(runs, "value")[:, -1]
    return np.array(ends.mean())


def _reached(method: str, x: np.ndarray, y: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return `first_reached`; a curve that ends at the level reaches it in spite of rounding."""
    return first_reached(x, y, level - 1e-9, between=not learns_in_rounds(method))


def _drawn_rollouts(group: Group, method: str, rival: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rollouts of both methods until the rival's final value in each resample of the seeds."""
    runs, others = group.runs[method], group.runs[rival]
    if paired(runs, others):
        runs, others = _on_common_seeds(runs, others)
        weights = other_weights = _seed_weights(len(runs))
    else:
        weights, other_weights = _seed_weights(len(runs), 1), _seed_weights(len(others), 2)
    level = other_weights @ (group.sign * mean_curve(others, "value")[:, -1])
    mine, theirs = (
        _reached(name, w @ mean_curve(one, "rollouts"), w @ (group.sign * mean_curve(one, "value")), level)
        for name, one, w in ((method, runs, weights), (rival, others, other_weights))
    )
    return mine, theirs


def rollouts_ratio(group: Group, first: str, rival: str) -> Interval:
    """Return the share of the rival's rollouts with which the first method reaches the rival's final value.

    The rival's rollouts are those until its own mean curve first reaches this value, at most all of them. Infinity if
    the first method does not reach it, NaN if the rival has this value at the start; a resample in which the rival has
    it at the start counts as infinite. Student's interval does not exist: single seeds may be infinite.
    """
    runs, others = _compared(group, first, rival)
    level = _end(group, others)
    mine = _cost_of_mean(group, first, runs, "rollouts", level)
    theirs = _cost_of_mean(group, rival, others, "rollouts", level)
    drawn = _drawn_rollouts(group, first, rival)
    ratios = np.divide(drawn[0], drawn[1], out=np.full_like(drawn[0], np.inf), where=drawn[1] > 0)
    seeds = min(len(group.runs[first]), len(group.runs[rival]))
    both = paired(group.runs[first], group.runs[rival])
    return Interval(mine / theirs if theirs > 0 else np.nan, *bounds(ratios), None, None, seeds, both)


def mean_tokens(runs: Mapping[int, Record]) -> float | None:
    """Return the tokens of a response at the start, mean over seeds; None for records without lengths of responses."""
    lengths = [run.curve[0]["metrics"].get("mean_tokens") for run in runs.values()]
    return None if any(length is None for length in lengths) else float(np.mean(lengths))


def predicted_share(group: Group, rival: str) -> float | None:
    """Return the share of the number's rollouts that spans need by `analysis.formula`.

    The rollouts for an update of equal precision are as 1 / signal-to-noise. The length is the mean of the responses at
    the start, spans have one token, γ and λ are those of the runs (0.5 and 0.95 in every recipe of the evidence).
    None for records without lengths of responses.
    """
    runs = group.runs[group.ours]
    length = mean_tokens(runs)
    if length is None:
        return None
    settings = next(iter(runs.values())).settings
    factor = settings.get("ppo.gamma", _GAMMA) * settings.get("ppo.lam", _LAM)
    size = next(iter(group.runs[rival].values())).settings.get("rollout.group_size", 1)
    return 1 / predicted_ratio({max(1, round(length)): 1}, factor=factor, span_tokens=1.0, group=size)


def gains_at_kl(group: Group, first: str, second: str) -> Frontiers | None:
    """Return the gains of two methods at equal KL; None without KLs.

    A method's points are the evaluations along its runs at all settings that were run (several β): for each setting
    the means over seeds. Its gain at a KL is the largest gain that the points of a setting offer at no more than this
    KL (`frontier`), at least 0 (no training). Resamples draw seeds, the same for both methods where they are paired.
    Student's interval is over the leads of single seeds, each by the frontier of its own points.
    """
    tables = [_kl_tables(group, name) for name in (first, second)]
    if not all(tables):
        return None
    reached = [max(float(kl.mean(axis=0).max()) for _, kl, _ in table) for table in tables]
    if min(reached) <= 0:
        return None
    grid = np.linspace(0.0, min(reached), FRONTIER_POINTS + 1)[1:]
    same = paired(group.runs[first], group.runs[second])
    gains, drawn, seeds = [], [], []
    for number, table in enumerate(tables):
        known = sorted({seed for of_seeds, _, _ in table for seed in of_seeds})
        if same:
            known = sorted({seed for one in tables for of_seeds, _, _ in one for seed in of_seeds})
        gains.append(_frontier(table, np.full((1, len(known)), 1 / len(known)), known, grid)[0])
        drawn.append(_frontier(table, _seed_weights(len(known), 0 if same else number + 1), known, grid))
        seeds.append(dict(zip(known, _frontier(table, np.eye(len(known)), known, grid), strict=True)))
    places = [len(grid) // part - 1 for part in (8, 4, 2, 1)]
    leads = [_lead_at(place, gains, drawn, seeds, paired_seeds=_common(tables) if same else []) for place in places]
    limits = np.stack([np.nanquantile(one, [0.025, 0.975], axis=0) for one in drawn])
    return Frontiers(grid, np.stack(gains), limits[:, 0], limits[:, 1], leads, [float(grid[n]) for n in places])


_KLTable = list[tuple[list[int], np.ndarray, np.ndarray]]
"""For each setting: the seeds, KL and gain, both [seeds, points]."""


def _kl_tables(group: Group, method: str) -> _KLTable:
    found = []
    for runs in group.variants[method]:
        if any(point.get("kl_per_token") is None for run in runs.values() for point in run.curve):
            continue
        values = group.sign * mean_curve(runs, "value")
        found.append((list(runs), mean_curve(runs, "kl_per_token"), values - values[:, :1]))
    return found


def _common(tables: Sequence[_KLTable]) -> list[int]:
    mine, other = ({seed for of_seeds, _, _ in table for seed in of_seeds} for table in tables)
    return sorted(mine & other)


def _frontier(table: _KLTable, weights: np.ndarray, seeds: Sequence[int], grid: np.ndarray) -> np.ndarray:
    """Return the best gain over all settings, shape [draws, grid]; NaN where no seed of the method was drawn."""
    best = np.full((len(weights), len(grid)), np.nan)
    for of_seeds, kl, gain in table:
        own = weights[:, [seeds.index(seed) for seed in of_seeds]]
        total = own.sum(axis=1, keepdims=True)
        shares = np.divide(own, total, out=np.zeros_like(own), where=total > 0)
        found = np.where(total > 0, np.maximum(frontier(shares @ kl, shares @ gain, grid), 0.0), np.nan)
        best = np.fmax(best, found)
    return best


def _lead_at(
    place: int,
    gains: Sequence[np.ndarray],
    drawn: Sequence[np.ndarray],
    seeds: Sequence[Mapping[int, np.ndarray]],
    *,
    paired_seeds: Sequence[int],
) -> Interval:
    """Return first minus second at one place of the grid."""
    value, differences = float(gains[0][place] - gains[1][place]), drawn[0][:, place] - drawn[1][:, place]
    limits = bounds(differences[~np.isnan(differences)])
    count = min(map(len, seeds))
    if not paired_seeds:
        return Interval(value, *limits, None, None, count, paired=False)
    own = mean_interval([float(seeds[0][seed][place] - seeds[1][seed][place]) for seed in paired_seeds])
    return Interval(value, *limits, own.low, own.high, len(paired_seeds))
