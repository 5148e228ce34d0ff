"""Parts that the command lines of several commands share."""

import argparse
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.config import Recipe, load_recipe
from text2grad.costs import COSTS_FILE
from text2grad.errors import ConfigError, DataError
from text2grad.progress import CONSOLE
from text2grad.runs.reports import plain, print_figures

SHARED: Mapping[str, Mapping[str, Any]] = {  # arguments that mean the same in all commands that have them
    "recipe": {"type": Path, "help": "TOML file of settings; `text2grad recipe` prints all of them"},
    "--set": {
        "dest": "overrides",
        "action": "append",
        "default": [],
        "metavar": "SECTION.KEY=VALUE",
        "help": "override a setting; may be repeated",
    },
    "--resume": {"action": "store_true", "help": "continue from the last checkpoint in the directory of the run"},
    "--force": {"action": "store_true", "help": "overwrite files that exist"},
    "--push": {"metavar": "OWNER/NAME", "help": "then upload the result to this repository of the hub, private if new"},
}

SOME_REMAIN = 3  # exit status if a server left some items without an answer


def add_command(
    commands: Any,
    name: str,
    run: Callable[..., int],
    about: str,
    description: str,
    epilog: str,
    *,
    extras: Sequence[str] = ("train",),
) -> argparse.ArgumentParser:
    """Add a command, whose help keeps line breaks, and return its parser.

    Args:
        commands: the subparsers to which the command is added.
        name: the command's name.
        run: runs the command and returns its exit code.
        about: one line for the list of commands.
        description: what the command does.
        epilog: examples, files and exit codes.
        extras: extras without which the command cannot begin.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser(name, help=about, description=description, epilog=epilog, formatter_class=form)
    parser.set_defaults(run=run, extras=extras, called=parser.prog)
    return parser  # type: ignore[no-any-return]


def add_shared(add: Callable[..., Any], *names: str) -> None:
    """Add some of the `SHARED` arguments, by a parser's `add_argument`."""
    for name in names:
        add(name, **SHARED[name])


def push_if_asked(args: argparse.Namespace, path: Path) -> None:
    """Upload what a path holds, and print its name on the hub, if `--push` is given."""
    if args.push:
        from text2grad.runs import push_to_hub

        print_lines([("pushed", push_to_hub(path, args.push))])


def name_values(option: str, given: Iterable[str], *, form: str = "NAME=VALUE") -> dict[str, str]:
    """Return the values of an option that is given as NAME=VALUE, any number of times.

    Raises:
        ConfigError: if a name or a value is missing, or a name has two values; names the option.
    """
    values: dict[str, str] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not (name and sign and value):
            raise ConfigError(f"{option} is given as {form}, got {pair!r}")
        if values.setdefault(name, value) != value:
            raise ConfigError(
                f"{option} {name}={values[name]} and {option} {pair} exclude each other; keep one of them"
            )
    return values


def refuse_overwriting(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to overwrite files, unless `--force` is given.

    Raises:
        ConfigError: if one exists.
    """
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        more = f" and {len(there) - 1} more files of this command" if len(there) > 1 else ""
        raise ConfigError(f"{there[0]}{more} would be overwritten; choose another --out, or add --force")


def refuse_other_results(path: Path, about: Mapping[str, str], *, force: bool) -> None:
    """Refuse to overwrite results about other files, unless `--force` is given.

    Args:
        path: a JSON file of results.
        about: the values by which the file names what it is about.
        force: whether `--force` is given.

    Raises:
        ConfigError: if the file has other values, or cannot be read.
    """
    try:
        record = json.loads(path.read_bytes()) if path.exists() and not force else about
        before = {key: record[key] for key in about}
    except (OSError, ValueError, LookupError, TypeError):
        before = {"": "unknown files"}
    if before != about:
        names = " and ".join(map(str, before.values()))
        raise ConfigError(
            f"{path} holds results about {names}, and would be overwritten; choose another --out, or add --force"
        )


def refuse_full_directory(directory: Path, *marks: str, force: bool) -> None:
    """Refuse a directory with files, unless one of them is in `marks`, the files of the command itself, or `--force`.

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


def shorthands(values: Mapping[str, object]) -> list[str]:
    """Return the override, as `--set` takes it, of each option that stands for a setting and is given.

    Args:
        values: texts, lists and numbers by the name of their setting; JSON is also TOML for these types.

    Raises:
        ConfigError: if a text is empty, for example because a shell variable is not set.

    Example:
        >>> shorthands({"run.out": "runs/a", "model.path": None, "annotate.max_cost": 5.0})
        ['run.out="runs/a"', 'annotate.max_cost=5.0']
    """
    if empty := [name for name, value in values.items() if value == ""]:
        raise ConfigError(f"the option for {empty[0]} is an empty text; give it a value, or leave it out")
    return [
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value not in (None, [])
    ]


def recipe_with(args: argparse.Namespace, options: Mapping[str, object]) -> Recipe:
    """Return the recipe of a command line with --set, and with the options that stand for settings (`shorthands`).

    Raises:
        ConfigError: if the recipe cannot be read, or a setting is refused.
    """
    return load_recipe(args.recipe, [*args.overrides, *shorthands(options)])


def say(text: str, *, style: str = "") -> None:
    """Print text whose lines are not wrapped, so that paths and commands can be copied; control characters show."""
    CONSOLE.print(plain(text, style=style), soft_wrap=True)


def print_end(written: str, *, then: Sequence[str] = (), note: str = "") -> None:
    """Print where a command wrote, and the command, or the words of `note`, that come next."""
    if written:
        say(f"\nwritten: {written}")
    if then or note:
        say(f"next:    {note or shlex.join(then)}")


def print_lines(figures: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    print_figures(CONSOLE, list(figures))
