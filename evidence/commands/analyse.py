"""`python -m evidence analyse RUN [RUN ...]`: the noise in advantages, what the updates did, and a case."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, at_least, finite
from text2grad.errors import ConfigError

DESCRIPTION = """\
Tell from the rollouts of a run, finished or not, whether words help on its task: variance, signal-to-noise ratio and
autocorrelation of the advantages of tokens, for spans and for one number per response on the same rollouts, beside the
prediction of a formula. Where analysis.track_update logged updates: the share of tokens whose log-prob moved in the
direction of their advantage, and what moved the others. The page also shows a case: a response, its critique, spans and
numbers, and later responses to the same prompt. No model is loaded."""

EPILOG = """\
examples:
  python -m evidence analyse runs/one
  python -m evidence analyse runs/spans runs/summed --case 3          # both on the same prompt
  python -m evidence analyse runs/posts-* --gamma 0.5 --lam 0.95 --out runs/by-length

written to --out: analysis.json (all numbers), analysis.html. evidence/docs/analyse.md explains them."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "spans against one number: noise in advantages, effects of updates, a case"
    add = add_command(commands, "analyse", run, about, DESCRIPTION, EPILOG).add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="directory that `text2grad train` wrote")
    add("--out", type=Path, default=Path("runs/analysis"), metavar="DIR", help="(default: %(default)s)")
    add("--case", type=at_least(0), metavar="N", help="show the N-th response with a fault (default: the first, 0)")
    add("--gamma", type=finite(0.0), metavar="γ", help="discount of the spans (default: the run's ppo.gamma)")
    add("--lam", type=finite(0.0), metavar="λ", help="λ of the spans (default: the run's ppo.lam)")


def run(args: argparse.Namespace) -> int:
    """Read the runs, write the files, and print the tables.

    Raises:
        Text2GradError: if a run cannot be read, or there is no such case.
    """
    for name in ("gamma", "lam"):
        if (value := getattr(args, name)) is not None and value > 1:
            raise ConfigError(f"--{name} must be between 0 and 1, got {value:g}")

    from evidence.analysis.report import analyse_runs, print_analysis, write_analysis
    from text2grad.runs.reports import plain

    runs, results = analyse_runs(args.runs, gamma=args.gamma, lam=args.lam)
    written, console = write_analysis(runs, results, args.out, case=args.case), Console()
    print_analysis(console, results)
    for name, path in written.items():
        console.print(plain(f"{name:<9}{path}"), soft_wrap=True)
    return 0
