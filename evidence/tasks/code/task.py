r"""The embedded code task: a specification of some steps becomes a Python function, and unit tests run it.

The prompt ends with the head of the function, and the response is its body: one line for each step. Demonstrations
imitate a hasty programmer. For most kinds of step more than half have the same mistake, such as `>=` for "above", so a
policy that only imitates stays wrong, even with greedy decoding. The critic reads the lines and quotes expressions. It
never sees the tests, which run in a sandbox and decide the metric.

Example:
    >>> task = CodeTask("held_out")
    >>> example = task.examples(1)[0]
    >>> response = task.demonstration(example, Random(1))
    >>> print(example.prompt_text + " " + response)
    Step b: square all values. Step c: take only the last 5 numbers.
    Lines: b, c, return.
    def solve(a):
     b = [b * 2 for b in a]
     c = b[-5:]
     return c
    >>> print(CodeCritic()([example], [response])[0].feedback.replace(". ", ".\n"))
    Step b needs b ** 2: "b * 2" is wrong.
    Step c needs b[-5:]: "c = b[-5:]" is right.
    >>> example.tests.split("\n")[0]
    'assert solve([6, 8, 1, 2, 4, 8, -3, 1, 11, -4]) == [64, 9, 1, 121, 16]'
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from evidence.tasks.code import critic, specs
from evidence.tasks.code.critic import CodeCritic
from evidence.tasks.code.unit_tests import draw_tested, write_tests
from evidence.tasks.code.world import (
    HEADER,
    INDENT,
    USUAL,
    Step,
    body,
    code_words,
    draw_others,
    draw_steps,
    garble,
    slipped,
    steps_of,
)
from evidence.tasks.sized import SizedTask
from text2grad.errors import DataError
from text2grad.types import Example

BLANKS = " \n"
TIMEOUT_S = 2.0  # of each program

Job = tuple[str, str]  # a program and its tests
Runner = Callable[[Sequence[Job]], Sequence[bool]]


@dataclass(frozen=True, slots=True)
class Faults:
    """The length of the specifications, and the rates of faults in demonstrations, each in [0, 1].

    Attributes:
        sizes: weights of two, three, four and five steps.
        slip: rate of the habitual mistake, for a step that has one.
        drop: rate at which a step is left out.
    """

    sizes: tuple[float, ...]
    slip: float
    drop: float = 0.03


USUAL_FAULTS = Faults((4, 3, 2, 1), slip=0.6)


@dataclass(frozen=True, slots=True)
class CodeTask(SizedTask):
    """Specifications and programs; a training specification has no pair of operations that is held out.

    With `settings.length` every specification has so many steps, and the lists of its tests grow with it.

    Attributes:
        runner: programs with their tests → which of them pass; None is the sandbox.
    """

    runner: Runner | None = field(default=None, repr=False, compare=False)

    name = "code"
    metric = "pass_at_1"
    judgements = critic.judgements()
    unit = "steps"
    lengths = (2, 4, 6, 8, 10, 12)

    def critic(self) -> CodeCritic:
        """Return the program critic."""
        return CodeCritic(truths=self.settings.truths)

    def draw(self, rng: Random) -> Example:
        """Draw one item."""
        if self.settings.length:
            return self._item(*draw_tested(self.split, self.settings.length, rng), rng)
        sizes = USUAL_FAULTS.sizes
        size = rng.choices(range(2, 2 + len(sizes)), sizes)[0]
        while True:
            steps = draw_steps(self.split, size, rng)
            tests = write_tests(steps, rng)
            if tests is not None:
                return self._item(steps, tests, rng)

    def _item(self, steps: Sequence[Step], tests: str, rng: Random) -> Example:
        prompt = specs.write_prompt(steps, self.split, rng)
        return Example(prompt, body(steps), tests, {"steps": [list(step) for step in steps]})

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return a body with habitual mistakes, and at times with a step left out."""
        level, steps = USUAL_FAULTS, steps_of(example)
        written: list[Step | None] = [slipped(step) if self.errs(level.slip, rng) else step for step in steps]
        if self.errs(level.drop, rng):
            written[rng.randrange(len(written))] = None
        return body(written)

    def corruption(self, example: Example, rng: Random) -> str:
        """Return a program with faults that demonstrations seldom have.

        Two thirds replace some steps by other valid ones: a reward model must compare them with the specification to
        find the faults. One third is garbled: cut, shuffled, doubled, or spliced with another program.
        """
        steps = steps_of(example)
        others = draw_others(self.split, len(steps), rng)
        if rng.random() < 2 / 3:
            pairs = zip(steps, others, strict=True)
            return body([rng.choice([slipped(step), other]) if rng.random() < 0.5 else step for step, other in pairs])
        return garble(self.demonstration(example, rng), body(others), rng)

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return the metrics of `score_many` for one response."""
        return self.score_many([example], [response])[0]

    def score_many(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, float]]:
        """Return the metrics of each response, in [0, 1]; all programs run in one sandbox.

        Returns:
            "pass_at_1": 1.0 if all tests pass; "lines_right": the share of lines that equal the line of the reference
            at the same place; "exact": 1.0 if all lines do.

        Raises:
            DataError: if the lengths differ or an example has no tests or no reference.
            SandboxError: if this machine cannot isolate programs.
        """
        if len(examples) != len(responses):
            raise DataError(f"got {len(examples)} examples and {len(responses)} responses")
        jobs, lines = [], []
        for example, response in zip(examples, responses, strict=True):
            if example.tests is None or example.reference is None:
                raise DataError(f"an example without tests or reference cannot be scored: {example.prompt_text!r}")
            jobs.append((program_of(response), example.tests))
            lines.append(lines_right(example.reference, response))
        passed = (self.runner or _in_sandbox)(jobs)
        return [
            {"pass_at_1": float(ok), "lines_right": share, "exact": float(share == 1.0)}
            for ok, share in zip(passed, lines, strict=True)
        ]

    def all_words(self) -> list[str]:
        """Return texts that together hold every word of specifications, programs and critiques."""
        steps = self.settings.length or USUAL
        return [*specs.words(steps), *code_words(steps), *critic.words()]


def program_of(response: str) -> str:
    r"""Return the function with a response as its body; the indentation of the first line does not matter.

    Example:
        >>> program_of("b = sum(a)\n return b")
        'def solve(a):\n b = sum(a)\n return b\n'
    """
    return f"{HEADER}\n{INDENT}{response.lstrip(BLANKS)}\n"


def lines_right(reference: str, response: str) -> float:
    r"""Return the lines that equal the reference at the same place / the lines of the longer text.

    Example:
        >>> lines_right("b = sum(a)\n return b", " b = len(a)\n return b")
        0.5
    """
    wanted, given = ([line.strip() for line in text.strip().split("\n")] for text in (reference, response))
    return sum(a == b for a, b in zip(wanted, given, strict=False)) / max(len(wanted), len(given))


def _in_sandbox(jobs: Sequence[Job]) -> list[bool]:
    from text2grad_sandbox import Sandbox

    with Sandbox() as sandbox:
        return [outcome.passed for outcome in sandbox.run_many(jobs, timeout_s=TIMEOUT_S)]
