"""The grammar of the code critic: the right side of a line → its meaning, without running it.

A right side is a comprehension, a slice, a sorted list or a reduction. Expressions are equal if they mean the same:
`2 * i` and `i * 2`, `i >= 4` and `i > 3` on integers, `b[0:3]` and `b[:3]`. The meaning of an expression is its values
on a range of integers, calculated with a table of operators. An expression outside the grammar has no meaning.
"""

import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

IDENTITY = "identity"
NUMBERS = range(-100, 101)  # beyond every constant of two digits, on both sides
LISTS = [range(n) for n in range(13)]

_TOKEN = re.compile(r" *(\*\*|[<>=!]=|[-+*%<>]|[a-z]\b|(?:0|[1-9][0-9]?)\b) *", re.ASCII)
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "**": operator.pow,
    "%": operator.mod,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_LOOP = re.compile(
    r"\[ *(?P<value>[^][]*?) +for +(?P<loop>[a-z]) +in +(?P<source>[a-z])(?: +if +(?P<test>[^][]*?))? *\]"
)
_INT = r" *(-?(?:0|[1-9][0-9]?))? *"
_SLICE = re.compile(rf"(?P<source>[a-z])\[{_INT}:{_INT}(?::{_INT})?\]")
_SORTED = re.compile(r"sorted\( *(?P<source>[a-z]) *(?:, *reverse *= *(True|False) *)?\)(\[ *: *: *- *1 *\])?")
_REDUCE = re.compile(r"(sum|len|max|min)\( *(?P<source>[a-z]) *\)")

Range = tuple[int, int]


class Part(NamedTuple):
    """The value or the condition of a comprehension, or a whole right side.

    Attributes:
        role: "value", "test" or "whole".
        place: its characters [start, end) in the right side.
        meaning: equal for parts that mean the same; None if the part is outside the grammar.
        foreign: whether the part uses a name other than the loop variable.
    """

    role: str
    place: Range
    meaning: object
    foreign: bool = False


class RightSide(NamedTuple):
    """The right side of an assignment.

    Attributes:
        source: the name of the list that it reads.
        reads: the characters [start, end) that name the source: "i in a", or the whole right side.
        parts: its parts in order; a value that is the loop variable itself is not a part.
    """

    source: str
    reads: Range
    parts: tuple[Part, ...]


@cache
def parse(text: str) -> RightSide | None:
    """Parse the right side of an assignment; None if it is outside the grammar.

    Example:
        >>> parse("[2 * i for i in a]").parts[0].meaning == parse("[j * 2 for j in b]").parts[0].meaning
        True
    """
    match = _LOOP.fullmatch(text)
    if match is not None:
        return _comprehension(match)
    whole = (0, len(text))
    for pattern, meaning in ((_SLICE, _slice), (_SORTED, _sorted), (_REDUCE, lambda found: found[1])):
        match = pattern.fullmatch(text)
        if match is not None:
            return RightSide(match["source"], whole, (Part("whole", whole, meaning(match)),))
    return None


def _comprehension(match: re.Match[str]) -> RightSide:
    parts = []
    for role in ("value", "test"):
        if match[role] is not None:
            meaning, foreign = _formula(match[role], match["loop"], as_test=role == "test")
            parts.append(Part(role, match.span(role), meaning, foreign))
    if parts[0].meaning == IDENTITY:
        parts = parts[1:]
    reads = (match.start("loop"), match.end("source"))
    return RightSide(match["source"], reads, tuple(parts or [Part("whole", match.span(), IDENTITY)]))


def _formula(text: str, loop: str, *, as_test: bool) -> tuple[object, bool]:
    """Return the meaning of an expression in the loop variable, and whether it uses another name."""
    tokens, end = [], 0
    while match := _TOKEN.match(text, end):
        tokens.append(match[1])
        end = match.end()
    sides = _sides(tokens) if end == len(text) else None
    foreign = sides is not None and any(token.isalpha() and token != loop for token in tokens)
    if sides is None or foreign:
        return None, foreign
    try:
        values = tuple(_compare(sides, x) for x in NUMBERS)
    except ArithmeticError:  # a division by zero, a power out of range
        return None, False
    if as_test:
        return tuple(map(bool, values)), False
    return IDENTITY if values == tuple(NUMBERS) else values, False


def _sides(tokens: list[str]) -> tuple[list[str], ...] | None:
    """Split an expression at its comparison: (left,) or (left, [comparison], right); None if it is invalid."""
    places = [place for place, token in enumerate(tokens) if token in _COMPARISONS]
    if len(places) > 1:
        return None
    cut = places[0] if places else len(tokens)
    sides = (tokens[:cut], tokens[cut : cut + 1], tokens[cut + 1 :])[: 3 if places else 1]
    return sides if all(_is_sum(side) for side in sides[::2]) else None


def _is_sum(tokens: list[str]) -> bool:
    """Tell whether tokens are one operand, or two operands and an operator between them."""
    shape = " ".join("x" if token.isalnum() else token for token in tokens)
    return re.fullmatch(r"(- )?x( [-+*%] (- )?x)?|x \*\* (- )?x", shape) is not None  # -x ** 2 would be -(x ** 2)


def _compare(sides: tuple[list[str], ...], x: int) -> Any:
    """Calculate an expression where the loop variable is x."""
    left = _calculate(sides[0], x)
    return _COMPARISONS[sides[1][0]](left, _calculate(sides[2], x)) if len(sides) == 3 else left


def _calculate(tokens: list[str], x: int) -> Any:
    """Calculate one side: an operand, or two operands and an operator."""
    values: list[int] = []
    signs: list[str] = []
    negative = False
    for token in tokens:
        if token.isalnum():
            value = x if token.isalpha() else int(token)
            values.append(-value if negative else value)
            negative = False
        elif token == "-" and len(values) == len(signs):
            negative = True
        else:
            signs.append(token)
    return _ARITHMETIC[signs[0]](*values) if signs else values[0]


def _slice(match: re.Match[str]) -> object:
    """Return the elements that a slice takes from lists of every length up to 12."""
    start, stop, step = (None if bound is None else int(bound) for bound in match.groups()[1:])
    return None if step == 0 else tuple(tuple(numbers[start:stop:step]) for numbers in LISTS)


def _sorted(match: re.Match[str]) -> object:
    """Return the order of a sorted list."""
    return "falling" if (match[2] == "True") != (match[3] is not None) else "rising"
