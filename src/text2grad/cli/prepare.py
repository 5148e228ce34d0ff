"""`text2grad prepare`: data of others → prompts for training and held-out prompts, as files that recipes name."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_force, at_least, print_end, print_lines, refuse_overwriting
from text2grad.errors import ConfigError, DataError

DESCRIPTION = """\
Write prompts of the task `grounded`: answer a question from a passage, or summarize a passage. The prompts are chat
messages; passage, question and gold answer stand beside them for critic and metric. Passages are cut after the last
whole sentence within --passage-tokens tokens of the model that will be trained. Records without a passage are left out
and counted. A share of the subjects (texts, or titles of first passages) goes into the held-out file."""

EPILOG = """\
formats:
  table        columns "passage", and optionally "question" and "answer" (--column passage=context renames one)
  qa_feedback  Fine-Grained RLHF: questions that people asked, with retrieved passages and a gold answer
  faithbench   source texts of FaithBench, to be summarized

examples:
  text2grad prepare grounded feedback.json --format qa_feedback --tokenizer models/smollm2 --out data/grounded
  text2grad prepare grounded mine.jsonl --tokenizer models/smollm2 --column passage=context --out data/mine

written: OUT/train.jsonl and OUT/held_out.jsonl, for data.train and data.held_out_file with data.task = "grounded"."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    from text2grad.feedback.sources import PASSAGE_FORMATS

    about = "turn data of others into prompts and held-out prompts"
    add = add_command(commands, "prepare", run, about, DESCRIPTION, EPILOG).add_argument
    add("task", metavar="TASK", choices=("grounded",), help="the task: grounded")
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write to")
    add("--tokenizer", required=True, metavar="MODEL", help="the model whose tokens are counted")
    add("--format", choices=PASSAGE_FORMATS, default="table", help="format of the data (default: %(default)s)")
    add("--column", action="append", default=[], metavar="OURS=THEIRS", help="name of a column in a table")
    add("--split", default="train", help="split of a data set (default: %(default)s)")
    cut = "most tokens of a passage; 0 for no limit (default: %(default)s)"
    add("--passage-tokens", type=at_least(0), default=200, metavar="N", help=cut)
    add("--held-out", type=float, default=0.25, metavar="SHARE", help="share held out (default: %(default)s)")
    add("--seed", type=at_least(0), default=0, metavar="N", help="chooses the held-out share (default: %(default)s)")
    add_force(add)


def run(args: argparse.Namespace) -> int:
    """Read the data, write both files, and print the numbers.

    Raises:
        Text2GradError: if the data, an option or the tokenizer cannot be used; then nothing is written.
    """
    from text2grad.feedback import write_examples
    from text2grad.feedback.sources import read_passages
    from text2grad.models import load_tokenizer
    from text2grad.progress import CONSOLE
    from text2grad.tasks import grounded_examples

    if not 0.0 < args.held_out < 1.0:
        raise ConfigError(f"--held-out must lie between 0 and 1, got {args.held_out:g}")
    files = args.out / "train.jsonl", args.out / "held_out.jsonl"
    refuse_overwriting(files, force=args.force)
    found = read_passages(args.path, format=args.format, columns=_columns(args.column), split=args.split)
    tokenizer = load_tokenizer(args.tokenizer)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    made = grounded_examples(
        found.kept, count=count, passage_tokens=args.passage_tokens, held_out=args.held_out, seed=args.seed
    )
    if not made.train or not made.held_out:
        raise DataError(
            f"{args.path}: {len(made.train)} prompts to train on and {len(made.held_out)} held out are left "
            f"({_listed(found.left_out + made.left_out)}); both need at least one"
        )
    for path, examples in zip(files, (made.train, made.held_out), strict=True):
        write_examples(path, examples)
    figures = [("prompts to train on", f"{len(made.train):,}"), ("prompts held out", f"{len(made.held_out):,}")]
    figures += [("passages cut", f"{made.cut:,}")]
    figures += [("left out", f"{number:,} {reason}") for reason, number in (found.left_out + made.left_out).items()]
    print_lines(figures)
    recipe = f'[data] task = "grounded", train = "{files[0]}", held_out_file = "{files[1]}"'
    print_end(CONSOLE, ", ".join(map(str, files)), note=recipe)
    return 0


def _listed(left_out: Any) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in left_out.items()) or "none left out"


def _columns(given: list[str]) -> dict[str, str]:
    columns = {}
    for pair in given:
        ours, sign, theirs = pair.partition("=")
        if not (ours and sign and theirs):
            raise ConfigError(f"--column is given as OURS=THEIRS, got {pair!r}")
        columns[ours] = theirs
    return columns
