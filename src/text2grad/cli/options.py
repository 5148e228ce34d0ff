"""Parts that the command lines of several commands share."""

import argparse
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from text2grad.costs import COSTS_FILE
from text2grad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from text2grad.config import Recipe


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


def name_values(option: str, given: Iterable[str], *, form: str = "NAME=VALUE") -> dict[str, str]:
    """Return the values of an option that is given as NAME=VALUE, any number of times.

    Raises:
        ConfigError: if a name or a value is missing, or a name has two values; names the option.
    """
    found: dict[str, str] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not (name and sign and value):
            raise ConfigError(f"{option} is given as {form}, got {pair!r}")
        if found.setdefault(name, value) != value:
            raise ConfigError(f"{option} {name}={found[name]} and {option} {pair} exclude each other; keep one of them")
    return found


def require_named(recipe: "Recipe", path: Path, *, prompts_and_critic: bool = True) -> None:
    """Refuse a recipe that does not name what a run needs.

    Raises:
        ConfigError: if it has no model; or, unless `prompts_and_critic` is False, no prompts or no critic.
    """
    if not recipe.model.path:
        raise ConfigError(f"{path}: [model] path is not set; set it, or give --model PATH")
    if recipe.data.task or not prompts_and_critic:
        return
    if not recipe.data.train:
        raise ConfigError(f"{path}: [data] names neither a task nor a train file; set one of them")
    if not recipe.critic.use and not recipe.critic.model:
        raise ConfigError(f"{path}: there is no critic; set [critic] use or model, or give --critic MODULE:NAME")


def add_match(add: Callable[..., Any]) -> None:
    """Add `--match`, by a parser's `add_argument`."""
    words = "how quotes are located (default: %(default)s)"
    add("--match", choices=("exact", "normalized"), default="exact", help=words)


def add_force(add: Callable[..., Any]) -> None:
    """Add `--force`, by a parser's `add_argument`."""
    add("--force", action="store_true", help="overwrite files that exist")


def refuse_overwriting(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to overwrite files, unless `--force` is given.

    Raises:
        ConfigError: if one exists.
    """
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        more = f" and {len(there) - 1} more files of this command" if len(there) > 1 else ""
        raise ConfigError(f"{there[0]}{more} would be overwritten; choose another --out, or add --force")


def refuse_full_directory(directory: Path, *marks: str, force: bool) -> None:
    """Refuse a directory with files of which none is in `marks`, by which a command knows its own, unless `--force`.

    Raises:
        ConfigError: if it is such a directory, or a file.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file; choose another --out, a directory")
    others = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if others and not set(marks) & set(others) and not set(others) <= {".lock", COSTS_FILE} and not force:
        raise ConfigError(
            f"{directory} holds other files ({', '.join(others[:3])}{', …' if len(others) > 3 else ''}); choose "
            "another --out, or add --force to write into it"
        )


def refuse_bad(error: DataError) -> None:
    """Raise the error of a bad record again, with the option that leaves such records out."""
    raise DataError(f"{error}; --skip-bad leaves out all such records") from error


def at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
        return int(text)

    return read


def finite(least: float = -math.inf) -> Callable[[str], float]:
    """Return an argparse type for finite numbers of at least `least`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < least:
            bound = "" if least == -math.inf else f" of at least {least:g}"
            raise argparse.ArgumentTypeError(f"expected a finite number{bound}, got {text!r}")
        return number

    return read


def shorthands(values: Mapping[str, object], numbers: Mapping[str, str | None] | None = None) -> list[str]:
    """Return the override, as `--set` takes it, of each option that stands for a setting and is given.

    Args:
        values: texts, lists and switches by the name of their setting; JSON is also TOML for these types.
        numbers: numbers as written on the command line.

    Raises:
        ConfigError: if a text is empty, as that of a shell variable which is not set.

    Example:
        >>> shorthands({"run.out": "runs/a", "model.path": None}, {"annotate.max_cost": "5"})
        ['run.out="runs/a"', 'annotate.max_cost=5']
    """
    numbers = numbers or {}
    if empty := [name for name, value in {**values, **numbers}.items() if value == ""]:
        raise ConfigError(f"the option for {empty[0]} is an empty text; give it a value, or leave it out")
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items() if value}
    return [f"{name}={text}" for name, text in {**texts, **numbers}.items() if text]


def print_end(console: Console, written: str, *, then: Sequence[str] = (), note: str = "") -> None:
    """Print where a command wrote, and the command, or the words of `note`, that come next."""
    from text2grad.runs.reports import plain

    if written:
        console.print(plain(f"\nwritten: {written}"), soft_wrap=True)
    if then or note:
        console.print(plain(f"next:    {note or shlex.join(then)}"), soft_wrap=True)


def print_lines(figures: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns; values are not wrapped, so that paths and commands can be copied."""
    from rich.text import Text

    from text2grad.progress import CONSOLE

    width = max(len(name) for name, _ in figures) + 3
    for name, value in figures:
        CONSOLE.print(Text(f"{name:{width}}{value}"), soft_wrap=True)
