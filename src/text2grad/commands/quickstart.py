"""`text2grad quickstart`: a language model learns from words, from nothing, on a laptop."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from text2grad.errors import TrainingError

RECIPE = "quickstart.toml"
# The same judgement as one number: the same δ, summed on the last token, with the discount that lets it reach back.
ARMS: Mapping[str, tuple[str, ...]] = {
    "Text2Grad": (),
    "scalar PPO": ("reward.placement=last_token", "ppo.gamma=1.0"),
}
SFT_STEPS, SFT_BATCH = 800, 32  # every demonstration is seen once
POLL_SECONDS = 0.5


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "quickstart",
        help="see a language model learn from words, in about three minutes without a GPU",
        description="Make a small Llama on the spot, fine-tune it on hasty summaries of made-up posts, and let it "
        "learn from a critic who quotes what is right and wrong. Beside it, scalar PPO gets the same judgement as one "
        "number. Nothing is downloaded. Ends with a table, curves.png, and report.html with every word of feedback. A "
        "run that was stopped goes on where it was.",
        epilog="example:\n  text2grad quickstart --out runs/quickstart --seed 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, metavar="N", help="training steps (default: the recipe's)")
    parser.add_argument("--sft-steps", type=int, default=SFT_STEPS, metavar="N", help="fine-tuning steps before")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the model, train it twice side by side, and report."""
    console = Console()
    started = time.perf_counter()
    start = args.out / "sft"
    if not (start / "config.json").exists():
        console.print("[bold]1[/] A small Llama learns to summarize from hasty demonstrations …")
        make_start(start, seed=args.seed, steps=args.sft_steps)
    console.print("[bold]2[/] A critic reads its summaries and quotes what is right and wrong; the policy learns …")
    train_arms(args, start)
    console.print("[bold]3[/] What the words did:\n")
    report(console, args.out)
    console.print(f"{time.perf_counter() - started:.0f} seconds", style="dim")
    return 0


def make_start(directory: Path, *, seed: int, steps: int) -> None:
    """Make a tokenizer and a model for the task, fine-tune it on noisy demonstrations and save it."""
    from random import Random

    from text2grad.sft import FineTuning, fine_tune
    from text2grad.tasks.summarization import SummarizationTask
    from text2grad.tasks.tiny import tiny_llama, word_tokenizer

    task = SummarizationTask("train")
    examples, rng = task.examples(steps * SFT_BATCH, seed), Random(seed)
    answers = [" " + task.demonstration(example, rng) for example in examples]
    tokenizer = word_tokenizer(task.texts(2_000))
    model = tiny_llama(tokenizer, seed=seed)
    how = FineTuning(steps=steps, batch_size=SFT_BATCH, learning_rate=4e-3, seed=seed)
    model = fine_tune(model, tokenizer, examples, answers, how)
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def train_arms(args: argparse.Namespace, start: Path) -> None:
    """Train every arm in a process of its own, with a bar each.

    Raises:
        TrainingError: if one of them fails; its log is named.
    """
    from text2grad.config import load_recipe

    steps = args.steps or load_recipe(recipe_path()).run.steps
    processes = {name: _start(args, start, name, steps) for name in ARMS}
    columns = (
        TextColumn("  {task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bars = {name: progress.add_task(name, total=steps, note="") for name in ARMS}
        while True:
            running = [name for name, process in processes.items() if process.poll() is None]
            for name, bar in bars.items():
                done, note = _progress(directory_of(args.out, name))
                progress.update(bar, completed=done, note=note)
            if not running:
                break
            time.sleep(POLL_SECONDS)
    for name, process in processes.items():
        if process.returncode:
            log = args.out / f"{slug(name)}.log"
            raise TrainingError(f"{name} stopped with exit code {process.returncode}; its output is in {log}")


def report(console: Console, out: Path) -> None:
    """Write and print what the arms came to."""
    from text2grad.report import print_table, read_run, write_report
    from text2grad.tasks.registry import built_in

    runs = [read_run(directory_of(out, name), name) for name in ARMS]
    metric = built_in("summarization").metric
    before, *after = (runs[0].evaluations[0], *(one.evaluations[-1] for one in runs))
    learned, scalar = (one["metrics"][metric] for one in after)
    intro = (
        f"A Llama of 0.1 million parameters, fine-tuned on hasty summaries, gets {before['metrics'][metric]:.0%} of "
        f"the facts right (F1) on posts it has never seen. After {len(runs[0].metrics)} steps of 64 rollouts on the "
        f"words of a critic it gets {learned:.0%}; the same judgement given as one number per summary brings it to "
        f"{scalar:.0%}. Below: the same posts before and after, what the critic said, and what each word was worth."
    )
    results = write_report(runs, out, metric=metric, title="Text2Grad quickstart", intro=intro)
    print_table(console, results, "Held-out posts, one summary each at temperature 1")
    console.print(f"\ntable    {out / 'results.json'}\ncurves   {out / 'curves.png'}", markup=False)
    console.print(
        f"page     {out / 'report.html'}\nmodel    {directory_of(out, 'Text2Grad')}/checkpoints", markup=False
    )


def recipe_path() -> Path:
    """Return the recipe, from the installed package or the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "recipes" / RECIPE
    return installed if installed.exists() else package.parents[1] / "recipes" / RECIPE


def slug(name: str) -> str:
    """Return an arm's directory name."""
    return name.lower().replace(" ", "_")


def directory_of(out: Path, name: str) -> Path:
    """Return where an arm's run lies."""
    return out / slug(name)


def _start(args: argparse.Namespace, start: Path, name: str, steps: int) -> "subprocess.Popen[bytes]":
    directory = directory_of(args.out, name)
    settings = [f"model.path='{start}'", f"run.out='{directory}'", f"run.seed={args.seed}", f"run.steps={steps}"]
    command = [sys.executable, "-m", "text2grad.cli", "train", str(recipe_path())]
    for setting in (*settings, *ARMS[name]):
        command += ["--set", setting]
    if (directory / "run.json").exists():
        command.append("--resume")
    log = args.out / f"{slug(name)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


def _progress(directory: Path) -> tuple[int, str]:
    """Return how many steps a run has made, and a note on the last of them."""
    path = directory / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if not whole:
        return 0, "starting"
    last = json.loads(whole[-1])
    return len(whole), f"reward {last['reward/per_response']:5.2f}  KL {last['kl/per_token']:.2f}"
