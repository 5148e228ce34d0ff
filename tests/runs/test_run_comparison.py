"""Runs compared: seeds are one method, differences are paired by prompt, and what cannot be compared is refused."""

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scipy import stats

from text2grad.cli.__main__ import main
from text2grad.config.recipe import make_recipe
from text2grad.errors import DataError
from text2grad.evaluation.intervals import mean_interval
from text2grad.runs.reports.plots import Line
from text2grad.runs.reports.run_report import run_panels
from text2grad.runs.run_comparison import (
    Method,
    as_json,
    compare_runs,
    notes,
    samples,
    tables,
    write_compared,
)

PROMPTS = ("Where?", "When?", "When?", "Who?")  # one prompt occurs twice


def run_in(directory: Path, scores: list[float], *, seed: int = 0, steps: int = 4, **sections: Any) -> Path:
    """Write a run of `steps` finished steps, evaluated before and after; `scores` are those of its held-out prompts."""
    directory.mkdir(parents=True)
    sections = {"data": {"task": "qa"}, "rollout": {"batch_size": 8}, **sections}
    recipe = make_recipe({**sections, "run": {"seed": seed, "out": str(directory), "steps": 4}})
    (directory / "run.json").write_text(json.dumps({"recipe": recipe.model_dump(mode="json")}))
    lines = [
        {
            "step": n,
            "reward/per_response": n + seed,
            "kl/per_token": 0.1,
            "length/mean": 5.0,
            "seconds/a": 1,
            "seconds/b": 2,
        }
        for n in range(steps)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "evaluations").mkdir()
    for step, found in ((0, [0.0] * len(PROMPTS)), (steps, scores)):
        responses = [
            {"prompt": prompt, "response": f"{directory.name} {n}", "tokens": 3 + n, "metrics": {"f1": score}}
            for n, (prompt, score) in enumerate(zip(PROMPTS, found, strict=True))
        ]
        record = {"offsets": [[0, 3]], "delta": [1.0], "critique": {"feedback": "Fine.", "spans": []}}
        metrics = {"f1": fmean(found), "kl_per_token": 0.5, "only": 1.0}
        evaluation = {"step": step, "metric": "f1", "metrics": metrics, "responses": responses}
        evaluation["records"] = [{**one, **record} for one in responses[:2]]
        (directory / "evaluations" / f"{step:06d}.json").write_text(json.dumps(evaluation))
    return directory


def lines_of(methods: list[Method]) -> dict[str, list[Line]]:
    """Return the lines of each panel."""
    panels = run_panels({method.name: [compared.run for compared in method.runs] for method in methods}, "f1")
    return {panel.keywords["title"]: panel.keywords["lines"] for panel in panels}


