"""Questions → answers: from the store where they are known, else from the server, each asked once and kept at once.

A request that got no answer is repeated (`tenacity`: exponential waits with jitter, and no sooner than the server
allows). A question that two ask at the same time is one request. Answers are on disk before anyone sees them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import tenacity

from text2grad.config import AnnotateConfig
from text2grad.critics.servers.client import ServerClient
from text2grad.critics.servers.pace import Budget, Pace
from text2grad.critics.servers.store import Answer, Asked, Question, Store
from text2grad.errors import RequestError

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # of the waits before requests are repeated; a random part of each is waited
GIVE_UP_AFTER = 20  # questions in a row that got no answer after all retries: the server is not there
One = TypeVar("One")
Found = TypeVar("Found")
_TEMPLATE_BYTES = 100  # tokens that a chat template adds to a prompt, at most


class Form(NamedTuple):
    """What a server holds an answer to: a JSON schema, or a grammar.

    Attributes:
        name: "schema" or "grammar".
        content: it.
    """

    name: Literal["schema", "grammar"]
    content: Mapping[str, Any] | str

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a request that say so: schemas as OpenAI has them, grammars as vLLM has them."""
        if self.name == "grammar":
            return {"structured_outputs": {"grammar": self.content}}
        form = {"name": "critique", "strict": True, "schema": self.content}
        return {"response_format": {"type": "json_schema", "json_schema": form}}


