"""`python -m evidence reward-baseline`: train a scalar or a process reward model."""

import argparse
import hashlib
import math
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from evidence.pages.costs import keep_checkpoint_cost
from text2grad.cli.options import add_command, at_least, finite, print_lines
from text2grad.errors import ConfigError, DataError, ModelError

DECISIVE = ("kind", "model", "steps", "batch_size", "lr", "max_tokens", "held_out", "seed", "rule", "spans_are_steps")
"""Options that decide the weights; a resumed training must have the same."""

IDLE = {"rule": "lines", "spans_are_steps": False}
"""Options without effect on a scalar reward model, and their defaults."""

DESCRIPTION = """\
Train a reward model that writes no critiques, as a baseline or as a critic.

  scalar    one number per response, trained on preferences: {"prompt", "chosen", "rejected"} on each line. Measured:
            the share of held-out pairs whose chosen response gets the higher number.
  process   a label per step of a response (positive, negative or neutral), trained on annotations from
            `text2grad feedback import` or `text2grad annotate`. Measured: the share of held-out steps with the right
            label.

Whole prompts are held out. Responses that are too long are left out and counted, never cut. Until it is finished, the
training keeps its checkpoints in DIR.training, from which --resume continues."""

EPILOG = """\
examples:
  python -m evidence reward-baseline scalar pairs.jsonl --model models/policy --out runs/scalar
  python -m evidence reward-baseline process annotations.jsonl --model models/policy --out runs/process --rule sentences
  python -m evidence reward-baseline scalar pairs.jsonl --model models/policy --out runs/scalar --resume
  python -m evidence train my.toml --set critic.model=runs/scalar --set critic.kind=scalar

written to --out: a Hugging Face directory, and report.json (counts and held-out measurements)"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "train a scalar or a process reward model"
    add = add_command(commands, "reward-baseline", run, about, DESCRIPTION, EPILOG).add_argument
    add("kind", choices=("scalar", "process"), help="the kind of reward model")
    add("file", type=Path, metavar="FILE", help="JSONL file of preferences (scalar) or annotations")
    add("--model", required=True, metavar="PATH", help="language model whose trunk is the start")
    add("--out", type=Path, required=True, metavar="DIR", help="output directory; must not exist")
    add("--steps", type=int, default=1_000, help="optimizer steps (default: %(default)s)")
    add("--batch-size", type=int, default=32, help="pairs or responses per step (default: %(default)s)")
    add("--lr", type=finite(), default=1e-5, help="peak learning rate (default: %(default)s)")
    add("--max-tokens", type=at_least(1), default=1_024, help="longest prompt with its response (default: %(default)s)")
    add("--held-out", type=finite(), default=0.1, metavar="SHARE", help="share of the prompts (default: %(default)s)")
    add("--seed", type=at_least(0), default=0)
    every = "steps between checkpoints (default: %(default)s)"
    add("--save-every", type=at_least(1), default=100, metavar="N", help=every)
    add("--resume", action="store_true", help="continue an interrupted training from its last checkpoint")
    unit = "process: unit of a step (default: %(default)s)"
    add("--rule", choices=("lines", "sentences"), default=IDLE["rule"], help=unit)
    add("--spans-are-steps", action="store_true", help="process: train on the annotated spans as the steps")


def run(args: argparse.Namespace) -> int:
    """Train a reward model, write it, and print its counts and measurements.

    Raises:
        Text2GradError: if the file or the model cannot be used; nothing is written then.
    """
    _check(args)

    from text2grad.files import lock_directory, published, to_json, write_atomically
    from text2grad.models.fine_tuning import FineTuning
    from text2grad.models.measured_training import Evaluation, check_same_data, last_saved
    from text2grad.progress import duration

    settings = FineTuning(
        steps=args.steps, batch_size=args.batch_size, learning_rate=args.lr, max_tokens=args.max_tokens, seed=args.seed
    )
    begun = time.monotonic()
    data = _read(args)
    args.directory = args.out.with_name(f"{args.out.name}.training")
    lock_directory(args.directory)
    args.directory.mkdir(exist_ok=True)  # a training before this one, in this process, removed it
    started = {name: str(value) for name, value in vars(args).items() if name in DECISIVE}
    digest = hashlib.sha256(repr(data).encode()).hexdigest()
    check_same_data(args.directory / "run.json", {**started, "data": digest}, "settings or data")
    evaluation = Evaluation(
        args.directory,
        f"{args.kind} reward model",
        None,
        metric="accuracy",
        greater_is_better=True,
        every=args.save_every,
        on_measured=_note,
    )
    try:
        train = {"scalar": _scalar, "process": _process}[args.kind]
        model, report, lines = train(args, settings, evaluation, *data)
    except (DataError, ModelError):
        if last_saved(args.directory) is None:  # there is nothing to continue
            shutil.rmtree(args.directory)
        raise
    saved = last_saved(args.directory)
    with published(args.out) as temporary:
        model.save(temporary)
        write_atomically(temporary / "report.json", to_json(report._asdict()))
        keep_checkpoint_cost(args.directory, temporary)
    shutil.rmtree(args.directory)
    print_lines(
        [
            *lines,
            ("steps", f"{args.steps:,}"),
            ("time", duration(saved.seconds if saved else time.monotonic() - begun)),
            ("reward model", str(args.out)),
            (
                "next",
                f"python -m evidence train RECIPE --set {shlex.quote(f'critic.model={args.out}')} "
                f"--set critic.kind={args.kind}",
            ),
        ]
    )
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that cannot be, and a directory that is taken."""
    for name in ("steps", "batch-size", "lr", "max-tokens", "save-every"):
        value = getattr(args, name.replace("-", "_"))
        if not 0 < value < math.inf:
            raise ConfigError(f"--{name} must be above 0, got {value}")
    for name, usual in IDLE.items():
        if args.kind == "scalar" and getattr(args, name) != usual:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect on a scalar reward model; leave it out")
    if not 0 <= args.held_out < 1:
        raise ConfigError(f"--held-out must be at least 0 and below 1, got {args.held_out}")
    if args.out.exists():
        raise ConfigError(f"{args.out} exists; choose another --out, or remove the directory")
    directory = args.out.with_name(f"{args.out.name}.training")
    begun = (directory / "run.json").exists()
    if begun and not args.resume:
        raise ConfigError(
            f"{directory} holds an interrupted training. Go on with it by --resume, remove it, or choose another --out"
        )
    if args.resume and not begun:
        raise ConfigError(f"{directory} holds no training to resume; start it without --resume")