def test_a_difference_is_the_mean_over_prompts_of_the_second_minus_the_first(tmp_path: Path) -> None:
    first = run_in(tmp_path / "a", [0.1, 0.2, 0.3, 0.4])
    second = run_in(tmp_path / "b", [0.2, 0.2, 0.7, 0.4], ppo={"gamma": 0.5})
    results = as_json(compare_runs([first, second]), None)
    f1 = results["paired"]["b"]["metrics"]["f1"]
    assert f1["value"] == pytest.approx((0.1 + 0.0 + 0.4 + 0.0) / 4)
    assert 0.0 <= f1["low"] <= f1["value"] <= f1["high"] <= 0.4
    assert results["paired"]["b"]["metrics"]["tokens"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert results["paired"]["b"]["prompts"] == 4
    assert results["settings"] == {"ppo.gamma": {"a": 1.0, "b": 0.5}}
    assert results["methods"]["b"]["runs"] == [
        {
            **{"path": str(second), "seed": 0, "steps": 4, "planned_steps": 4, "evaluated_at": 4},
            "seconds": 12.0,
        }
    ]
    assert notes(results) == []


@pytest.mark.parametrize("name", ["tokens", "one"])
def test_a_metric_named_as_a_number_of_the_library_keeps_its_own_difference(tmp_path: Path, name: str) -> None:
    first, second = run_in(tmp_path / "a", [0.0] * 4), run_in(tmp_path / "b", [0.5] * 4, ppo={"gamma": 0.5})
    for run in (first, second):
        path = run / "evaluations" / "000004.json"
        path.write_text(path.read_text().replace('"f1"', f'"{name}"'))
    paired = as_json(compare_runs([first, second]), None)["paired"]["b"]["metrics"]
    assert paired[name]["value"] == 0.5  # the responses of both runs have the same lengths


def test_seeds_of_the_same_settings_are_one_method_and_their_prompts_are_averaged(tmp_path: Path) -> None:
    base = [run_in(tmp_path / f"base-{n}", [n / 10, 0.2, 0.3, 0.4], seed=n) for n in range(3)]
    other = [run_in(tmp_path / f"other-{n}", [0.6, 0.2, 0.3, 0.4], seed=n, ppo={"lam": 0.5}) for n in range(2)]
    methods = compare_runs([*base, *other])
    assert [(method.name, len(method.runs)) for method in methods] == [("base", 3), ("other", 2)]
    results = as_json(methods, None)
    values = [fmean([n / 10, 0.2, 0.3, 0.4]) for n in range(3)]  # 0.225, 0.25, 0.275
    found = results["methods"]["base"]["metrics"]["f1"]
    assert found["values"] == pytest.approx(values)
    assert (found["value"], found["low"]) == pytest.approx((0.25, 0.25 - 4.302653 * 0.025 / 3**0.5))
    # mean of the first prompt of the three seeds: 0.1; 0.6 - 0.1 = 0.5 in one of four prompts
    assert results["paired"]["other"]["metrics"]["f1"]["value"] == pytest.approx(0.125)
    assert tables(results)[0].rows[0] == ["seeds", "0, 1, 2", "0, 1"]


@pytest.mark.parametrize("values", [[1.0, 4.0], [0.2, 0.5, 0.3], [0.1, 0.9, 0.4, 0.4, 0.7, 0.2]])
def test_the_interval_over_seeds_is_students(values: list[float]) -> None:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=fmean(values), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((fmean(values), low, high), rel=1e-6)


def test_runs_of_different_tasks_are_said_to_be_so_before_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        run_in(tmp_path / "a", [0.1] * 4),
        run_in(tmp_path / "b", [0.2] * 4, data={"task": "summarization"}),
        run_in(tmp_path / "c", [0.3] * 4, data={"task": "qa"}, optim={"lr": 0.5}),
        run_in(tmp_path / "d", [0.4] * 4, ppo={"gamma": 0.5}),
    ]
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    told = "The tasks differ, so the numbers are not comparable across them (a: qa; b: summarization; c: qa; d: qa)."
    said = capsys.readouterr().out
    assert said.startswith(told)
    assert "b: no paired difference, for want of held-out prompts in common with a." in said
    page = (tmp_path / "out" / "compare.html").read_text()
    assert page.index(told) < page.index("<table")
    results = json.loads((tmp_path / "out" / "compare.json").read_bytes())
    assert list(results["paired"]) == ["c", "d"]  # although all prompts are the same
    assert [one["metrics"]["f1"]["value"] for one in results["methods"].values()] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert "The tasks differ" not in str(tables(results))


def test_prompts_pair_by_their_text_whatever_their_order(tmp_path: Path) -> None:
    first, second = (
        run_in(tmp_path / "a", [0.1, 0.2, 0.3, 0.4]),
        run_in(tmp_path / "b", [0.4, 0.2, 0.3, 0.1], ppo={"lam": 0}),
    )
    path = second / "evaluations" / "000004.json"
    evaluation = json.loads(path.read_text())
    order = (evaluation["responses"][3], *evaluation["responses"][1:3])  # "Where?" is missing, "Who?" comes first
    path.write_text(json.dumps({**evaluation, "responses": order}))
    (found,) = as_json(compare_runs([first, second]), None)["paired"].values()
    assert found["prompts"] == 3
    assert found["metrics"]["f1"]["value"] == pytest.approx((0.1 - 0.4) / 3)


