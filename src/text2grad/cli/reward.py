"""`text2grad reward RECIPE.toml`: train a language model to write critiques, on annotations."""

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, add_set, shorthands
from text2grad.experiments.reports import plain

DESCRIPTION = """\
Train a causal language model, in full or with LoRA, to write a critique of a response with quotes: phase 2 of
Text2Grad, on annotations that `text2grad import` or `text2grad annotate` wrote. The model is measured by decoding
critiques of held-out responses; the best checkpoint is kept, and training can stop early."""

EPILOG = """\
examples:
  text2grad reward recipes/reward-mqm.toml --annotations mqm.jsonl
  text2grad reward my.toml --annotations qa.jsonl --annotations mqm.jsonl --model meta-llama/Llama-3.1-8B-Instruct \\
      --set model.lora_r=16 --merge
  text2grad reward my.toml --resume                       # after any interruption; same weights, bit for bit (CPU)
  torchrun --nproc-per-node 8 -m text2grad.cli reward my.toml
  accelerate launch --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT -m text2grad.cli reward my.toml

docs/reward.md explains the files that the command writes."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "train a generative reward model on annotations"
    add = add_command(commands, "reward", run, about, DESCRIPTION, EPILOG).add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all settings")
    add("--annotations", action="append", default=[], metavar="FILE", help="JSONL file to train on; may be repeated")
    add("--held-out", metavar="FILE", help="shorthand for --set reward_model.held_out_file=FILE")
    add("--model", metavar="PATH", help="shorthand for --set model.path=PATH")
    add("--out", metavar="DIR", help="shorthand for --set run.out=DIR")
    add_set(add)
    add("--merge", action="store_true", help="shorthand for --set reward_model.merge=true")
    add("--resume", action="store_true", help="continue the run in run.out from its last checkpoint")
    add("--push-to-hub", metavar="OWNER/NAME", help="upload the reward model, merged if --merge is set")
    add("--private", action="store_true", help="make a new repository private")


def run(args: argparse.Namespace) -> int:
    """Train and publish a reward model, and upload it with --push-to-hub.

    Raises:
        Text2GradError: if recipe, annotations or model cannot be used, or the hub refuses.
    """
    from text2grad.config import load_recipe

    options = {
        "reward_model.annotations": args.annotations,
        "reward_model.held_out_file": args.held_out,
        "model.path": args.model,
        "run.out": args.out,
        "reward_model.merge": args.merge,
    }
    recipe = load_recipe(args.recipe, [*args.overrides, *shorthands(options)])

    from text2grad.reward_models.training import RewardRun

    reward = RewardRun(recipe, resume=args.resume)
    console = Console(quiet=int(os.environ.get("RANK", "0")) != 0)
    for name, count in reward.counts.items():
        console.print(plain(f"{name.replace('_', ' '):16}{count:,}"))

    def on_measured(step: int, steps: int, measured: dict[str, float]) -> None:
        shown = "   ".join(f"{name} {value:.3f}" for name, value in measured.items() if not name.startswith("gap"))
        console.print(plain(f"step {step:,} of {steps:,}   {shown}"), soft_wrap=True)

    path = reward.run(on_measured)
    console.print(plain(f"reward model   {path}\ncard           {path / 'README.md'}"), soft_wrap=True)
    if args.push_to_hub and reward.is_main:
        address = reward.push(args.push_to_hub, private=args.private)
        console.print(plain(f"pushed         {address}"), soft_wrap=True)
    return 0
