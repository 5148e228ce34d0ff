"""`text2grad without RUN`: the run again, exactly, without a rater, a critique or a kind of remark."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command
from text2grad.errors import ConfigError

DESCRIPTION = """\
Make a run of `text2grad train` again without some of its feedback: same prompts, same random numbers, from the last
checkpoint before the first use of what is left out. Responses are sampled anew where the policy differs, and the critic
is asked where their text is new. The result is, bit for bit, that of a run that never had the feedback.

Then both runs are compared: held-out figures, settings, samples, and how far the weights are apart. An interrupted
command goes on when it is given again."""

EPILOG = """\
examples:
  text2grad without runs/mine --rater ann
  text2grad without runs/mine --critique 12:3 --same-responses
  text2grad without runs/mine --category style --out runs/mine-without-style

A critique is named STEP:ROW, its step and the row of its response in this step, both from 0, as in rollouts/."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "make a run again, exactly, without a rater, a critique or a category"
    add = add_command(commands, "without", run, about, DESCRIPTION, EPILOG).add_argument
    add("directory", type=Path, metavar="RUN", help="directory that `text2grad train` wrote")
    for name, metavar in (("rater", "NAME"), ("category", "NAME"), ("critique", "STEP:ROW")):
        add(f"--{name}", action="append", default=[], metavar=metavar, help="what to leave out; may be repeated")
    add(
        "--same-responses",
        action="store_true",
        help="learn from the run's own responses, for which the critic is not asked",
    )
    add("--out", type=Path, metavar="DIR", help="the new run; default: RUN-without")


def run(args: argparse.Namespace) -> int:
    """Make the run again, and compare."""
    if not (args.rater or args.category or args.critique):
        raise ConfigError("nothing is left out; name it with --rater, --category or --critique")

    from text2grad.runs import LeftOut, compare_without

    parent, out = args.directory, args.out or args.directory.with_name(f"{args.directory.name}-without")
    left_out = LeftOut(tuple(args.rater), tuple(args.category), tuple(args.critique))
    args.directory = out  # which Ctrl-C leaves
    compare_without(parent, out, left_out, same_responses=args.same_responses)
    return 0
