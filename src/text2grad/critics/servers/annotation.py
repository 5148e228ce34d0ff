"""Answers → critiques: parse the answer and look up its quotes.

The result of an item is one of:

    (a critique)  parsed; quotes that do not occur in the response are dropped from its spans
    refused       the model, or a filter before it, refused to judge
    empty         an answer without text
    truncated     the length limit ended the answer before its JSON was complete
    unreadable    a text that contains no critique, or that is longer than the reader accepts
    timeout, connection, rate_limit, server_error, bad_reply, rejected
                  no answer after all retries (see `RequestError`)
    not_asked     the run had stopped before: by its budget, its user, or the server

The first four kinds of failure have an answer, which was paid for and stays. The other kinds are requested again by the
next run. A failure is not an exception: it is counted and listed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from text2grad.costs import TokenCount
from text2grad.critics.servers.cached_client import CachedClient, ResponseFormat
from text2grad.critics.servers.session import AnnotationSession
from text2grad.critics.servers.store import Answer, Prompt
from text2grad.critics.servers.templates import Template
from text2grad.errors import CriticError, RequestError
from text2grad.feedback import Match, critique_from_text
from text2grad.types import Critique, Example

ANSWERED = ("refused", "empty", "truncated", "unreadable")
_SHOWN_CHARS = 160


class Item(NamedTuple):
    """A response to annotate.

    Attributes:
        id: its name in messages and files.
        example: the task instance.
        response: the response.
        feedback: the words of a human annotator, if any: only their places are requested then.
        tests: the outcome of its unit tests in words, if any.
    """

    id: str
    example: Example
    response: str
    feedback: str | None = None
    tests: str | None = None


class Failure(NamedTuple):
    """Why an item has no critique: a kind of the module's docstring, and details."""

    kind: str
    detail: str

    @classmethod
    def of(cls, answer: Answer) -> "Failure":
        """Return the failure of an answer that cannot be used."""
        kind = "refused" if answer.finish == "refused" else "unreadable" if answer.text.strip() else "empty"
        return cls(kind, answer.text[:_SHOWN_CHARS])


class Question(NamedTuple):
    """The arguments of `CachedClient.complete`."""

    prompt: Prompt
    response_format: ResponseFormat | None = None
    sample: int = 0
    more: Mapping[str, Any] = MappingProxyType({})


class Reply(NamedTuple):
    """The answer to a question, or why there is none."""

    answer: Answer | None
    failure: Failure | None = None


async def reply(client: CachedClient, question: Question) -> Reply:
    """Return the answer to a question: `AnnotationSession(endpoint, store, reply)`."""
    try:
        return Reply(await client.complete(*question))
    except RequestError as error:
        return Reply(None, Failure(error.kind, error.detail))


@dataclass(frozen=True, slots=True)
class AnnotationResult:
    """The result of an item.

    Attributes:
        critique: None if no answer could be used.
        failure: None if nothing failed.
        prompt_tokens: sum over all answers about this item.
        completion_tokens: the same sum for the tokens that the model wrote.
    """

    critique: Critique | None = None
    failure: Failure | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Annotator:
    """Annotates items by prompting a language model; its `annotate` is the task of an `AnnotationSession`.

    Attributes:
        template: the prompt.
        match: how quotes are found in the response.
    """

    template: Template
    match: Match = "exact"

    async def annotate(self, client: CachedClient, item: Item) -> AnnotationResult:
        """Return the critique of one item, or why there is none."""
        messages = self.template.messages(item.example, item.response, feedback=item.feedback, tests=item.tests)
        schema = ResponseFormat("schema", self.template.schema(grounding=item.feedback is not None))
        answer, failure = await reply(client, Question(messages, schema))
        if answer is None:
            return AnnotationResult(failure=failure)
        result = read_answer_by(lambda text: critique_from_text(text, item.response, match=self.match), answer)
        critique = result.critique
        if critique is not None and item.feedback is not None:
            critique = replace(critique, feedback=item.feedback)
        return AnnotationResult(critique, result.failure, answer.prompt_tokens or 0, answer.completion_tokens or 0)


def read_answer_by(read: Callable[[str], Critique], answer: Answer, *, complete: bool = True) -> AnnotationResult:
    """Return the critique in an answer, or the failure of an answer without one.

    Args:
        read: returns the critique in a text.
        answer: of the server.
        complete: False also accepts the quotes of an answer that the length limit cut.
    """
    if answer.finish == "refused":
        return AnnotationResult(failure=Failure.of(answer))
    critique = read(answer.text)
    if critique.failed or (complete and answer.finish == "length" and critique.status != "ok"):
        failure = Failure.of(answer)
        return AnnotationResult(failure=failure._replace(kind="truncated") if answer.finish == "length" else failure)
    return AnnotationResult(critique)


def numbered_items(examples: Sequence[Example], responses: Sequence[str]) -> list[Item]:
    """Return one item per response, with its row as id."""
    return [Item(str(row), *pair) for row, pair in enumerate(zip(examples, responses, strict=True))]


def collect_critiques(
    session: AnnotationSession[Item, AnnotationResult], items: Sequence[Item], tokens: TokenCount
) -> list[Critique]:
    """Run a session, in a thread of its own since an event loop may already run in this thread.

    Args:
        session: the run.
        items: the responses.
        tokens: counts the tokens of the server's answers in this run.

    Returns:
        One critique per item: of status "unparsable" if the answer has none, "timed_out" if no answer came.

    Raises:
        CriticError: if the server rejects every request or does not respond.
    """
    with ThreadPoolExecutor(1) as thread:
        results, usage, _ = thread.submit(lambda: asyncio.run(session.run(items))).result()
    tokens.add(usage.prompt_tokens, usage.completion_tokens)
    stopped = next(
        (result.failure for result in results if result.failure and result.failure.kind == "not_asked"), None
    )
    if stopped:
        endpoint = session.endpoint
        raise CriticError(f"no more requests are sent to {endpoint.model} at {endpoint.base_url}: {stopped.detail}")
    critiques = []
    for result in results:
        kind, detail = result.failure or ("unreadable", "")
        failed = Critique(f"{kind}: {detail}", status="unparsable" if kind in ANSWERED else "timed_out")
        critiques.append(result.critique or failed)
    return critiques
