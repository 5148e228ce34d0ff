"""`text2grad reward-baseline`: the reward models that write nothing, from preferences or from annotated steps."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from text2grad.errors import ConfigError
from text2grad.experiments.reports import plain

if TYPE_CHECKING:
    from text2grad.models import FineTuning

DESCRIPTION = """\
Train a reward model that writes nothing, to compare with the one that does, or to be a critic of its own.

  scalar    one number per response, from preferences: {"prompt", "chosen", "rejected"} on each line. It is measured by
            how often the chosen one of a held-out pair gets the higher number.
  process   good, poor or neither for each step of a response, from annotations as `text2grad import` and
            `text2grad annotate` write them. It is measured by how many held-out steps get their label.

Held out are whole prompts. What is too long is left out and counted, never cut."""

EPILOG = """\
examples:
  text2grad reward-baseline scalar pairs.jsonl --model models/policy --out runs/scalar
  text2grad reward-baseline process annotations.jsonl --model models/policy --out runs/process --rule sentences
  text2grad train my.toml --set critic.model=runs/scalar --set critic.kind=scalar

written to --out: an ordinary Hugging Face directory, with report.json: what was learned from, left out and measured"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "reward-baseline",
        help="train a reward model of numbers or of steps",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kind", choices=("scalar", "process"), help="what it is to learn")
    add("file", type=Path, metavar="FILE", help="preferences, or annotations")
    add("--model", required=True, metavar="PATH", help="the language model whose trunk it starts from")
    add("--out", type=Path, required=True, metavar="DIR", help="where it is written; must not exist")
    add("--steps", type=int, default=1_000, help="optimizer steps (default: %(default)s)")
    add("--batch-size", type=int, default=32, help="pairs or responses of a step (default: %(default)s)")
    add("--lr", type=float, default=1e-5, help="peak learning rate (default: %(default)s)")
    add("--max-tokens", type=int, default=1_024, help="longest prompt with its response (default: %(default)s)")
    add("--held-out", type=float, default=0.1, metavar="SHARE", help="of the prompts (default: %(default)s)")
    add("--seed", type=int, default=0)
    add("--rule", choices=("lines", "sentences"), default="lines", help="what a step is (default: %(default)s)")
    add("--spans-are-steps", action="store_true", help="learn from the annotated spans as the steps")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, write and report.

    Raises:
        Text2GradError: if the file or the model cannot be used; nothing is written then.
    """
    from text2grad.models import FineTuning

    for name, good in (("steps", args.steps > 0), ("batch-size", args.batch_size > 0), ("lr", args.lr > 0)):
        if not good:
            raise ConfigError(f"--{name} is above 0, got {getattr(args, name.replace('-', '_'))}")
    if not 0 <= args.held_out < 1:
        raise ConfigError(f"--held-out is a share of at least 0 and below 1, got {args.held_out}")
    if args.out.exists():
        raise ConfigError(f"{args.out} exists; choose another --out, or remove it")
    how = FineTuning(
        steps=args.steps,
        batch_size=args.batch_size,
        learning_rate=args.lr,
        max_tokens=args.max_tokens,
        seed=args.seed,
    )
    console = Console()
    with _bar(console, args.steps) as on_step:
        model, report, said = (_scalar if args.kind == "scalar" else _process)(args, how, on_step)
    _write(args.out, model, report)
    for line in (*said, f"written: {args.out}"):
        console.print(plain(line), soft_wrap=True)
    return 0


def _scalar(args: argparse.Namespace, how: "FineTuning", on_step: Callable[[int], None]) -> tuple[Any, Any, list[str]]:
    from text2grad.feedback import read_preferences, split_by_prompt
    from text2grad.models import load_tokenizer
    from text2grad.reward_models import train_scalar_from_preferences

    learned, held_out = split_by_prompt(read_preferences(args.file), args.held_out, args.seed)
    model, report = train_scalar_from_preferences(
        args.model, load_tokenizer(args.model), learned, how, held_out=held_out, on_step=on_step
    )
    left_out = f"{report.too_long:,} left out as too long, {report.alike:,} of two responses that are the same"
    said = [f"learned from {report.learned_from:,} pairs; {left_out}"]
    if report.accuracy is not None:
        said.append(f"held-out pairs ordered right: {report.accuracy:.1%} of {report.held_out:,}")
    return model, report, said


def _process(args: argparse.Namespace, how: "FineTuning", on_step: Callable[[int], None]) -> tuple[Any, Any, list[str]]:
    from text2grad.feedback import read_annotations, split_by_prompt
    from text2grad.models import load_tokenizer
    from text2grad.reward_models import train_process_reward_model

    learned, held_out = split_by_prompt(read_annotations(args.file), args.held_out, args.seed)
    model, report = train_process_reward_model(
        args.model,
        load_tokenizer(args.model),
        learned,
        how,
        rule=args.rule,
        spans_are_steps=args.spans_are_steps,
        held_out=held_out,
        on_step=on_step,
    )
    steps = ", ".join(f"{count:,} {label}" for label, count in report.steps.items())
    left_out = f"{report.too_long:,} left out as too long, {report.without_steps:,} without a step"
    said = [f"learned from {report.learned_from:,} responses with steps {steps}; {left_out}"]
    said += [
        f"held-out steps that are {label}: {report.right[label]:,} of {count:,} found"
        for label, count in report.held_out.items()
    ]
    return model, report, said


def _write(out: Path, model: Any, report: Any) -> None:
    """Write the model and its report, whole or not at all."""
    from text2grad.files import published, to_json, write_atomically

    out.parent.mkdir(parents=True, exist_ok=True)
    with published(out) as temporary:
        model.save(temporary)
        write_atomically(temporary / "report.json", to_json(report._asdict()))


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many steps were made."""
    from rich.progress import Progress

    with Progress(console=console) as progress:
        task = progress.add_task("train", total=total)
        yield lambda done: progress.update(task, completed=done)
