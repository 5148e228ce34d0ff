"""The command line: `text2grad <command>`. Each command is a module of this package and loads its imports late."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console

from text2grad.cli import (
    align,
    annotate,
    evaluate_reward,
    export,
    generate,
    import_,
    quickstart,
    recipe,
    reward,
    reward_baseline,
    study,
    train,
    win_rate,
)
from text2grad.errors import Text2GradError

EXIT_ERROR = 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="text2grad",
        description="Reinforcement learning from feedback in words: critiques become spans, spans become per-token "
        "rewards, and those become the gradient (Text2Grad, arXiv 2505.22338).",
        epilog="`text2grad <command> --help` explains each command with an example.",
    )
    top.add_argument("--version", action="version", version=f"text2grad {version('text2grad')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    feedback = (annotate, import_, export, align)
    critics = (reward, reward_baseline, evaluate_reward, win_rate, study)
    for module in (quickstart, train, generate, *feedback, *critics, recipe):
        module.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 2 refused or stopped with an explained error."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except Text2GradError as error:
        Console(stderr=True).print(f"{type(error).__name__}: {error}", style="red", markup=False, highlight=False)
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
