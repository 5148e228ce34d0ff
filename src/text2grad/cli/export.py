"""`text2grad export`: annotations → a data set folder for `datasets` and the Hugging Face hub."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, add_force, print_end, refuse_full_directory
from text2grad.errors import ConfigError
from text2grad.runs.reports import plain


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "export",
        run,
        "write annotations as a data set with a data card, and upload it to the Hugging Face hub",
        "Write annotations as a data set: data/train.parquet and a data card (README.md) with the schema. "
        "--push uploads it to the hub with the token of `hf auth login`.",
        "examples:\n"
        "  text2grad export qa.jsonl mqm.jsonl --out dataset --name me/feedback --license apache-2.0\n"
        "  text2grad export qa.jsonl --out dataset --name me/feedback --push --private",
    ).add_argument
    add("input", metavar="FILE", type=Path, nargs="+", help="annotations: JSONL that `text2grad import` wrote")
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    add("--name", default="me/annotations", metavar="OWNER/NAME", help="name on the hub (default: %(default)s)")
    add("--license", default="unknown", help="license identifier of the hub (default: %(default)s)")
    add("--push", action="store_true", help="upload the folder to the hub")
    add("--private", action="store_true", help="create the repository as private")
    add_force(add)


def run(args: argparse.Namespace) -> int:
    """Write the folder; with --push, upload it.

    Raises:
        Text2GradError: if a file cannot be read or written, or the hub refuses the upload.
    """
    from text2grad.feedback import DATA_FILE, push_folder, read_annotations, write_folder

    if args.push and args.name.startswith("me/"):
        raise ConfigError("--push needs --name OWNER/NAME, the repository on the hub")
    refuse_full_directory(args.out, "", force=args.force)
    annotations = [one for path in args.input for one in read_annotations(path)]
    write_folder(args.out, annotations, repository=args.name, license=args.license)
    console = Console()
    spans = sum(len(one.critique.spans) for one in annotations)
    console.print(plain(f"annotations   {len(annotations):,}\nspans         {spans:,}"))
    push = (
        "text2grad",
        "export",
        *map(str, args.input),
        "--out",
        str(args.out),
        "--name",
        "OWNER/NAME" if args.name.startswith("me/") else args.name,
        *(("--license", args.license) if args.license != "unknown" else ()),
        *(("--private",) if args.private else ()),
        "--push",
        "--force",
    )
    print_end(console, f"{args.out}/README.md, {DATA_FILE}", then=() if args.push else push)
    if args.push:
        console.print(plain(f"pushed: {push_folder(args.out, args.name, private=args.private)}"), soft_wrap=True)
    return 0
