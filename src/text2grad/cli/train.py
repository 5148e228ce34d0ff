"""`text2grad train RECIPE.toml`: train a policy with the critiques of a critic."""

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, add_set, shorthands
from text2grad.errors import ConfigError
from text2grad.progress import note

NOTHING_LABELLED = 1
"""Exit status if every step has finished, but the critic labelled nothing in any of them."""

NOTHING_SAID = (
    "the critic labelled no token in any step: the policy learned nothing from it. Look at its critiques in "
    "report.html, and at critic/unmatched_rate in metrics.jsonl"
)


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "train",
        run,
        "train a policy as a recipe says",
        "Train a policy with critiques: rollouts, critiques with spans, δ per token, clipped PPO. Writes "
        "metrics.jsonl, every rollout with its critique and per-token values, checkpoints that resume exactly, and at "
        "the end results.json, curves.png and report.html.",
        "examples:\n"
        "  text2grad train recipes/stories.toml --model path/to/stories260k\n"
        "  text2grad train my.toml --critic my_module:critic --set ppo.beta=0.1 --set run.steps=20\n"
        "  text2grad train my.toml --resume\n"
        "  torchrun --nproc-per-node 8 -m text2grad.cli train my.toml\n\n"
        "exit status:\n"
        "  0         the run is finished\n"
        "  2         an error, with an explanation\n"
        "  1         the run is finished, but the critic labelled nothing in any step\n"
        "  130, 143  stopped by Ctrl-C or SIGTERM; the finished steps are saved",
    ).add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all of them")
    add("--model", metavar="PATH", help="shorthand for --set model.path=PATH")
    add("--critic", metavar="MODULE:NAME", help="a Python critic; shorthand for --set critic.use=...")
    add("--out", metavar="DIR", help="shorthand for --set run.out=DIR")
    add_set(add)
    add("--resume", action="store_true", help="continue the run in run.out from its last checkpoint")


def run(args: argparse.Namespace) -> int:
    """Load the recipe, refuse missing settings, then train and write the report."""
    from text2grad.config import load_recipe

    options = {"model.path": args.model, "critic.use": args.critic, "run.out": args.out}
    recipe = load_recipe(args.recipe, [*args.overrides, *shorthands(options)])
    if not recipe.model.path:
        raise ConfigError(f"{args.recipe}: [model] path is not set; set it, or give --model PATH")
    if not recipe.data.task and not recipe.data.train:
        raise ConfigError(f"{args.recipe}: [data] names neither a task nor a train file; set one of them")
    if not recipe.data.task and not recipe.critic.use and not recipe.critic.model:
        raise ConfigError(f"{args.recipe}: there is no critic; set [critic] use or model, or give --critic MODULE:NAME")

    from text2grad.experiments import main_metric, run_recipe
    from text2grad.experiments.reports import print_table, read_run, write_report
    from text2grad.rl import RunLog, said_nothing

    policy = run_recipe(recipe, resume=args.resume)
    if int(os.environ.get("RANK", "0")) == 0:
        out, console = Path(recipe.run.out), Console()
        results = write_report([read_run(out)], out, metric=main_metric(recipe), title=f"Text2Grad: {out.name}")
        print_table(console, results, "Held-out examples before and after")
        console.print(f"policy   {policy}\nreport   {out / 'report.html'}\ncurves   {out / 'curves.png'}", markup=False)
        if said_nothing(RunLog(out).metrics()):
            note(NOTHING_SAID, warning=True)
            return NOTHING_LABELLED
    return 0
