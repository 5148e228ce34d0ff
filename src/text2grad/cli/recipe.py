"""`text2grad recipe`: print every setting with its default and its documentation."""

import argparse
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add_command(
        commands,
        "recipe",
        run,
        "print a recipe with every setting, its default and its documentation",
        "Print a recipe with every setting at its default, each with its documentation. The output is a valid recipe.",
        "example:\n  text2grad recipe > my.toml",
    )


def run(args: argparse.Namespace) -> int:
    """Print the recipe."""
    from text2grad.config import describe

    Console(soft_wrap=True).print(describe(), markup=False, highlight=False, end="")
    return 0
