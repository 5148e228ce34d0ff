"""Answers → critiques: read, their quotes looked up, those without support flagged; asked again where that is wished.

What can become of an item:

    judged        a critique that could be read; quotes that the response does not hold are dropped from its spans
    refused       the model, or a filter before it, would not judge
    empty         an answer without words
    truncated     the length limit ended the answer before its JSON was whole
    unreadable    words, but no critique in them, or more words than are read
    timeout, connection, rate_limit, server_error, bad_reply, rejected
                  no answer came, after all retries (see `RequestError`)
    not_asked     the run had been stopped before: by its budget, its user, or the server

Failures of the first kind were answered, and paid for; asking again takes `reask`. The others ask again in the next
run. A failure is no exception: it is counted, and listed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from text2grad.config import AnnotateConfig
from text2grad.critics.servers.asking import Asker, Form, Tally, asker_of, in_parallel
from text2grad.critics.servers.pace import Budget, Pace
from text2grad.critics.servers.store import Answer, Store
from text2grad.critics.servers.templates import Template, complaint
from text2grad.errors import RequestError
from text2grad.feedback import Match, Occurrences, critique_from_text, quotes_without_overlap
from text2grad.types import Critique, Example

ANSWERED = ("refused", "empty", "truncated", "unreadable")
_SHOWN_CHARS = 160


class Item(NamedTuple):
    """What is to be judged.

    Attributes:
        id: names it in messages and files.
        example: what was asked of whoever responded.
        response: what is judged.
        feedback: what a person said of it, where somebody did.
        tests: what its unit tests came to, in words, where there are some.
    """

    id: str
    example: Example
    response: str
    feedback: str | None = None
    tests: str | None = None


class Failure(NamedTuple):
    """Why an item has no critique, or could not be asked about again: a kind of the module's docstring, and details."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an item.

    Attributes:
        critique: None where there is none that could be used.
        failure: None where nothing failed.
        unsupported: quotes that the critique does not speak of.
        prompt_tokens: of all answers about this item.
        completion_tokens: likewise.
    """

    critique: Critique | None = None
    failure: Failure | None = None
    unsupported: tuple[str, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def rank(self) -> tuple[bool, int]:
        """Less is better: critiques before failures, few lost quotes before many."""
        return self.critique is None, len(self.critique.unmatched) if self.critique else 0


class Judging(Protocol):
    """Whoever judges items."""

    async def judge(self, item: Item) -> Verdict:
        """Return what becomes of one item."""
        ...


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges items by what a model answers.

    Attributes:
        asker: who is asked.
        template: how.
        reask: how often an item may be asked about again.
        match: how quotes are found in the response.
    """

    asker: Asker
    template: Template
    reask: int = 0
    match: Match = "exact"

    async def judge(self, item: Item) -> Verdict:
        """Return what becomes of one item, the best of its answers."""
        first = self.template.messages(item.example, item.response, feedback=item.feedback, tests=item.tests)
        form = Form("schema", self.template.schema(grounding=item.feedback is not None))
        best, messages, read, written = Verdict(failure=Failure("not_asked", "")), first, 0, 0
        for sample in range(self.reask + 1):
            try:
                answer = await self.asker.ask(messages, form, sample=sample)
            except RequestError as error:
                best = replace(best, failure=Failure(error.kind, error.detail))
                break
            read, written = read + (answer.prompt_tokens or 0), written + (answer.completion_tokens or 0)
            verdict = self._read(answer, item)
            best = verdict if sample == 0 else min(best, verdict, key=lambda one: one.rank)
            if best.rank == (False, 0):
                break
            messages = first
            if verdict.critique is not None:
                said = {"role": "assistant", "content": answer.text}
                messages = (*first, said, complaint(verdict.critique.unmatched))
        return replace(best, prompt_tokens=read, completion_tokens=written)

    def _read(self, answer: Answer, item: Item) -> Verdict:
        """Return what one answer comes to, its quotes checked."""
        verdict = read_answer(answer, item.response, match=self.match)
        if verdict.critique is None:
            return verdict
        critique = verdict.critique
        if item.feedback is not None:
            critique = replace(critique, feedback=item.feedback)
        checked = self.template.reasoning or item.feedback is not None
        return Verdict(critique, unsupported=quotes_without_overlap(critique, item.response) if checked else ())


def read_answer(
    answer: Answer, response: str, *, match: Match = "exact", occurrences: Occurrences = "all", whole: bool = True
) -> Verdict:
    """Return what an answer comes to: a critique, or a failure that was answered.

    Args:
        answer: the server's.
        response: what it is about.
        match: see `locate_spans`.
        occurrences: see `locate_spans`.
        whole: False takes the quotes that stand in an answer before the length limit cut it off.
    """
    shown = answer.text[:_SHOWN_CHARS]
    if answer.finish in ("refused", "too_long"):
        return Verdict(failure=Failure("refused" if answer.finish == "refused" else "unreadable", shown))
    critique = critique_from_text(answer.text, response, match=match, occurrences=occurrences)
    if critique.failed or (whole and answer.finish == "length" and critique.status != "ok"):
        kind = "truncated" if answer.finish == "length" else "unreadable" if answer.text.strip() else "empty"
        return Verdict(failure=Failure(kind, shown))
    return Verdict(critique)


@dataclass(frozen=True, slots=True)
class Session:
    """One run over many items.

    Attributes:
        settings: the section [annotate].
        store: where answers are kept.
        match: how quotes are found in the response.
        judge: makes who judges of who asks; None takes a `Judge` with the template of the settings.
    """

    settings: AnnotateConfig
    store: Store
    match: Match = "exact"
    judge: Callable[[Asker], Judging] | None = None

    async def run(
        self,
        items: Sequence[Item],
        on_done: Callable[[Verdict, Tally, Budget], None] | None = None,
        on_start: Callable[[Pace], None] | None = None,
    ) -> tuple[list[Verdict], Tally, Budget]:
        """Judge items, as many at once as the settings allow.

        Args:
            items: what is to be judged.
            on_done: told of each verdict, as it comes.
            on_start: given what can stop the run; requests that are under way then end, and no other begins.

        Returns:
            A verdict for each item, what was asked, and what was spent.

        Raises:
            ConfigError: if the settings name no server, or there is no key.
            DataError: if an answer cannot be kept.
        """
        async with asker_of(self.settings, self.store) as asker:
            template = Template(self.settings.template, self.settings.reasoning)
            judge = self.judge(asker) if self.judge else Judge(asker, template, self.settings.reask, self.match)
            if on_start:
                on_start(asker.pace)

            def tell(verdict: Verdict) -> None:
                if on_done:
                    on_done(verdict, asker.tally, asker.pace.budget)

            verdicts = await in_parallel(judge.judge, items, self.settings.concurrency, tell)
        return verdicts, asker.tally, asker.pace.budget
