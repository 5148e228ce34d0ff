"""`text2grad reward-baseline`: train a scalar reward model on preferences, or a process reward model on annotations."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, at_least, finite, print_end
from text2grad.errors import ConfigError
from text2grad.experiments.reports import plain

DESCRIPTION = """\
Train a reward model without critiques, as a baseline or as a critic.

  scalar    one number per response, trained on preferences: {"prompt", "chosen", "rejected"} on each line. Measured:
            the share of held-out pairs whose chosen response gets the higher number.
  process   a label per step of a response (positive, negative or neutral), trained on annotations from
            `text2grad import` or `text2grad annotate`. Measured: the share of held-out steps with the right label.

Whole prompts are held out. Responses that are too long are left out and counted, never cut."""

EPILOG = """\
examples:
  text2grad reward-baseline scalar pairs.jsonl --model models/policy --out runs/scalar
  text2grad reward-baseline process annotations.jsonl --model models/policy --out runs/process --rule sentences
  text2grad train my.toml --set critic.model=runs/scalar --set critic.kind=scalar

written to --out: a Hugging Face directory with report.json (counts and held-out measurements)"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "train a scalar or a process reward model"
    add = add_command(commands, "reward-baseline", run, about, DESCRIPTION, EPILOG).add_argument
    add("kind", choices=("scalar", "process"), help="the kind of reward model")
    add("file", type=Path, metavar="FILE", help="JSONL file of preferences (scalar) or annotations (process)")
    add("--model", required=True, metavar="PATH", help="language model whose trunk is the start")
    add("--out", type=Path, required=True, metavar="DIR", help="output directory; must not exist")
    add("--steps", type=int, default=1_000, help="optimizer steps (default: %(default)s)")
    add("--batch-size", type=int, default=32, help="pairs or responses per step (default: %(default)s)")
    add("--lr", type=finite(), default=1e-5, help="peak learning rate (default: %(default)s)")
    add("--max-tokens", type=at_least(1), default=1_024, help="longest prompt with its response (default: %(default)s)")
    add("--held-out", type=finite(), default=0.1, metavar="SHARE", help="share of the prompts (default: %(default)s)")
    add("--seed", type=at_least(0), default=0)
    add("--rule", choices=("lines", "sentences"), default="lines", help="unit of a step (default: %(default)s)")
    add("--spans-are-steps", action="store_true", help="train on the annotated spans as the steps")


def run(args: argparse.Namespace) -> int:
    """Train a reward model, write it, and print its counts and measurements.

    Raises:
        Text2GradError: if the file or the model cannot be used; nothing is written then.
    """
    from rich.progress import Progress

    from text2grad.files import published, to_json, write_atomically
    from text2grad.models import FineTuning

    for name, good in (("steps", args.steps > 0), ("batch-size", args.batch_size > 0), ("lr", args.lr > 0)):
        if not good:
            raise ConfigError(f"--{name} must be above 0, got {getattr(args, name.replace('-', '_'))}")
    if not 0 <= args.held_out < 1:
        raise ConfigError(f"--held-out must be at least 0 and below 1, got {args.held_out}")
    if args.out.exists():
        raise ConfigError(f"{args.out} exists; choose another --out, or remove the directory")
    settings = FineTuning(
        steps=args.steps, batch_size=args.batch_size, learning_rate=args.lr, max_tokens=args.max_tokens, seed=args.seed
    )
    console = Console()
    train = _scalar if args.kind == "scalar" else _process
    with Progress(console=console) as progress:
        bar = progress.add_task("train", total=args.steps)
        model, report, lines = train(args, settings, lambda done: progress.update(bar, completed=done))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with published(args.out) as temporary:
        model.save(temporary)
        write_atomically(temporary / "report.json", to_json(report._asdict()))
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    use = (
        "text2grad",
        "train",
        "RECIPE.toml",
        "--set",
        f"critic.model={args.out}",
        "--set",
        f"critic.kind={args.kind}",
    )
    print_end(console, f"{args.out}, with report.json", then=use)
    return 0


def _scalar(args: argparse.Namespace, settings: Any, on_step: Callable[[int], None]) -> tuple[Any, Any, list[str]]:
    from text2grad.feedback import read_preferences, split_by_prompt
    from text2grad.models import load_tokenizer
    from text2grad.reward_models import train_scalar_from_preferences

    train, held_out = split_by_prompt(read_preferences(args.file), args.held_out, args.seed)
    model, report = train_scalar_from_preferences(
        args.model, load_tokenizer(args.model), train, settings, held_out=held_out, on_step=on_step
    )
    left_out = f"{report.too_long:,} left out as too long, {report.alike:,} with two equal responses"
    lines = [f"trained on {report.learned_from:,} pairs; {left_out}"]
    if report.accuracy is not None:
        lines.append(f"held-out pairs in the right order: {report.accuracy:.1%} of {report.held_out:,}")
    return model, report, lines


def _process(args: argparse.Namespace, settings: Any, on_step: Callable[[int], None]) -> tuple[Any, Any, list[str]]:
    from text2grad.feedback import read_annotations, split_by_prompt
    from text2grad.models import load_tokenizer
    from text2grad.reward_models import train_process_reward_model

    train, held_out = split_by_prompt(read_annotations(args.file, to_encode=True), args.held_out, args.seed)
    model, report = train_process_reward_model(
        args.model,
        load_tokenizer(args.model),
        train,
        settings,
        rule=args.rule,
        spans_are_steps=args.spans_are_steps,
        held_out=held_out,
        on_step=on_step,
    )
    steps = ", ".join(f"{count:,} {label}" for label, count in report.steps.items())
    left_out = f"{report.too_long:,} left out as too long, {report.without_steps:,} without a step"
    lines = [f"trained on {report.learned_from:,} responses with steps {steps}; {left_out}"]
    lines += [
        f"held-out steps with label {label}: {report.right[label]:,} of {count:,} predicted"
        for label, count in report.held_out.items()
    ]
    return model, report, lines
