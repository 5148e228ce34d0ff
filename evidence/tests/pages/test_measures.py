"""Leads, repair, costs until a level and gains at equal KL, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_records import record, study, trials

from evidence.analysis.formula import predicted_ratio
from evidence.pages.bootstrap import Interval, interval
from evidence.pages.curves import first_reached
from evidence.pages.markdown import verdict
from evidence.pages.measures import (
    final,
    gains_at_kl,
    lead,
    mean_curve,
    paired,
    predicted_share,
    reach,
    repair,
    rollouts_ratio,
)
from evidence.pages.records import Record
from evidence.pages.selection import Group, groups
from evidence.plans.frontier import frontier, value_of


def curve(*points: tuple[int, float], kl: float = 0.01) -> list[dict[str, Any]]:
    """Return a curve of (step, value); a step has 10 rollouts, 50 tokens, 2 seconds, and `kl` per step."""
    return [
        {
            "step": n,
            "rollouts": 10 * n,
            "tokens": 50 * n,
            "seconds": 2.0 * n,
            "value": v,
            "kl_per_token": kl * n,
            "metrics": {},
        }
        for n, v in points
    ]


def by_hand(method: str, seed: int, values: list[tuple[int, float]], **fields: Any) -> Record:
    items = [values[-1][1]] * 4
    start = [values[0][1]] * 4
    kl = fields.pop("kl", 0.01)
    return record(method, seed, curve=curve(*values, kl=kl), items=items, items_at_start=start, **fields)


def group_of(*records: Record) -> Group:
    [group] = groups(list(records))
    return group


SPANS = [[(0, 0.0), (10, 0.8), (20, 1.0)], [(0, 0.0), (10, 0.4), (20, 0.8)]]
NUMBER = [[(0, 0.0), (10, 0.2), (20, 0.4)], [(0, 0.0), (10, 0.4), (20, 0.6)]]


def two_methods(**fields: Any) -> Group:
    made = [by_hand("text2grad", seed, values) for seed, values in enumerate(SPANS)]
    return group_of(*made, *(by_hand("grpo", seed, values, **fields) for seed, values in enumerate(NUMBER)))


def test_first_reached_interpolates_and_tells_what_never_comes() -> None:
    x, y = np.array([0.0, 10.0, 20.0]), np.array([0.2, 0.6, 0.5])
    assert first_reached(x, y, 0.4) == pytest.approx(5.0)
    assert first_reached(x, y, 0.1) == 0.0  # the start is above
    assert first_reached(x, y, 0.6) == 10.0
    assert first_reached(x, y, 0.7) == np.inf
    assert first_reached(x, y, 0.4, between=False) == 10.0  # no policy between the evaluations
    assert first_reached(x, y, 0.1, between=False) == 0.0
    assert first_reached(x, y, 0.7, between=False) == np.inf
    both = first_reached(x, np.stack([y, y / 2]), np.array([0.4, 0.3]))
    assert both.tolist() == pytest.approx([5.0, 10.0])


def test_the_frontier_is_the_hull_of_the_points_and_never_falls() -> None:
    kl, gain = np.array([0.0, 0.2, 0.1, 0.4]), np.array([0.0, 0.4, 0.6, 0.3])
    # 0.05: half way to the third point, whose KL is below the second's; from there on nothing is better
    assert frontier(kl, gain, np.array([0.05, 0.1, 0.2, 0.4])) == pytest.approx([0.3, 0.6, 0.6, 0.6])
    # 0.1 and 0.2: 1/3 and 2/3 of the last point's gain, above the points between, also where points are not neighbours
    kl, gain = np.array([0.0, 0.2, 0.1, 0.3]), np.array([0.0, 0.2, 0.1, 0.9])
    grid = np.array([0.1, 0.2, 0.3])
    assert frontier(kl, gain, grid) == pytest.approx([0.3, 0.6, 0.9])
    both = frontier(np.stack([kl, kl[::-1]]), np.stack([gain, gain[::-1]]), grid)  # the order of the points is nothing
    assert both == pytest.approx(np.array([[0.3, 0.6, 0.9]] * 2))
    assert frontier(np.array([0.2]), np.array([0.4]), np.array([0.1, 0.2])).tolist() == [-np.inf, 0.4]


def test_the_value_within_a_kl_is_at_least_that_before_training() -> None:
    curve = [
        {"value": 0.5, "kl_per_token": 0.1},
        {"value": 0.9, "kl_per_token": 0.4},
    ]  # another reference than the start
    assert value_of(curve, at_kl=0.05) == 0.5
    assert value_of(curve, at_kl=0.2) == pytest.approx(0.5 + 0.4 * 0.1 / 0.3)
    assert value_of(curve, at_kl=0.2, minimise=True) == 0.5


def test_lead_and_repair_by_hand() -> None:
    group = two_methods()
    found = lead(group, "text2grad", "grpo")  # 1.0 - 0.4 and 0.8 - 0.6
    assert found.value == pytest.approx(0.4)
    assert (found.low, found.high) == pytest.approx((0.2, 0.6))
    assert lead(group, "grpo", "text2grad").value == pytest.approx(-0.4)
    assert repair(group, "grpo").value == pytest.approx(0.5)  # (0.5 - 0) / (1 - 0)
    assert final(group.runs["grpo"]).value == pytest.approx(0.5)


def test_a_metric_that_should_fall_gives_positive_leads_and_repair() -> None:
    down = [[(0, 0.8), (10, 0.3), (20, 0.2)], [(0, 0.8), (10, 0.6), (20, 0.4)]]
    made = [
        by_hand(method, seed, down[number], metric="invented_share", task="stories")
        for number, method in enumerate(("text2grad", "grpo"))
        for seed in (0, 1)
    ]
    group = group_of(*made)
    assert lead(group, "text2grad", "grpo").value == pytest.approx(0.2)
    assert repair(group, "text2grad").value == pytest.approx(0.75)  # (0.2 - 0.8) / (0 - 0.8)
    assert reach(group, "text2grad", "grpo").costs["steps"] == pytest.approx(8)  # 0.8 → 0.3 in 10 steps; 0.4 at 8
    assert rollouts_ratio(group, "text2grad", "grpo").value == pytest.approx(0.4)  # the number needs all 20 steps
    apart = group_of(
        *made[:2], *(by_hand("grpo", s, down[1], metric="invented_share", task="stories", start="x") for s in (0, 1))
    )
    assert not lead(apart, "text2grad", "grpo").paired
    assert lead(apart, "text2grad", "grpo").value == pytest.approx(0.2)
    found = gains_at_kl(group, "text2grad", "grpo")
    assert found is not None
    assert found.gains[0][-1] == pytest.approx(0.6)


def test_costs_until_the_rivals_final_value() -> None:
    group = two_methods()
    found = reach(group, "text2grad", "grpo")  # mean curve 0, 0.6, 0.9; the level is 0.5
    assert found.costs["steps"] == pytest.approx(10 * 5 / 6)
    assert found.costs["rollouts"] == pytest.approx(100 * 5 / 6)
    assert found.costs["tokens"] == pytest.approx(500 * 5 / 6)
    assert found.costs["seconds"] == pytest.approx(20 * 5 / 6)
    assert found.of_seeds == pytest.approx([62.5, 125.0])  # 0.5 of 0.8 in 10 steps; 10 + 10 * 0.1 / 0.4
    rival = reach(group, "grpo", "grpo")
    assert rival.costs["rollouts"] == pytest.approx(200)
    assert rival.of_seeds[0] == np.inf  # seed 0 ends at 0.4: censored
    assert rival.spent == 200
    ratio = rollouts_ratio(group, "text2grad", "grpo")
    assert ratio.value == pytest.approx(5 / 12)
    # resamples: seed 0 twice (0.4 after 50 of 200), seed 1 twice (0.6 after 150 of 200), or both
    assert (ratio.low, ratio.high) == pytest.approx((0.25, 0.75))
    never = rollouts_ratio(group, "grpo", "text2grad")
    assert never.value == never.high == np.inf


def test_the_level_of_a_method_with_fewer_seeds_is_of_the_same_seeds() -> None:
    """Numbers end at 0.4 and 0.6; spans have seed 0 alone, 0.8 after 100 rollouts: 0.4 after 50 (0.5 after 62.5)."""
    whole = two_methods()
    group = replace(whole, runs={**whole.runs, "text2grad": {0: whole.runs["text2grad"][0]}})
    found = reach(group, "text2grad", "grpo")
    assert found.costs["rollouts"] == pytest.approx(50)
    assert (found.low, found.high) == pytest.approx((50, 50))
    ratio = rollouts_ratio(group, "text2grad", "grpo")
    assert ratio.value == ratio.low == ratio.high == pytest.approx(0.25)  # the number needs 200 for its own 0.4
    early = by_hand("grpo", 0, [(0, 0.0), (10, 0.4), (20, 0.4)])  # after 100 rollouts; the mean of both seeds after 200
    group = replace(group, runs={**group.runs, "grpo": {0: early, 1: group.runs["grpo"][1]}})
    assert rollouts_ratio(group, "text2grad", "grpo").value == pytest.approx(0.5)


def test_a_rival_that_learns_in_rounds_costs_whole_rounds() -> None:
    made = [by_hand("text2grad", seed, values) for seed, values in enumerate(SPANS)]
    group = group_of(*made, *(by_hand("ilf", seed, values) for seed, values in enumerate(SPANS)))
    group_of_number = group_of(*made, *(by_hand("ilf", seed, values) for seed, values in enumerate(NUMBER)))
    # the mean curve of ILF is 0, 0.6, 0.9: the level 0.9 comes at step 20, for its own seeds (1.0 and 0.8) at 20, never
    assert reach(group, "ilf", "ilf").costs["rollouts"] == 200
    assert reach(group, "ilf", "ilf").of_seeds == [200.0, np.inf]
    # the level of 0.5 comes for ILF at the end of a round (step 20), and for spans after 83 rollouts
    assert rollouts_ratio(group_of_number, "text2grad", "ilf").value == pytest.approx(5 / 12)
    low = group_of(*made, *(by_hand("ilf", seed, [(0, 0.0), (10, 0.3), (20, 0.25)]) for seed in range(2)))
    # the level of 0.25 comes for ILF at step 10, not after 83 rollouts: spans have 0.25 after 10 * 0.25 / 0.6 steps
    ratio = rollouts_ratio(low, "text2grad", "ilf")
    assert ratio.value == pytest.approx(0.25 / 0.6)
    assert (ratio.low, ratio.high) == pytest.approx((0.3125, 0.625))  # 0.25 of 0.8, and of 0.4, in 10 steps


def test_a_rival_that_does_not_improve_has_no_ratio() -> None:
    made = [by_hand("text2grad", seed, values) for seed, values in enumerate(SPANS)]
    worse = [by_hand("grpo", seed, [(0, 0.0), (10, -0.1), (20, -0.1)]) for seed in range(2)]
    assert np.isnan(rollouts_ratio(group_of(*made, *worse), "text2grad", "grpo").value)


def test_gain_at_equal_kl_by_hand() -> None:
    group = two_methods(kl=0.02)
    found = gains_at_kl(group, "text2grad", "grpo")
    assert found is not None
    assert found.at[-1] == pytest.approx(0.2)  # the spans' largest KL; the number goes to 0.4
    assert found.gains[0][-1] == pytest.approx(0.9)
    assert found.gains[1][-1] == pytest.approx(0.3)  # of the number at KL 0.2 = step 10
    assert found.leads[-1].value == pytest.approx(0.6)
    assert found.at[2] == pytest.approx(0.1)
    assert found.leads[2].value == pytest.approx(0.6 - 0.15)  # KL 0.1: spans at step 10, the number at step 5
    assert found.leads[-1].student_low is not None


def test_the_gain_starts_at_the_curve_not_at_the_mean_of_the_items() -> None:
    """A share of all words of all responses together is not the mean of the responses' shares."""
    made = [record(name, seed, kl=0.02) for name in ("text2grad", "grpo") for seed in range(3)]
    apart = [replace(one, items_at_start=[value + 0.1 for value in one.items_at_start]) for one in made]
    found, other = (gains_at_kl(group, "text2grad", "grpo") for [group] in (groups(made), groups(apart)))
    assert found is not None
    assert other is not None
    assert np.array_equal(found.gains, other.gains)
    assert found.gains[0][0] < 0.1 * found.gains[0][-1]  # at a 48th of the range of KL


