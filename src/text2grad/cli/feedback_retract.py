"""`text2grad feedback retract`: a rater takes marks back, from files and from what learned from them."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, say

DESCRIPTION = """\
Take marks of a rater, and the words of their critiques, out of SOURCE and of everything below RUNS, and list the runs,
reward models and adapters that learned from them. Runs whose own critiques had the marks are made again, as by
`text2grad without`; of others the command is printed. From then on, imports beside SOURCE leave the marks out."""

EPILOG = "example:\n  text2grad feedback retract team.jsonl runs --rater ann --dry-run"


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "take a rater's marks back, and make again without them what learned from them"
    add = add_command(commands, "retract", run, about, DESCRIPTION, EPILOG).add_argument
    add("source", type=Path, metavar="SOURCE", help="a file of annotations, or the studio's directory")
    add("runs", type=Path, metavar="RUNS", help="folder of runs and models, at any depth")
    add("--rater", required=True, metavar="NAME", help="who gave the marks")
    add("--id", default="", metavar="MARK", help="one mark, by the beginning of the name that --dry-run prints")
    add("--dry-run", action="store_true", help="print what would change, and change nothing")


def run(args: argparse.Namespace) -> int:
    """Print where the marks are and what learned from them, take them out, and make runs again."""
    from text2grad.runs import LeftOut, Retraction, compare_without

    retraction, own = Retraction(args.source, args.runs, args.rater, args.id), dict[Path, Path]()
    for path, marks in retraction.files.items():
        say(f"{path}: {len(marks):,} marks, {', '.join(sorted(marks)[:10])}")
    for home, named in retraction.versions.items():
        out, by = Path(f"{home}-without-{args.id or args.rater}"), "train" if (home / "rollouts").exists() else "reward"
        way = f"by text2grad {by} RECIPE.toml{''.join(f' --set {name}=NEW' for name in named)} --out {out}"
        if by == "train" and not named and home not in own.values():  # which an interrupted command left
            own[home], way = out, f"as {out}"
        elif not (home / "run.json").exists():
            way = "in the studio, by a lesson"
        say(f"{home} learned from them, and is made again {way}")
    if not args.dry_run:
        retraction.write("text2grad feedback retract")
        left_out = LeftOut(critiques=(args.id,)) if args.id else LeftOut(raters=(args.rater,))
        for home, out in own.items():
            compare_without(home, out, left_out)
    return 0
