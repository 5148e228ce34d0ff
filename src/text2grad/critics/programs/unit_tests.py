"""Unit tests as a critic: the feedback names what failed, and the spans mark the code that is suspect.

    exception in the program     the expression that Python marks in the last line of the program in its traceback
    some tests pass, some fail   the expressions in the lines that only failing tests ran
    failing tests run one line   the expression in that line
    otherwise                    no span: only the outcome is known

The outcome of a response is +1 if all tests pass, else −1.
"""

import ast
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from text2grad.critics.programs.failing_lines import (
    StatementRun,
    lines_run,
    read_statement_runs,
    split_tests,
    suspect_lines,
    tracing_tests,
)
from text2grad.critics.programs.program_text import Program, judged_program, parsed
from text2grad.errors import DataError
from text2grad.progress import note
from text2grad.types import Critique, Example, Span
from text2grad_sandbox import Result, Sandbox, reason_not_to_run, with_names

SHOWN_TESTS = 3
FORGEABLE = (
    "{forgeable} of {passed} programs that passed could have forged it: their tests share a process with them, or "
    "their own classes decide a comparison (docs/critics.md, Modes)"
)
_ENDS = {
    "timeout": "The program did not end within {:g} seconds.",
    "memory": "The program asked for more memory than it may have.",
    "crashed": "The program ended the process before the tests were over.",
}
ONE_LINE = "failing tests run no other line"
_SHOWN_CHARS = 200
_RECORDS_CHARS = 2**20  # most characters of the records of statements
_FRAME = re.compile(
    r'^  File "solution\.py", line (\d+).*\n(?:    (\S.*)\n)?(?:    ([ ]*)([~^]+)[ ]*\n)?', re.MULTILINE
)
_FILE = re.compile(r'^  File "([^"\n]*)", line \d+', re.MULTILINE)
_TEST_FRAME = re.compile(r'^  File "tests\.py", line \d+.*\n    (\S.*)\n', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"
_RAISED = re.compile(r"^[A-Za-z_].*$", re.MULTILINE)  # the first line behind the frames, which are indented
_UNPRINTED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*$", re.MULTILINE)


@dataclass
class UnitTestCritic(AbstractContextManager["UnitTestCritic"]):
    """Judges programs by the tests of their examples (`Example.tests`), in the sandbox.

    Attributes:
        passed_outcome: outcome of a response that passes all tests.
        failed_outcome: outcome of any other response.
        timeout_s: time limit of a program with its tests, in seconds.
        memory_mb: limit of its address space in MiB.
        workers: number of programs that run at the same time; None takes the number of processor cores.
        accept_weaker: run without protection of files if no stronger isolation works; see docs/critics.md.
        overlap: parts of a step that it judges at a time while the policy samples others (`critic.overlap`): one,
            whose programs use all its workers.

    Raises:
        SandboxError: if code cannot be run in isolation on this machine.

    Example:
        >>> example = Example("Add two numbers.", tests="assert add(1, 2) == 3")
        >>> with UnitTestCritic(workers=1) as critic:  # doctest: +SKIP
        ...     print(critic([example], ["add = lambda a, b: a - b"])[0].feedback)
        1 of 1 tests fails.
        `assert add(1, 2) == 3` fails: its left side is -1.
        "lambda a, b: a - b" is suspect: failing tests run no other line.
    """

    passed_outcome: float = 1.0
    failed_outcome: float = -1.0
    timeout_s: float = 2.0
    memory_mb: int = 256
    workers: int | None = None
    accept_weaker: bool = False
    overlap: ClassVar[int] = 1
    _sandbox: Sandbox = field(init=False, repr=False)
    _passed: int = field(init=False, repr=False, default=0)
    _forgeable: int = field(init=False, repr=False, default=0)
    _reasons: dict[str, str] = field(init=False, repr=False, default_factory=dict)  # tests → why they cannot be run
    _lacking: dict[str, bool] = field(init=False, repr=False, default_factory=dict)  # packages that were looked for

    def __post_init__(self) -> None:
        """Start the sandbox, so that a missing requirement is reported at once."""
        self._sandbox = Sandbox(workers=self.workers, accept_weaker=self.accept_weaker)

    def __exit__(self, *_: object) -> None:
        """End the sandbox's workers, and log how many verdicts rest on a program's word."""
        if self._forgeable:
            note(FORGEABLE.format(forgeable=self._forgeable, passed=self._passed), warning=True)
            self._passed = self._forgeable = 0
        self._sandbox.close()

    def check_examples(self, examples: Sequence[Example]) -> None:
        """Refuse examples whose tests cannot be run, whatever the program; a run calls this before its first step.

        Raises:
            DataError: if an example has no tests, or the sandbox cannot run them or lacks a package that they import.
        """
        if reasons := [(item.prompt_text, reason) for item in examples if (reason := self._unusable(item.tests))]:
            prompt, reason = reasons[0]
            raise DataError(
                f"{type(self).__name__} judges by tests, and those of {len(reasons)} of {len(examples)} prompts cannot "
                f"be run. The first, {prompt[:60]!r}: {reason}. Mend the tests, or remove the prompts"
            )

    def _unusable(self, tests: Any) -> str:
        """Return why tests cannot be run; empty if they can."""
        if not tests:
            return 'there is no "tests"'
        if not isinstance(tests, str):
            return f'"tests" is a {type(tests).__name__}, and must be one text: its lines, or cases as JSON'
        if tests not in self._reasons:
            lacking = (name for name in sorted(imported(tests)) if self._lacks(name))
            told = (f"the sandbox's Python has no package {name}" for name in lacking)
            self._reasons[tests] = reason_not_to_run(tests) or next(told, "")
        return self._reasons[tests]

    def _lacks(self, package: str) -> bool:
        """Return whether the sandbox cannot import a package."""
        if package not in self._lacking:
            result = self._run([("", f"assert __import__({package!r})")])[0]
            self._lacking[package] = f"No module named '{package}'" in result.output  # a slow import is there
        return self._lacking[package]

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response; refuse examples as `check_examples` does."""
        self.check_examples(examples)
        programs = [judged_program(*pair) for pair in zip(examples, responses, strict=True)]
        tests = [with_names(example.tests or "") for example in examples]
        jobs = [(program.text, own) for program, own in zip(programs, tests, strict=True)]
        outcomes = self._run(jobs)
        self._count(outcomes)
        return list(map(self._critique, outcomes, programs, self._run_statements(jobs, outcomes), tests))

    def _count(self, results: Sequence[Result]) -> None:
        """Count the passes that a program could have forged, and tell of the first."""
        first = not self._forgeable
        self._passed += sum(result.passed for result in results)
        self._forgeable += sum(result.forgeable for result in results)
        if first and self._forgeable:
            note(FORGEABLE.format(forgeable=self._forgeable, passed=self._passed), warning=True)

    def _run(self, jobs: Sequence[tuple[str, str]], mode: Literal["shared"] | None = None, **more: Any) -> list[Result]:
        return self._sandbox.run_many(jobs, timeout_s=self.timeout_s, memory_mb=self.memory_mb, mode=mode, **more)

    def _run_statements(self, jobs: Sequence[tuple[str, str]], outcomes: Sequence[Result]) -> list[list[StatementRun]]:
        """Run the tests of each failed program statement by statement; the list is empty for other programs."""
        mark, failed = secrets.token_hex(8), [outcome.reason == "failed" for outcome in outcomes]
        traced = [tracing_tests(tests, mark) if fails else "" for (_, tests), fails in zip(jobs, failed, strict=True)]
        again = [(program, text) for (program, _), text in zip(jobs, traced, strict=True) if text]
        results = iter(self._run(again, mode="shared", output_chars=_RECORDS_CHARS))
        return [
            read_statement_runs(next(results).output, mark, tests, program) if text else []
            for (program, tests), text in zip(jobs, traced, strict=True)
        ]

    def _critique(self, outcome: Result, program: Program, runs: list[StatementRun], tests: str) -> Critique:
        if outcome.passed:
            return Critique("All tests pass.", (), self.passed_outcome)
        ends = _ENDS.get(outcome.reason, "").format(self.timeout_s)
        lines, spans = ([ends], []) if ends else _describe(outcome, program, runs, tests)
        return Critique("\n".join(lines), tuple(sorted(set(spans))), self.failed_outcome)


def _describe(outcome: Result, program: Program, runs: list[StatementRun], tests: str) -> tuple[list[str], list[Span]]:
    """Return the feedback on a failed program, and the suspect spans."""
    failed = any(run.error for run in runs)
    _, traceback, end = outcome.output.rpartition(_TRACEBACK)
    raised = traceback and _FILE.findall(end)[-1:] == ["solution.py"]  # under pytest each exception is a failure
    if outcome.reason == "error" or (not failed and raised):
        return _describe_error(outcome, program, end if traceback else "")
    lines = _failures(outcome, runs, tests)
    suspect, passing = suspect_lines(runs), lines_run(runs, failed=False)
    spans = [span for line in sorted(suspect) if (span := program.expression(line)) is not None]
    where = "only failing tests run it" if passing and not passing & suspect else ONE_LINE
    return [*lines, *(f"{program.quote(span)} is suspect: {where}." for span in spans)], spans


def _describe_error(outcome: Result, program: Program, traceback: str) -> tuple[list[str], list[Span]]:
    """Return the feedback on an exception, and the span of the expression that raised it."""
    raised = _RAISED.search(traceback)
    errors = [raised[0]] if raised else _UNPRINTED.findall(outcome.output)
    if not errors:
        return [f"The tests were not run: {_short(outcome.output.strip().rpartition(chr(10))[2])}"], []
    error = _short(errors[-1].removeprefix("solution."))  # the sandbox's name of the program's module
    frames = list(_FRAME.finditer(outcome.output))
    span = _raising_span(frames[-1], program) if frames else None
    calls = _TEST_FRAME.findall(outcome.output)
    if span is not None:
        return [f"{program.quote(span)} raises {error}"], [span]
    return [f"`{_short(calls[-1])}` raises {error}" if calls else f"The program raises {error}"], []


def _raising_span(frame: re.Match[str], program: Program) -> Span | None:
    """Return the expression that a frame of a traceback marks, or else the expression of its line."""
    line, code = int(frame[1]), frame[2]
    begin, end = program.at(line, 1), program.at(line + 1, 1)
    text = program.text[begin:end]
    # Carets mark columns of the screen, which equal characters only in ASCII.
    if code and frame[4] and text.strip() == code and code.isascii():
        start = begin + text.index(code) + len(frame[3])
        return program.span(start, start + len(frame[4])) or program.expression(line)
    return program.expression(line)


def _failures(outcome: Result, runs: list[StatementRun], tests: str) -> list[str]:
    """Return the feedback on the tests that failed."""
    failed = [run for run in runs if run.error]
    if not failed:
        calls = _TEST_FRAME.findall(outcome.output)
        return [f"`{_short(calls[-1])}` fails." if calls else "The tests fail."]
    asked = sum(is_test for is_test, _ in split_tests(tests))
    unfinished = max(asked - len(runs), 0)  # a loop without end, or the end of the process
    rest = f"; {unfinished} did not end" if unfinished else ""
    lines = [f"{len(failed)} of {len(runs) + unfinished} tests fail{'s' if len(failed) == 1 else ''}{rest}."]
    for run in failed[:SHOWN_TESTS]:
        verb = "fails" if run.error == "AssertionError" else f"raises {run.error}"
        value = "" if run.left is None else f": its left side is {run.left}"
        lines.append(f"`{_short(run.source)}` {verb}{value}.")
    return lines


def _short(text: str) -> str:
    """Return a text on one line, cut to 200 characters."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 2] + " …"


def imported(tests: str) -> set[str]:
    """Return the packages that tests import and that Python itself lacks; the program is no package.

    An import within `try` may fail.
    """
    try:
        nodes = list(ast.walk(parsed(tests)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # cases in JSON
        return set()
    tried = {inner for node in nodes if isinstance(node, ast.Try) for inner in ast.walk(node)}
    nodes = [node for node in nodes if node not in tried]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"solution"}
