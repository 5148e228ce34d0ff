"""`text2grad prepare`: a data set of the paper → the files of all phases, for recipes."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import (
    add_command,
    add_force,
    at_least,
    print_end,
    print_lines,
    refuse_overwriting,
)
from text2grad.errors import ConfigError, DataError

DESCRIPTION = """\
Write the files of all phases from one of the paper's data sets, `slf5k`, `kodcode` or `ultrafeedback`, divided as
in the paper: sft.jsonl with demonstrations, annotate.jsonl with responses to annotate, train.jsonl with prompts for
`text2grad train`, preferences.jsonl with chosen and rejected responses, held_out.jsonl with prompts that no phase
learns from. Texts that later phases cannot use, such as blank responses, are left out and counted."""

EPILOG = """\
examples:
  text2grad prepare slf5k JeremyAlain/SLF5K --held-out-split validation --out data/slf5k
  text2grad prepare kodcode KodCode/KodCode-V1-SFT-4o --split train --split incorrect --out data/kodcode
  text2grad prepare kodcode KodCode/KodCode-Light-RL-10K --without data/kodcode/train.jsonl --out data/kodcode-rl
  text2grad prepare ultrafeedback HuggingFaceH4/ultrafeedback_binarized --split train_prefs --out data/ultrafeedback

written: files in OUT; recipes name them (data.train, data.held_out, sft.data). A file without records is not
written."""

HELD_OUT = {"slf5k": 0.1, "kodcode": 0.05, "ultrafeedback": 0.01}
"""Data set → the share of its prompts that is held out unless another is given."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "turn a data set of the paper into the files of all phases"
    add = add_command(commands, "prepare", run, about, DESCRIPTION, EPILOG).add_argument
    add("task", metavar="TASK", choices=tuple(HELD_OUT), help=", ".join(HELD_OUT))
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write to")
    add("--split", action="append", default=[], metavar="NAME", help="split; may be repeated (default: train)")
    shares = ", ".join(f"{share:g} of {task}" for task, share in HELD_OUT.items())
    add("--held-out", type=float, metavar="SHARE", help=f"share held out (default: {shares})")
    add("--seed", type=at_least(0), default=0, metavar="N", help="chooses the held-out share (default: %(default)s)")
    add("--held-out-split", metavar="NAME", help="its split that is held out, whole")
    without = "leave out the prompts of this prepared file; may be repeated"
    add("--without", action="append", type=Path, default=[], metavar="FILE", help=without)
    add("--prompts", type=at_least(1), metavar="N", help="most prompts, chosen by the seed")
    add_force(add)


def run(args: argparse.Namespace) -> int:
    """Read the data, write the files, and print the numbers.

    Raises:
        Text2GradError: if the data, an option or the tokenizer cannot be used; then nothing is written.
    """
    _check_options(args)
    args.held_out = HELD_OUT[args.task] if args.held_out is None else args.held_out
    if not 0.0 < args.held_out < 1.0:
        raise ConfigError(f"--held-out must lie between 0 and 1, got {args.held_out:g}")
    return _phases(args)


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    if Path(args.path).is_file() and (args.split or args.held_out_split):
        option = "--split" if args.split else "--held-out-split"
        raise ConfigError(
            f"{option} names a split, and {args.path} is one file, which has none; leave the option out, or give the "
            "directory of the data set"
        )
    if args.held_out_split and args.held_out is not None:
        raise ConfigError("--held-out-split holds out a whole split, and --held-out a share; give one of the two")


def _phases(args: argparse.Namespace) -> int:
    """Write the files of all phases from a data set of the paper."""
    from text2grad.feedback import read_examples
    from text2grad.feedback.sources import (
        divide,
        known_preferences,
        read_problems,
        responses_to_annotate,
        split_unit,
    )
    from text2grad.files import json_lines, write_files
    from text2grad.progress import CONSOLE

    names = ("sft", "annotate", "train", "preferences", "held_out")
    refuse_overwriting([args.out / f"{name}.jsonl" for name in names], force=args.force)
    known = [one for path in args.without for one in read_examples(path)]
    without = {text for one in known for text in (str(one.prompt), split_unit(one))}
    kept_out = []
    if args.held_out_split:
        kept_out = read_problems(args.path, args.task, splits=[args.held_out_split], without=without).kept
        without |= {text for one in kept_out for text in (str(one.example.prompt), split_unit(one.example))}
    problems, left_out = read_problems(args.path, args.task, splits=args.split or ["train"], without=without)
    held_out = 0.0 if args.held_out_split else args.held_out
    made = divide(problems, args.task, held_out=held_out, seed=args.seed, most=args.prompts)
    made = made._replace(held_out=kept_out) if args.held_out_split else made
    if not made.prompts or not made.held_out:
        taken = f"; --prompts takes {args.prompts:,} of them" if args.prompts is not None else ""
        raise DataError(
            f"{args.path}: {len(made.prompts)} prompts to train on and {len(made.held_out)} held out are left of "
            f"{len(problems)} ({listed(left_out)}{taken}); both need at least one"
        )
    preferences = known_preferences(made.responses)
    examples_of = {"sft": made.demonstrations, "train": made.prompts, "held_out": made.held_out}
    lines = {
        name: [
            {"prompt": one.example.prompt, "reference": one.example.reference, "tests": one.example.tests}
            for one in part
        ]
        for name, part in examples_of.items()
    }
    lines["annotate"] = list(responses_to_annotate(made.responses))
    lines["preferences"] = [one._asdict() for one in preferences]
    written = {f"{name}.jsonl": json_lines(lines[name]) for name in names if lines[name]}
    write_files(args.out, written)
    meaning = ("demonstrations", "responses to annotate", "prompts to train on", "preferences", "prompts held out")
    figures = [(words, f"{len(lines[name]):,}") for words, name in zip(meaning, names, strict=True)]
    print_lines(figures + [("left out", f"{number:,} {reason}") for reason, number in left_out.items()])
    recipe = f"recipes/paper/{args.task}.toml holds the commands of all phases"
    print_end(CONSOLE, ", ".join(str(args.out / name) for name in written), note=recipe)
    return 0


def listed(left_out: Any) -> str:
    """Return the reasons why records were left out, each with its number, in words."""
    return ", ".join(f"{number} {reason}" for reason, number in left_out.items()) or "none left out"
