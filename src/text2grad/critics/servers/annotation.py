"""Answers → critiques: parse the answer and look up its quotes.

The result of an item is one of:

    (a critique)  parsed; quotes that do not occur in the response are dropped from its spans
    refused       the model, or a filter before it, refused to judge
    empty         an answer without text
    truncated     the length limit ended the answer before its JSON was complete
    unreadable    a text that contains no critique, repeats the prompt, or is longer than the reader accepts
    timeout, connection, rate_limit, server_error, bad_reply, rejected
                  no answer after all retries (see `RequestError`)
    not_asked     the run had stopped before: by its budget, its user, or the server

The first four kinds of failure have an answer, which was paid for and stays. The other kinds are requested again by the
next run. A failure is a `RequestError` of this kind, which a session counts and lists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from text2grad.critics.programs.program_text import judged_program
from text2grad.critics.servers.cached_client import SHOWN_CHARS, CachedClient, Request, ResponseFormat, unusable
from text2grad.critics.servers.store import Answer, Store, hash_of
from text2grad.critics.servers.templates import Template, outcome_in_words
from text2grad.errors import RequestError
from text2grad.feedback import Match, with_thoughts, without_thoughts
from text2grad.progress import note
from text2grad.types import Conversation, Critique, Example
from text2grad_sandbox import Sandbox, with_names

TEST_TIMEOUT_S, JOBS_AT_ONCE = 5.0, 256  # of unit tests
WATCHED = 16  # first answers of a judge
WAY_OUT_OF_ONE_LABEL = (
    "read some of them, ask for what you miss in annotate.criteria, show examples, or take a larger model"
)
ANSWERED = ("refused", "empty", "truncated", "unreadable")


class Item(NamedTuple):
    """A response to annotate."""

    id: str  # its name in messages and files
    example: Example  # the task instance
    response: str
    feedback: str | None = None  # the words of a human annotator, if any: only their places are requested then
    tests: str | None = None  # the outcome of its unit tests in words, if any
    outcome: float | None = None  # a human's judgement of the whole response, if any: it stays


Judged = tuple[Critique, Answer]  # the critique of an item, and the answer that holds it


@dataclass(frozen=True, slots=True)
class Annotator:
    """Annotates items by prompting a language model; its `annotate` is the task of a session."""

    template: Template
    match: Match = "exact"
    prompt_end: str | None = None  # as in `without_thoughts`; a critic in `ask` sees no thoughts anyway
    first: list[Critique] = field(default_factory=list, compare=False)  # the judge's own, up to `WATCHED`

    async def annotate(self, client: CachedClient, item: Item) -> Judged:
        """Return the critique of one item.

        Raises:
            RequestError: if there is none, of a kind in the module's docstring.
        """
        seen = without_thoughts(item.response, self.prompt_end)
        messages = self.template.messages(item.example, seen, feedback=item.feedback, tests=item.tests)
        grounding = item.feedback is not None
        schema = self.template.schema(grounding=grounding, turns=isinstance(seen, Conversation))
        answer = await client.answer(Request(messages, ResponseFormat("schema", schema)))
        critique = read_answer(answer, partial(self.template.read, response=seen, match=self.match))
        if self.template.is_echo(critique, grounding=grounding):
            raise RequestError("unreadable", f"it repeats the prompt: {answer.text[:SHOWN_CHARS]}")
        if not grounding:
            self._watch(critique)
        if seen is not item.response:
            critique = replace(critique, spans=tuple(with_thoughts(critique.spans, item.response, self.prompt_end)))
        return with_word_of_people(critique, item.feedback, item.outcome), answer

    def _watch(self, critique: Critique) -> None:
        """Tell after the first answers if a policy can learn nothing from them, or only one thing."""
        if len(self.first) < WATCHED:
            self.first.append(critique)
            labels = {span.label for each in self.first for span in each.spans}
            if len(self.first) == WATCHED and len(labels) < 2:
                said = "and marks everything as " + "".join(labels) if labels else "and quotes nothing"
                note(f"the judge has given {WATCHED} answers {said}; {WAY_OUT_OF_ONE_LABEL}", warning=True)


def with_word_of_people(critique: Critique, feedback: str | None, outcome: float | None) -> Critique:
    """Return a critique with a human's feedback and outcome in place of its own, where there are some."""
    if critique.failed:
        return critique
    words, own = critique.feedback, critique.outcome
    outcome = own if outcome is None else outcome
    return replace(critique, feedback=words if feedback is None else feedback, outcome=outcome)


def read_answer(answer: Answer, read: Callable[[str], Critique], *, complete: bool = True) -> Critique:
    """Return the critique in an answer, by `read`, which returns the critique in a text.

    `complete=False` also accepts the quotes of an answer that the length limit cut.

    Raises:
        RequestError: if there is none that can be used.
    """
    if answer.finish == "refused":
        raise unusable(answer)
    critique = read(answer.text)
    cut = answer.finish.startswith("length")
    if critique.failed or (complete and cut and critique.status != "ok"):
        raise RequestError("truncated", unusable(answer).detail) if cut else unusable(answer)
    return critique


def add_test_outcomes(items: Sequence[Item], store: Store) -> list[Item]:
    """Return the items with `tests` set; tests with a stored outcome do not run again."""
    programs = [judged_program(item.example, item.response).text for item in items]
    keys = [hash_of(program, item.example.tests) for program, item in zip(programs, items, strict=True)]
    jobs = {
        key: (program, with_names(tests))
        for key, program, item in zip(keys, programs, items, strict=True)
        if (tests := item.example.tests) and store.outcome(key) is None
    }
    if new := list(jobs.items()):
        with Sandbox() as sandbox:
            for start in range(0, len(new), JOBS_AT_ONCE):
                chunk = new[start : start + JOBS_AT_ONCE]
                outcomes = sandbox.run_many([job for _, job in chunk], timeout_s=TEST_TIMEOUT_S)
                words = [outcome_in_words(passed=o.passed, reason=o.reason, output=o.output) for o in outcomes]
                store.keep_outcomes(dict(zip([key for key, _ in chunk], words, strict=True)))
    return [item._replace(tests=store.outcome(key)) for key, item in zip(keys, items, strict=True)]
