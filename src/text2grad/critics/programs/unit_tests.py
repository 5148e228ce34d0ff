"""Unit tests as a critic: what fails is said in words, and quoted where the tests tell the place.

    error in the program        the expression that Python names in its traceback, in the last line of the program
    tests fail, others pass     what the lines compute that only failing tests ran
    failing tests run one line  what that line computes
    anything else               no place: only the outcome tells it

The outcome of a response is +1 where all tests pass, and −1 where not.
"""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from text2grad.critics.programs.failing_lines import Unit, one_by_one, read_units, suspects
from text2grad.critics.programs.program_text import Program, program_in
from text2grad.critics.sandbox.sandbox import Outcome, Sandbox, with_names
from text2grad.errors import DataError
from text2grad.types import Critique, Example, Span

SHOWN_TESTS = 3
ONE_LINE = "failing tests run no other line"
_SHOWN_CHARS = 200
_FRAME = re.compile(
    r'^  File "solution\.py", line (\d+).*\n(?:    (\S.*)\n)?(?:    ([ ]*)([~^]+)[ ]*\n)?', re.MULTILINE
)
_TEST_FRAME = re.compile(r'^  File "tests\.py", line \d+.*\n    (\S.*)\n', re.MULTILINE)
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Iteration)\b.*$", re.MULTILINE)


@dataclass
class UnitTestCritic:
    """Judges programs by the tests of their examples (`Example.tests`), in the sandbox.

    Attributes:
        passed_outcome: outcome of a response that passes all tests.
        failed_outcome: outcome of any other.
        continues_prompt: True where a response goes on with the code of its prompt, as in HumanEval.
        timeout_s: seconds that a program may take, tests included.
        memory_mb: MiB that it may have.
        workers: how many programs run at a time; the processor's cores unless told.
        accept_weaker: run without isolation from files where nothing better works; see `text2grad.sandbox`.

    Raises:
        SandboxError: if code cannot be run safely here.

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
    continues_prompt: bool = False
    timeout_s: float = 2.0
    memory_mb: int = 256
    workers: int | None = None
    accept_weaker: bool = False
    _sandbox: Sandbox = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start the sandbox, so that what is missing is told at once."""
        self._sandbox = Sandbox(workers=self.workers, accept_weaker=self.accept_weaker)

    def __enter__(self) -> Self:
        """Return the critic."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the sandbox's workers."""
        self._sandbox.close()

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            DataError: if an example has no tests.
        """
        for number, example in enumerate(examples, start=1):
            if not example.tests:
                raise DataError(f"example {number} of the batch has no tests, which this critic judges by")
        programs = [program_in(response) for response in responses]
        heads = [example.prompt_text if self.continues_prompt else "" for example in examples]
        jobs = [
            (head + program.text, with_names(example.tests or ""))
            for head, program, example in zip(heads, programs, examples, strict=True)
        ]
        outcomes = self._run(jobs)
        units = self._isolate(jobs, outcomes)
        return [
            self._critique(outcome, _Place(program, head), ran)
            for outcome, program, head, ran in zip(outcomes, programs, heads, units, strict=True)
        ]

    def _run(self, jobs: Sequence[tuple[str, str]]) -> list[Outcome]:
        return self._sandbox.run_many(jobs, timeout_s=self.timeout_s, memory_mb=self.memory_mb)

    def _isolate(self, jobs: Sequence[tuple[str, str]], outcomes: Sequence[Outcome]) -> list[list[Unit]]:
        """Run the tests of failed programs one by one, and return how each ended; nothing for other programs."""
        found: list[list[Unit]] = [[] for _ in jobs]
        mark = secrets.token_hex(8)
        harnesses = {
            k: one_by_one(jobs[k][1], mark) for k, outcome in enumerate(outcomes) if outcome.reason == "failed"
        }
        again = {k: (jobs[k][0], harness) for k, harness in harnesses.items() if harness}
        for k, outcome in zip(again, self._run(list(again.values())), strict=True):
            found[k] = read_units(outcome.output, mark)
        return found

    def _critique(self, outcome: Outcome, place: "_Place", units: list[Unit]) -> Critique:
        if outcome.passed:
            return Critique("All tests pass.", (), self.passed_outcome)
        lines, spans = _told(outcome, place, units, self.timeout_s)
        return Critique("\n".join(lines), tuple(sorted(set(spans))), self.failed_outcome)


@dataclass(frozen=True, slots=True)
class _Place:
    """A program in its response, after the code of its prompt."""

    program: Program
    head: str

    def line(self, number: int) -> int | None:
        """Return the line of the response's program for a line of what was run; None for one of the prompt."""
        own = number - Program(self.head).lines + 1
        return own if 1 <= own <= self.program.lines else None

    def quote(self, span: Span) -> str:
        """Return the text of a span."""
        start = self.program.start
        return json.dumps(self.program.text[span.start - start : span.end - start], ensure_ascii=False)


