"""A finished run → a table, a picture, a page and a JSON file.

results.json    {"runs": {name: {"before": {...}, "after": {...}, "steps": n, "seconds": {...}, "out": dir}}}
curves.png      held-out metric, reward, negative tokens and KL over the steps
report.html     responses to held-out prompts before and after training, with critiques and δ per token
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.files import readable, to_json, write_files
from text2grad.runs.lineage import write_lineage
from text2grad.runs.reports.html import Table, count, rollouts_page
from text2grad.runs.reports.plots import Draw, Points, curve_panel, method_lines, metric_words, panels_png, pictures

SHOWN_ROLLOUTS = 6  # rollouts on the page, of the first and of the last step
PANELS = {  # metric of a training step → title of its panel
    "reward/per_response": "reward per response",
    "delta/negative_share": "share of tokens in negative spans",
    "kl/per_token": "KL from the reference, nats per token",
}
FIGURES = {  # metric of a training step → its name in the table of a run without held-out examples
    "reward/per_response": "reward",
    "delta/positive_share": "positive share",
    "delta/negative_share": "negative share",
    "critic/failure_rate": "failure rate",
    "kl/per_token": "kl per token",
    "length/mean": "mean tokens",
    "length/truncated_share": "truncated share",
}
MOST_STEPS = 10  # most first and last steps over which these are averaged


class Run(NamedTuple):
    """The metrics and evaluations of a run."""

    directory: Path
    metrics: list[dict[str, float]]
    evaluations: list[dict[str, Any]]

    @property
    def seconds(self) -> Counter[str]:
        """Seconds of each phase of all steps."""
        seconds = Counter[str]()
        for line in self.metrics:
            seconds.update(
                {name.removeprefix("seconds/"): value for name, value in line.items() if name.startswith("seconds/")}
            )
        return seconds

    def held_out_curve(self, metric: str) -> Points:
        """Return the held-out metric at the steps of the evaluations that have it."""
        return [(each["step"], each["metrics"][metric]) for each in self.evaluations if metric in each["metrics"]]

    def training_curve(self, name: str) -> Points:
        """Return a metric of training at the steps that have it."""
        return [(line["step"], line[name]) for line in self.metrics if name in line]


def read_run(directory: Path, *, without_steps: bool = False) -> Run:
    """Read a run's metrics and evaluations; `without_steps` accepts a run that has not finished a step.

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
    evaluations = []
    for path in sorted((directory / "evaluations").glob("*.json")):
        with readable(path, "Remove it: the report goes on without it"):
            evaluations.append(json.loads(path.read_bytes()))
    return Run(directory, metrics, evaluations)


def write_report(run: Run, out: Path, *, metric: str = "", title: str) -> dict[str, Any]:
    """Write results.json, curves.png (first the main metric of the task) and report.html, and return the results."""
    name, results = run.directory.name, _results(run)
    panels = run_panels({name: [run]}, metric)
    page = rollouts_page(
        title,
        groups=groups(run),
        images=[("Mean over the rollouts of each step; thick lines are smoothed.", pictures(panels))],
        tables=[change_table(run)],
    )
    written = {"runs": {name: results}}
    write_files(out, {"results.json": to_json(written), "curves.png": panels_png(panels), "report.html": page.encode()})
    return written


def write_page(out: Path, title: str) -> tuple[Run, str]:
    """Write report and lineage of a finished run into its directory; return the run and the name of its main metric."""
    write_lineage(out)
    run = read_run(out)
    metric = str(run.evaluations[-1]["metric"]) if run.evaluations else ""
    write_report(run, out, metric=metric, title=f"{title}: {out.resolve().name}")
    return run, metric


def change_table(run: Run) -> Table:
    """Return the held-out metrics before and after training, or the rollouts of the first and the last steps."""
    if len(run.evaluations) > 1:
        first, last = run.evaluations[0], run.evaluations[-1]
        title = f"{len(last['responses'])} held-out responses"
        before, after = first["metrics"], last["metrics"]
        columns = (f"step {first['step']}", f"step {last['step']}")
    else:
        some = max(1, min(MOST_STEPS, len(run.metrics) // 2))
        title = "Rollouts in training"
        before, after = (_means(part) for part in (run.metrics[:some], run.metrics[-some:]))
        columns = (f"first {some} steps", f"last {some} steps") if some > 1 else ("first step", "last step")
    rows = [
        (name.replace("_", " "), _number(before[name]), _number(value), f"{value - before[name]:+.3f}")
        for name, value in after.items()
        if name in before  # a metric may have been mended since
    ]
    return Table(title, ("", *columns, "change"), rows)


def _means(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    named = {name: label for name, label in FIGURES.items() if all(name in line for line in lines)}
    return {label: fmean(line[name] for line in lines) for name, label in named.items()}


def _results(run: Run) -> dict[str, Any]:
    return {
        "before": run.evaluations[0]["metrics"] if run.evaluations else {},
        "after": run.evaluations[-1]["metrics"] if run.evaluations else {},
        "steps": len(run.metrics),
        "seconds": {phase: round(value, 2) for phase, value in run.seconds.items()},
        "out": str(run.directory),
    }


def run_panels(methods: Mapping[str, Sequence[Run]], metric: str = "") -> list[Draw]:
    """Return the panels of methods, from the runs of their seeds; a run evaluated once has no held-out curve."""
    curves = {name: [run.held_out_curve(metric) for run in runs] for name, runs in methods.items()}
    lines = method_lines({name: [seed for seed in seeds if len(seed) > 1] for name, seeds in curves.items()})
    panels = [curve_panel(f"{metric_words(metric)}, held-out", "step", lines)] if lines else []
    for key, title in PANELS.items():
        curves = {name: [run.training_curve(key) for run in runs] for name, runs in methods.items()}
        if lines := method_lines(curves, smooth=True):
            panels.append(curve_panel(title, "step", lines))
    return panels


def groups(run: Run) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the groups of the page: held-out prompts before and after training, then rollouts with all numbers."""
    shown = []
    if len(run.evaluations) > 1:
        first, last = run.evaluations[0], run.evaluations[-1]
        steps = count(last["step"], "step")
        sides = {"Before training": first["records"], f"After {steps}": last["records"]}
        shown.append((f"Held-out prompts before training and after {steps}", side_by_side(sides)))
    files = sorted((run.directory / "rollouts").glob("*.jsonl"))
    if files:  # else removed by hand
        begin, end = (files[at].read_text("utf-8").splitlines() for at in (0, -1))
        shown.append(("Rollouts of the first step", list(map(json.loads, begin[:SHOWN_ROLLOUTS]))))
        shown.append(("Rollouts of the last step", list(map(json.loads, end[-SHOWN_ROLLOUTS:]))))
    return shown


def side_by_side(sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return records of a page: the responses to each prompt that all sides have, headed by the names of the sides."""
    keyed = []
    for name, records in sides.items():
        keyed.append({key: {**record, "by": name} for key, record in by_prompt(records).items()})
        for record in keyed[-1].values():
            record.pop("step", None)  # the names say it
    first, *others = keyed
    common = (key for key in first if all(key in other for other in others))
    return [{**first[key], "beside": [other[key] for other in others]} for key in common]


def by_prompt(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return records by prompt and number; the records of a prompt are numbered from 0."""
    seen: Counter[str] = Counter()
    by_place = {}
    for record in records:
        by_place[record["prompt"], seen[record["prompt"]]] = record
        seen[record["prompt"]] += 1
    return by_place


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
