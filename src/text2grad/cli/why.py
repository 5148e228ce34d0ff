"""`text2grad why RUN PHRASE`: which critiques moved the probability of a phrase."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, at_least, say
from text2grad.progress import CONSOLE

DESCRIPTION = """\
Say which critiques of a run moved the log-probability of a phrase, and by how much: the run is made again on its own
responses, and the change is divided among the critiques by the gradients of their responses, to first order and with
the optimizer's momentum. The critic is not asked. Prints the part of the measured change that the shares explain.

The phrase is looked at wherever the run's responses have it, after the words before it; if none has it, as the
beginning of the answer to --prompt."""

EPILOG = """\
examples:
  text2grad why runs/mine "on Friday"
  text2grad why runs/mine "Certainly" --prompt "How do I undo a commit?"

A critique's name, STEP:ROW, is what `text2grad without RUN --critique STEP:ROW` takes."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "which critiques moved the probability of a phrase"
    add = add_command(commands, "why", run, about, DESCRIPTION, EPILOG).add_argument
    add("directory", type=Path, metavar="RUN", help="directory that `text2grad train` wrote")
    add("phrase", metavar="PHRASE", help="words of an answer")
    add("--prompt", metavar="TEXT", help="only answers to this prompt")
    add("--most", type=at_least(1), default=10, metavar="N", help="critiques to show; default %(default)s")


def run(args: argparse.Namespace) -> int:
    """Make the run again, and print the shares."""
    from text2grad.runs import explain
    from text2grad.runs.reports import Table, print_tables

    explained = explain(args.directory, args.phrase, args.prompt)
    rows = [
        [f"{own['step']}:{own['row']}", f"{own['nats']:+.4f}", ", ".join(own["raters"]), own["words"]]
        for own in explained.largest(args.most)
    ]
    change = explained.after - explained.before
    places = "1 place" if explained.places == 1 else f"{explained.places} places"
    print_tables(CONSOLE, [Table("Shares of critiques, in nats", ["critique", "nats", "raters", "words"], rows)])
    say(
        f"log p of the phrase, {places}: {explained.before:.3f} → {explained.after:.3f} ({change:+.4f} nats); all "
        f"{len(explained.shares)} critiques together explain {explained.explained:.0%}"
    )
    return 0
