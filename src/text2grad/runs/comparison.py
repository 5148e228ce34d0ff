"""Finished runs of a quickstart, by method and seed → results.json, curves.png and report.html.

results.json    {"tasks": {TASK: {
                    "metric": name of the task's main metric,
                    "seeds": [...],
                    "methods": {METHOD: {"final": [value per seed], "curve": [[[step, value], ...] per seed],
                                         "kl_per_token": [nats per seed],    METHOD: sft, or the name of a run
                                         "calls_per_question": [per seed, of a task with tools]}},
                    "reward_model": [per seed: agreement with the annotator (precision, recall, failure_rate,
                                     unmatched_rate, gap) on held-out answers of the policy before Text2Grad; or {}],
                    "reward_model_at_end": [the same after Text2Grad],
                    "seconds": [per seed: of each phase and method]}}}
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.files import to_json, write_files
from text2grad.runs.reports.html import Table, rollouts_page
from text2grad.runs.reports.plots import curve_panel, method_lines, metric_words, panels_png, pictures
from text2grad.runs.reports.run_report import groups, read_run
from text2grad.types import LABELS

RATES = {"unreadable": "failure_rate", "unmatched": "unmatched_rate", "gap": "gap"}  # column → key of the results
CALLS = "calls_per_question"
PANEL = (6.4, 3.8)  # inches


def collect(directory: Path, metric: str, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    """Return the results of a task from the finished runs in `directory`/seed-N; `metric` is its main metric.

    Where no evaluation of the fine-tuned policy stands beside them, they start from it: their first one is its.
    """
    places = [directory / f"seed-{seed}" for seed in seeds]
    seconds = [json.loads((place / "phases.json").read_bytes()) for place in places]
    trained = {method: [read_run(place / method) for place in places] for method in methods}
    starts = [run.evaluations[0]["metrics"] for run in trained["text2grad"]]
    files = [place / "sft_evaluation.json" for place in places]
    ends = {"sft": [json.loads(f.read_bytes()) if f.exists() else own for f, own in zip(files, starts, strict=True)]}
    ends |= {method: [run.evaluations[-1]["metrics"] for run in runs] for method, runs in trained.items()}
    results: dict[str, Any] = {}
    for method, of_seeds in ends.items():
        runs = trained.get(method, ())
        results[method] = {
            "final": [end[metric] for end in of_seeds],
            "curve": [run.held_out_curve(metric) for run in runs] or [[] for _ in places],
            "kl_per_token": [end.get("kl_per_token", 0.0) for end in of_seeds],
            **({CALLS: [end[CALLS] for end in of_seeds]} if CALLS in of_seeds[0] else {}),
        }
        for of_seed, run in zip(seconds, runs, strict=bool(runs)):
            of_seed[method] = round(run.seconds.total(), 1)
    return {
        "metric": metric,
        "seeds": list(seeds),
        "methods": results,
        "reward_model": [run.evaluations[0]["critic"] for run in trained["text2grad"]],
        "reward_model_at_end": [run.evaluations[-1]["critic"] for run in trained["text2grad"]],
        "seconds": seconds,
    }


def write_comparison(task: str, result: Mapping[str, Any], out: Path, labels: Mapping[str, str]) -> None:
    """Write results.json, curves.png and report.html beside the seeds in `out`; `labels` are names for readers."""
    methods = result["methods"]
    lines = method_lines({label: methods[name]["curve"] for name, label in labels.items()})
    level = ("fine-tuned", fmean(methods["sft"]["final"]))
    panels = [curve_panel(f"{task}: {metric_words(result['metric'])}, held-out", "step", lines, level=level)]
    page = rollouts_page(
        "Text2Grad quickstart",
        intro=in_words(task, result),
        groups=groups(read_run(out / f"seed-{result['seeds'][0]}" / "text2grad")),
        images=[("Held-out items, one answer each at temperature 1; thin lines are single seeds.", pictures(panels))],
        tables=quickstart_tables(task, result, labels),
    )
    picture = panels_png(panels, size=PANEL)
    results = to_json({"tasks": {task: result}})
    write_files(out, {"results.json": results, "curves.png": picture, "report.html": page.encode()})


def in_words(task: str, result: Mapping[str, Any]) -> str:
    """Return the results of a task as a paragraph."""
    metric, learned = metric_words(result["metric"]), bool(result["reward_model"][0])
    sft, ours, summed = (fmean(result["methods"][name]["final"]) for name in ("sft", "text2grad", "scalar_ppo"))
    change = "raised" if ours > sft else "did not raise"
    critic = "A reward model learned to write critiques of its answers in words and quotes."
    start = " All policies start from the reward model's weights, fine-tuned on demonstrations once more."
    return (
        f"{task.capitalize()}: a Llama of 0.1 to 0.2 million parameters, fine-tuned on noisy demonstrations, reaches a "
        f"{metric} of {sft:.2f} on held-out items. "
        f"{critic if learned else 'A program critic judges its turns in words and quotes.'} Training on these "
        f"critiques {change} the policy's {metric}: it is now {ours:.2f}. With the same spans, summed into one number, "
        f"it reached {summed:.2f}.{start if learned else ''}"
    )


def quickstart_tables(task: str, result: Mapping[str, Any], labels: Mapping[str, str]) -> list[Table]:
    """Return the tables of a task, of the methods and of a reward model, each at most 80 columns wide.

    That of the reward model has for each seed the first and the last answers.
    """
    several = len(result["seeds"]) > 1
    rows = []
    for name, method in result["methods"].items():
        seeds = [" ".join(f"{value:.3f}" for value in method["final"])] if several else []
        kl = f"{fmean(method['kl_per_token']):.3f}"
        calls = [f"{fmean(method[CALLS]):.2f}"] if CALLS in method else []
        rows.append([labels.get(name, "fine-tuned"), f"{fmean(method['final']):.3f}", *seeds, *calls, kl])
    columns = ["method", *(["mean", "seeds"] if several else ["value"]), *["calls" for _ in calls], "KL/token"]
    methods = Table(f"{task}: {metric_words(result['metric'])}, held-out items", columns, rows)
    rows = []
    for seed, *agreements in zip(result["seeds"], result["reward_model"], result["reward_model_at_end"], strict=True):
        for answers, agreement in zip(("first", "last"), agreements, strict=True):
            rates = {name: f"{value:.2f}" for name, value in agreement.items()}
            pairs = ((rates.get(f"{share}/{label}", "–") for share in ("precision", "recall")) for label in LABELS)
            rows.append(
                [str(seed), answers, *map(" / ".join, pairs), *(rates.get(name, "–") for name in RATES.values())]
            )
    title = f"{task}: precision / recall of the reward model in tokens"
    quality = [Table(title, ["seed", "answers", *LABELS, *RATES], rows)]
    return [methods, *(quality if any(result["reward_model"]) else ())]
