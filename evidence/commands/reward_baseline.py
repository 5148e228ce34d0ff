"""`python -m evidence reward-baseline`: train a scalar or a process reward model, or a probe."""

import argparse
import hashlib
import json
import math
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from evidence.pages.costs import keep_checkpoint_cost
from text2grad.cli.options import add_command, at_least, finite, print_lines
from text2grad.errors import CheckpointError, ConfigError, DataError, ModelError

DECISIVE = ("kind", "model", "steps", "batch_size", "lr", "max_tokens", "held_out", "seed", "rule", "spans_are_steps")
"""Options that decide the weights; a resumed training must have the same."""

USUAL = {"steps": 1_000, "batch_size": 32, "lr": 1e-5, "save_every": 100, "rule": None, "spans_are_steps": False}
"""Defaults of options that are without effect on some kinds."""

IDLE = {
    "scalar": ("rule", "spans_are_steps"),
    "process": (),
    "probe": ("steps", "batch_size", "lr", "save_every", "spans_are_steps"),
}
"""Kind → options without effect."""

RULES = {"process": ("lines", "sentences"), "probe": ("sentences", "words", "lines")}
"""Kind → units; the first is the default."""

DESCRIPTION = """\
Train a reward model that writes no critiques, as a baseline or as a critic.

  scalar    one number per response, trained on preferences: {"prompt", "chosen", "rejected"} on each line. Measured:
            the share of held-out pairs whose chosen response gets the higher number.
  process   a label per step of a response (positive, negative or neutral), trained on annotations from
            `text2grad feedback import` or `text2grad annotate`. Measured: the share of held-out steps with the right
            label.
  probe     a reading of the hidden states of the model, which is not trained itself: it labels sentences, words or
            lines, and learns from a few hundred annotations. Measured: as for process.

Whole prompts are held out. Responses that are too long are left out and counted, never cut. Until it is finished, the
training keeps its checkpoints in DIR.training, from which --resume continues; a probe has none and begins again."""

