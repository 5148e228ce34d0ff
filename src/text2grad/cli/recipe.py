"""`text2grad recipe`: every setting of a recipe, its default and what it does."""

import argparse
from typing import Any

from rich.console import Console


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "recipe",
        help="print a commented recipe of every setting",
        description="Print a recipe with every setting at its default, each with its documentation. The output is a "
        "recipe itself: text2grad recipe > my.toml",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the recipe."""
    from text2grad.config import describe

    Console(soft_wrap=True).print(describe(), markup=False, highlight=False, end="")
    return 0
