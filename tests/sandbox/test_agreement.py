"""Verdicts agree with plain Python on programs of MBPP and HumanEval, right ones and ones with a changed operator."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from places import SHARED
from text2grad_sandbox.sandbox import Sandbox

CHANGES = ((" + ", " - "), ("<", "<="), ("return ", "return not "), ("==", "!="), (" 1", "2"))


def variants(program: str) -> Iterator[str]:
    """Yield a program and up to two mutants."""
    yield program
    changed = (program.replace(before, after, 1) for before, after in CHANGES if before in program)
    yield from [next(changed, program), next(changed, program)]


def items() -> Iterator[tuple[str, str]]:
    """Yield programs and their tests."""
    for record in json.loads((SHARED / "data/mbpp/sanitized-mbpp.json").read_text("utf-8")):
        for program in variants(record["code"]):
            yield program, "\n".join(record["test_imports"] + record["test_list"])
    with gzip.open(SHARED / "data/humaneval/HumanEval.jsonl.gz", "rt") as lines:
        for record in map(json.loads, lines):
            for program in variants(record["canonical_solution"]):
                yield record["prompt"] + program, f"{record['test']}\ncheck({record['entry_point']})"


def plain(program: str, tests: str) -> bool:
    """Return whether tests pass behind the program, in a new Python process."""
    command = [sys.executable, "-I", "-S", "-c", f"{program}\n{tests}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_verdicts_agree_with_plain_python(step: int) -> None:
    if not (SHARED / "data/mbpp").exists():
        pytest.skip("needs ../shared/data, which is not part of the project")
    jobs = list(items())[::step]
    with Sandbox(workers=1, accept_weaker=True) as sandbox:
        results = sandbox.run_many(jobs, timeout_s=20, memory_mb=1000)
    differing = [(*job, result) for job, result in zip(jobs, results, strict=True) if result.passed != plain(*job)]
    assert differing == []
    assert not any(result.forgeable for result in results if result.mode == "separate")
    assert {result.passed for result in results} == {True, False}