@dataclass(slots=True)
class Tally:
    """What was asked.

    Attributes:
        answered: questions that the server answered.
        reused: questions that the store answered.
        retried: requests that were repeated.
        prompt_tokens: of the answers of this run.
        completion_tokens: likewise.
    """

    answered: int = 0
    reused: int = 0
    retried: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Asker:
    """Asks one model, for one run. It belongs to one event loop."""

    def __init__(self, settings: AnnotateConfig, store: Store, client: ServerClient, pace: Pace) -> None:
        """Take the settings, where answers are kept, who asks for them and how fast."""
        self.settings, self.store, self.client, self.pace = settings, store, client, pace
        self.tally = Tally()
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._forms: bool | None = {"json_schema": True, "off": False}.get(settings.structured)
        self._first, self._failed_in_row = asyncio.Lock(), 0

    async def ask(self, messages: Asked, form: Form, *, sample: int = 0) -> Answer:
        """Return the answer to a question.

        Args:
            messages: the conversation, or a text to go on with.
            form: what the server holds the answer to, where it knows such forms.
            sample: which of several answers to the same.

        Raises:
            RequestError: if there is none.
            DataError: if it cannot be kept.
        """
        parameters: dict[str, Any] = {"max_tokens": self.settings.max_tokens, "temperature": self.settings.temperature}
        parameters |= {"structured": self.settings.structured, form.name: form.content}
        question = Question(self.settings.model, messages, parameters, sample)
        known = self.store.get(question)
        if known is not None:
            self.tally.reused += 1
            return known
        task = self._under_way.get(question.key)
        if task is None:
            task = asyncio.create_task(self._fetch(question, form))
            self._under_way[question.key] = task
            task.add_done_callback(lambda _: self._under_way.pop(question.key))
        return await task

    async def _fetch(self, question: Question, form: Form) -> Answer:
        """Return the server's answer, with as many tries as are allowed."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, RequestError) and error.transient),
            stop=tenacity.stop_after_attempt(self.settings.retries + 1),
            wait=_wait,
            sleep=self.pace.sleep,
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            answer: Answer = await retrying(self._attempt, question, form)
        except RequestError as error:
            self._give_up(error)
            raise
        self._failed_in_row = 0
        return answer

    def _count_retry(self, _: tenacity.RetryCallState) -> None:
        self.tally.retried += 1

    def _give_up(self, error: RequestError) -> None:
        """Stop the run where no other question would be answered either."""
        self._failed_in_row += error.transient
        if error.fatal:
            self.pace.stop(error.detail)
        elif self._failed_in_row >= GIVE_UP_AFTER:
            self.pace.stop(f"{self._failed_in_row} questions in a row got no answer, the last one: {error}")

    async def _attempt(self, question: Question, form: Form) -> Answer:
        """Make one request; the first of all finds out whether the server knows such forms."""
        if self._forms is None:
            async with self._first:
                if self._forms is None:
                    return await self._probe(question, form)
        return await self._send(question, form if self._forms else None)

    async def _probe(self, question: Question, form: Form) -> Answer:
        try:
            answer = await self._send(question, form)
        except RequestError as error:
            if error.kind != "rejected" or error.fatal:
                raise
            answer = await self._send(question, None)  # where this is rejected, too, the next question finds out
            self._forms = False
        else:
            self._forms = True
        return answer

    async def _send(self, question: Question, form: Form | None) -> Answer:
        """Make one request, count what it cost, and keep its answer."""
        most = self._most(question)
        async with self.pace.turn(most) as sent_at:
            try:
                answer = await self.client.complete(question.messages, self._parameters(form))
            except RequestError as error:
                self.pace.budget.cost += most if error.may_cost else 0.0
                if error.kind == "rate_limit" and error.transient:
                    self.pace.slow_down(sent_at, error.retry_after_s)
                raise
            self._count(answer, most)
            self.pace.speed_up()
        await self.store.put(question, answer)
        return answer

    def _parameters(self, form: Form | None) -> dict[str, Any]:
        """Return the parameters of a request, as the API names them."""
        parameters: dict[str, Any] = {self.settings.max_tokens_name: self.settings.max_tokens}
        if self.settings.temperature is not None:
            parameters["temperature"] = self.settings.temperature
        return parameters | (form.parameters if form else {})

    def _most(self, question: Question) -> float:
        """Return the US dollars that a request can cost at most: no token is shorter than a byte."""
        asked = question.messages
        texts = [asked] if isinstance(asked, str) else [one["content"] for one in asked]
        size = sum(len(text.encode()) + _TEMPLATE_BYTES for text in texts)
        return price(self.settings, size, self.settings.max_tokens)

    def _count(self, answer: Answer, most: float) -> None:
        read, written = answer.prompt_tokens, answer.completion_tokens
        self.tally.answered += 1
        self.tally.prompt_tokens += read or 0
        self.tally.completion_tokens += written or 0
        unknown = read is None or written is None
        self.pace.budget.cost += most if unknown else price(self.settings, read or 0, written or 0)


def price(settings: AnnotateConfig, prompt_tokens: int, completion_tokens: int) -> float:
    """Return what tokens cost, in US dollars.

    Example:
        >>> price(AnnotateConfig(input_price=2.5, output_price=10.0), 1_000, 500)
        0.0075
    """
    return (prompt_tokens * settings.input_price + completion_tokens * settings.output_price) / 1e6


@asynccontextmanager
async def asker_of(settings: AnnotateConfig, store: Store) -> AsyncIterator[Asker]:
    """Open the connection to the server for one run; what the store holds was paid for, and counts.

    Raises:
        ConfigError: if the settings name no server, or there is no key.
    """
    client = ServerClient(settings)
    budget = Budget(settings.max_requests, settings.max_cost, cost=price(settings, *store.tokens()))
    try:
        yield Asker(settings, store, client, Pace(settings.concurrency, budget))
    finally:
        await client.close()


async def in_parallel(
    work: Callable[[One], Awaitable[Found]], items: Sequence[One], workers: int, on_done: Callable[[Found], None]
) -> list[Found]:
    """Do some work on items, so many at once, and return what comes of them in order."""
    found: dict[int, Found] = {}
    rows = iter(range(len(items)))

    async def one_after_another() -> None:
        for row in rows:
            found[row] = await work(items[row])
            on_done(found[row])

    tasks = [asyncio.create_task(one_after_another()) for _ in range(min(workers, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:  # where one could not go on, none does
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [found[row] for row in range(len(items))]


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds before a request is repeated: random up to a limit that doubles, and what the server asks."""
    error = state.outcome.exception() if state.outcome else None
    least = error.retry_after_s if isinstance(error, RequestError) else 0.0
    jitter = tenacity.wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)
    return least + jitter(state)
