"""`text2grad studio [RUN ...]`: a local page to read rollouts, mark words, teach, and compare answers."""

import argparse
import getpass
import signal
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from text2grad.cli import add_command, at_least, print_lines
from text2grad.feedback import STORES

DESCRIPTION = """\
Serve a page on this machine, for its own browser only. On it a person reads the responses of runs (token by token, with
their numbers), marks words as positive or negative and says why, trains the policy on these marks, and sees the new
version's answer beside the old one. Marks are saved at once, in files that only grow."""

EPILOG = """\
examples:
  text2grad studio runs/one
  text2grad studio runs/spans runs/summed                  # two runs, side by side on the same prompts
  text2grad studio annotations.jsonl --rater ann           # a file of responses, with or without critiques
  text2grad studio runs/one --model path/to/policy         # teach another policy than the run's last checkpoint

written to --out: marks/RATER/*.jsonl, versions/ (LoRA adapters), index/ (can be removed). docs/studio.md explains the
page. `text2grad reward` takes the marks that the page exports."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "read rollouts, mark words, teach and compare, on a local page"
    add = add_command(commands, "studio", run, about, DESCRIPTION, EPILOG, extras=("studio",)).add_argument
    runs = "directory of a run, of TRL or prime-rl, too; or a JSONL file"
    add("runs", type=Path, nargs="*", metavar="RUN", help=runs)
    add("--out", type=Path, default=Path("runs/studio"), metavar="DIR", help="(default: %(default)s)")
    add("--rater", metavar="NAME", help="whose marks these are (default: the name of the user)")
    add("--model", metavar="PATH", help="policy to teach (default: the last checkpoint of the first run)")
    critic = "to ask for suggestions: MODULE:NAME or a directory (default: that of each run)"
    add("--critic", metavar="NAME", help=critic)
    add("--tokenizer", metavar="PATH", help="of prime-rl's token exports (default: that of the run's configuration)")
    add("--port", type=at_least(0), default=8321, metavar="N", help="0 takes a free one (default: %(default)s)")
    add("--read-only", action="store_true", help="save no marks and teach nothing")
    add("--no-browser", action="store_true", help="only print the address")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C.

    Raises:
        Text2GradError: if a run cannot be read, or the port is taken.
    """
    from text2grad_studio.server import serve

    def ready(address: str, session: Any) -> None:
        names = ", ".join(source.name for source in session.sources) or "your own texts"
        marks = f"{args.out}/marks/{session.rater}"
        print_lines([("studio", names), ("marks", marks), ("open", f"{address}   (Ctrl-C ends)")])
        if not args.no_browser:
            webbrowser.open(address)

    try:
        serve(
            args.runs,
            args.out,
            rater=args.rater or getpass.getuser(),
            port=args.port,
            model=args.model,
            critic=args.critic,
            tokenizer=args.tokenizer,
            read_only=args.read_only,
            on_ready=ready,
        )
    except KeyboardInterrupt as error:
        if error.args and error.args[0] != signal.SIGINT:  # SIGTERM, which `main` tells
            raise
    return 0


def marks_in(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the annotations of all raters in a directory of the studio, for `text2grad feedback check`."""
    from text2grad_studio.marks import MarkStore

    store = MarkStore(directory)
    for rater in store.raters():
        yield from store.annotations(rater)


STORES.append(marks_in)
