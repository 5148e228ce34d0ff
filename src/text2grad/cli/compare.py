"""`text2grad compare RUN RUN...`: runs side by side, in one table, one picture and one page."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, at_least, print_lines
from text2grad.progress import CONSOLE

DESCRIPTION = """\
Compare runs of `text2grad train`: curves of the held-out metric, the reward and the KL over the steps;
the difference on the same held-out prompts, with an interval; the settings that differ; responses side by side.

Runs that differ in the seed only are one method, shown as mean and interval over seeds. The first method is the
baseline. Runs may be unfinished, or of different length."""

EPILOG = """\
examples:
  text2grad compare runs/spans runs/summed
  text2grad compare runs/lr-1e-5-seed-* runs/lr-3e-5-seed-* --step 100 --out runs/learning-rates
  text2grad compare runs/quickstart/summarization/seed-*/{text2grad,scalar_ppo}

written to --out: compare.json (all numbers), compare.png, compare.html. docs/evaluation.md explains them."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "compare runs: curves, paired differences, settings, samples"
    add = add_command(commands, "compare", run, about, DESCRIPTION, EPILOG).add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="directory that `text2grad train` wrote")
    add("--out", type=Path, default=Path("runs/comparison"), metavar="DIR", help="(default: %(default)s)")
    add("--step", type=at_least(0), metavar="N", help="compare at step N (default: the last evaluation of each run)")


def run(args: argparse.Namespace) -> int:
    """Read the runs, print the tables, and write the files."""
    from text2grad.runs import compare_runs, print_compared, write_compared  # NumPy

    methods = compare_runs(args.runs, step=args.step)
    print_compared(CONSOLE, write_compared(methods, args.out, step=args.step))
    files = {"numbers": "compare.json", "curves": "compare.png", "page": "compare.html"}
    print_lines((name, args.out / file) for name, file in files.items())
    return 0
