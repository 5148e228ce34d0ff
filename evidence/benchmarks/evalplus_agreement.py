"""Verdicts of `text2grad evaluate policy` on records in EvalPlus's format, beside the verdicts of EvalPlus's own check.

The records are made from the assertions of HumanEval and sanitized MBPP: their arguments are the inputs, the reference
solutions give the outputs. The programs are the reference solutions, and up to two with a changed operator each. Both
sides get equal JSON, so the types that EvalPlus gives back to inputs of MBPP are compared, too.

Run, in an environment with the package evalplus:
python evidence/benchmarks/evalplus_agreement.py [--data ../shared/data] [--step N]
EvalPlus runs the programs without isolation; these are the benchmarks' own and their mutants.
"""

import argparse
import ast
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from evalplus.data.mbpp import mbpp_deserialize_inputs
from evalplus.eval import untrusted_check
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS

from text2grad.evaluation.suites import evalplus
from text2grad_sandbox import Sandbox

CHANGES = ((" + ", " - "), ("<", "<="), ("return ", "return not "), ("==", "!="), (" 1", "2"))


class Problem(NamedTuple):
    """A function, its reference solution and the arguments of its assertions."""

    kind: str
    task: str
    function: str
    prompt: str
    solution: str
    inputs: list[Any]


def arguments(tests: str, function: str) -> list[Any]:
    """Return the literal arguments of each call of a function."""
    found = []
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            try:
                found.append([ast.literal_eval(one) for one in node.args])
            except ValueError:
                continue  # an argument that is computed
    return found


def problems(data: Path) -> Iterator[Problem]:
    """Yield the problems of both benchmarks."""
    for record in json.loads((data / "mbpp/sanitized-mbpp.json").read_text("utf-8")):
        tests = "\n".join(record["test_list"])
        names = [node.name for node in ast.parse(record["code"]).body if isinstance(node, ast.FunctionDef)]
        name = next((one for one in reversed(names) if f"{one}(" in tests), None)
        if name:
            given = arguments(tests, name)
            yield Problem("mbpp", f"Mbpp/{record['task_id']}", name, "", record["code"], given)
    with gzip.open(data / "humaneval/HumanEval.jsonl.gz", "rt") as lines:
        for record in map(json.loads, lines):
            given = arguments(record["test"], "candidate")
            named = record["task_id"], record["entry_point"], record["prompt"], record["canonical_solution"]
            yield Problem("humaneval", *named, given)


def variants(program: str) -> Iterator[str]:
    """Yield a program and up to two mutants."""
    changed = (program.replace(before, after, 1) for before, after in CHANGES if before in program)
    yield from [program, next(changed, program), next(changed, program)]


def expected(problem: Problem, inputs: list[Any]) -> tuple[list[Any], list[float]]:
    """Return the outputs of the reference solution, and the seconds that each took."""
    space: dict[str, Any] = {}
    exec(problem.prompt + problem.solution, space)
    outputs, seconds = [], []
    for given in inputs:
        start = time.perf_counter()
        outputs.append(space[problem.function](*deepcopy(given)))
        seconds.append(time.perf_counter() - start)
    if problem.kind == "mbpp" and problem.function in MBPP_OUTPUT_NOT_NONE_TASKS:
        outputs = [one is not None for one in outputs]
    return outputs, seconds


def main() -> None:
    """Compare, and print each difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--step", type=int, default=1, help="take every N-th problem")
    chosen = parser.parse_args()
    jobs, theirs, left_out = [], [], 0
    for problem in list(problems(chosen.data))[:: chosen.step]:
        try:
            inputs = json.loads(json.dumps(problem.inputs))
            typed = mbpp_deserialize_inputs(problem.task, deepcopy(inputs)) if problem.kind == "mbpp" else inputs
            outputs, seconds = expected(problem, typed)
        except Exception:  # noqa: BLE001  (inputs that are no JSON, or that the reference does not take without their types)
            left_out += 1
            continue
        record = {"task_id": problem.task, "prompt": problem.prompt, "entry_point": problem.function, "atol": 0}
        record |= {"canonical_solution": problem.solution, "base_input": inputs}
        tests = evalplus.tests_of(record, "base_input", problem.task)
        for program in variants(problem.solution):
            jobs.append((problem.prompt + program, tests))
            theirs.append((problem, typed, outputs, seconds))
    with Sandbox() as sandbox:
        ours = sandbox.run_many(jobs, timeout_s=60, memory_mb=4096)
    table: Counter[tuple[bool, bool]] = Counter()
    for (program, _), (problem, typed, outputs, seconds), mine in zip(jobs, theirs, ours, strict=True):
        status, _ = untrusted_check(
            problem.kind, program, deepcopy(typed), problem.function, outputs, 0, seconds, fast_check=True
        )
        table[mine.passed, status == "pass"] += 1
        if mine.passed != (status == "pass"):
            print(
                f"{problem.task}: EvalPlus {status}, text2grad {mine.reason}\n{mine.output[-300:]}\n{program[-400:]}\n"
            )
    print(f"{len(jobs)} programs, {left_out} problems left out; pass in both {table[True, True]}, in none "
          f"{table[False, False]}, differing {table[True, False] + table[False, True]}")  # fmt: skip
    sys.exit(bool(table[True, False] + table[False, True]))


if __name__ == "__main__":
    main()
