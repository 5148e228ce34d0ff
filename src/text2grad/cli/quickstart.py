"""`text2grad quickstart`: all three phases of Text2Grad on an embedded world, without downloads or a GPU."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from text2grad.cli.options import add_command, add_shared, at_least, print_lines
from text2grad.files import lock_directory
from text2grad.progress import CONSOLE, Progress, duration
from text2grad.runs import Job, run_jobs

TASK = "summarization"
WAY_OUT = "Continue with those settings, or choose another directory with --out DIR"
PHASE_NAMES = {
    "sft": "fine-tuning on demonstrations",
    "annotations": "critiques in words and quotes",
    "reward_model": "training of the reward model",
    "start": "weights that policies start from",
}


class Method(NamedTuple):
    """A policy of the quickstart: its name for readers, and settings by which it differs from the recipe."""

    label: str
    settings: tuple[str, ...] = ()


METHODS: Mapping[str, Method] = {
    "text2grad": Method("Text2Grad"),
    "scalar_ppo": Method(
        "same spans, summed", ("reward.placement=last_token", "ppo.gamma=1.0", "ppo.whiten=full", "optim.lr=1e-3")
    ),
}
"""Text2Grad, and PPO on one number: the same δ, summed on the last token, with a learning rate of its own."""

LABELS = {name: method.label for name, method in METHODS.items()}

DESCRIPTION = """\
Run all three phases of Text2Grad on summaries of embedded posts: fine-tune a small Llama with random weights, annotate
its answers with critiques in words and quotes, train a generative reward model to write such critiques, and train the
policy with the critiques of the reward model. A rival gets one number per response: the same spans, summed. Nothing is
downloaded. Writes a table, results.json, curves.png, and report.html with all critiques. An interrupted run is
resumed."""

EPILOG = f"""\
examples:
  text2grad quickstart
  text2grad quickstart --seeds 3 --out runs/three
  text2grad generate runs/quickstart/{TASK}/seed-0/text2grad --examples 3"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "a language model learns from words, from random weights, in minutes, without a GPU"
    add = add_command(commands, "quickstart", run, about, DESCRIPTION, EPILOG).add_argument
    models = "make only the models of this seed, which both policies start from"
    add("models_of", type=at_least(0), nargs="?", metavar="SEED", help=models)
    add("--seeds", type=at_least(1), default=1, metavar="N", help="run seeds 0 to N-1, each over all phases; default 1")
    add("--out", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="(default: %(default)s)")
    add_shared(add, "--set")


def run(args: argparse.Namespace) -> int:
    """Make the models, train both policies, and write the report."""
    from text2grad.config import load_recipe
    from text2grad.runs import refuse_other_settings

    if args.models_of is not None:
        lock_directory(args.out / TASK / f"seed-{args.models_of}")
        make_models(args.out / TASK / f"seed-{args.models_of}", args.models_of, args.overrides)
        return 0
    lock_directory(args.out)
    started = time.perf_counter()
    with PhaseProgress() as bars:
        jobs, updates = dict[str, Job](), dict[str, Callable[[], None]]()
        for seed in range(args.seeds):
            out, overrides = args.out / TASK / f"seed-{seed}", [*args.overrides, f"run.seed={seed}"]
            recipe = load_recipe(recipe_path(), overrides)
            refuse_other_settings(out, recipe, way_out=WAY_OUT)
            name = f"seed {seed}"
            label = f"{name} " if args.seeds > 1 else ""
            jobs[name] = models_job(args, seed)
            updates[name] = partial(bars.models, label, jobs[name].log)
            for method in METHODS:
                directory = out / method
                jobs[str(directory)] = method_job(out, method, overrides, needs=name)
                updates[str(directory)] = partial(bars.method, label, method, directory, recipe.run.steps)
        order = sorted(jobs, key=lambda job: jobs[job].needs is not None)  # models first, they take longest
        run_jobs({job: jobs[job] for job in order}, lambda job: updates[job](), at_once=os.cpu_count() or 1)
    report(args.out, range(args.seeds))
    CONSOLE.print(f"{duration(time.perf_counter() - started)} in all", style="dim")
    return 0


def models_job(args: argparse.Namespace, seed: int) -> Job:
    """Return the job that makes the models of phases 1 and 2, in a process of its own that frees its memory."""
    out = args.out / TASK / f"seed-{seed}"
    command = [sys.executable, "-m", "text2grad.cli", "quickstart", str(seed), "--out", str(args.out)]
    command += [part for setting in args.overrides for part in ("--set", setting)]
    made = ("sft", "annotations.jsonl", "reward_model", "start", "sft_evaluation.json")
    return Job(lambda: command, out.with_suffix(".log"), lambda: all((out / name).exists() for name in made))