def test_curves_go_by_steps(tmp_path: Path) -> None:
    methods = compare_runs([run_in(tmp_path / "a", [0.5] * 4), run_in(tmp_path / "b", [0.1] * 4, ppo={"lam": 0.5})])
    drawn = {title: lines[0].points for title, lines in lines_of(methods).items()}
    assert list(drawn) == ["f1, held-out", "reward per response", "KL from the reference, nats per token"]
    assert drawn["f1, held-out"] == [(0, 0), (4, 0.5)]
    assert [step for step, _ in drawn["reward per response"]] == [0, 1, 2, 3]


def test_a_mean_curve_has_the_steps_at_which_all_seeds_were_evaluated(tmp_path: Path) -> None:
    """data.eval_every may change on resume, so that seeds of one recipe have other evaluations."""
    runs = [run_in(tmp_path / f"a-{seed}", [0.5 + 0.1 * seed] * 4, seed=seed) for seed in (0, 1)]
    evaluation = json.loads((runs[0] / "evaluations" / "000004.json").read_text())
    more = {**evaluation, "step": 1, "metrics": {**evaluation["metrics"], "f1": 0.9}}
    (runs[0] / "evaluations" / "000001.json").write_text(json.dumps(more))
    (line,) = lines_of(compare_runs(runs))["f1, held-out"]
    assert line.points == [(0, 0.0), (4, pytest.approx(0.55))]
    assert line.faint == [[(0, 0.0), (1, 0.9), (4, 0.5)], [(0, 0.0), (4, 0.6)]]


def test_runs_of_different_length_are_said_to_be_so_and_compared_at_one_step_on_request(tmp_path: Path) -> None:
    paths = [run_in(tmp_path / "a", [0.5] * 4), run_in(tmp_path / "b", [0.1] * 4, steps=2, ppo={"lam": 0.5})]
    results = as_json(compare_runs(paths), None)
    assert notes(results) == [
        "The runs are compared at different steps (2, 4); --step N compares them at the same step.",
    ]
    assert tables(results)[0].rows[1] == ["steps", "4", "2 of 4"]
    at_zero = as_json(compare_runs(paths, step=0), 0)
    assert at_zero["paired"]["b"]["metrics"]["f1"]["value"] == 0.0
    with pytest.raises(DataError) as caught:
        compare_runs(paths, step=3)
    assert str(caught.value) == f"{paths[0]} has no evaluation at step 3. Its evaluations are at: 0, 4"


def test_runs_of_one_seed_are_told_to_be_no_seeds(tmp_path: Path) -> None:
    runs = [run_in(tmp_path / name, [0.5] * 4) for name in ("a-0", "a-1")]
    results = write_compared(compare_runs(runs), tmp_path)
    assert any("several runs of seed 0: its intervals over seeds are too narrow" in note for note in notes(results))


def test_responses_to_one_prompt_stand_side_by_side(tmp_path: Path) -> None:
    methods = compare_runs([run_in(tmp_path / "a", [0.5] * 4), run_in(tmp_path / "b", [0.1] * 4, ppo={"lam": 0.5})])
    shown = samples(methods)
    assert [(one["prompt"], one["response"], one["beside"][0]["response"]) for one in shown] == [
        ("Where?", "a 0", "b 0"),
        ("When?", "a 1", "b 1"),
    ]
    write_compared(methods, tmp_path / "out")
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "b 1" in page
    assert "&quot;lam" not in page
    assert "ppo.lam" in page


def test_no_run_and_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "a", [0.5] * 4)
    (tmp_path / "file").write_text("x")
    reward = tmp_path / "reward"
    shutil.copytree(run, reward)
    (reward / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    is_run = "A run is the directory in run.out of `text2grad train`"
    for paths, message in {
        (run,): f"{run} is a single run; name at least two runs",
        (run, tmp_path / "no"): f"{tmp_path / 'no'} is no run: it is no directory. {is_run}",
        (run, tmp_path / "file"): f"{tmp_path / 'file'} is no run: it is no directory. {is_run}",
        (run, tmp_path): f"{tmp_path} is no run: it has no run.json. {is_run}",
        (run, tmp_path / "." / "a"): f"{run} is a single run; name at least two runs",
        (run, reward): f"{reward} is no run of `text2grad train`: its metrics have no reward/per_response",
    }.items():
        with pytest.raises(DataError) as caught:
            compare_runs(paths)
        assert str(caught.value) == message
