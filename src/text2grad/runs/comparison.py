"""Finished runs of all tasks, methods and seeds → results.json, curves.png and report.html.

results.json    {"tasks": {TASK: {
                    "metric": name of the task's main metric,
                    "seeds": [...],
                    "methods": {METHOD: {"final": [value per seed], "curve": [[[step, value], ...] per seed],
                                         "kl_per_token": [nats per seed]}},    METHOD: sft, or the name of a run
                        "reward_model": [per seed: agreement with the annotator (precision, recall, failure_rate,
                                     unmatched_rate, gap) on held-out answers of the policy before Text2Grad],
                    "reward_model_at_end": [the same after Text2Grad],
                    "seconds": [per seed: of each phase and method]}}}
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from text2grad.files import to_json, write_files
from text2grad.runs.reports.html import Table, rollouts_page
from text2grad.runs.reports.plots import TASK_PANEL, panels_png, pictures, task_panels
from text2grad.runs.reports.run_report import groups, read_run
from text2grad.runs.reports.terminal import print_table
from text2grad.types import LABELS

RATES = {"unreadable": "failure_rate", "unmatched": "unmatched_rate", "gap": "gap"}  # column → key of the results


def collect(out: Path, tasks: Mapping[str, str], seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    """Return the results of the finished runs in `out`/TASK/seed-N, for tasks given as name → main metric."""
    return {"tasks": {task: _task(out / task, metric, seeds, methods) for task, metric in tasks.items()}}


def _task(directory: Path, metric: str, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    places = [directory / f"seed-{seed}" for seed in seeds]
    before = [json.loads((place / "sft_evaluation.json").read_bytes())[metric] for place in places]
    results: dict[str, Any] = {
        "sft": {"final": before, "curve": [[] for _ in places], "kl_per_token": [0.0] * len(places)}
    }
    seconds = [json.loads((place / "phases.json").read_bytes()) for place in places]
    trained = {method: [read_run(place / method) for place in places] for method in methods}
    for method, runs in trained.items():
        results[method] = {
            "final": [run.evaluations[-1]["metrics"][metric] for run in runs],
            "curve": [[[point["step"], point["metrics"][metric]] for point in run.evaluations] for run in runs],
            "kl_per_token": [run.evaluations[-1]["metrics"]["kl_per_token"] for run in runs],
        }
        for of_seed, run in zip(seconds, runs, strict=True):
            spent = sum(v for line in run.metrics for k, v in line.items() if k.startswith("seconds/"))
            of_seed[method] = round(spent, 1)
    return {
        "metric": metric,
        "seeds": list(seeds),
        "methods": results,
        "reward_model": [run.evaluations[0]["critic"] for run in trained["text2grad"]],
        "reward_model_at_end": [run.evaluations[-1]["critic"] for run in trained["text2grad"]],
        "seconds": seconds,
    }


def write_comparison(results: Mapping[str, Any], out: Path, labels: Mapping[str, str]) -> None:
    """Write results.json, curves.png and report.html; `labels` are the methods' names for readers."""
    tasks = results["tasks"]
    rollouts = [
        (f"{task}: {name}", records)
        for task, result in tasks.items()
        for name, records in groups(read_run(out / task / f"seed-{result['seeds'][0]}" / "text2grad"))
    ]
    panels = task_panels(tasks, labels)
    page = rollouts_page(
        "Text2Grad quickstart",
        intro="\n\n".join(in_words(task, result) for task, result in tasks.items()),
        groups=rollouts,
        images=[("Held-out items, one answer each at temperature 1; thin lines are single seeds.", pictures(panels))],
        tables=[table for task, result in tasks.items() for table in tables(task, result, labels)],
    )
    picture = panels_png(panels, size=TASK_PANEL)
    write_files(out, {"results.json": to_json(results), "curves.png": picture, "report.html": page.encode()})


def in_words(task: str, result: Mapping[str, Any]) -> str:
    """Return the results of a task as a paragraph."""
    methods, metric = result["methods"], result["metric"].replace("_at_", "@").replace("_", " ")
    sft, ours = (fmean(methods[name]["final"]) for name in ("sft", "text2grad"))
    change = "raised" if ours > sft else "did not raise"
    text = (
        f"{task.capitalize()}: a Llama of 0.1 to 0.2 million parameters, fine-tuned on noisy demonstrations, reaches a "
        f"{metric} of {sft:.2f} on held-out items. A reward model learned to write critiques of its answers in words "
        f"and quotes. Training on these critiques {change} the policy's {metric}: it is now {ours:.2f}."
    )
    text += f" With the same spans, summed into one number, it reached {fmean(methods['scalar_ppo']['final']):.2f}."
    precision, recall = (_mean(result["reward_model"], f"{name}/negative") for name in ("precision", "recall"))
    if precision is not None and recall is not None:
        text += (
            f" At the first step, {precision:.0%} of the tokens that the reward model marked negative were faults, and "
            f"it marked {recall:.0%} of the faults."
        )
    left = _mean(result["reward_model_at_end"], "recall/negative")
    if left is not None:
        text += f" At the last step it marked {left:.0%} of the faults that were left."
    return f"{text} All policies start from the reward model's weights, fine-tuned on demonstrations once more."


def _mean(records: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Return the mean over the seeds that have the value; None if no seed has it."""
    values = [record[name] for record in records if name in record]
    return fmean(values) if values else None


def tables(task: str, result: Mapping[str, Any], labels: Mapping[str, str]) -> list[Table]:
    """Return the tables of a task, of the methods and of the reward model: (caption, columns, rows)."""
    metric = result["metric"].replace("_", " ")
    return [
        Table(f"{task}: {metric}, held-out items", *method_rows(result, labels)),
        Table(f"{task}: precision / recall of the reward model in tokens", *agreement_rows(result)),
    ]


def method_rows(result: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of methods."""
    several = len(result["seeds"]) > 1
    rows = []
    for name, method in result["methods"].items():
        seeds = [" ".join(f"{value:.3f}" for value in method["final"])] if several else []
        kl = f"{fmean(method['kl_per_token']):.3f}"
        rows.append([labels.get(name, "fine-tuned"), f"{fmean(method['final']):.3f}", *seeds, kl])
    return ["method", *(["mean", "seeds"] if several else ["value"]), "KL/token"], rows


def agreement_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the reward model's table: for each seed, the first and the last answers."""
    rows = []
    for number, seed in enumerate(result["seeds"]):
        for answers, when in (("first", "reward_model"), ("last", "reward_model_at_end")):
            rates = result[when][number]
            shares = [
                " / ".join(_rounded(rates.get(f"{share}/{label}")) for share in ("precision", "recall"))
                for label in LABELS
            ]
            rows.append([str(seed), answers, *shares, *(_rounded(rates.get(name)) for name in RATES.values())])
    return ["seed", "answers", *LABELS, *RATES], rows


def _rounded(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def print_comparison(console: Console, results: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Print two tables for each task, of the methods and of the reward model, each at most 80 columns wide."""
    for task, result in results["tasks"].items():
        for title, columns, rows in tables(task, result, labels):
            print_table(console, title, columns, rows)
