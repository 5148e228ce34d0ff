"""`text2grad quickstart`: all three phases of Text2Grad on an embedded task, without downloads or a GPU."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from text2grad.cli.options import add_command, add_set
from text2grad.errors import ConfigError
from text2grad.experiments import (
    COMPARED,
    EARLIER_NAMES,
    METHODS,
    Job,
    last_figures,
    method_directory,
    method_job,
    run_jobs,
    settings,
    steps_made,
)
from text2grad.files import lock_directory
from text2grad.progress import Progress, duration

TASKS = ("summarization", "code", "qa")
LONGEST_FIRST = ("code", "summarization", "qa")
WAY_OUT = "Continue with those settings, or choose another directory with --out DIR"
PHASE_NAMES = {
    "sft": "fine-tuning on demonstrations",
    "annotations": "critiques in words and quotes",
    "reward_model": "training of the reward model",
    "start": "weights that policies start from",
    "reward_head": "scalar reward model",
    "reward_model_without_words": "reward model without words",
    "reward_model_dense": "reward model with a label per word",
    "reward_model_of_verdicts": "reward model of critiques without truths",
}


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "quickstart",
        run,
        "run all three phases on an embedded task, in minutes, without a GPU",
        "Run all three phases of Text2Grad on an embedded task: fine-tune a small Llama with random "
        "weights, annotate its answers with critiques in words and quotes, train a generative reward model to write "
        "such critiques, and train the policy with the critiques of the reward model. Two baselines get one number per "
        "response: the same spans, summed, and a learned scalar reward model. Nothing is downloaded. Writes a table, "
        "results.json, curves.png, and report.html with all critiques. An interrupted run is resumed.",
        "examples:\n"
        "  text2grad quickstart\n"
        "  text2grad quickstart --task all --seeds 3 --out runs/all\n"
        '  text2grad generate runs/quickstart/summarization/seed-0/text2grad --prompt "..."',
    ).add_argument
    add("--task", choices=(*TASKS, "all"), default="summarization")
    add("--seeds", type=int, default=1, metavar="N", help="run seeds 0 to N-1, each over all phases; default 1")
    add("--out", type=Path, default=Path("runs/quickstart"), metavar="DIR")
    add(
        "--methods",
        nargs="+",
        type=lambda name: EARLIER_NAMES.get(name, name),
        choices=tuple(METHODS),
        metavar="METHOD",
        help=f"methods out of {', '.join(METHODS)}; default {', '.join(COMPARED)}",
    )
    add_set(add)
    add("--models-of", type=int, help=argparse.SUPPRESS)  # a seed: make only its models (`models_job`)


def run(args: argparse.Namespace) -> int:
    """Make the models, train every method, and write the report."""
    from text2grad.config import load_recipe
    from text2grad.experiments import refuse_other_settings

    if args.seeds < 1:
        raise ConfigError(f"--seeds {args.seeds}: at least one seed is needed")
    methods = [name for name in METHODS if name in (args.methods or COMPARED) or name == "text2grad"]
    if args.models_of is not None:
        lock_directory(args.out / args.task / f"seed-{args.models_of}")
        make_models(args.out / args.task / f"seed-{args.models_of}", args.task, args.models_of, methods, args.overrides)
        return 0
    lock_directory(args.out)
    console, started = Console(), time.perf_counter()
    tasks = TASKS if args.task == "all" else (args.task,)
    parts = [(task, seed) for task in LONGEST_FIRST if task in tasks for seed in range(args.seeds)]
    with PhaseProgress(named=len(parts) > 1) as bars:
        jobs, updates = dict[str, Job](), dict[str, Callable[[], None]]()
        for task, seed in parts:
            out, overrides = args.out / task / f"seed-{seed}", [*args.overrides, f"run.seed={seed}"]
            recipe = load_recipe(recipe_path(task), overrides)
            refuse_other_settings(out, recipe, way_out=WAY_OUT)
            steps = recipe.run.steps
            name = f"{task} {seed}"
            jobs[name] = models_job(args, task, seed, methods)
            updates[name] = partial(bars.models, name, jobs[name].log)
            for method in methods:
                directory = method_directory(out, method)
                changed = [*overrides, *settings(method, task, out)]
                jobs[str(directory)] = method_job(recipe_path(task), directory, changed, needs=name)
                updates[str(directory)] = partial(bars.method, name, method, directory, steps)
        order = sorted(jobs, key=lambda job: jobs[job].needs is not None)  # models first, they take longest
        run_jobs({job: jobs[job] for job in order}, lambda job: updates[job](), at_once=os.cpu_count() or 1)
    report(console, args.out, tasks, range(args.seeds), methods)
    console.print(f"{duration(time.perf_counter() - started)} in all", style="dim")
    return 0


def models_job(args: argparse.Namespace, task: str, seed: int, methods: Sequence[str]) -> Job:
    """Return the job that makes the models of phases 1 and 2, in a process of its own that frees its memory."""
    out = args.out / task / f"seed-{seed}"
    command = [sys.executable, "-m", "text2grad.cli", "quickstart", "--task", task, "--models-of", str(seed)]
    command += ["--out", str(args.out), "--methods", *methods]
    command += [part for setting in args.overrides for part in ("--set", setting)]
    made = ["sft", "annotations.jsonl", "reward_model", "start", "sft_evaluation.json"]
    made += [METHODS[method].needs for method in methods if METHODS[method].needs]
    return Job(lambda: command, out.with_suffix(".log"), lambda: all((out / name).exists() for name in made))


def make_models(out: Path, task: str, seed: int, methods: Sequence[str], overrides: Sequence[str]) -> None:
    """Make the models of one task and seed and evaluate the fine-tuned one; print the progress as lines of JSON."""
    from text2grad.config import load_recipe
    from text2grad.experiments import pipeline_with_progress_lines

    pipeline = pipeline_with_progress_lines(load_recipe(recipe_path(task), [*overrides, f"run.seed={seed}"]), out)
    pipeline.run([METHODS[method].needs for method in methods if METHODS[method].needs])
    pipeline.evaluate()


class PhaseProgress:
    """The progress of each phase and each method: bars on a terminal, lines in a file."""

    def __init__(self, *, named: bool) -> None:
        """Begin without phases; `named` puts task and seed before each label."""
        self.named, self.phases = named, dict[str, Progress]()

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(self, *error: Any) -> None:
        """End the phases that are not finished."""
        for progress in self.phases.values():
            if progress.done < (progress.total or 0):
                progress.__exit__(*error)

    def models(self, name: str, log: Path) -> None:
        """Show the phases that the log of a run names."""
        for part, (done, total) in parts_made(log).items():
            unit = "response" if part == "annotations" else "step"
            self._show(f"{name} {PHASE_NAMES[part]}" if self.named else PHASE_NAMES[part], done, total, unit=unit)

    def method(self, name: str, method: str, directory: Path, steps: int) -> None:
        """Show the method whose run is in a directory."""
        done = steps_made(directory)
        if done or directory.with_suffix(".log").exists():
            label = f"{name} {METHODS[method].label}" if self.named else METHODS[method].label
            self._show(label, done, steps, before=done, figures=last_figures(directory))

    def _show(
        self,
        label: str,
        done: int,
        total: int,
        *,
        unit: str = "step",
        before: int = 0,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        if label not in self.phases:
            self.phases[label] = Progress(label, total, done=before, unit=unit, keep=True).__enter__()
            if before == total:
                self.phases[label].__exit__(None)
        progress = self.phases[label]
        if done > progress.done:
            progress.advance(done - progress.done, **(figures or {}))
            if done == total:
                progress.__exit__(None)


def parts_made(log: Path) -> dict[str, tuple[int, int]]:
    """Return (done, total) of each phase from the progress lines of a log."""
    found = {}
    for line in log.read_text("utf-8", "replace").splitlines() if log.exists() else []:
        if line.startswith('{"part": ') and line.endswith("}"):
            progress = json.loads(line)
            found[progress["part"]] = (progress["done"], progress["total"])
    return found


def report(console: Console, out: Path, tasks: Sequence[str], seeds: Sequence[int], methods: Sequence[str]) -> None:
    """Write and print the results."""
    from text2grad.experiments import collect, print_comparison, write_comparison
    from text2grad.tasks import built_in

    results = collect(out, {task: built_in(task).metric for task in tasks}, list(seeds), methods)
    write_comparison(results, out)
    console.print()
    print_comparison(console, results)
    model = out / tasks[0] / "seed-0" / "text2grad"
    for name, path in (("numbers", "results.json"), ("curves", "curves.png"), ("page", "report.html")):
        console.print(f"{name:<9}{out / path}", markup=False, soft_wrap=True)
    console.print(f"answers  text2grad generate {model}", markup=False, soft_wrap=True)


def recipe_path(task: str) -> Path:
    """Return a task's recipe, from the installed package or the checkout."""
    package, name = Path(__file__).parents[1], f"quickstart-{task}.toml"
    installed = package / "recipes" / name
    return installed if installed.exists() else package.parents[1] / "recipes" / name
