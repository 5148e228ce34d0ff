"""`python -m evidence rival METHOD RECIPE.toml`: train a policy with a method that is no policy gradient."""

import argparse
from typing import Any

from text2grad.cli.options import add_command, add_shared
from text2grad.cli.train import finish, recipe_of

METHODS = {
    "dpo": "DPO on the best and the worst response to each prompt",
    "ilf": "fine-tuning on the best responses after a refinement with their critiques",
    "reflection": "no training: the policy answers held-out prompts again, with critiques",
    "sdpo": "self-distillation: the policy with the critique in its prompt teaches the policy without",
    "sft_best": "fine-tuning on the best responses",
}

DESCRIPTION = """\
Train a policy on the same critiques as `text2grad train`, with another method. Prompts, critic, number of rollouts, log
and evaluations are those of `train`, so that `compare` and `generate` read the run.

methods:
"""

EPILOG = """\
examples:
  python -m evidence rival dpo my.toml --set rollout.group_size=4 --out runs/dpo
  python -m evidence rival sft_best my.toml --set rival.rounds=1 --out runs/offline
  python -m evidence rival ilf my.toml --set rival.refiner=policy --out runs/ilf
  python -m evidence rival dpo my.toml --set rollout.group_size=4 --out runs/dpo --resume

evidence/docs/rivals.md explains the methods and their settings."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    listed = "\n".join(f"  {name:<12}{about}" for name, about in METHODS.items())
    about = "train a policy with a method that is no policy gradient"
    add = add_command(commands, "rival", run, about, DESCRIPTION + listed, EPILOG).add_argument
    add("method", choices=tuple(METHODS), metavar="METHOD", help=", ".join(METHODS))
    add_shared(add, "recipe", "--set", "--resume")
    add("--model", metavar="PATH", help="shorthand for --set model.path=PATH")
    add("--critic", metavar="MODULE:NAME", help="a Python critic; shorthand for --set critic.use=...")
    add("--out", metavar="DIR", help="shorthand for --set run.out=DIR")


def run(args: argparse.Namespace) -> int:
    """Load the recipe, refuse settings that do not fit the method, then train and write the report."""
    recipe = recipe_of(args, **{"rival.method": args.method})

    from evidence.rivals.runner import run_rival

    return finish(recipe, run_rival(recipe, resume=args.resume), title=args.method)