def test_a_frontier_takes_the_best_of_all_settings() -> None:
    more = [
        by_hand("grpo", seed, [(0, 0.0), (10, 0.7), (20, 0.7)], settings={"reward.beta": 0.5}) for seed in (0, 1, 2)
    ]
    group = group_of(*(run for of_method in two_methods().runs.values() for run in of_method.values()), *more)
    assert [len(one) for one in group.variants["grpo"]] == [3, 2]  # untuned: the most seeds come first
    found = gains_at_kl(group, "text2grad", "grpo")
    assert found is not None
    assert found.gains[1][-1] == pytest.approx(0.7)


def test_runs_with_other_start_weights_or_items_are_not_paired() -> None:
    mine = {seed: record(seed=seed) for seed in range(3)}
    assert paired(mine, {seed: record("grpo", seed) for seed in range(2)})
    assert not paired(mine, {seed: record("grpo", seed, start="elsewhere") for seed in range(3)})
    assert not paired(mine, {seed: record("grpo", seed, eval_seed=5) for seed in range(3)})
    assert not paired(mine, {7: record("grpo", 7)})


def test_pairs_are_the_common_seeds() -> None:
    group = group_of(*study({"text2grad": 0.9}, seeds=5), *study({"grpo": 0.8}, seeds=3))
    found = lead(group, "text2grad", "grpo")
    assert (found.seeds, found.paired) == (3, True)
    expected = np.mean(
        [np.mean(group.runs["text2grad"][s].items) - np.mean(group.runs["grpo"][s].items) for s in range(3)]
    )
    assert found.value == pytest.approx(expected)
    assert np.isfinite(rollouts_ratio(group, "text2grad", "grpo").high)


