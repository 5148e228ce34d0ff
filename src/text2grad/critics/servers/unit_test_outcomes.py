"""Responses that are programs → the same items with the outcome of their unit tests in words."""

from collections.abc import Sequence

from text2grad.critics.programs.program_text import judged_program
from text2grad.critics.servers.annotation import Item
from text2grad.critics.servers.store import Store, hash_of
from text2grad.critics.servers.templates import outcome_in_words
from text2grad_sandbox import Sandbox, with_names

TEST_TIMEOUT_S, JOBS_AT_ONCE = 5.0, 256


def add_test_outcomes(items: Sequence[Item], store: Store) -> list[Item]:
    """Return the items with `tests` set; tests with a stored outcome do not run again."""
    programs = [judged_program(item.example, item.response).text for item in items]
    keys = [hash_of(program, item.example.tests) for program, item in zip(programs, items, strict=True)]
    jobs = {
        key: (program, with_names(tests))
        for key, program, item in zip(keys, programs, items, strict=True)
        if (tests := item.example.tests) and store.outcome(key) is None
    }
    new = list(jobs.items())
    if new:
        with Sandbox() as sandbox:
            for start in range(0, len(new), JOBS_AT_ONCE):
                chunk = new[start : start + JOBS_AT_ONCE]
                outcomes = sandbox.run_many([job for _, job in chunk], timeout_s=TEST_TIMEOUT_S)
                words = [outcome_in_words(passed=o.passed, reason=o.reason, output=o.output) for o in outcomes]
                store.keep_outcomes(dict(zip([key for key, _ in chunk], words, strict=True)))
    return [item._replace(tests=store.outcome(key)) for key, item in zip(keys, items, strict=True)]
