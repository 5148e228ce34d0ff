"""`python -m evidence pairs`: preferences between programs for the same problem, by its unit tests (Appendix N)."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, print_lines, refuse_overwriting
from text2grad.errors import DataError

DESCRIPTION = """\
Run the tests of all programs of a file in the sandbox, and pair those that pass with those that fail: preferences for a
scalar reward model, and for DPO."""

EPILOG = """\
examples:
  text2grad feedback prepare kodcode KodCode/KodCode-V1-SFT-4o --split train --split incorrect --out data/kodcode
  python -m evidence pairs data/kodcode/annotate.jsonl --out data/kodcode/preferences.jsonl"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "preferences between programs that pass and fail their tests"
    add = add_command(commands, "pairs", run, about, DESCRIPTION, EPILOG).add_argument
    add("file", type=Path, metavar="FILE", help='JSONL file of {"prompt", "response", "tests"}')
    add("--out", type=Path, required=True, metavar="FILE", help="the JSONL file to write")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Write the preferences, and print their number.

    Raises:
        Text2GradError: if the file cannot be used, or no problem has a program that passes beside one that fails.
    """
    from evidence.baselines.preferences import preferences_by_tests
    from text2grad.feedback.examples import read_examples
    from text2grad.files import json_lines, write_atomically
    from text2grad.types import Example

    refuse_overwriting([args.out], force=args.force)
    problems: dict[tuple[str, str | None], list[str]] = {}
    for one in read_examples(args.file):
        problems.setdefault((one.prompt_text, one.tests), []).append(str(one.meta.get("response", "")))
    examples = [Example(prompt, tests=tests) for prompt, tests in problems]
    preferences = preferences_by_tests(examples, list(problems.values()))
    if not preferences:
        raise DataError(
            f"{args.file}: no problem has a program that passes its tests beside one that fails. Programs that fail "
            "may stand in another split (KodCode: --split train --split incorrect)"
        )
    write_atomically(args.out, json_lines(one._asdict() for one in preferences))
    print_lines([("problems", f"{len(problems):,}"), ("preferences", f"{len(preferences):,}")])
    return 0
