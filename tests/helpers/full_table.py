"""The table of `make test-full`: one row per test with its outcome and seconds, from the JUnit files of pytest.

python tests/helpers/full_table.py build/slow.xml build/verl.xml --out tests/matrices/full.md
"""

import argparse
import datetime
import importlib.metadata
import platform
import sys
from pathlib import Path
from xml.etree import ElementTree

VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


def rows(path: Path) -> dict[tuple[str | None, str], str]:
    """Return the row (file, test, outcome, seconds) of each test of a file that `pytest --junitxml` wrote."""
    lines = {}
    for case in ElementTree.parse(path).iter("testcase"):
        outcome, reason = "passed", ""
        for word in ("failure", "error", "skipped"):
            if (told := case.find(word)) is not None:
                outcome, reason = word, ": " + told.get("message", "").splitlines()[0][:100]
        name = case.get("name", "").replace("|", "/")
        seconds = f"{float(case.get('time', 0)):.0f}"
        lines[case.get("classname"), name] = f"| {case.get('classname')} | {name} | {outcome}{reason} | {seconds} |"
    return lines


def main() -> None:
    """Write the table with the day and the versions of this environment; end with 1 if a test failed.

    A test has one row: of the last file that has it, such as that of the environment in which it is not skipped.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    tests = {test: row for path in arguments.files for test, row in rows(path).items()}
    files = {file for file, _ in tests}  # one that was skipped as a whole is a test without a file
    table = [row for (file, name), row in tests.items() if file or name not in files]
    head = f"{datetime.date.today()}, Python {platform.python_version()}, {versions}; engines as in the Makefile\n"
    arguments.out.write_text(
        "\n".join([head, "| file | test | outcome | seconds |", "|---|---|---|---|", *table]) + "\n", encoding="utf-8"
    )
    sys.exit(any("| failure" in row or "| error" in row for row in table))


if __name__ == "__main__":
    main()
