"""Programs for the same problem → preferences by unit tests: a program that passes is chosen, one that fails rejected.

Appendix N of the paper makes the preferences of KodCode in this way, for DPO and for scalar reward models.
"""

from collections.abc import Sequence

from evidence.baselines.preference_files import Preference
from text2grad.critics.programs.program_text import judged_program
from text2grad.critics.programs.unit_tests import FORGEABLE
from text2grad.progress import Progress, note
from text2grad.types import Example
from text2grad_sandbox import Sandbox, with_names


def preferences_by_tests(
    examples: Sequence[Example], responses: Sequence[Sequence[str]], *, timeout_s: float = 5.0
) -> list[Preference]:
    """Return a preference for each failing response to a problem that has a passing one: the first that passes.

    Args:
        examples: problems; those without tests have no preferences.
        responses: of each problem, programs or texts that hold one.
        timeout_s: time limit of a program with its tests, in seconds.

    Raises:
        SandboxError: if code cannot be run in isolation on this machine.
    """
    pairs = [
        (example, response)
        for example, several in zip(examples, responses, strict=True)
        if example.tests
        for response in several
    ]
    jobs = [(judged_program(example, response).text, with_names(str(example.tests))) for example, response in pairs]
    with Sandbox() as sandbox, Progress("unit tests", len(jobs), unit="program") as progress:
        results = sandbox.run_many(jobs, timeout_s=timeout_s, on_result=progress.advance)
    passed, first = [result.passed for result in results], dict[int, str]()
    forgeable = sum(result.forgeable for result in results)
    if forgeable:
        note(FORGEABLE.format(forgeable=forgeable, passed=sum(passed)), warning=True)
    for (example, response), good in zip(pairs, passed, strict=True):
        if good:
            first.setdefault(id(example), response)
    return [
        Preference(example.prompt_text, first[id(example)], response)
        for (example, response), good in zip(pairs, passed, strict=True)
        if not good and id(example) in first
    ]
