"""`text2grad quickstart`: the whole method from nothing, on a laptop."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from text2grad.errors import ConfigError
from text2grad.methods import COMPARED, METHODS, NEEDS, settings, train_all

TASKS = ("summarization", "code", "qa")
PHASE_NAMES = {
    "sft": "a small Llama learns from noisy demonstrations",
    "annotations": "a critic annotates answers in words and quotes",
    "reward_model": "a reward model learns to write such critiques",
    "start": "the policy starts from its weights",
    "reward_head": "a reward head learns one number",
    "reward_model_without_words": "a reward model learns to mark without words",
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the models, train every method, and report."""
    if args.seeds < 1:
        raise ConfigError(f"--seeds {args.seeds}: at least one seed is needed")
    console, started = Console(), time.perf_counter()
    tasks = TASKS if args.task == "all" else (args.task,)
    methods = [name for name in METHODS if name in (args.methods or COMPARED) or name == "text2grad"]
    for task in tasks:
        for seed in range(args.seeds):
            console.print(f"[bold]{task}[/]" + (f", seed {seed}" if args.seeds > 1 else ""))
            one_run(args.out / task / f"seed-{seed}", task, seed, methods, args.overrides, console)
    report(console, args.out, tasks, range(args.seeds), methods)
    console.print(f"{time.perf_counter() - started:.0f} seconds", style="dim")
    return 0


def one_run(
    out: Path, task: str, seed: int, methods: Sequence[str], overrides: Sequence[str], console: Console
) -> None:
    """Make the models of one task with one seed and train the methods, with a bar for each thing that is done."""
    from text2grad.config import load_recipe

    given = [*overrides, f"run.seed={seed}"]
    recipe = load_recipe(recipe_path(task), given)
    columns = (
        TextColumn("  {task.description:<47}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[str, Any] = {}

        def tell(name: str, label: str, done: int, total: int, note: str = "") -> None:
            if name not in bars:
                bars[name] = progress.add_task(label, total=total, note=note)
            progress.update(bars[name], completed=done, note=note)

        make_models(recipe, out, lambda name, done, total: tell(name, PHASE_NAMES[name], done, total), methods)
        jobs = {out / name: [*given, *settings(name, task, out)] for name in methods}
        steps = recipe.run.steps

        def note(directory: Path, done: int, said: str) -> None:
            if done or directory.with_suffix(".log").exists():
                tell(directory.name, f"{METHODS[directory.name]} learns from it", done, steps, said)

        train_all(recipe_path(task), jobs, note, at_once=os.cpu_count() or 1)


def make_models(recipe: Any, out: Path, tell: Any, methods: Sequence[str]) -> None:
    """Make the models of phases 1 and 2 and evaluate the first of them."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from text2grad.pipeline import Pipeline

    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading and saving models of a megabyte
    set_verbosity_error()  # type: ignore[no-untyped-call]  # a new reward head is no news
    pipeline = Pipeline(recipe, out, tell)
    pipeline.run([NEEDS[method] for method in methods if method in NEEDS])
    pipeline.evaluate()


def report(console: Console, out: Path, tasks: Sequence[str], seeds: Sequence[int], methods: Sequence[str]) -> None:
    """Write and print what it came to."""
    from text2grad.comparison import collect, print_comparison, write_comparison
    from text2grad.tasks.registry import built_in

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
