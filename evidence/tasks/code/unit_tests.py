"""Unit tests that separate the right program from programs with habitual mistakes.

Expected values come from the meaning of the operations, never from running a program. Inputs are kept only if every
combination of habitual mistakes, and every omission of one step, changes at least one result. A specification whose
mistakes no input can show, such as the order of a list that is then summed, is not used.
"""

from collections.abc import Sequence
from random import Random

from evidence.tasks.code.world import OPERATIONS, Step, Value, is_new, next_steps, slipped
from text2grad.tasks.base import Split

CASES = 6
SIZES, VALUES = range(8, 13), range(-4, 13)
LONGER = 3  # more numbers in each list for each step of a specification beyond the first five
COMBINED = 8  # programs with several random mistakes
FEWEST_RESULTS = 3  # distinct ones among the cases

Results = tuple[Value | None, ...]  # one per case; None where the step has no value, such as the largest of no numbers


def write_tests(steps: Sequence[Step], rng: Random) -> str | None:
    """Return assertions on `solve`, or None if the drawn inputs do not separate wrong programs from the right one."""
    inputs = [rng.choices(VALUES, k=rng.choice(SIZES)) for _ in range(CASES)]
    expected = separated(steps, inputs)
    if expected is None or None in expected or len(set(map(str, expected))) < FEWEST_RESULTS:
        return None
    return "\n".join(f"assert solve({given}) == {value}" for given, value in zip(inputs, expected, strict=True))


def draw_tested(split: Split, size: int, rng: Random) -> tuple[tuple[Step, ...], str]:
    """Draw a specification of so many steps, and its assertions.

    Steps are added one after another, so that long specifications need not be drawn whole until one happens to be
    good. No single habitual mistake and no omission of one step has the right results, nor has the program with all
    habitual mistakes, nor have random combinations of them. (All combinations are 2^size.)
    """
    while True:
        more = LONGER * max(size - 5, 0)
        inputs = [rng.choices(VALUES, k=rng.choice(SIZES) + more) for _ in range(CASES)]
        steps, results = _grown(split, size, inputs, rng)
        if len(steps) == size and (split == "train" or is_new(steps)) and _mistakes_show(steps, inputs, results, rng):
            cases = zip(inputs, results, strict=True)
            return tuple(steps), "\n".join(f"assert solve({given}) == {value}" for given, value in cases)


def _grown(split: Split, size: int, inputs: Sequence[list[int]], rng: Random) -> tuple[list[Step], Results]:
    """Return steps whose single mistakes and omissions change the results, and the results; fewer steps if stuck."""
    right: Results = tuple(inputs)
    wrong: list[Results] = []
    steps: list[Step] = []
    while len(steps) < size:
        for step in next_steps(steps, split, rng, last=len(steps) == size - 1):
            results = run(step, right)
            if None in results or len(set(map(str, results))) < FEWEST_RESULTS:
                continue
            hasty = slipped(step)
            others = [run(step, other) for other in wrong] + [right] + ([run(hasty, right)] if hasty != step else [])
            if results not in others:
                steps.append(step)
                right, wrong = results, others
                break
        else:
            break
    return steps, right


def _mistakes_show(steps: Sequence[Step], inputs: Sequence[list[int]], right: Results, rng: Random) -> bool:
    """Tell whether all habitual mistakes together, and random combinations of them, have other results."""
    hasty = [slipped(step) for step in steps]
    programs = [hasty] + [[rng.choice(pair) for pair in zip(steps, hasty, strict=True)] for _ in range(COMBINED)]
    for program in programs:
        results: Results = tuple(inputs)
        for step in program:
            results = run(step, results)
        if results == right and program != list(steps):
            return False
    return True


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
