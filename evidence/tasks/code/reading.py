"""Reading a program: response, steps → findings. Nothing of the response runs.

The name that a line assigns gives its step. The right side of the line is compared with the step by meaning, and must
read the result of the line before. Every finding is an expression of one line; a step without a line has no finding. A
quote of a step's whole line begins with the step's name, so that its first token identifies the line.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from evidence.tasks.code.expressions import Part, RightSide, parse
from evidence.tasks.code.world import INDENT, INPUT, NAMES, Step, right_side, slipped
from text2grad.tasks.base import WORD
from text2grad.tasks.program_critic import Finding

Kind = Literal[
    "right",
    "wrong",
    "slip",
    "surplus",
    "foreign",
    "stale",
    "undefined",
    "unreadable",
    "duplicate",
    "misplaced",
    "extra",
    "late",
    "indent",
    "returned",
]

LONGEST_QUOTE = 16  # words
_ASSIGNMENT = re.compile(r"([a-z]) *= *(?!=)(?=[^ ])")
_RETURN = re.compile(r"return +(?=[^ ])")
_NAME = re.compile(r"[a-z]")


class Reading(NamedTuple):
    """The findings in one response."""

    findings: list[Finding]
    missing: list[int]  # indices of the steps that have no line
    returns: bool


class _Line(NamedTuple):
    text: str  # without spaces around it
    start: int
    indented: bool  # correctly


def read(response: str, steps: Sequence[Step]) -> Reading:
    """Judge every line of a response against the steps."""
    reader = _Reader(steps)
    for line in _lines(response):
        reader.take(line)
    findings = sorted(reader.findings, key=lambda finding: finding.start)
    missing = [place for place in range(len(steps)) if place not in reader.seen]
    return Reading(findings, missing, reader.returned)


def _lines(response: str) -> Iterator[_Line]:
    """Yield the lines of a response that are not empty; the indentation of the first does not matter."""
    start, first = 0, True
    for text in response.split("\n"):
        bare = text.strip(" ")
        if text.strip():
            space = text[: len(text) - len(text.lstrip(" "))]
            yield _Line(bare, start + len(space), first or space == INDENT)
            first = False
        start += len(text) + 1


class _Reader:
    """Judges the lines of one program in order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.findings: list[Finding] = []
        self.seen: list[int] = []  # indices of the steps that have a line, in the order of the lines
        self.returned = False
        self._wanted = _pieces(steps)
        self._habits = _pieces([slipped(step) for step in steps])

    def take(self, line: _Line) -> None:
        """Judge the next line."""
        assignment, returning = _ASSIGNMENT.match(line.text), _RETURN.match(line.text)
        if self.returned:
            self._quote("late", line)
        elif returning is not None:
            self.returned = True
            self._check_indent(line, returning)
            self._take_return(line, returning.end())
        elif assignment is None or assignment[1] not in NAMES[: len(self._wanted)]:
            self._quote("extra", line)
        else:
            self._check_indent(line, assignment)
            self._take_step(line, assignment.end(), NAMES.index(assignment[1]))

    @property
    def _source(self) -> str:
        """The name that was assigned last."""
        return NAMES[self.seen[-1]] if self.seen else INPUT

    def _take_return(self, line: _Line, start: int) -> None:
        """Judge the returned expression: the name of the last result, or the right side of the last step."""
        last = len(self._wanted) - 1
        if _NAME.fullmatch(line.text[start:]) is None and last not in self.seen:
            self._take_step(line, start, last)
        elif line.text[start:] != self._source:
            self._quote("returned", line, 0 if line.indented else start)

    def _take_step(self, line: _Line, start: int, place: int) -> None:
        """Judge a line whose right side begins at `start`."""
        seen, source, right = tuple(self.seen), self._source, parse(line.text[start:])
        self.seen.append(place)
        if place in seen:
            self._quote("duplicate", line, 0, place)
        elif any(other > place for other in seen):
            self._quote("misplaced", line, 0, place)
        elif right is None:
            self._quote("unreadable", line, 0, place)
        else:
            reads: Kind = "right"
            if right.source != source:
                reads = "stale" if right.source in (INPUT, *(NAMES[other] for other in seen)) else "undefined"
            self._judge(right, line, start, place, reads)

    def _judge(self, right: RightSide, line: _Line, begin: int, place: int, reads: Kind) -> None:
        """Judge each part of a right side, and the list that it reads; a whole right side is quoted with its name."""
        base = line.start + begin
        goal, habit = self._wanted[place], self._habits[place]
        related = any(part.role == goal.role for part in right.parts)
        found = [(_verdict(part, goal, habit, related), part.place) for part in right.parts]
        if right.reads == right.parts[0].place:  # one expression is both
            found = [(reads if kind == "right" else kind, at) for kind, at in found]
        elif reads != "right" and right.parts[0].role != "whole":
            found.append((reads, right.reads))
        self.findings += [
            Finding(kind, base + start if start else line.start, base + end, place) for kind, (start, end) in found
        ]

    def _check_indent(self, line: _Line, opening: re.Match[str]) -> None:
        if not line.indented:
            self.findings.append(Finding("indent", line.start, line.start + len(opening[0].rstrip())))

    def _quote(self, kind: Kind, line: _Line, start: int = 0, place: int | None = None) -> None:
        """Add findings for a line from `start` on, in pieces that a critique can quote."""
        words = list(WORD.finditer(line.text, start))
        for i in range(0, len(words), LONGEST_QUOTE):
            chunk = words[i : i + LONGEST_QUOTE]
            self.findings.append(Finding(kind, line.start + chunk[0].start(), line.start + chunk[-1].end(), place))


def _verdict(part: Part, goal: Part, habit: Part, related: bool) -> Kind:
    """Judge one part of a right side; `related` is true if any of its parts has the role that the step needs."""
    if part.foreign:
        return "foreign"
    if part.meaning is None:
        return "unreadable"
    if part.role != goal.role:
        return "surplus" if related else "wrong"
    if part.meaning == goal.meaning:
        return "right"
    return "slip" if part.meaning == habit.meaning else "wrong"


def _pieces(steps: Sequence[Step]) -> list[Part]:
    """Return the parsed expression of each step."""
    parsed = (parse(right_side(step, place, INPUT)) for place, step in enumerate(steps))
    return [right.parts[0] for right in parsed if right is not None]
