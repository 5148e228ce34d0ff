"""Unit tests that separate the right program from programs with habitual mistakes.

Expected values come from the meaning of the operations, never from running a program. Inputs are kept only if every
combination of habitual mistakes, and every omission of one step, changes at least one result. A specification whose
mistakes no input can show, such as the order of a list that is then summed, is not used.
"""

from collections.abc import Sequence
from random import Random

from text2grad.tasks.code.world import OPERATIONS, Step, Value, slipped

CASES = 6
SIZES, VALUES = range(8, 13), range(-4, 13)
FEWEST_RESULTS = 3  # distinct ones among the cases

Results = tuple[Value | None, ...]  # one per case; None where the step has no value, such as the largest of no numbers


def write_tests(steps: Sequence[Step], rng: Random) -> str | None:
    """Return assertions on `solve`, or None if the drawn inputs do not separate wrong programs from the right one."""
    inputs = [rng.choices(VALUES, k=rng.choice(SIZES)) for _ in range(CASES)]
    expected = separated(steps, inputs)
    if expected is None or None in expected or len(set(map(str, expected))) < FEWEST_RESULTS:
        return None
    return "\n".join(f"assert solve({given}) == {value}" for given, value in zip(inputs, expected, strict=True))


def separated(steps: Sequence[Step], inputs: Sequence[list[int]]) -> Results | None:
    """Return the right results, or None if a wrong program returns the same results."""
    right: Results = tuple(inputs)
    slips: list[Results] = []  # of programs with at least one slip
    gaps: list[Results] = []  # of programs that leave one step out
    for step in steps:
        hasty = slipped(step)
        wrong = [run(step, results) for results in slips]
        if hasty != step:
            wrong += [run(hasty, results) for results in (*slips, right)]
        gaps = [run(step, results) for results in gaps] + [right]
        right, slips = run(step, right), wrong
        if right in slips or right in gaps:
            return None
    return right


def run(step: Step, results: Results) -> Results:
    """Apply a step to every result.

    Example:
        >>> run(Step("largest", 0), ([3, 5], []))
        (5, None)
    """
    operation = OPERATIONS[step.operation]
    # Only the largest and the smallest of an empty list have no value; a reduction is always the last step.
    empty = operation.code[:3] in ("max", "min")
    return tuple(
        None if not isinstance(value, list) or (empty and not value) else operation.run(value, step.k)
        for value in results
    )
