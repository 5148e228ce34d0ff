"""`text2grad sft RECIPE.toml`: fine-tune a policy on demonstrations."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, print_lines, recipe_with
from text2grad.config import Recipe
from text2grad.progress import duration, note

DESCRIPTION = """\
Fine-tune a causal language model, in full or with LoRA, on demonstrations: the policy that `annotate` and `train` start
from. Demonstrations are JSON lines, {"prompt": "...", "reference": "..."} or {"messages": [...]}; the loss covers the
answers and their ends only. Prompts have the form that rollouts have. The loss on held-out prompts is measured before,
during and after; the best checkpoint is kept."""

EPILOG = """\
examples:
  text2grad sft recipes/own-data.toml --model HuggingFaceTB/SmolLM2-135M-Instruct --data chats.jsonl
  text2grad sft my.toml --resume                       # after any interruption; same weights, bit for bit (CPU)
  torchrun --nproc-per-node 8 -m text2grad.cli sft my.toml

docs/training.md explains the files."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "fine-tune a policy on demonstrations"
    add = add_command(commands, "sft", run, about, DESCRIPTION, EPILOG).add_argument
    add_shared(add, "recipe", "--set", "--resume")
    add("--data", action="append", default=[], metavar="FILE", help="JSONL file to train on; may be repeated")
    add("--model", metavar="PATH", help="shorthand for --set sft.model=PATH")
    add("--out", metavar="DIR", help="shorthand for --set sft.out=DIR")


def run(args: argparse.Namespace) -> int:
    """Train and publish a policy."""
    recipe = recipe_with(args, {"sft.data": args.data, "sft.model": args.model, "sft.out": args.out})

    from text2grad.runs import SFTRun

    sft = SFTRun(recipe, resume=args.resume)
    args.directory = sft.directory  # for the command that continues after Ctrl-C
    counts = sft.counts
    if sft.is_main:
        note(
            f"{counts['learned']:,} demonstrations to train on and {counts['held_out']:,} held-out ones to measure on; "
            f"{counts['too_long'] + counts['held_out_too_long']:,} left out as too long, "
            f"{counts['shared_prompts']:,} because their prompt is held out"
        )

    path = sft.run()
    if not sft.is_main:
        return 0
    results = sft.results()
    before, after = results["before"], results["measured"]
    if after["loss"] >= before["loss"]:
        note(
            f"the held-out loss did not fall ({before['loss']:.4f} → {after['loss']:.4f}): change sft.lr = "
            f"{recipe.sft.lr:g}, or train longer",
            warning=True,
        )
    figures = [
        ("held-out loss", f"{before['loss']:.4f} → {after['loss']:.4f} nats per token"),
        ("perplexity", f"{before['perplexity']:.4g} → {after['perplexity']:.4g}"),
        ("best step", f"{results['best_step']:,} of {results['steps']:,}"),
        ("passes", f"{results['epochs']:.2f} over {counts['learned']:,} demonstrations"),
        ("tokens of a pass", f"{counts['tokens']:,}, of which {counts['target_tokens']:,} are learned"),
        ("time", duration(results["seconds"])),
        ("model", str(path)),
        ("next", next_command(args.recipe, recipe, path)),
    ]
    print_lines(figures)
    return 0


def next_command(file: Path, recipe: Recipe, policy: Path) -> str:
    """Return the command that uses the new policy: `annotate` where the recipe names an annotator, else `train`."""
    command = f"text2grad {'annotate' if recipe.annotate.model else 'train'} {shlex.quote(str(file))}"
    named = recipe.model.path and Path(recipe.model.path).resolve() == policy.resolve()
    return command if named else f"{command} --set {shlex.quote(f'model.path={policy}')}"
