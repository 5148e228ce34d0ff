"""Cases of a program that reads standard input: what goes in, and what must come out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a program as a script.

    Attributes:
        stdin: text on standard input.
        stdout: the output that is expected; white space at the ends of lines and empty lines at the end do not count.
            None accepts any output.
        arguments: arguments of the command line.
        raises: name of the exception that must end the program; "" for an ordinary end.
        numbers: lines that are not equal may hold numbers of equal value, such as 1.0 and 1.00, and white space at the
            beginning of a line does not count: the comparison of LiveCodeBench.
    """

    stdin: str = ""
    stdout: str | None = None
    arguments: Sequence[str] = ()
    raises: str = ""
    numbers: bool = False


def read_cases(tests: str) -> tuple[Case, ...] | None:
    """Return the cases in a text, or None if it holds none and is Python.

    Two forms of JSON are read: `[{"input": ..., "output": ...}, ...]` (LiveCodeBench) and `{"inputs": [...],
    "outputs": [...]}` (APPS, TACO).

    Example:
        >>> read_cases('{"inputs": ["2"], "outputs": ["4"]}')
        (Case(stdin='2', stdout='4', arguments=(), raises='', numbers=False),)
    """
    if not tests.lstrip().startswith(("[", "{")):
        return None
    try:
        data: Any = json.loads(tests)
        if isinstance(data, dict):
            data = [{"input": a, "output": b} for a, b in zip(data["inputs"], data["outputs"], strict=True)]
        pairs = [(case["input"], case["output"]) for case in data]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    if any(case.get("testtype", "stdin") != "stdin" for case in data):
        return None
    return tuple(Case(_text(given), _text(wanted)) for given, wanted in pairs)


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def compare(case: Case, reason: str, printed: str, report: str, *, too_long: bool) -> tuple[str, str]:
    """Return reason and report of a case.

    Args:
        case: the expectation.
        reason: "ended" for an ordinary end, "error" for an exception.
        printed: the output.
        report: the traceback of the exception.
        too_long: whether `printed` was cut.
    """
    if case.raises:
        last = report.rstrip().rpartition("\n")[2].partition(":")[0].rpartition(".")[2]
        if reason != "error" or last != case.raises:
            return "failed", f"{case.raises} was expected, but not raised.\n{report}"
    elif reason == "error":
        return reason, report
    if too_long:
        return "failed", "The output is longer than the limit."
    wanted = case.stdout
    if wanted is None or _lines(wanted) == _lines(printed) or (case.numbers and _equal_numbers(wanted, printed)):
        return "passed", ""
    return "failed", f"for the input {_short(case.stdin)} the output is {_short(printed)}, not {_short(wanted)}."


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _equal_numbers(wanted: str, printed: str) -> bool:
    """Return whether two outputs have the same lines, or numbers of equal value in lines that differ."""
    pairs = [[line.strip() for line in text.strip().split("\n")] for text in (wanted, printed)]
    equal = (a == b or (_numbers(a) or "a") == (_numbers(b) or "b") for a, b in zip(*pairs, strict=False))
    return len(pairs[0]) == len(pairs[1]) and all(equal)


def _numbers(line: str) -> list[Decimal] | None:
    """Return the numbers of a line, or None if it holds anything else."""
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 2] + " …", ensure_ascii=False)
