"""Numbers, intervals and tables as Markdown."""

import math
from collections.abc import Sequence

from evidence.pages.bootstrap import Interval

COMPARISONS = "\0comparisons\0"
"""Stands in a text for the number of comparisons of its page, until the page is complete."""


def number(value: float, digits: int = 3) -> str:
    """Return a number with a fixed number of digits; "never" for infinity.

    Example:
        >>> number(-0.03149), number(float("inf"))
        ('−0.031', 'never')
    """
    if math.isinf(value):
        return "never"
    rounded = round(value, digits) + 0.0
    return f"{rounded:.{digits}f}".replace("-", "−")


def count(value: float) -> str:
    """Return a large number without decimals, with separators."""
    return "never" if math.isinf(value) else f"{value:,.0f}"


def words(metric: str) -> str:
    """Return the name of a metric in words."""
    return metric.replace("_at_", "@").replace("_", " ").replace(" f1", " F1")


def between(low: float | None, high: float | None, digits: int = 3) -> str:
    """Return the bounds of an interval in words; "–" if there is none."""
    return "–" if low is None or high is None else f"{number(low, digits)} to {number(high, digits)}"


def bootstrap_text(found: Interval, digits: int = 3) -> str:
    """Return a value with its bootstrap interval."""
    return f"{number(found.value, digits)} ({between(found.low, found.high, digits)})"


def student_text(found: Interval, digits: int = 3) -> str:
    """Return Student's interval, in bold where it is wider than the bootstrap's; "–" for a single seed."""
    if found.seeds < 2:
        return "–"
    text = between(found.student_low, found.student_high, digits)
    return f"**{text}**" if found.student_is_wider else text


def widest(found: Interval) -> tuple[float, float]:
    """Return the bounds of both intervals of a value together."""
    lows = [one for one in (found.low, found.student_low) if one is not None]
    return min(lows), max(one for one in (found.high, found.student_high) if one is not None)


def widest_text(found: Interval, digits: int = 3) -> str:
    """Return a value with the wider one of its intervals."""
    wide = (found.student_low, found.student_high) if found.student_is_wider else (found.low, found.high)
    return f"{number(found.value, digits)} ({between(*wide, digits)})"


def verdict(found: Interval) -> str:
    """Return where the intervals of a difference lie, in words."""
    if found.seeds < 2:
        return f"one seed only: the bootstrap is over items alone and {_place(found.low, found.high)}"
    first = _place(found.low, found.high)
    if found.student_low is None or found.student_high is None:
        return f"the bootstrap interval {first}"
    second = _place(found.student_low, found.student_high)
    if first == second:
        return "both intervals " + first.replace("contains", "contain").replace("lies", "lie")
    return f"the bootstrap interval {first}, Student's {second}"


def _place(low: float, high: float) -> str:
    return "lies above 0" if low > 0 else "lies below 0" if high < 0 else "contains 0"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def folded(title: str, text: str) -> str:
    """Return a text that opens at a click."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
