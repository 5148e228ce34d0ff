"""Response → steps: lines, sentences or clauses, each without the white space around it."""

import re
from collections.abc import Mapping
from typing import Literal, get_args

from text2grad.errors import check_known

StepRule = Literal["lines", "sentences", "clauses"]

_PATTERNS: Mapping[StepRule, re.Pattern[str]] = {
    "lines": re.compile(r"\S(?:[^\n]*\S)?"),
    "sentences": re.compile(r"\S[^\n]*?(?:[.!?…][\"')\]]*(?=\s|\Z)|(?<=\S)(?=\s*(?:\n|\Z)))"),
    "clauses": re.compile(r"\S[^\n]*?(?:[.!?…,;:][\"')\]]*(?=\s|\Z)|(?<=\S)(?=\s*(?:\n|\Z)))"),
}


def split_steps(response: str, rule: StepRule) -> list[tuple[int, int]]:
    r"""Return the characters [start, end) of each step of a response.

    Args:
        response: a text.
        rule: "lines", "sentences" (which end with . ! ? … or a line) or "clauses" (which also end with , ; or :).

    Raises:
        ConfigError: if there is no such rule.

    Example:
        >>> split_steps("It is 2.5, not 3. So\nyes.", "sentences")
        [(0, 17), (18, 20), (21, 25)]
        >>> split_steps("It is 2.5, not 3. So\nyes.", "clauses")
        [(0, 10), (11, 17), (18, 20), (21, 25)]
    """
    check_known("rule", rule, get_args(StepRule))
    return [step.span() for step in _PATTERNS[rule].finditer(response)]
