"""`text2grad quickstart`: the whole method from nothing, on a laptop."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from text2grad.errors import ConfigError
from text2grad.experiments import COMPARED, METHODS, NEEDS, Job, method_job, run_jobs, settings, steps_made

TASKS = ("summarization", "code", "qa")
LONGEST_FIRST = ("code", "summarization", "qa")
PHASE_NAMES = {
    "sft": "fine-tuning on demonstrations",
    "annotations": "critiques in words and quotes",
    "reward_model": "reward model learns to write them",
    "start": "policy starts from its weights",
    "reward_head": "reward head learns one number",
    "reward_model_without_words": "reward model without words",
}


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "quickstart",
        help="the whole method from nothing, in minutes, without a GPU",
        description="All three phases of Text2Grad on an embedded task: a small Llama is made and fine-tuned on the "
        "spot, a critic annotates its answers in words and quotes, a generative reward model learns to write such "
        "critiques, and the policy learns from what that model writes. Beside it, PPO gets the same judgement as one "
        "number. Nothing is downloaded. Ends with a table, results.json, curves.png, and report.html with every word "
        "of feedback. What was stopped goes on where it was.",
        epilog="examples:\n"
        "  text2grad quickstart\n"
        "  text2grad quickstart --task all --seeds 3 --out runs/all\n"
        '  text2grad generate runs/quickstart/summarization/seed-0/text2grad --prompt "..."',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", choices=(*TASKS, "all"), default="summarization")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N-1, over the whole pipeline")
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), metavar="DIR")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=tuple(METHODS),
        metavar="METHOD",
        help=f"of {', '.join(METHODS)}; default {', '.join(COMPARED)}",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting"
    )
    parser.add_argument(
        "--models-of", type=int, help=argparse.SUPPRESS
    )  # only the models of this seed: see `models_job`
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the models, train every method, and report."""
    from text2grad.config import load_recipe

    if args.seeds < 1:
        raise ConfigError(f"--seeds {args.seeds}: at least one seed is needed")
    methods = [name for name in METHODS if name in (args.methods or COMPARED) or name == "text2grad"]
    if args.models_of is not None:
        make_models(args.out / args.task / f"seed-{args.models_of}", args.task, args.models_of, methods, args.overrides)
        return 0
    console, started = Console(), time.perf_counter()
    tasks = TASKS if args.task == "all" else (args.task,)
    parts = [(task, seed) for task in LONGEST_FIRST if task in tasks for seed in range(args.seeds)]
    with Bars(console, named=len(parts) > 1) as bars:
        jobs, looks = dict[str, Job](), dict[str, Callable[[], None]]()
        for task, seed in parts:
            out, given = args.out / task / f"seed-{seed}", [*args.overrides, f"run.seed={seed}"]
            steps = load_recipe(recipe_path(task), given).run.steps
            name = f"{task} {seed}"
            jobs[name] = models_job(args, task, seed, methods, threads=None if len(parts) == 1 else 1)
            looks[name] = partial(bars.models, name, jobs[name].log)
            for method in methods:
                directory = out / method
                overrides = [*given, *settings(method, task, out)]
                jobs[str(directory)] = method_job(recipe_path(task), directory, overrides, needs=name)
                looks[str(directory)] = partial(bars.method, name, directory, steps)
        order = sorted(jobs, key=lambda job: jobs[job].needs is not None)  # models first, they take longest
        run_jobs({job: jobs[job] for job in order}, lambda job: looks[job](), at_once=os.cpu_count() or 1)
    report(console, args.out, tasks, range(args.seeds), methods)
    console.print(f"{time.perf_counter() - started:.0f} seconds", style="dim")
    return 0


