"""Which tests see a wrong line: 60 lines of the core, each changed in one place; evidence/results/mutations.json.

    python evidence/benchmarks/mutations.py     # hours of two cores at worst; goes on where it stopped

A seed draws lines of `rl`, `align`, `feedback`, `models` and `reward_models` among all that hold a sign, a mask, an
axis, a named argument or a comparison, and one change of each. The test file that mirrors the module runs first; the
tests of `make test` run only for what it does not see, and those of `make test-all` for what `make test` does not see.
The changes are made in a clone of the last commit, in a temporary folder.
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
from pathlib import Path
from random import Random
from typing import NamedTuple

SEED, LINES = 59, 60
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


def seen_by(clone: Path, change: Change) -> str:
    """Return which tests see a change: those of "its file", of "make test", of "make test-all"; or "none"."""
    path = clone / change.path
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    line = lines[change.line - 1]
    lines[change.line - 1] = line[: change.start] + change.text.encode() + line[change.end :]
    path.write_bytes(b"".join(lines))
    mirror = Path("tests", *Path(change.path).parts[2:-1], f"test_{path.name}")
    try:
        if (clone / mirror).exists() and _fails(clone, str(mirror)):
            return "its file"
        if _fails(clone, "-n", "2", "--dist", "loadfile"):
            return "make test"
        return (
            "make test-all" if _fails(clone, "-n", "2", "--dist", "loadfile", "-m", "thorough and not slow") else "none"
        )
    finally:
        path.write_bytes(before)


def _fails(clone: Path, *arguments: str) -> bool:
    """Return whether a test of a clone fails."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{clone / 'src'}:{clone}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    ended = subprocess.run(command, cwd=clone, env=environment, capture_output=True, check=False)
    return ended.returncode == 1


def main() -> None:
    """Draw the changes, run what is not yet known, and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"commit": commit, "seed": SEED, "changes": []}
    drawn = [Change(**{key: row[key] for key in Change._fields}) for row in known["changes"]] or draw()
    seen = [row["seen_by"] for row in known["changes"]] + [None] * (len(drawn) - len(known["changes"]))
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", ".", str(clone)], check=True)
        subprocess.run(["git", "checkout", "-q", known["commit"]], cwd=clone, check=True)
        for row, change in enumerate(drawn):
            if seen[row] is None:
                seen[row] = seen_by(clone, change)
                rows = [{**change._asdict(), "seen_by": by} for change, by in zip(drawn, seen, strict=True)]
                RESULTS.write_text(json.dumps({**known, "changes": rows}, indent=1) + "\n")
                print(f"{change.path}:{change.line} {change.kind}: {seen[row]}", flush=True)
    print(Counter(seen))


if __name__ == "__main__":
    main()
