"""The world of the code task: its operations on a list of integers, its names, and what each split may combine.

A specification is two to twelve steps. Its program has one line for each step. Every line assigns a name of its own,
which is also the loop variable of its comprehension, so that every quote of the line begins with the name. Every
operation and every constant can occur in training; the split holds out combinations: ordered pairs of neighbouring
operations (index sum divisible by five), ordered pairs of neighbouring constants (a similar rule), and sentence
templates.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Literal, NamedTuple

from text2grad.errors import DataError
from text2grad.tasks.base import Split
from text2grad.types import Example

Kind = Literal["filter", "map", "slice", "order", "reduce"]
Value = list[int] | int

HEADER = "def solve(a):"
INDENT = " "
INPUT = "a"
NAMES = tuple("bcdefghijklm")  # of the steps, and of the variables that their lines assign
USUAL = 5  # the most steps of a specification whose length is not set
THRESHOLDS, AMOUNTS, LENGTHS = range(2, 10), range(3, 10), range(2, 6)
MOST_LOOPS = 3  # of any five neighbouring lines: comprehensions are long


class Operation(NamedTuple):
    """An operation on a list of integers.

    Attributes:
        kind: the kind of its effect.
        code: its expression; `v` is the loop variable, `s` the source, `k` the constant.
        run: (list, constant) → expected value.
        constants: its possible constants; empty for an operation without a constant.
        slip: the operation of its habitual mistake, or "".
    """

    kind: Kind
    code: str
    run: Callable[[list[int], int], Value]
    constants: range = range(0)
    slip: str = ""


class Step(NamedTuple):
    """An operation with its constant; 0 for an operation without a constant."""

    operation: str
    k: int


OPERATIONS: dict[str, Operation] = {
    "above": Operation("filter", "{v} > {k}", lambda v, k: [x for x in v if x > k], THRESHOLDS, "at_least"),
    "below": Operation("filter", "{v} < {k}", lambda v, k: [x for x in v if x < k], THRESHOLDS, "at_most"),
    "at_least": Operation("filter", "{v} >= {k}", lambda v, k: [x for x in v if x >= k], THRESHOLDS, "above"),
    "at_most": Operation("filter", "{v} <= {k}", lambda v, k: [x for x in v if x <= k], THRESHOLDS, "below"),
    "even": Operation("filter", "{v} % 2 == 0", lambda v, _: [x for x in v if x % 2 == 0]),
    "odd": Operation("filter", "{v} % 2 == 1", lambda v, _: [x for x in v if x % 2 == 1]),
    "double": Operation("map", "{v} * 2", lambda v, _: [x * 2 for x in v], slip="square"),
    "square": Operation("map", "{v} ** 2", lambda v, _: [x**2 for x in v], slip="double"),
    "add": Operation("map", "{v} + {k}", lambda v, k: [x + k for x in v], AMOUNTS),
    "subtract": Operation("map", "{v} - {k}", lambda v, k: [x - k for x in v], AMOUNTS, "subtract_from"),
    "multiply": Operation("map", "{v} * {k}", lambda v, k: [x * k for x in v], AMOUNTS),
    "first": Operation("slice", "{s}[:{k}]", lambda v, k: v[:k], LENGTHS, "skip"),
    "skip": Operation("slice", "{s}[{k}:]", lambda v, k: v[k:], LENGTHS, "first"),
    "last": Operation("slice", "{s}[-{k}:]", lambda v, k: v[-k:], LENGTHS, "drop_last"),
    "drop_last": Operation("slice", "{s}[:-{k}]", lambda v, k: v[:-k], LENGTHS, "last"),
    "rising": Operation("order", "sorted({s})", lambda v, _: sorted(v), slip="falling"),
    "falling": Operation("order", "sorted({s}, reverse=True)", lambda v, _: sorted(v)[::-1], slip="rising"),
    "reverse": Operation("order", "{s}[::-1]", lambda v, _: v[::-1], slip="falling"),
    "sum": Operation("reduce", "sum({s})", lambda v, _: sum(v), slip="count"),
    "count": Operation("reduce", "len({s})", lambda v, _: len(v), slip="sum"),
    "largest": Operation("reduce", "max({s})", lambda v, _: max(v), slip="smallest"),
    "smallest": Operation("reduce", "min({s})", lambda v, _: min(v), slip="largest"),
    "subtract_from": Operation("map", "{k} - {v}", lambda v, k: [k - x for x in v]),  # in no specification
}
ASKED = tuple(OPERATIONS)[:-1]
_REDUCTIONS = tuple(name for name in ASKED if OPERATIONS[name].kind == "reduce")
_LOOPING = frozenset(name for name in ASKED if OPERATIONS[name].kind in ("filter", "map"))
_LISTS = ASKED[: -len(_REDUCTIONS)]  # the operations that return a list


def steps_of(example: Example) -> tuple[Step, ...]:
    """Return the steps behind an example.

    Raises:
        DataError: if the example is not of this task.
    """
    steps: Any = example.meta.get("steps")
    try:
        found = tuple(Step(operation, k) for operation, k in steps)
        known = 1 < len(found) <= len(NAMES) and all(step.operation in ASKED for step in found)
    except (TypeError, ValueError):
        known = False
    if not known:
        raise DataError(
            f"not a code example: meta['steps'] is {steps!r}, need two to twelve pairs [operation, constant]"
        )
    return found


@cache
def may_follow(first: str, second: str, split: Split) -> bool:
    """Tell whether `second` right after `first` belongs to the split; every pair belongs to exactly one."""
    return ((ASKED.index(first) + ASKED.index(second)) % 5 == 0) == (split == "held_out")


def known_constants(steps: Sequence[Step]) -> list[bool]:
    """Tell for each pair of neighbouring constants whether it may occur in training."""
    constants = [step.k for step in steps if step.k]
    return [(first + 2 * second) % 5 != 0 for first, second in pairwise(constants)]


def draw_steps(split: Split, size: int, rng: Random) -> tuple[Step, ...]:
    """Draw steps of distinct operations.

    A training specification has no held-out pair of neighbours, of operations or of constants. A held-out specification
    has at least one held-out pair of operations, and one of constants if it has two constants.
    """
    while True:
        names = _draw_operations(size, rng)
        pairs = [may_follow(first, second, "train") for first, second in pairwise(names)]
        steps = tuple(Step(name, rng.choice(OPERATIONS[name].constants or (0,))) for name in names)
        constants = known_constants(steps)
        if all(pairs + constants) if split == "train" else not all(pairs) and not (constants and all(constants)):
            return steps


def _draw_operations(size: int, rng: Random) -> list[str]:
    """Draw distinct operations, the last one a reduction in half of the cases."""
    while True:
        names = rng.choices(_LISTS, k=size)
        if rng.random() < 0.5:
            names[-1] = rng.choice(_REDUCTIONS)
        if len(set(names)) == size and sum(name in _LOOPING for name in names) <= MOST_LOOPS:
            return names


def next_steps(steps: Sequence[Step], split: Split, rng: Random, *, last: bool) -> list[Step]:
    """Return steps that may follow in a specification of the split, in random order; one for each operation.

    As in a short specification, any five neighbouring operations are distinct with at most three comprehensions, and
    half of the last steps are reductions. In training no pair of neighbours is held out.

    Args:
        steps: the steps so far.
        split: of the specification.
        rng: draws order and constants.
        last: whether the specification ends here.
    """
    near = [step.operation for step in steps[1 - USUAL :]]
    crowded = sum(name in _LOOPING for name in near) >= MOST_LOOPS
    pool = _REDUCTIONS if last and rng.random() < 0.5 else _LISTS
    names = [name for name in rng.sample(pool, len(pool)) if name not in near and not (crowded and name in _LOOPING)]
    found = [Step(name, rng.choice(OPERATIONS[name].constants or (0,))) for name in names]
    if split == "train":
        before = steps[-1:]
        found = [
            step
            for step in found
            if all(may_follow(one.operation, step.operation, "train") for one in before)
            and all(known_constants([*steps, step]))
        ]
    return found


def draw_others(split: Split, size: int, rng: Random) -> tuple[Step, ...]:
    """Draw steps of the split for the mistakes of a corruption, as many at a time as usual specifications have."""
    drawn: list[Step] = []
    while len(drawn) < size:
        left = size - len(drawn)
        drawn += draw_steps(split, left if left <= USUAL else min(USUAL, left - 2), rng)
    return tuple(drawn)


def is_new(steps: Sequence[Step]) -> bool:
    """Tell whether steps have a held-out pair of operations, and one of constants if they have two constants."""
    pairs = (may_follow(first.operation, second.operation, "train") for first, second in pairwise(steps))
    constants = known_constants(steps)
    return not all(pairs) and not (constants and all(constants))


def expression(step: Step, place: int, source: str) -> str:
    """Return the expression of a step: the condition, the new value, or the whole right side of its line.

    Example:
        >>> expression(Step("above", 3), 0, "a"), expression(Step("first", 3), 1, "b")
        ('b > 3', 'b[:3]')
    """
    return OPERATIONS[step.operation].code.format(v=NAMES[place], s=source, k=step.k)


def right_side(step: Step, place: int, source: str) -> str:
    """Return the right side of a step's line.

    Example:
        >>> right_side(Step("above", 3), 0, "a")
        '[b for b in a if b > 3]'
    """
    kind, name, code = OPERATIONS[step.operation].kind, NAMES[place], expression(step, place, source)
    if kind == "filter":
        return f"[{name} for {name} in {source} if {code}]"
    return f"[{code} for {name} in {source}]" if kind == "map" else code


def body(steps: Sequence[Step | None]) -> str:
    r"""Return the body of `solve`, without the indentation of its first line; None is a step that is left out.

    Example:
        >>> print(HEADER + "\n " + body([Step("above", 3), None, Step("sum", 0)]))
        def solve(a):
         b = [b for b in a if b > 3]
         d = sum(b)
         return d
    """
    lines, source = [], INPUT
    for place, step in enumerate(steps):
        if step is not None:
            lines.append(f"{NAMES[place]} = {right_side(step, place, source)}")
            source = NAMES[place]
    return "\n ".join([*lines, f"return {source}"])


def slipped(step: Step) -> Step:
    """Return the habitual mistake of a step; the step itself if it has none."""
    return Step(OPERATIONS[step.operation].slip or step.operation, step.k)


def garble(text: str, other: str, rng: Random) -> str:
    """Return a garbled body: words or lines are cut, doubled, shuffled, or spliced with another body.

    Words keep the space before them, so that most of the code stays readable; two words are never joined.
    """
    unit = re.compile(r"\n ?|[^\n]+" if rng.random() < 0.4 else r" ?\w+| ?[^\w\s]|\n")
    pieces, others = unit.findall(text), unit.findall(other)
    i, j = sorted((rng.randrange(1, len(pieces)), rng.randrange(1, len(pieces))))
    kinds = (
        pieces[: i - 1],
        pieces[:i] + others[i:],
        pieces[:i] + pieces[i + 1 :],
        pieces[:j] + pieces[i:],
        [*pieces[:i], pieces[j], *pieces[i + 1 : j], pieces[i], *pieces[j + 1 :]],
        [*pieces[:i], *rng.sample(pieces[i:j], j - i), *pieces[j:]],
        [*pieces[:i], rng.choice(others), *pieces[i + 1 :]],
    )
    return re.sub(r"(\w)\0(?=\w)", r"\1 ", "\0".join(rng.choice(kinds))).replace("\0", "")


def code_words(steps: int) -> list[str]:
    """Return texts that hold every word of programs of so many steps."""
    codes = [operation.code.format(v="", s="", k="") for operation in OPERATIONS.values()]
    return [*codes, *NAMES[:steps], INPUT, *map(str, range(10)), "[ for in if ] = return"]
