"""`text2grad feedback export`: annotations → a data set folder for `datasets` and the Hugging Face hub."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, print_end, print_lines, refuse_full_directory, say

DESCRIPTION = """\
Write annotations as a data set: data/train.parquet and a data card (README.md) with the schema. --push uploads it to
the hub, where a new repository is private, with the token of `hf auth login`."""

EPILOG = """\
examples:
  text2grad feedback export qa.jsonl team.jsonl --out dataset --license apache-2.0
  text2grad feedback export qa.jsonl --out dataset --push me/feedback"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "write annotations as a data set with a data card, and upload it to the Hugging Face hub"
    add = add_command(commands, "export", run, about, DESCRIPTION, EPILOG, extras=()).add_argument
    add(
        "input",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="JSONL of annotations, as `text2grad feedback import` writes",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    add("--license", default="unknown", help="license identifier of the hub (default: %(default)s)")
    add("--push", metavar="OWNER/NAME", help="upload the folder to this repository of the hub")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Write the folder; with --push, upload it.

    Raises:
        Text2GradError: if a file cannot be read or written, or the hub refuses the upload.
    """
    from text2grad.feedback import DATA_FILE, push_folder, read_annotations, write_folder

    refuse_full_directory(args.out, "", force=args.force)
    annotations = [annotation for path in args.input for annotation in read_annotations(path)]
    write_folder(args.out, annotations, repository=args.push or "me/annotations", license=args.license)
    spans = sum(len(annotation.critique.spans) for annotation in annotations)
    print_lines([("annotations", f"{len(annotations):,}"), ("spans", f"{spans:,}")])
    files = [*map(str, args.input), "--out", str(args.out)]
    known = ["--license", args.license] if args.license != "unknown" else []
    push = ["text2grad", "feedback", "export", *files, *known, "--push", "OWNER/NAME", "--force"]
    print_end(f"{args.out}/README.md, {DATA_FILE}", then=[] if args.push else push)
    if args.push:
        say(f"pushed: {push_folder(args.out, args.push, private=True)}")
    return 0