def test_a_run_that_stopped_keeps_its_last_value() -> None:
    group = two_methods()
    stopped = by_hand("grpo", 2, [(0, 0.0), (10, 0.1)], error="TrainingError: not finite")
    group = group_of(*(run for of_method in group.runs.values() for run in of_method.values()), stopped)
    assert mean_curve(group.runs["grpo"], "value")[2].tolist() == pytest.approx([0.0, 0.1, 0.1])
    assert mean_curve(group.runs["grpo"], "rollouts")[2].tolist() == [0, 100, 200]
    assert reach(group, "grpo", "grpo").spent == 200


def test_the_share_of_the_formula() -> None:
    mine = record(settings={"ppo.gamma": 0.5, "ppo.lam": 1.0}, length=2)  # 16 tokens
    group = group_of(mine, record("grpo", settings={"rollout.group_size": 4}, length=2), record("ppo", length=2))
    expected = predicted_ratio({16: 1}, factor=0.5, span_tokens=1.0, group=4)
    assert predicted_share(group, "grpo") == pytest.approx(1 / expected)
    assert predicted_share(group, "ppo") == pytest.approx(1 / predicted_ratio({16: 1}, factor=0.5, span_tokens=1.0))
    assert predicted_share(two_methods(), "grpo") is None


def test_the_strongest_rival_is_the_best_on_the_tuning_items() -> None:
    made = study({"text2grad": 0.9, "grpo": 0.7, "scalar_ppo": 0.8})
    group = group_of(*made)
    assert group.strongest()[0] == "scalar_ppo"
    assert "by chance" in group.strongest()[1]
    tuned = group_of(*made, *trials("grpo", [0.5, 0.75]), *trials("scalar_ppo", [0.6, 0.7, 0.5]))
    assert tuned.strongest() == ("grpo", "the best mean on the tuning items")
    assert group_of(*study({"text2grad": 0.9})).strongest()[0] is None


