"""`text2grad feedback export`: annotations → a data set folder for `datasets` and the Hugging Face hub."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, print_end, print_lines, push_if_asked, refuse_full_directory
from text2grad.feedback import DATA_FILE, read_annotations, write_folder

DESCRIPTION = """\
Write annotations as a data set: data/train.parquet and a data card (README.md) with the schema. --push publishes it,
with the token of `hf auth login`."""

EPILOG = """\
examples:
  text2grad feedback export qa.jsonl team.jsonl --out dataset --license apache-2.0 --push me/feedback"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "write annotations as a data set with a data card, for the Hugging Face hub"
    add = add_command(commands, "export", run, about, DESCRIPTION, EPILOG, extras=()).add_argument
    add("input", metavar="FILE", type=Path, nargs="+", help="annotations, as `text2grad feedback import` writes them")
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    add("--license", default="unknown", help="license identifier of the hub (default: %(default)s)")
    add_shared(add, "--force", "--push")


def run(args: argparse.Namespace) -> int:
    """Write the folder."""
    refuse_full_directory(args.out, "", force=args.force)
    annotations = [annotation for path in args.input for annotation in read_annotations(path)]
    write_folder(args.out, annotations, license=args.license)
    spans = sum(len(annotation.critique.spans) for annotation in annotations)
    print_lines([("annotations", f"{len(annotations):,}"), ("spans", f"{spans:,}")])
    upload = ("hf", "upload", "OWNER/NAME", str(args.out), "--repo-type", "dataset", "--private")
    print_end(f"{args.out}/README.md, {DATA_FILE}", then=() if args.push else upload)
    push_if_asked(args, args.out)
    return 0
