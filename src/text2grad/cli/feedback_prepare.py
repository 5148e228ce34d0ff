"""`text2grad feedback prepare`: a data set of the paper → the files of all phases, for recipes."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, at_least, print_end, print_lines, refuse_overwriting
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import read_examples
from text2grad.feedback.sources import divide, phase_lines, read_problems
from text2grad.files import json_lines, write_files

DESCRIPTION = """\
Write the files of all phases from one of the paper's data sets, divided as in the paper: sft.jsonl with demonstrations,
annotate.jsonl with responses to annotate, train.jsonl with prompts for `text2grad train`, preferences.jsonl with chosen
and rejected responses, held_out.jsonl with prompts that no phase learns from. Unusable texts are left out."""

EPILOG = """\
examples:
  text2grad feedback prepare slf5k JeremyAlain/SLF5K --held-out validation --out data/slf5k
  text2grad feedback prepare kodcode KodCode/KodCode-V1-SFT-4o --split train --split incorrect --out data/kodcode
  text2grad feedback prepare kodcode KodCode/KodCode-Light-RL-10K --without data/kodcode/train.jsonl --out data/rl

A file without records is not written. docs/paper.md shows the recipes that take the files."""

HELD_OUT = {"slf5k": 0.1, "kodcode": 0.05, "ultrafeedback": 0.01}  # share of the prompts, unless another is given

MEANINGS = {  # file, without its ending → its records, in words
    "sft": "demonstrations",
    "annotate": "responses to annotate",
    "train": "prompts to train on",
    "preferences": "preferences",
    "held_out": "prompts held out",
}

SEED = 0  # seed by which prompts are chosen and held out


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "turn a data set of the paper into the files of all phases"
    add = add_command(commands, "prepare", run, about, DESCRIPTION, EPILOG).add_argument
    add("task", metavar="TASK", choices=tuple(HELD_OUT), help=", ".join(HELD_OUT))
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write to")
    add("--split", action="append", default=[], metavar="NAME", help="split; may be repeated (default: train)")
    shares = ", ".join(f"{share:g} of {task}" for task, share in HELD_OUT.items())
    held_out = f"a share of the prompts, or a split that is held out whole (default: {shares})"
    add("--held-out", metavar="SHARE|SPLIT", help=held_out)
    without = "leave out the prompts of this prepared file; may be repeated"
    add("--without", action="append", type=Path, default=[], metavar="FILE", help=without)
    add("--prompts", type=at_least(1), metavar="N", help="most prompts, chosen at random")
    add_shared(add, "--force")


def _held_out(args: argparse.Namespace) -> tuple[float, str]:
    """Return the share that is held out and the split that is held out, one of which is 0 or empty."""
    share, split = float(HELD_OUT[args.task]), ""
    if args.held_out is not None:
        try:
            share = float(args.held_out)
        except ValueError:
            share, split = 0.0, args.held_out
    if not split and not 0.0 < share < 1.0:
        raise ConfigError(f"--held-out must lie between 0 and 1, got {share:g}; or it names a split")
    if Path(args.path).is_file() and (args.split or split):
        option = "--split" if args.split else f"--held-out {split}"
        raise ConfigError(
            f"{option} names a split, and {args.path} is one file, which has none; leave the option out, or give the "
            "directory of the data set"
        )
    return share, split


def run(args: argparse.Namespace) -> int:
    """Read the data, write the files, and print the numbers."""
    share, split = _held_out(args)
    refuse_overwriting([args.out / f"{name}.jsonl" for name in MEANINGS], force=args.force)
    known = [example for path in args.without for example in read_examples(path)]
    kept_out = []
    if split:
        kept_out = read_problems(args.path, args.task, splits=[split], without=known).kept
        known += [problem.example for problem in kept_out]
    problems, left_out = read_problems(args.path, args.task, splits=args.split or ["train"], without=known)
    parts = divide(problems, args.task, held_out=share, seed=SEED, most=args.prompts)
    parts |= {"held_out": kept_out} if split else {}
    if not parts["train"] or not parts["held_out"]:
        reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.items()) or "none left out"
        taken = f"; --prompts takes {args.prompts:,} of them" if args.prompts is not None else ""
        raise DataError(
            f"{args.path}: {len(parts['train'])} prompts to train on and {len(parts['held_out'])} held out are left of "
            f"{len(problems)} ({reasons}{taken}); both need at least one"
        )
    records = phase_lines(parts)
    written = {f"{name}.jsonl": json_lines(records[name]) for name in MEANINGS if records[name]}
    write_files(args.out, written)
    figures = [(meaning, f"{len(records[name]):,}") for name, meaning in MEANINGS.items()]
    print_lines(figures + [("left out", f"{number:,} {reason}") for reason, number in left_out.items()])
    recipe = f"recipes/paper/{args.task}.toml holds the commands of all phases"
    print_end(", ".join(str(args.out / name) for name in written), note=recipe)
    return 0
