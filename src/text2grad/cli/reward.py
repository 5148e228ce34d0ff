"""`text2grad reward RECIPE.toml`: train a language model to write critiques, on annotations."""

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from text2grad.cli.options import add_command, add_shared, print_lines, push_if_asked, recipe_with
from text2grad.progress import duration, note

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
decoding critiques of held-out responses; the best checkpoint is kept."""

EPILOG = """\
examples:
  text2grad reward my.toml --annotations qa.jsonl --annotations team.jsonl --set model.lora_r=16
  text2grad reward my.toml --resume                       # after any interruption; same weights, bit for bit (CPU)
  torchrun --nproc-per-node 8 -m text2grad.cli reward my.toml

docs/reward_models.md explains the files, and docs/engines.md how a model is spread over GPUs."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "train a reward model that writes critiques, on annotations"
    add = add_command(commands, "reward", run, about, DESCRIPTION, EPILOG).add_argument
    add_shared(add, "recipe", "--set", "--resume", "--push")
    add("--annotations", action="append", default=[], metavar="FILE", help="JSONL file to train on; may be repeated")
    add("--model", metavar="PATH", help="shorthand for --set reward_model.model=PATH")
    add("--out", metavar="DIR", help="shorthand for --set reward_model.out=DIR")


def run(args: argparse.Namespace) -> int:
    """Train and publish a reward model."""
    options = {
        "reward_model.annotations": args.annotations,
        "reward_model.model": args.model,
        "reward_model.out": args.out,
    }
    recipe = recipe_with(args, options)

    from text2grad.reward_models.training import RewardRun
    from text2grad.runs import check_push

    if args.push:
        check_push(args.push, (recipe.reward_model.model or recipe.model.path) if recipe.model.lora_r else "")
    reward = RewardRun(recipe, resume=args.resume)
    args.directory = reward.directory  # for the command that continues after Ctrl-C
    counts = reward.counts
    if reward.is_main:
        note(
            f"{counts['learned']:,} annotations to train on and {counts['held_out']:,} held-out ones to measure on; "
            f"left out: {counts['too_long']:,} too long, {counts['unreadable']:,} unreadable, "
            f"{counts['shared_prompts']:,} whose prompt is held out; {counts['unaligned']:,} cannot be measured"
        )

    path = reward.run()
    if not reward.is_main:
        return 0
    results = reward.results()
    before, after = results.get("before", {}), results["measured"]
    if before:
        warn_of_no_gain(before["f1"], after["f1"], recipe)
    was = {key: f"{value:.3f}" for key, value in before.items()}
    measure_it = ["text2grad", "evaluate", "critic", str(args.recipe), "--set", f"reward_model.out={reward.directory}"]
    print_lines(
        [
            *((name, f"{was.get(key, '–')} → {after[key]:.3f}") for name, key in SHOWN.items() if key in after),
            ("best step", f"{results['best_step']:,} of {results['steps']:,}"),
            ("learned", f"{counts['learned']:,} critiques of {counts['target_tokens']:,} tokens"),
            ("time", duration(results["seconds"])),
            ("reward model", str(path)),
            ("card", str(path / "README.md")),
            ("next", shlex.join(measure_it)),
        ]
    )
    push_if_asked(args, reward.directory)
    return 0


def warn_of_no_gain(before: float, after: float, recipe: "Recipe") -> None:
    """Print a warning if training did not raise held-out F1 that could rise."""
    if after <= before < 1:
        note(
            f"held-out F1 did not rise ({before:.3f} → {after:.3f}): this reward model teaches nothing. "
            f"Change reward_model.lr = {recipe.reward_model.lr:g}, train longer, or annotate more responses",
            warning=True,
        )
