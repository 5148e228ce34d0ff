"""The runs of all tasks, methods and seeds become results.json, curves.png and report.html.

results.json    {"tasks": {TASK: {
                    "metric": name of the task's main metric,
                    "seeds": [...],
                    "methods": {METHOD: {"final": [value per seed], "curve": [[[step, value], ...] per seed],
                                         "kl_per_token": [nats per seed]}},    METHOD: sft, scalar_ppo, ...
                    "reward_model": [per seed: precision, recall, failure_rate, unmatched_rate on fresh answers],
                    "seconds": [per seed: of each phase and method]}}}
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from text2grad.html import rollouts_page
from text2grad.methods import METHODS
from text2grad.plots import comparison_png
from text2grad.report import groups, read_run
from text2grad.runlog import to_json, write_atomically

QUALITY = ("precision/positive", "recall/positive", "precision/negative", "recall/negative", "unmatched_rate", "gap")


def collect(out: Path, tasks: Mapping[str, str], seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    """Return the results of finished runs.

    Args:
        out: directory that holds TASK/seed-N.
        tasks: the main metric of each task.
        seeds: of every task.
        methods: keys of `METHODS`.
    """
    return {"tasks": {task: _task(out / task, metric, seeds, methods) for task, metric in tasks.items()}}


def _task(directory: Path, metric: str, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    places = [directory / f"seed-{seed}" for seed in seeds]
    sft = [json.loads((place / "sft_evaluation.json").read_bytes()) for place in places]
    found: dict[str, Any] = {
        "sft": {"final": [one[metric] for one in sft], "curve": [[] for _ in places], "kl_per_token": [0.0] * len(sft)}
    }
    seconds = [json.loads((place / "phases.json").read_bytes()) for place in places]
    trained = {method: [read_run(place / method) for place in places] for method in methods}
    for method, runs in trained.items():
        found[method] = {
            "final": [run.evaluations[-1]["metrics"][metric] for run in runs],
            "curve": [[[one["step"], one["metrics"][metric]] for one in run.evaluations] for run in runs],
            "kl_per_token": [run.evaluations[-1]["metrics"]["kl_per_token"] for run in runs],
        }
        for timed, run in zip(seconds, runs, strict=True):
            spent = sum(v for line in run.metrics for k, v in line.items() if k.startswith("seconds/"))
            timed[method] = round(spent, 1)
    recipe = json.loads((places[0] / "text2grad" / "run.json").read_bytes())["recipe"]
    return {
        "metric": metric,
        "seeds": list(seeds),
        "start": "reward_model" if recipe["sft"]["after_reward_model"] else "sft",
        "methods": found,
        "reward_model": [run.evaluations[-1]["critic"] for run in trained["text2grad"]],
        "seconds": seconds,
    }


def write_comparison(results: Mapping[str, Any], out: Path) -> None:
    """Write results.json, curves.png and report.html."""
    picture = comparison_png(results["tasks"], METHODS)
    shown = [
        (f"{task}: {name}", records)
        for task, result in results["tasks"].items()
        for name, records in groups(read_run(out / task / f"seed-{result['seeds'][0]}" / "text2grad"))
    ]
    page = rollouts_page(
        "Text2Grad quickstart",
        intro="\n\n".join(in_words(task, result) for task, result in results["tasks"].items()),
        groups=shown,
        images=[("Held-out items, one answer each at temperature 1; thin lines are single seeds.", picture)],
        tables=[
            ("Methods", *method_rows(results)),
            ("The reward model on the last policy's answers", *quality_rows(results)),
        ],
    )
    write_atomically(out / "results.json", to_json(results))
    write_atomically(out / "curves.png", picture)
    write_atomically(out / "report.html", page.encode())


def in_words(task: str, result: Mapping[str, Any]) -> str:
    """Return what happened in a task, in plain words made from the numbers."""
    methods, metric = result["methods"], result["metric"].replace("_", " ").replace("at ", "@")
    sft, ours = (fmean(methods[name]["final"]) for name in ("sft", "text2grad"))
    verdict = "learned from the words" if ours > sft else "did not learn from the words"
    text = (
        f"{task.capitalize()}: a Llama of 0.1 to 0.2 million parameters, fine-tuned on noisy demonstrations, reaches a "
        f"{metric} of {sft:.2f} on items it has never seen. A second model learned to criticise its answers in words "
        f"and quotes; the policy {verdict} of that model, and now stands at {ours:.2f}."
    )
    scalar = methods.get("scalar_ppo")
    if scalar:
        best, end = _passed(methods), max((p[0] for p in methods["text2grad"]["curve"][0]), default=0)
        when = f", whose best value it passed at step {best} of {end}" if best is not None else ""
        text += f" The same judgement given as one number brought it to {fmean(scalar['final']):.2f}{when}."
    quality = result["reward_model"][0]
    if "precision/negative" in quality:
        text += (
            f" Of the tokens that the reward model blamed at the end, {quality['precision/negative']:.0%} deserved it, "
            f"and it found {quality.get('recall/negative', 0.0):.0%} of those that did."
        )
    start = {
        "reward_model": "the reward model's weights, fine-tuned on demonstrations once more",
        "sft": "the fine-tuned weights",
    }[result["start"]]
    return f"{text} The policies start from {start}; so do the baselines."


def _passed(methods: Mapping[str, Any]) -> int | None:
    """Return the first step at which Text2Grad's mean is above the scalar's best mean, or None."""
    best = max(value for _, value in mean_curve(methods["scalar_ppo"]["curve"]))
    return next((step for step, value in mean_curve(methods["text2grad"]["curve"]) if value > best), None)


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[int, float]]:
    """Return the mean over seeds of curves with the same steps.

    Example:
        >>> mean_curve([[[0, 0.2], [10, 0.4]], [[0, 0.4], [10, 0.8]]])
        [(0, 0.30000000000000004), (10, 0.6000000000000001)]
    """
    return [(int(points[0][0]), fmean(point[1] for point in points)) for points in zip(*curves, strict=True)]


def method_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the methods' table: one row for each task and method."""
    several = any(len(result["seeds"]) > 1 for result in results["tasks"].values())
    columns = ["task", "method", "metric", "mean" if several else "value", *(["seeds"] if several else []), "KL/token"]
    rows = []
    for task, result in results["tasks"].items():
        for method, found in result["methods"].items():
            row = [task, METHODS.get(method, "fine-tuned"), result["metric"], f"{fmean(found['final']):.3f}"]
            row += [" ".join(f"{value:.3f}" for value in found["final"])] if several else []
            rows.append([*row, f"{fmean(found['kl_per_token']):.3f}"])
    return columns, rows


def quality_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the reward model's table: one row for each task and seed."""
    rows = [
        [task, str(seed), *(f"{quality[name]:.3f}" if name in quality else "" for name in QUALITY)]
        for task, result in results["tasks"].items()
        for seed, quality in zip(result["seeds"], result["reward_model"], strict=True)
    ]
    return ["task", "seed", *(name.replace("/", " ").replace("_", " ") for name in QUALITY)], rows


def print_comparison(console: Console, results: Mapping[str, Any]) -> None:
    """Print both tables to a terminal."""
    titled = (
        ("Held-out items, one answer each at temperature 1", method_rows(results)),
        ("The reward model on the last policy's answers, beside the annotator", quality_rows(results)),
    )
    for title, (columns, rows) in titled:
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
        for column in columns:
            table.add_column(column, justify="left" if column in ("task", "method", "metric") else "right")
        for row in rows:
            table.add_row(*row, style="bold" if "Text2Grad" in row else "")
        console.print(table)