def models_job(args: argparse.Namespace, task: str, seed: int, methods: Sequence[str], *, threads: int | None) -> Job:
    """Return the job that makes the models of phases 1 and 2, in a process that then gives its memory back."""
    out = args.out / task / f"seed-{seed}"
    command = [sys.executable, "-m", "text2grad.cli", "quickstart", "--task", task, "--models-of", str(seed)]
    command += ["--out", str(args.out), "--methods", *methods]
    command += [part for setting in args.overrides for part in ("--set", setting)]
    made = ["sft", "annotations.jsonl", "reward_model", "start", "sft_evaluation.json"]
    made += [NEEDS[method] for method in methods if method in NEEDS]
    return Job(
        lambda: command, out.with_suffix(".log"), lambda: all((out / one).exists() for one in made), threads=threads
    )


def make_models(out: Path, task: str, seed: int, methods: Sequence[str], overrides: Sequence[str]) -> None:
    """Make the models of one task with one seed and evaluate the first of them, telling how far it is in JSON."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from text2grad.config import load_recipe
    from text2grad.experiments import Pipeline

    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading and saving models of a megabyte
    set_verbosity_error()  # type: ignore[no-untyped-call]  # a new reward head is no news
    told = 0.0

    def tell(part: str, done: int, total: int) -> None:
        nonlocal told
        if done == total or time.perf_counter() - told > 2.0:
            told = time.perf_counter()
            sys.stdout.write(json.dumps({"part": part, "done": done, "total": total}) + "\n")
            sys.stdout.flush()

    pipeline = Pipeline(load_recipe(recipe_path(task), [*overrides, f"run.seed={seed}"]), out, tell)
    pipeline.run([NEEDS[method] for method in methods if method in NEEDS])
    pipeline.evaluate()


class Bars:
    """A bar for each thing that is done, in 80 columns."""

    def __init__(self, console: Console, *, named: bool) -> None:
        """Take the terminal; `named` says of each bar which task and seed it is of."""
        columns = (BarColumn(bar_width=8), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        self.progress = Progress(TextColumn("{task.description}"), *columns, console=console)
        self.named, self.bars = named, dict[str, Any]()

    def __enter__(self) -> Self:
        """Begin to show them."""
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave them as they are."""
        self.progress.stop()

    def models(self, name: str, log: Path) -> None:
        """Show how far the phases of a run are, by what its log says."""
        for part, (done, total) in parts_made(log).items():
            self._show(name, PHASE_NAMES[part], done, total)

    def method(self, name: str, directory: Path, steps: int) -> None:
        """Show how far a method is."""
        done = steps_made(directory)
        if done or directory.with_suffix(".log").exists():
            self._show(name, METHODS[directory.name], done, steps)

    def _show(self, name: str, what: str, done: int, total: int) -> None:
        label = f"{name} {what}" if self.named else what
        if label not in self.bars:
            self.bars[label] = self.progress.add_task(label, total=total)
        self.progress.update(self.bars[label], completed=done)


def parts_made(log: Path) -> dict[str, tuple[int, int]]:
    """Return how far each phase is, and of how much, by the lines of a log that say so."""
    found = {}
    for line in log.read_text("utf-8", "replace").splitlines() if log.exists() else []:
        if line.startswith('{"part": ') and line.endswith("}"):
            said = json.loads(line)
            found[said["part"]] = (said["done"], said["total"])
    return found


def report(console: Console, out: Path, tasks: Sequence[str], seeds: Sequence[int], methods: Sequence[str]) -> None:
    """Write and print what it came to."""
    from text2grad.experiments import collect, print_comparison, write_comparison
    from text2grad.tasks import built_in

    results = collect(out, {task: built_in(task).metric for task in tasks}, list(seeds), methods)
    write_comparison(results, out)
    console.print()
    print_comparison(console, results)
    model = out / tasks[0] / "seed-0" / "text2grad"
    for name, path in (("numbers", "results.json"), ("curves", "curves.png"), ("page", "report.html")):
        console.print(f"{name:<9}{out / path}", markup=False, soft_wrap=True)
    console.print(f"talk     text2grad generate {model}", markup=False, soft_wrap=True)


def recipe_path(task: str) -> Path:
    """Return a task's recipe, from the installed package or the checkout."""
    package, name = Path(__file__).parents[1], f"quickstart-{task}.toml"
    installed = package / "recipes" / name
    return installed if installed.exists() else package.parents[1] / "recipes" / name