def method_job(out: Path, method: str, overrides: Sequence[str], *, needs: str) -> Job:
    """Return the job that trains one policy, or resumes its run; `needs` names the job that makes its models."""
    directory = out / method
    models = {"model.path": "start", "critic.model": "reward_model", "refresh.replay_from": "annotations.jsonl"}
    paths = [f"{setting}='{out / name}'" for setting, name in models.items()]

    def command() -> list[str]:
        parts = [sys.executable, "-m", "text2grad.cli", "train", str(recipe_path()), "--out", str(directory)]
        parts += [part for setting in (*overrides, *paths, *METHODS[method].settings) for part in ("--set", setting)]
        return [*parts, "--resume"] if (directory / "run.json").exists() else parts

    return Job(command, directory.with_suffix(".log"), (directory / "results.json").exists, needs)


def make_models(out: Path, seed: int, overrides: Sequence[str]) -> None:
    """Make the models of one seed and evaluate the fine-tuned one; print the progress as lines of JSON."""
    from text2grad.config import load_recipe
    from text2grad.runs import pipeline_with_progress_lines

    pipeline = pipeline_with_progress_lines(load_recipe(recipe_path(), [*overrides, f"run.seed={seed}"]), out)
    pipeline.run()
    pipeline.evaluate()


class PhaseProgress:
    """The progress of each phase and each method: bars on a terminal, lines in a file."""

    def __init__(self) -> None:
        """Begin without phases."""
        self.phases = dict[str, Progress]()

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(self, *error: Any) -> None:
        """End the phases that are not finished."""
        for progress in self.phases.values():
            if progress.done < (progress.total or 0):
                progress.__exit__(*error)

    def models(self, prefix: str, log: Path) -> None:
        """Show the phases that the log of a run names; `prefix` goes before their names."""
        for part, (done, total) in parts_made(log).items():
            unit = "response" if part == "annotations" else "step"
            self._show(Progress(prefix + PHASE_NAMES[part], total, unit=unit, keep=True), done)

    def method(self, prefix: str, method: str, directory: Path, steps: int) -> None:
        """Show the method whose run is in a directory; `prefix` goes before its name."""
        done, figures = steps_made(directory)
        if done or directory.with_suffix(".log").exists():
            self._show(Progress(prefix + METHODS[method].label, steps, done=done, keep=True), done, **figures)

    def _show(self, phase: Progress, done: int, **figures: float) -> None:
        """Show how far a phase is; `phase` is shown from now on if it is new."""
        progress = self.phases.setdefault(phase.phase, phase)
        if progress is phase:
            phase.__enter__()
            if phase.done == phase.total:
                phase.__exit__(None)
        if done > progress.done:
            progress.advance(done - progress.done, **figures)
            if done == progress.total:
                progress.__exit__(None)


def parts_made(log: Path) -> dict[str, tuple[int, int]]:
    """Return (done, total) of each phase from the progress lines of a log."""
    phases = {}
    for line in log.read_text("utf-8", "replace").splitlines() if log.exists() else []:
        if line.startswith('{"part": ') and line.endswith("}"):
            progress = json.loads(line)
            phases[progress["part"]] = (progress["done"], progress["total"])
    return phases


def steps_made(directory: Path) -> tuple[int, dict[str, float]]:
    """Return the number of finished steps of a run, and reward per response and KL per token of the last one."""
    path = directory / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    names = {"reward": "reward/per_response", "KL": "kl/per_token"}
    return len(lines), {name: last[key] for name, key in names.items() if key in last}


def report(out: Path, seeds: Sequence[int]) -> None:
    """Write and print the results."""
    from text2grad.runs import collect, quickstart_tables, write_comparison
    from text2grad.runs.reports import print_tables
    from text2grad.tasks import built_in

    result = collect(out / TASK, built_in(TASK).metric, seeds, list(METHODS))
    write_comparison(TASK, result, out, LABELS)
    CONSOLE.print()
    print_tables(CONSOLE, quickstart_tables(TASK, result, LABELS))
    answers = f"text2grad generate {out / TASK / 'seed-0' / 'text2grad'}"
    files = {"numbers": "results.json", "curves": "curves.png", "page": "report.html"}
    print_lines([*((name, out / file) for name, file in files.items()), ("answers", answers)])


def recipe_path() -> Path:
    """Return the recipe, from the installed package or the checkout."""
    package, name = Path(__file__).parents[1], "quickstart.toml"
    installed = package / "recipes" / name
    return installed if installed.exists() else package.parents[1] / "recipes" / name