def test_seeds_with_the_same_items_share_their_draw() -> None:
    made = [record(m, s, eval_seed=1) for m in ("text2grad", "grpo") for s in range(5)]
    own = [record(m, s) for m in ("text2grad", "grpo") for s in range(5)]
    items = {m: [one.items for one in made if one.method == m] for m in ("text2grad", "grpo")}
    values = [np.stack(pair, axis=1) for pair in zip(items["text2grad"], items["grpo"], strict=True)]
    crossed = interval(values, lambda means: means[..., 0] - means[..., 1], items=[tuple(range(len(values[0])))] * 5)
    assert lead(group_of(*made), "text2grad", "grpo") == crossed
    assert lead(group_of(*own), "text2grad", "grpo") != crossed


def test_seeds_whose_items_are_known_to_be_the_same_share_their_draw() -> None:
    count = len(record().items)
    same, own = (
        group_of(*(record(m, s, item_ids=ids(s)) for m in ("text2grad", "grpo") for s in range(5)))
        for ids in (lambda _: ["a"] * count, lambda seed: [str(seed)] * count)
    )
    without = group_of(*(record(m, s) for m in ("text2grad", "grpo") for s in range(5)))
    crossed = group_of(*(record(m, s, eval_seed=1) for m in ("text2grad", "grpo") for s in range(5)))
    for figure in (lambda group: lead(group, "text2grad", "grpo"), lambda group: final(group.runs["grpo"])):
        assert figure(same).low == pytest.approx(figure(crossed).low)
        assert figure(own) == figure(without) != figure(same)
    other = {seed: record("grpo", seed, item_ids=["b"] * count) for seed in range(5)}
    assert not paired(same.runs["text2grad"], other)


