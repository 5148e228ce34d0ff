"""Write docs/reference.md: every setting, every command and every public name, as the code has them.

    python docs/make_reference.py

A test compares the page with `page()`, so a change of a setting, a command or a name asks for the script.
"""

import re
from pathlib import Path
from typing import Any

import text2grad
from text2grad.cli.__main__ import parser
from text2grad.config import describe

PAGE = Path(__file__).with_name("reference.md")

START = """\
# Reference: settings, commands and public names

With this page you can look up what a setting does, which values it may have, and where a name is documented.
`python docs/make_reference.py` writes it from the code.

`text2grad recipe > my.toml` prints the same settings as a recipe, and `text2grad recipe ppo` one section of them.
`--set ppo.beta=0.1` changes one value of one run. A setting with the default – is left out unless you write it.
"""

SETTING = re.compile(r"(?:# )?(?P<name>\w+) =(?: (?P<default>.*?))?  # (?P<meaning>.*) \[(?P<values>[^\[\]]*)\]")

SEEN_IN_THE_DEFAULT = ("text", "true, false")


def page() -> str:
    """Return the text of docs/reference.md."""
    return "\n".join([START, *settings(), *commands(), *names()])


def settings() -> list[str]:
    """Return a heading, a sentence and a table for each section of a recipe."""
    lines = ["## Settings", ""]
    for line in describe().splitlines():
        if line.startswith("["):
            section, _, meaning = line.partition("  # ")
            lines += [f"### {section}", "", meaning, "", *_head("setting", "default", "values", "meaning")]
        elif setting := SETTING.fullmatch(line):
            default = f"`{setting['default']}`" if setting["default"] else "–"
            values = setting["values"].replace(" | ", ", ")
            shown = "" if setting["default"] and values in SEEN_IN_THE_DEFAULT else values
            lines.append(_row(f"`{setting['name']}`", default, shown, setting["meaning"]))
        else:
            lines.append("")
    return [*lines, ""]


def commands() -> list[str]:
    """Return a table of the commands, in the order of `text2grad --help`; a group's own commands follow it."""
    about = "`text2grad COMMAND --help` has options, examples and the exit status of each."
    return ["## Commands", "", about, "", *_head("command", "purpose"), *_commands_of(parser(), ""), ""]


def _commands_of(parent: Any, prefix: str) -> list[str]:
    """Return the rows of a parser's commands, and of their own commands."""
    if parent._subparsers is None:
        return []
    choices = parent._subparsers._group_actions[0]
    rows = []
    for action in choices._choices_actions:
        rows.append(_row(f"`{prefix}{action.dest}`", str(action.help)))
        rows += _commands_of(choices.choices[action.dest], f"{prefix}{action.dest} ")
    return rows


def names() -> list[str]:
    """Return a table of the public names, with the first sentence of each docstring."""
    about = (
        "`import text2grad` loads neither torch nor transformers; a name loads its module when it is first used. "
        '`python -c "import text2grad; help(text2grad.gae)"` shows shapes, units and errors.'
    )
    rows = [_row(f"`{name}`", _first_line(getattr(text2grad, name))) for name in sorted(text2grad.__all__)]
    return ["## Public names", "", about, "", *_head("`text2grad.`", "meaning"), *rows, ""]


def _first_line(value: object) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((value.__doc__ or "").strip().split("\n\n")[0].split())


def _head(*titles: str) -> list[str]:
    return [_row(*titles), _row(*["---"] * len(titles))]


def _row(*cells: str) -> str:
    return " | ".join(cell.replace("|", r"\|") for cell in cells)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
