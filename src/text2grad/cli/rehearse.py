"""`text2grad rehearse RECIPE`: the signal of a run before the run."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, add_set, require_named, shorthands
from text2grad.errors import ConfigError

WARNED = 1
MOST_RESPONSES = 100_000  # all are in memory at once

EPILOG = """\
examples:
  text2grad rehearse my.toml
  text2grad rehearse my.toml --responses 16 --set annotate.temperature=0 --strict

written to --out:
  rehearsal.json, rehearsal.html   figures, warnings, and coloured spans of eight responses
  answers-1.json, answers-2.json   the critic's answers; the same rehearsal again does not pay for them again

exit status:
  0   the figures are printed, with warnings if there are any
  1   with --strict: there are warnings; or out of memory
  2   a setting or a file cannot be used, or the critic failed"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "rehearse",
        run,
        "check the critic's signal on a few responses before a run",
        "Sample responses of the run's first step, ask the critic twice about each, and print the shares of labels, "
        "the agreement of the two answers, the signal-to-noise ratio of the advantages, time and cost of the whole "
        "run, and warnings with the settings to change. run.out stays untouched.",
        EPILOG,
    ).add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all of them")
    add("--model", metavar="PATH", help="shorthand for --set model.path=PATH")
    add("--critic", metavar="MODULE:NAME", help="a Python critic; shorthand for --set critic.use=...")
    add("--responses", type=int, default=64, metavar="N", help="responses to sample; default 64")
    add("--out", type=Path, metavar="DIR", help="directory of the results; default: run.out with -rehearsal")
    add("--again", action="store_true", help="ask again, also for answers that an earlier rehearsal has")
    add("--strict", action="store_true", help="end with exit status 1 if there are warnings")
    add_set(add)


def run(args: argparse.Namespace) -> int:
    """Check the recipe, rehearse, and print figures, responses and warnings."""
    from text2grad.config import load_recipe

    options = {"model.path": args.model, "critic.use": args.critic}
    recipe = load_recipe(args.recipe, [*args.overrides, *shorthands(options)])
    require_named(recipe, args.recipe)
    if not 2 <= args.responses <= MOST_RESPONSES:
        raise ConfigError(f"--responses must be at least 2 and at most {MOST_RESPONSES}, got {args.responses}")

    from text2grad.runs import SHOWN, rehearse, summary
    from text2grad.runs.reports import plain, print_critique, print_figures

    out = args.out or Path(f"{recipe.run.out}-rehearsal")
    found, console = rehearse(recipe, out, responses=args.responses, ask_again=args.again), Console()
    for rollout, critique in list(zip(found.rollouts, found.critiques, strict=True))[:SHOWN]:
        console.print(plain(rollout.example.prompt_text, style="dim"))
        print_critique(console, rollout.response, critique)
    print_figures(console, summary(found.figures), title="Rehearsal")
    for warning in found.warnings:
        console.print(plain(f"warning: {warning}", style="yellow"), soft_wrap=True)
    console.print(f"page   {out / 'rehearsal.html'}\nfigures   {out / 'rehearsal.json'}", markup=False)
    return WARNED if found.warnings and args.strict else 0