def _note(step: int, steps: int, measured: dict[str, float]) -> None:
    from text2grad.progress import note

    note(f"held-out accuracy {measured['accuracy']:.3f} at step {step:,} of {steps:,}")


def _read(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Return the training items and the held-out items."""
    from evidence.baselines.preference_files import read_preferences
    from text2grad.feedback.records import read_annotations
    from text2grad.feedback.splits import split_by_prompt

    items: list[Any] = (
        read_preferences(args.file) if args.kind == "scalar" else read_annotations(args.file, to_encode=True)
    )
    return split_by_prompt(items, args.held_out, args.seed)


def _scalar(
    args: argparse.Namespace, settings: Any, evaluation: Any, train: list[Any], held_out: list[Any]
) -> tuple[Any, Any, list[tuple[str, str]]]:
    from evidence.baselines.scalar_from_preferences import train_scalar_from_preferences
    from text2grad.models.pretrained import load_tokenizer

    model, report = train_scalar_from_preferences(
        args.model, load_tokenizer(args.model), train, settings, held_out=held_out, evaluation=evaluation
    )
    left_out = f"{report.too_long:,} left out as too long, {report.alike:,} with two equal responses"
    lines = [("trained on", f"{report.learned_from:,} pairs; {left_out}")]
    if report.accuracy is not None:
        change = f"{_share(report.before)} → {report.accuracy:.1%}"
        lines.append(("held-out pairs", f"{change} of {report.held_out:,} in the right order"))
    return model, report, lines


def _process(
    args: argparse.Namespace, settings: Any, evaluation: Any, train: list[Any], held_out: list[Any]
) -> tuple[Any, Any, list[tuple[str, str]]]:
    from evidence.baselines.process import train_process_reward_model
    from text2grad.models.pretrained import load_tokenizer

    model, report = train_process_reward_model(
        args.model,
        load_tokenizer(args.model),
        train,
        settings,
        rule=args.rule,
        spans_are_steps=args.spans_are_steps,
        held_out=held_out,
        evaluation=evaluation,
    )
    steps = ", ".join(f"{count:,} {label}" for label, count in report.steps.items())
    left_out = f"{report.too_long:,} left out as too long, {report.without_steps:,} without a step"
    lines = [("trained on", f"{report.learned_from:,} responses with steps {steps}; {left_out}")]
    total = sum(report.held_out.values())
    if total:
        after = sum(report.right.values()) / total
        lines.append(("held-out steps", f"{_share(report.before)} → {after:.1%} of {total:,} with the right label"))
    lines += [
        (f"  {label}", f"{report.right[label]:,} of {count:,} predicted") for label, count in report.held_out.items()
    ]
    return model, report, lines


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
