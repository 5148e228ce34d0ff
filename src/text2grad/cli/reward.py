"""`text2grad reward RECIPE.toml`: train a language model to write critiques, or a probe, on annotations."""

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.cli.options import add_command, add_shared, print_lines, recipe_with
from text2grad.errors import ConfigError

if TYPE_CHECKING:
    from text2grad.config import Recipe

SHOWN = {
    "held-out F1": "f1",
    "F1 positive": "f1/positive",
    "F1 negative": "f1/negative",
    "unreadable": "failure_rate",
    "quotes not found": "unmatched_rate",
}

DESCRIPTION = """\
Train a causal language model, in full or with LoRA, to write a critique of a response with quotes: phase 2 of
Text2Grad, on annotations that `text2grad feedback import` or `text2grad annotate` wrote. The model is measured by
decoding critiques of held-out responses; the best checkpoint is kept.

With --kind probe: train a linear reading of the model's hidden states that labels words, sentences or lines, for a few
hundred annotations; the model itself is not trained."""

EPILOG = """\
examples:
  text2grad reward my.toml --annotations qa.jsonl --annotations team.jsonl --set model.lora_r=16
  text2grad reward my.toml --kind probe --unit words --model models/policy --out runs/probe
  text2grad reward my.toml --resume                       # after any interruption; same weights, bit for bit (CPU)
  torchrun --nproc-per-node 8 -m text2grad.cli reward my.toml

docs/reward_models.md explains the files, and docs/engines.md how a model is spread over GPUs."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "train a reward model that writes critiques, or a probe, on annotations"
    add = add_command(commands, "reward", run, about, DESCRIPTION, EPILOG).add_argument
    add_shared(add, "recipe", "--set", "--resume")
    add("--annotations", action="append", default=[], metavar="FILE", help="JSONL file to train on; may be repeated")
    add("--model", metavar="PATH", help="shorthand for --set reward_model.model=PATH")
    add("--out", metavar="DIR", help="shorthand for --set reward_model.out=DIR")
    add("--kind", choices=("generative", "probe"), default="generative", help="(default: generative)")
    add("--unit", choices=("words", "sentences", "lines"), help="for a probe: what it labels (default: sentences)")
    add("--push", metavar="OWNER/NAME", help="upload the reward model to the hub, where a new repository is private")


def run(args: argparse.Namespace) -> int:
    """Train and publish a reward model, and upload it with --push.

    Raises:
        Text2GradError: if recipe, annotations or model cannot be used, or the hub refuses.
    """
    options = {
        "reward_model.annotations": args.annotations,
        "reward_model.model": args.model,
        "reward_model.out": args.out,
    }
    recipe = recipe_with(args, options)
    if args.kind == "probe":
        return _probe(args, recipe)
    if args.unit:
        raise ConfigError(f"--unit {args.unit} is of a probe; add --kind probe, or leave it out")

    from text2grad.progress import duration, note
    from text2grad.reward_models.training import RewardRun

    reward = RewardRun(recipe, resume=args.resume)
    args.directory = reward.directory  # for the command that continues after Ctrl-C
    counts = reward.counts
    if reward.is_main:
        note(
            f"{counts['learned']:,} annotations to train on and {counts['held_out']:,} held-out ones to measure on; "
            f"left out: {counts['too_long']:,} too long, {counts['unreadable']:,} unreadable, "
            f"{counts['shared_prompts']:,} whose prompt is held out; {counts['unaligned']:,} cannot be measured"
        )

    def on_measured(step: int, steps: int, measured: dict[str, float]) -> None:
        shown = "   ".join(f"{name} {value:.3f}" for name, value in measured.items() if not name.startswith("gap"))
        note(f"held out, step {step:,} of {steps:,}   {shown}")

    path = reward.run(on_measured)
    if not reward.is_main:
        return 0
    results = reward.results()
    before, after = results.get("before", {}), results["measured"]
    if before and after["f1"] <= before["f1"]:
        note(
            f"held-out F1 did not rise ({before['f1']:.3f} → {after['f1']:.3f}): this reward model teaches nothing. "
            f"Change reward_model.lr = {recipe.reward_model.lr:g}, train longer, or annotate more responses",
            warning=True,
        )
    print_lines(
        [
            *((name, f"{change(before, after, key)}") for name, key in SHOWN.items() if key in after),
            ("best step", f"{results['best_step']:,} of {results['steps']:,}"),
            ("learned", f"{counts['learned']:,} critiques of {counts['target_tokens']:,} tokens"),
            ("time", duration(results["seconds"])),
            ("reward model", str(path)),
            ("card", str(path / "README.md")),
            ("next", next_command(args, recipe, reward.directory)),
        ]
    )
    if args.push:
        print_lines([("pushed", reward.push(args.push, private=True))])
    return 0


def _probe(args: argparse.Namespace, recipe: "Recipe") -> int:
    """Train and publish a probe, and print its counts and measurements."""
    if args.push:
        raise ConfigError("--push uploads a generative reward model; leave it out with --kind probe")

    from text2grad.reward_models.training import reward_directory, train_probe_of

    unit: Any = args.unit or "sentences"
    args.directory = reward_directory(recipe)
    path, report = train_probe_of(recipe, unit=unit, resume=args.resume)
    units = ", ".join(f"{count:,} {label}" for label, count in report.units.items())
    left_out = (
        f"{report.too_long:,} left out as too long, {report.without_units:,} without {unit}, with a failed critique, "
        "or with tokens that decode to another text"
    )
    shares = f"{report.loss_of_shares:.3f} by the shares of the labels alone"
    lines = [
        ("trained on", f"{report.learned_from:,} responses with {unit} {units}; {left_out}"),
        ("reads", f"layer {report.layer}, chosen with the penalty {report.penalty:g} by cross-validation"),
        ("loss", f"{report.loss:.3f} nats per word in cross-validation, {shares}"),
        ("threshold", f"{report.vote_threshold:g}, the best F1 in cross-validation"),
        *(
            (f"held-out {label}", f"{report.right.get(label, 0):,} of {count:,} {unit} marked so")
            for label, count in report.held_out.items()
        ),
        ("reward model", str(path)),
        ("next", f"text2grad train RECIPE --set {shlex.quote(f'critic.model={path}')} --set critic.kind=probe"),
    ]
    if report.loss >= report.loss_of_shares:
        lines.append(("note", "it has learned nothing beyond the shares of the labels; more annotations may help"))
    print_lines(lines)
    return 0


def change(before: Mapping[str, float], after: Mapping[str, float], key: str) -> str:
    """Return a measurement before and after; "–" where it is not known before."""
    return f"{before[key]:.3f} → {after[key]:.3f}" if key in before else f"– → {after[key]:.3f}"


def next_command(args: argparse.Namespace, recipe: "Recipe", directory: Path) -> str:
    """Return the command that measures the new reward model on its held-out annotations."""
    by_option = args.out or any(pair.startswith("reward_model.out=") for pair in args.overrides)  # not in the file
    where = ["--set", f"reward_model.out={directory}"] if by_option or not recipe.reward_model.out else []
    return shlex.join(["text2grad", "evaluate", "critic", str(args.recipe), *where])