def _told(outcome: Outcome, place: _Place, units: list[Unit], timeout_s: float) -> tuple[list[str], list[Span]]:
    """Return what went wrong in words, and the places that are to blame."""
    if outcome.reason == "timeout":
        return [f"The program did not end within {timeout_s:g} seconds."], []
    if outcome.reason == "memory":
        return ["The program asked for more memory than it may have."], []
    if outcome.reason == "crashed":
        return ["The program ended the process before the tests were over."], []
    if outcome.reason == "error":
        return _error(outcome, place)
    lines = _failures(outcome, units)
    spans = _isolated(units, place)
    passing = frozenset[int]().union(*(unit.lines for unit in units if not unit.error))
    where = "only failing tests run it" if passing and not passing & suspects(units) else ONE_LINE
    return [*lines, *(f"{place.quote(span)} is suspect: {where}." for span in spans)], spans


def _error(outcome: Outcome, place: _Place) -> tuple[list[str], list[Span]]:
    """Return an exception in words, with the expression of the program that raised it."""
    errors = _ERROR.findall(outcome.output)
    if not errors:
        return [f"The tests were not run: {_short(outcome.output.strip().rpartition(chr(10))[2])}"], []
    said = _short(errors[-1])
    frames = list(_FRAME.finditer(outcome.output))
    span = _raising(frames[-1], place) if frames else None
    calls = _TEST_FRAME.findall(outcome.output)
    if span is not None:
        return [f"{place.quote(span)} raises {said}"], [span]
    return [f"`{_short(calls[-1])}` raises {said}" if calls else f"The program raises {said}"], []


def _raising(frame: re.Match[str], place: _Place) -> Span | None:
    """Return the expression that a frame of a traceback points at, or what its line computes."""
    line = place.line(int(frame[1]))
    if line is None:
        return None
    source, program = frame[2], place.program
    begin, end = program.at(line, 1), program.at(line + 1, 1)
    text = program.text[begin:end]
    # Carets count columns of the screen, which are characters only in ASCII.
    if source and frame[4] and text.strip() == source and source.isascii():
        start = begin + text.index(source) + len(frame[3])
        return program.span(start, start + len(frame[4])) or program.expression(line)
    return program.expression(line)


def _failures(outcome: Outcome, units: list[Unit]) -> list[str]:
    """Return which tests failed, in words."""
    failed = [unit for unit in units if unit.error]
    if not failed:
        calls = _TEST_FRAME.findall(outcome.output)
        return [f"`{_short(calls[-1])}` fails." if calls else "The tests fail."]
    lines = [f"{len(failed)} of {len(units)} tests fail{'s' if len(failed) == 1 else ''}."]
    for unit in failed[:SHOWN_TESTS]:
        how = "fails" if unit.error == "AssertionError" else f"raises {unit.error}"
        value = "" if unit.left is None else f": its left side is {unit.left}"
        lines.append(f"`{_short(unit.source)}` {how}{value}.")
    return lines


def _isolated(units: list[Unit], place: _Place) -> list[Span]:
    """Return what the few lines compute that the tests single out."""
    lines = [line for line in map(place.line, sorted(suspects(units))) if line is not None]
    return [span for span in map(place.program.expression, lines) if span is not None]


def _short(text: str) -> str:
    """Return a text on one line, cut where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 2] + " …"