EPILOG = """\
examples:
  python -m evidence reward-baseline scalar pairs.jsonl --model models/policy --out runs/scalar
  python -m evidence reward-baseline process annotations.jsonl --model models/policy --out runs/process --rule sentences
  python -m evidence reward-baseline probe annotations.jsonl --model models/policy --out runs/probe --rule words
  python -m evidence reward-baseline scalar pairs.jsonl --model models/policy --out runs/scalar --resume
  python -m evidence train my.toml --set critic.model=runs/scalar --set critic.kind=scalar

written to --out: a Hugging Face directory, or a probe with the name of its base; and
report.json (counts and held-out measurements)"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "train a scalar or a process reward model, or a probe"
    add = add_command(commands, "reward-baseline", run, about, DESCRIPTION, EPILOG).add_argument
    add("kind", choices=tuple(IDLE), help="the kind of reward model")
    add("file", type=Path, metavar="FILE", help="JSONL file of preferences (scalar) or annotations")
    add("--model", required=True, metavar="PATH", help="language model whose trunk is the start, or that a probe reads")
    add("--out", type=Path, required=True, metavar="DIR", help="output directory; must not exist")
    add("--steps", type=int, default=USUAL["steps"], help="optimizer steps (default: %(default)s)")
    add(
        "--batch-size", type=int, default=USUAL["batch_size"], help="pairs or responses per step (default: %(default)s)"
    )
    add("--lr", type=finite(), default=USUAL["lr"], help="peak learning rate (default: %(default)s)")
    add("--max-tokens", type=at_least(1), default=1_024, help="longest prompt with its response (default: %(default)s)")
    add("--held-out", type=finite(), default=0.1, metavar="SHARE", help="share of the prompts (default: %(default)s)")
    add("--seed", type=at_least(0), default=0)
    every = "steps between checkpoints (default: %(default)s)"
    add("--save-every", type=at_least(1), default=USUAL["save_every"], metavar="N", help=every)
    add("--resume", action="store_true", help="continue an interrupted training from its last checkpoint")
    unit = "unit of a label: process: lines (default) or sentences; probe: sentences (default), words or lines"
    add("--rule", choices=("lines", "sentences", "words"), help=unit)
    add("--spans-are-steps", action="store_true", help="process: train on the annotated spans as the steps")


def run(args: argparse.Namespace) -> int:
    """Train a reward model, write it, and print its counts and measurements.

    Raises:
        Text2GradError: if the file or the model cannot be used; nothing is written then.
    """
    _check(args)
    args.rule = args.rule or RULES.get(args.kind, (None,))[0]

    from text2grad.files import lock_directory, published, to_json, write_atomically
    from text2grad.models.fine_tuning import FineTuning
    from text2grad.models.measured_training import Evaluation, last_saved
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
    _check_same(args.directory / "run.json", {**started, "data": digest})
    evaluation = Evaluation(
        args.directory,
        f"{args.kind} reward model",
        None,
        metric="accuracy",
        greater_is_better=True,
        every=args.save_every,
    )
    try:
        train = {"scalar": _scalar, "process": _process, "probe": _probe}[args.kind]
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


def _check_same(path: Path, started: dict[str, Any]) -> None:
    """Write what decides the weights, or refuse to go on with other settings or data than the training has."""
    from text2grad.files import to_json, write_atomically

    if path.exists() and (before := json.loads(path.read_bytes())) != started:
        changes = [f"{key}: {before.get(key)} → {value}" for key, value in started.items() if before.get(key) != value]
        raise CheckpointError(
            f"{path.parent} holds a run on other settings or data ({', '.join(changes)}). Resume it with those that it "
            "was started with, or choose another directory with --out DIR."
        )
    write_atomically(path, to_json(started))


def _check(args: argparse.Namespace) -> None:
    """Refuse options that cannot be, and a directory that is taken."""
    for name in ("steps", "batch-size", "lr", "max-tokens", "save-every"):
        value = getattr(args, name.replace("-", "_"))
        if not 0 < value < math.inf:
            raise ConfigError(f"--{name} must be above 0, got {value}")
    for name in IDLE[args.kind]:
        if getattr(args, name) != USUAL[name]:
            what = "a probe" if args.kind == "probe" else f"a {args.kind} reward model"
            raise ConfigError(f"--{name.replace('_', '-')} has no effect on {what}; leave it out")
    if args.rule and args.rule not in RULES[args.kind]:
        raise ConfigError(f"--rule {args.rule} is not a unit of {args.kind}: {', '.join(RULES[args.kind])}")
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


def _probe(
    args: argparse.Namespace, settings: Any, evaluation: Any, train: list[Any], held_out: list[Any]
) -> tuple[Any, Any, list[tuple[str, str]]]:
    from evidence.baselines.probe_training import train_probe
    from text2grad.costs import metered
    from text2grad.models.pretrained import load_tokenizer

    with metered(evaluation.directory, "reward") as meter:
        model, report = train_probe(
            args.model,
            load_tokenizer(args.model),
            train,
            unit=args.rule,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            held_out=held_out,
        )
        meter.add(report.tokens, 0)
    units = ", ".join(f"{count:,} {label}" for label, count in report.units.items())
    left_out = (
        f"{report.too_long:,} left out as too long, {report.without_units:,} without {args.rule}, with a failed "
        "critique, or with tokens that decode to another text"
    )
    shares = f"{report.loss_of_shares:.3f} by the shares of the labels alone"
    lines = [
        ("trained on", f"{report.learned_from:,} responses with {args.rule} {units}; {left_out}"),
        ("reads", f"layer {report.layer}, chosen with the penalty {report.penalty:g} by cross-validation"),
        ("loss", f"{report.loss:.3f} nats per word in cross-validation, {shares}"),
        ("threshold", f"{report.vote_threshold:g}, the best F1 in cross-validation"),
        *(
            (f"held-out {label}", f"{report.right.get(label, 0):,} of {count:,} {args.rule} marked so")
            for label, count in report.held_out.items()
        ),
    ]
    if report.loss >= report.loss_of_shares:
        lines.append(("note", "it has learned nothing beyond the shares of the labels; more annotations may help"))
    return model, report, lines


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
