"""Which tests see a wrong line: 60 lines of the core, each changed in one place; evidence/results/mutations.json.

    python evidence/benchmarks/mutations.py     # hours of two cores at worst; goes on where it stopped

A seed draws lines of `rl`, `align`, `feedback`, `models` and `reward_models` among all that hold a sign, a mask, an
axis, a named argument or a comparison, and one change of each. The test file that mirrors the module runs first, then
the tests of its package, those of `make test` and those of `make test-all`, each for what those before it did not see
of all changes. The changes are made in two clones of the last commit, two at a time, in a temporary folder.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any, NamedTuple

SEED, LINES = 59, 60
AT_ONCE = 2
STAGES = ("its file", "its package", "make test", "make test-all")
LONGEST = 2400
"""Seconds after which tests are taken to hang."""
PACKAGES = ("rl", "align", "feedback", "models", "reward_models")
RESULTS = Path("evidence/results/mutations.json")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
AXES = ("dim", "axis")
WITHOUT_EFFECT = ("strict", "slots")
"""Arguments that change nothing in a program that is right."""


class Change(NamedTuple):
    """One change of one line.

    Attributes:
        path: file of the product.
        line: number of the line, from 1.
        kind: sign, mask, axis, argument or comparison.
        start: column of the text that is replaced, in bytes.
        end: column behind it.
        text: what stands there afterwards.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str


def changes(path: Path) -> Iterator[Change]:
    """Yield the possible changes of a file that lie within one line."""
    source = path.read_bytes()
    lines = source.splitlines()
    tree = ast.parse(source)
    within_texts = {id(node) for text in ast.walk(tree) if isinstance(text, ast.JoinedStr) for node in ast.walk(text)}
    for node in ast.walk(tree):
        if id(node) not in within_texts:
            for kind, line, start, end, text in _changes_of(node, lines):
                yield Change(str(path), line, kind, start, end, text)


def _changes_of(node: ast.AST, lines: list[bytes]) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield (kind, line, start, end, text) of the changes of one node of the syntax tree."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        yield from _operator("sign", node.left, node.right, *SIGNS[type(node.op)], lines)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield from _operator("mask", node.left, node.right, "&", "|", lines)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield from _operator("comparison", node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])], lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        kind = "sign" if isinstance(node.op, ast.USub) else "mask"
        yield kind, node.lineno, node.col_offset, node.col_offset + 1, ""
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            start, end = keyword.col_offset, keyword.end_col_offset
            if keyword.arg is None or end is None or keyword.lineno != keyword.end_lineno:
                continue
            if keyword.arg in AXES and isinstance(keyword.value, ast.Constant | ast.UnaryOp):
                axis = "1" if ast.unparse(keyword.value) == "0" else "0"
                yield "axis", keyword.lineno, start, end, f"{keyword.arg}={axis}"
            elif keyword.arg not in (*AXES, *WITHOUT_EFFECT):
                behind = lines[keyword.lineno - 1][end:]
                comma = len(behind) - len(behind.lstrip(b", ")) if behind.lstrip().startswith(b",") else 0
                yield "argument", keyword.lineno, start, end + comma, ""


def _operator(
    kind: str, left: ast.expr, right: ast.expr, before: str, after: str, lines: list[bytes]
) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield the change of an operator between two operands of one line."""
    if left.end_lineno == right.lineno and left.end_col_offset is not None:
        between = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
        if (at := between.find(before.encode())) >= 0:
            start = left.end_col_offset + at
            yield kind, right.lineno, start, start + len(before), after


def draw() -> list[Change]:
    """Return the drawn changes, one for each line."""
    by_line: dict[tuple[str, int], list[Change]] = {}
    for package in PACKAGES:
        for path in sorted(Path("src/text2grad", package).rglob("*.py")):
            for change in changes(path):
                by_line.setdefault((change.path, change.line), []).append(change)
    rng = Random(SEED)
    return [rng.choice(sorted(by_line[place])) for place in sorted(rng.sample(sorted(by_line), LINES))]


def first_failure(clone: Path, change: Change, stage: str) -> str:
    """Return the first test of a stage that fails with a change, or "". The change is taken back at the end."""
    path = clone / change.path
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    line = lines[change.line - 1]
    lines[change.line - 1] = line[: change.start] + change.text.encode() + line[change.end :]
    package, *inner = Path(change.path).parts[2:-1]
    mirror = Path("tests", package, *inner, f"test_{path.name}")
    arguments = {"its file": (str(mirror),), "its package": (f"tests/{package}",), "make test": ()}
    if stage == "its file" and not (clone / mirror).exists():
        return ""
    path.write_bytes(b"".join(lines))
    try:
        return _first_failure(clone, *arguments.get(stage, ("-m", "thorough and not slow")))
    finally:
        path.write_bytes(before)


def _first_failure(clone: Path, *arguments: str) -> str:
    """Return the first test of a clone that fails, or ""."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{clone / 'src'}:{clone}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    try:
        ended = subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return "the tests did not end"
    failures = [text for text in ended.stdout.splitlines() if text.startswith(("FAILED ", "ERROR "))]
    nothing_ran = ended.returncode in (0, 5)
    return "" if nothing_ran else (failures or ["pytest ended without a test's name"])[0].split(" - ")[0]


def main() -> None:
    """Draw the changes, run what is not yet known, and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if RESULTS.exists():
        known = json.loads(RESULTS.read_text())
    else:
        drawn = [{**change._asdict(), "seen_by": None, "not_by": [], "test": ""} for change in draw()]
        known = {"commit": commit, "seed": SEED, "changes": drawn}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        clones: Queue[Path] = Queue()
        for number in range(AT_ONCE):
            clone = Path(folder, f"clone-{number}")
            subprocess.run(["git", "clone", "-q", ".", str(clone)], check=True)
            subprocess.run(["git", "checkout", "-q", known["commit"]], cwd=clone, check=True)
            clones.put(clone)

        def run(row: dict[str, Any], stage: str) -> None:
            clone = clones.get()
            row["test"] = first_failure(clone, Change(**{key: row[key] for key in Change._fields}), stage)
            row["seen_by"] = stage if row["test"] else row["seen_by"]
            row["not_by"] = row["not_by"] if row["test"] else [*row["not_by"], stage]
            clones.put(clone)

        for stage in STAGES:
            waiting = [row for row in known["changes"] if not row["seen_by"] and stage not in row["not_by"]]
            for row, _ in zip(waiting, pool.map(run, waiting, repeat(stage)), strict=True):
                RESULTS.write_text(json.dumps(known, indent=1) + "\n")
                print(f"{row['path']}:{row['line']} {row['kind']}: {stage}: {row['test'] or 'not seen'}", flush=True)
    print(Counter(row["seen_by"] for row in known["changes"]))


if __name__ == "__main__":
    main()
