"""A critique of a program → the best program that its words allow: a line for each step with a stated expression."""

import re

from evidence.tasks.code.world import INDENT, INPUT, NAMES
from text2grad.types import Critique

_NEEDS = re.compile(r'Step ([a-z]) (?:needs|is) ([^"]+?): (?="|it is missing|it has no line)')
_LINE = re.compile(r"^ *([a-z]) *= *(?!=)(.+?) *$", re.MULTILINE)
_TEST = re.compile(r"[<>]|==")
_WHOLE = re.compile(r"[a-z]\[|[a-z]+\(")


def refine_program(response: str, critique: Critique) -> str:
    """Return the refined body: stated expressions, and the response's lines for steps that the critique does not name.

    A critique that states no expression changes nothing.
    """
    needs = dict(_NEEDS.findall(critique.feedback))
    if critique.failed or not needs:
        return response
    own: dict[str, str] = {}
    for line in _LINE.finditer(response):
        faulty = any(s.label == "negative" and s.start < line.end() and line.start() < s.end for s in critique.spans)
        if not faulty:
            own.setdefault(line[1], line[2])
    lines, source = [], INPUT
    for name in NAMES:
        if name not in {*needs, *own}:
            continue
        right = right_side_of(needs[name], name, source) if name in needs else own[name]
        lines.append(f"{name} = {right}")
        source = name
    before = response[: len(response) - len(response.lstrip(" "))]
    return before + f"\n{INDENT}".join([*lines, f"return {source}"])


def right_side_of(expression: str, name: str, source: str) -> str:
    """Return the right side of a step's line: a condition or a new value stands in a comprehension.

    Example:
        >>> [right_side_of(one, "c", "b") for one in ("c > 3", "c * 2", "b[:3]")]
        ['[c for c in b if c > 3]', '[c * 2 for c in b]', 'b[:3]']
    """
    if _TEST.search(expression):
        return f"[{name} for {name} in {source} if {expression}]"
    return expression if _WHOLE.match(expression) else f"[{expression} for {name} in {source}]"
