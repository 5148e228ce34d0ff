"""`text2grad recipe`: print every setting with its default and its documentation."""

import argparse
import json
from typing import Any

from text2grad.cli.options import add_command
from text2grad.config import Recipe, describe
from text2grad.progress import CONSOLE


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "print a recipe with every setting, its default, its documentation and its values"
    description = f"{about.capitalize()} in brackets. The output is a valid recipe."
    examples = "examples:\n  text2grad recipe > my.toml\n  text2grad recipe ppo"
    add = add_command(commands, "recipe", run, about, description, examples, extras=()).add_argument
    add("section", nargs="?", metavar="SECTION", help="print this section only")
    add("--json-schema", action="store_true", help="print the JSON schema of recipes instead, for editors")


def run(args: argparse.Namespace) -> int:
    """Print the recipe."""
    schema = json.dumps(Recipe.model_json_schema(), indent=2, ensure_ascii=False) + "\n" if args.json_schema else None
    text = schema or describe(args.section)
    CONSOLE.print(text, markup=False, highlight=False, soft_wrap=True, end="")
    return 0
