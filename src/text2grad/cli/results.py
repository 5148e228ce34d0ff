"""`text2grad results`: pages and figures of the evidence, from committed JSON."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, print_end

DESCRIPTION = """\
Write the pages of results from records of finished runs (JSON lines in --runs): comparison.md (all methods of each
task, differences with intervals, costs, tuning) and length.md (values against length, gain against KL), with their
pictures. They state which runs are missing; no run is needed for the command to work.

Also make the figures in README.md and in the other pages of --out again, between `<!-- results: NAME -->` and
`<!-- end -->`, from the JSON files in --out. No model is loaded."""

PLAN = Path("recipes/results.toml")

EPILOG = """\
examples:
  text2grad results
  text2grad results --runs docs/results/runs --out docs/results --readme README.md

docs/results/README.md explains how the records are made."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "write the pages of results from committed JSON"
    add = add_command(commands, "results", run, about, DESCRIPTION, EPILOG).add_argument
    add("--runs", type=Path, metavar="DIR", help="records of runs, *.jsonl (default: runs in --out)")
    add("--out", type=Path, default=Path("docs/results"), metavar="DIR", help="pages and JSON (default: %(default)s)")
    more = "a further page with blocks, if it exists (default: %(default)s)"
    add("--readme", type=Path, default=Path("README.md"), metavar="FILE", help=more)
    planned = "plan of studies, whose missing runs are named (default: recipes/results.toml, if it exists)"
    add("--plan", type=Path, metavar="FILE", help=planned)


def run(args: argparse.Namespace) -> int:
    """Write the pages.

    Raises:
        Text2GradError: if a record, a JSON file or a block is damaged.
    """
    from text2grad.experiments import write_results
    from text2grad.progress import CONSOLE

    plan = args.plan or (PLAN if PLAN.exists() else None)
    written = write_results(args.runs or args.out / "runs", args.out, args.readme, plan)
    print_end(CONSOLE, ", ".join(map(str, written)), note="" if written else "nothing: all pages are up to date")
    return 0
