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


def rows(path: Path) -> list[str]:
    """Return the rows (file, test, outcome, seconds) of a file that `pytest --junitxml` wrote."""
    lines = []
    for case in ElementTree.parse(path).iter("testcase"):
        outcome, reason = "passed", ""
        for word in ("failure", "error", "skipped"):
            if (told := case.find(word)) is not None:
                outcome, reason = word, ": " + told.get("message", "").splitlines()[0][:100]
        name = case.get("name", "").replace("|", "/")
        lines.append(f"| {case.get('classname')} | {name} | {outcome}{reason} | {float(case.get('time', 0)):.0f} |")
    return lines


def main() -> None:
    """Write the table with the day and the versions of this environment; end with 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    table = [row for path in arguments.files for row in rows(path)]
    head = f"{datetime.date.today()}, Python {platform.python_version()}, {versions}; engines as in the Makefile\n"
    arguments.out.write_text(
        "\n".join([head, "| file | test | outcome | seconds |", "|---|---|---|---|", *table]) + "\n", encoding="utf-8"
    )
    sys.exit(any("| failure" in row or "| error" in row for row in table))


if __name__ == "__main__":
    main()
