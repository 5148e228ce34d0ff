"""`text2grad recipe`: print every setting with its default and its documentation."""

import argparse
from typing import Any

from rich.console import Console


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "recipe",
        help="print a recipe with every setting, its default and its documentation",
        description="Print a recipe with every setting at its default, each with its documentation. The output is a "
        "valid recipe: text2grad recipe > my.toml",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the recipe."""
    from text2grad.config import describe

    Console(soft_wrap=True).print(describe(), markup=False, highlight=False, end="")
    return 0
