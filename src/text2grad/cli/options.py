"""Parts that the command lines of several commands share."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def add_command(
    commands: Any, name: str, run: Callable[..., int] | None, about: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Add a command that `run` runs (None: its subparsers set `run`); its help keeps line breaks. Return its parser."""
    form = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=about, description=description, epilog=epilog, formatter_class=form)
    if run is not None:
        add_verbosity(parser)
    parser.set_defaults(run=run)
    return parser  # type: ignore[no-any-return]


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet` and `--verbose`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="no bars and no log lines, only results and warnings")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="a log line for every step, and other libraries' notes"
    )


def add_set(add: Callable[..., Any]) -> None:
    """Add `--set`, which overrides settings of the recipe, by a parser's `add_argument`."""
    add("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting")


def add_match(add: Callable[..., Any]) -> None:
    """Add `--match`, by a parser's `add_argument`."""
    words = "how quotes are located (default: %(default)s)"
    add("--match", choices=("exact", "normalized"), default="exact", help=words)


def shorthands(values: Mapping[str, object], numbers: Mapping[str, str | None] | None = None) -> list[str]:
    """Return the override, as `--set` takes it, of each option that stands for a setting and is given.

    Args:
        values: texts, lists and switches by the name of their setting; JSON is also TOML for these types.
        numbers: numbers as written on the command line.

    Example:
        >>> shorthands({"run.out": "runs/a", "model.path": None}, {"annotate.max_cost": "5"})
        ['run.out="runs/a"', 'annotate.max_cost=5']
    """
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items() if value}
    return [f"{name}={text}" for name, text in {**texts, **(numbers or {})}.items() if text]


def print_lines(figures: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns; values are not wrapped, so that paths and commands can be copied."""
    from rich.text import Text

    from text2grad.progress import CONSOLE

    width = max(len(name) for name, _ in figures) + 3
    for name, value in figures:
        CONSOLE.print(Text(f"{name:{width}}{value}"), soft_wrap=True)
