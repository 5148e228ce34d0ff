"""Finished runs → a table, a picture, a page and a JSON file.

results.json    {"runs": {name: {"before": {...}, "after": {...}, "steps": n, "seconds": {...}, "out": dir}}}
curves.png      held-out metric, reward, negative tokens and KL over the steps
report.html     responses to held-out prompts before and after training, with critiques and δ per token
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.files import to_json, write_files
from text2grad.runs.reports.html import count, rollouts_page
from text2grad.runs.reports.plots import Draw, Line, curve_panel, metric_words, panels_png, pictures, smoothed_points

SHOWN_ROLLOUTS = 6  # rollouts on the page, of the first and of the last step
PANELS = (
    ("reward/per_response", "reward per response"),
    ("delta/negative_share", "share of tokens in negative spans"),
    ("kl/per_token", "KL from the reference, nats per token"),
)
"""Metric of a training step → title of its panel."""


class Run(NamedTuple):
    """The metrics and evaluations of a run."""

    name: str
    directory: Path
    metrics: list[dict[str, float]]
    evaluations: list[dict[str, Any]]


def read_run(directory: Path, name: str = "", *, without_steps: bool = False) -> Run:
    """Read a run's metrics and evaluations.

    Args:
        directory: of the run.
        name: of the run; "" takes the name of its directory.
        without_steps: accept a run that has not finished a step.

    Raises:
        DataError: if the run has not finished a step, or its metrics are damaged.
    """
    path = directory / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    try:
        metrics = [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is damaged ({error}). Resume the run with --resume, which repairs the file") from error
    if not metrics and not without_steps:
        raise DataError(f"{directory} holds no run with a finished step: {path.name} is missing or empty")
    evaluations = [json.loads(file.read_bytes()) for file in sorted((directory / "evaluations").glob("*.json"))]
    return Run(name or directory.name, directory, metrics, evaluations)


def write_report(runs: Sequence[Run], out: Path, *, metric: str = "", title: str, intro: str = "") -> dict[str, Any]:
    """Write results.json, curves.png (first the main metric of the task) and report.html, and return the results.

    The page shows responses of the first run; at least one run is needed.
    """
    results = {"runs": {run.name: _results(run) for run in runs}}
    panels = run_panels(runs, metric)
    columns, rows = table(results)
    page = rollouts_page(
        title,
        intro=intro,
        groups=groups(runs[0]),
        images=[("Mean over the rollouts of each step; thick lines are smoothed.", pictures(panels))],
        tables=[("Held-out examples, sampled at the training temperature", columns, rows)] if rows else [],
    )
    write_files(out, {"results.json": to_json(results), "curves.png": panels_png(panels), "report.html": page.encode()})
    return results


def table(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the held-out metrics: a row before training, and a row for the end of each run."""
    runs = {name: run for name, run in results["runs"].items() if run["after"]}
    if not runs:
        return [], []
    first = next(iter(runs.values()))
    names = list(first["after"])
    rows = [["start", *(_number(first["before"].get(name)) for name in names)]]
    rows += [[label, *(_number(run["after"].get(name)) for name in names)] for label, run in runs.items()]
    return ["", *(name.replace("_", " ") for name in names)], rows


def _results(run: Run) -> dict[str, Any]:
    # a rival learns at the end of a round: its other steps have no seconds/update
    names = dict.fromkeys(name for line in run.metrics for name in line if name.startswith("seconds/"))
    seconds = {name: sum(line.get(name, 0.0) for line in run.metrics) for name in names}
    return {
        "before": run.evaluations[0]["metrics"] if run.evaluations else {},
        "after": run.evaluations[-1]["metrics"] if run.evaluations else {},
        "steps": len(run.metrics),
        "seconds": {key.removeprefix("seconds/"): round(value, 2) for key, value in seconds.items()},
        "out": str(run.directory),
    }


def run_panels(runs: Sequence[Run], metric: str = "") -> list[Draw]:
    """Return the panels of at most seven runs; the panel of the held-out metric needs two evaluations of a run."""
    panels, evaluated = [], []
    for look, run in enumerate(runs):
        points = [(each["step"], each["metrics"][metric]) for each in run.evaluations if metric in each["metrics"]]
        if len(points) > 1:
            evaluated.append(Line(run.name, points, (), True, look))
    if evaluated:
        panels.append(curve_panel(f"{metric_words(metric)}, held-out", "step", evaluated))
    for key, title in PANELS:
        lines = []
        for look, run in enumerate(runs):
            points = [(step["step"], step[key]) for step in run.metrics]
            lines.append(Line(run.name, smoothed_points(points), (points,), False, look))
        panels.append(curve_panel(title, "step", lines))
    return panels


def groups(run: Run) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the groups of the page: held-out prompts before and after training, then rollouts with all numbers."""
    shown = []
    if len(run.evaluations) > 1:
        first, last = run.evaluations[0], run.evaluations[-1]
        heading = f"Held-out prompts before training and after {count(last['step'], 'step')}"
        shown = [(heading, before_and_after(first, last))]
    files = sorted((run.directory / "rollouts").glob("*.jsonl"))
    if not files:  # removed by hand
        return shown
    first_lines = files[0].read_text("utf-8").splitlines()[:SHOWN_ROLLOUTS]
    last_lines = files[-1].read_text("utf-8").splitlines()[-SHOWN_ROLLOUTS:]
    shown += [("Rollouts of the first step", [json.loads(line) for line in first_lines])]
    return [*shown, ("Rollouts of the last step", [json.loads(line) for line in last_lines])]


def before_and_after(first: Mapping[str, Any], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the first evaluation, each with the record of the last about the same prompt beside it."""
    after = by_prompt(last["records"])
    named = f"After {count(last['step'], 'step')}"
    return [
        {
            **{name: value for name, value in record.items() if name != "step"},
            "by": "Before training",
            "beside": [{**after[key], "by": named}],
        }
        for key, record in by_prompt(first["records"]).items()
        if key in after
    ]


def by_prompt(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return records by prompt and number; the records of a prompt are numbered from 0."""
    seen: Counter[str] = Counter()
    by_place = {}
    for record in records:
        by_place[record["prompt"], seen[record["prompt"]]] = record
        seen[record["prompt"]] += 1
    return by_place


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if abs(value) < 1 else f"{value:.1f}"