def test_seeds_that_share_a_part_of_their_items_are_not_taken_for_independent() -> None:
    count = len(record().items)
    shared = [f"of all {n}" for n in range(count // 2)]
    part, own = (
        group_of(*(record(m, s, item_ids=ids(s)) for m in ("text2grad", "grpo") for s in range(5)))
        for ids in (
            lambda seed: shared + [f"{seed} {n}" for n in range(count - len(shared))],
            lambda seed: [f"{seed} {n}" for n in range(count)],
        )
    )
    assert lead(part, "text2grad", "grpo") != lead(own, "text2grad", "grpo")
    assert lead(part, "text2grad", "grpo").value == lead(own, "text2grad", "grpo").value


def test_a_failed_trial_is_the_worst_and_the_same_length_counts() -> None:
    failed = [replace(one, error="TrainingError: x") for one in trials("grpo", [0.99])]
    others = trials("grpo", [0.3, 0.4], length=16)
    [group] = groups([*study({"grpo": 0.8}), *failed, *trials("grpo", [0.99, 0.2])[1:], *others])
    assert [trial.value for trial in group.tuning.trials["grpo"]] == [0.2, 0.99]
    assert group.tuning.where["grpo"].length == 8
    [group] = groups([*study({"grpo": 0.8}, lengths=(2,)), *failed, *others])
    assert group.tuning.where["grpo"].length == 16  # the longest


def test_of_confirmed_trials_that_all_stopped_the_first_is_the_one_that_the_evaluations_have() -> None:
    """As `Experiment.best`: an unconfirmed trial never wins, and of equally bad ones the better trial does."""
    first, second, third = trials("grpo", [0.6, 0.7, 0.5])
    again = [replace(one, seed=101, error="TrainingError: x") for one in (first, second)]
    curves = [[*again[n].curve[:-1], {**again[n].curve[-1], "value": value}] for n, value in enumerate((0.9, 0.0))]
    again = [replace(one, curve=curve) for one, curve in zip(again, curves, strict=True)]
    [group] = groups([*study({"grpo": 0.8}), first, second, third, *again])
    assert [trial.number for trial in group.tuning.trials["grpo"]] == [1, 0, 2]


def test_the_strongest_number_is_no_rival_of_another_signal() -> None:
    group = group_of(*study({"text2grad": 0.9, "process_sentences": 0.85, "grpo": 0.7}))
    assert group.strongest()[0] == "process_sentences"
    assert group.strongest(number=True)[0] == "grpo"


def test_verdicts() -> None:
    assert (
        verdict(Interval(0.1, 0.05, 0.2, -0.1, 0.3, 5)) == "the bootstrap interval lies above 0, Student's contains 0"
    )
    assert verdict(Interval(-0.1, -0.2, -0.05, -0.3, -0.01, 5)) == "both intervals lie below 0"
    assert verdict(Interval(0.0, -0.2, 0.2, -0.3, 0.3, 5)) == "both intervals contain 0"
