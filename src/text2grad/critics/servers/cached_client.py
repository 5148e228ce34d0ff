"""Completions of one model, each requested once: from the store if it has the answer, else from the server.

A request without an answer is repeated (`tenacity`: exponential waits with jitter, at least as long as the server asks
for). Equal requests at the same time become one. An answer is on disk before it is returned.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import tenacity

from text2grad.critics.servers.client import ServerClient
from text2grad.critics.servers.endpoint import Endpoint, Spending
from text2grad.critics.servers.pace import Budget, Pace
from text2grad.critics.servers.store import Answer, Prompt, Request, Store
from text2grad.errors import RequestError

RETRIES = 6  # most repetitions of a request without an answer
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # bounds of the wait before a request is repeated; part of it is random
GIVE_UP_AFTER = 20  # requests in a row without an answer after all retries: the server is down
NEWER_NAME = "max_completion_tokens"  # OpenAI's reasoning models refuse `max_tokens`, and name this in the error
_TEMPLATE_BYTES = 100  # upper bound of the tokens that a chat template adds to a message


class ResponseFormat(NamedTuple):
    """The format of an answer that is requested beside the prompt: a JSON schema, a grammar, or log-probabilities.

    A server that refuses a schema or log-probabilities is asked without them; a grammar is never left out.

    Attributes:
        name: "schema", "grammar" or "logprobs".
        content: the schema, the grammar, or the number of most likely tokens whose log-probabilities are requested.
    """

    name: Literal["schema", "grammar", "logprobs"]
    content: Mapping[str, Any] | str | int

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a request for this format: OpenAI's, but for grammars vLLM's."""
        if self.name == "logprobs":
            return {"logprobs": True, "top_logprobs": self.content}
        if self.name == "grammar":
            return {"structured_outputs": {"grammar": self.content}}
        schema = {"name": "critique", "strict": True, "schema": self.content}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


def request_for(
    endpoint: Endpoint,
    prompt: Prompt,
    response_format: ResponseFormat | None,
    sample: int = 0,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Request:
    """Return the request for a completion, whose hash is the key of the stored answer."""
    parameters: dict[str, Any] = {"max_tokens": endpoint.max_tokens, "temperature": endpoint.temperature}
    if response_format is not None:
        form = "json_schema" if response_format.name == "grammar" else "auto"  # as in stored answers
        parameters |= {"structured": form, response_format.name: response_format.content}
    parameters |= more
    return Request(endpoint.model, prompt, parameters, sample)


def prompt_bytes(prompt: Prompt) -> int:
    """Return an upper bound of the tokens of a prompt: no token is shorter than a byte; a template adds some."""
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return sum(len(text.encode()) + _TEMPLATE_BYTES for text in texts)


@dataclass(slots=True)
class Usage:
    """Counts of a run.

    Attributes:
        answered: requests that the server answered.
        reused: requests that the store answered.
        retried: requests that were repeated.
        prompt_tokens: of the server's answers in this run.
        completion_tokens: likewise.
    """

    answered: int = 0
    reused: int = 0
    retried: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class CachedClient:
    """Requests completions of one model for one run. It belongs to one event loop."""

    def __init__(self, endpoint: Endpoint, spending: Spending, store: Store, budget: Budget | None = None) -> None:
        """Open a client; without a budget, it makes a budget that counts the answers in the store.

        Raises:
            ConfigError: if the endpoint is incomplete or its key is missing.
        """
        self.endpoint, self.spending, self.store = endpoint, spending, store
        self.server = ServerClient(endpoint)
        self.pace = Pace(endpoint.concurrency, budget or Budget.of(spending, store))
        self.usage = Usage()
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._takes_formats: bool | None = None  # unknown before the first request with one
        self._length_name = "max_tokens"  # the server's name of that parameter
        self._first_request, self._failed_in_row = asyncio.Lock(), 0

    async def complete(
        self,
        prompt: Prompt,
        response_format: ResponseFormat | None = None,
        sample: int = 0,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Answer:
        """Return the answer to a prompt.

        Args:
            prompt: chat messages, or a text to continue.
            response_format: the format that the server enforces, if it supports such formats; None for free text.
            sample: number of the answer among several answers to the same prompt.
            more: further parameters of this request, by their names in the API; they replace the endpoint's.

        Raises:
            RequestError: if no answer came.
            DataError: if the answer cannot be stored.
        """
        request = request_for(self.endpoint, prompt, response_format, sample=sample, more=more)
        stored = self.store.get(request)
        if stored is not None:
            self.usage.reused += 1
            return stored
        task = self._under_way.get(request.key)
        if task is None:
            task = asyncio.create_task(self._fetch(request, response_format, more))
            self._under_way[request.key] = task
            task.add_done_callback(lambda _: self._under_way.pop(request.key))
        return await task

    async def _fetch(self, request: Request, response_format: ResponseFormat | None, more: Mapping[str, Any]) -> Answer:
        """Return the server's answer, after as many attempts as the endpoint allows."""

        def count(_: tenacity.RetryCallState) -> None:
            self.usage.retried += 1

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, RequestError) and error.transient),
            stop=tenacity.stop_after_attempt(RETRIES + 1),
            wait=_wait,
            sleep=self.pace.sleep,
            before_sleep=count,
            reraise=True,
        )
        try:
            answer: Answer = await retrying(self._attempt, request, response_format, more)
        except RequestError as error:
            self._failed_in_row += error.transient
            if error.fatal:  # every other request would fail too
                self.pace.stop(error.detail)
            elif self._failed_in_row >= GIVE_UP_AFTER:
                self.pace.stop(f"{self._failed_in_row} requests in a row got no answer, the last one: {error}")
            raise
        self._failed_in_row = 0
        return answer

    async def _attempt(
        self, request: Request, response_format: ResponseFormat | None, more: Mapping[str, Any]
    ) -> Answer:
        """Make one request; the first with a format finds out whether the server takes formats."""
        if response_format is None or response_format.name == "grammar":
            return await self._send(request, response_format, more)
        if self._takes_formats is None:
            async with self._first_request:
                if self._takes_formats is None:
                    try:
                        answer = await self._send(request, response_format, more)
                    except RequestError as error:
                        if error.kind != "rejected" or error.fatal:
                            raise
                        answer = await self._send(request, None, more)  # if rejected too, the next request asks anew
                        self._takes_formats = False
                    else:
                        self._takes_formats = True
                    return answer
        return await self._send(request, response_format if self._takes_formats else None, more)

    async def _send(self, request: Request, response_format: ResponseFormat | None, more: Mapping[str, Any]) -> Answer:
        """Make one request, count its cost, and store its answer; a refused `max_tokens` gets its newer name."""
        name = self._length_name
        parameters: dict[str, Any] = {name: self.endpoint.max_tokens}
        if self.endpoint.temperature is not None:
            parameters["temperature"] = self.endpoint.temperature
        parameters |= (response_format.parameters if response_format else {}) | dict(more)
        max_cost = self.spending.cost(prompt_bytes(request.prompt), self.endpoint.max_tokens)
        try:
            answer = await self._paced(request.prompt, parameters, max_cost)
        except RequestError as error:
            if error.kind != "rejected" or name != "max_tokens" or NEWER_NAME not in error.detail:
                raise
            self._length_name = NEWER_NAME
            return await self._send(request, response_format, more)
        await self.store.put(request, answer)
        return answer

    async def _paced(self, prompt: Prompt, parameters: Mapping[str, Any], max_cost: float) -> Answer:
        """Make one request when its turn comes, and count what it costs, at most `max_cost`."""
        async with self.pace.turn(max_cost) as sent_at:
            try:
                answer = await self.server.complete(prompt, parameters)
            except RequestError as error:
                self.pace.budget.cost += max_cost if error.may_cost else 0.0
                if error.kind == "rate_limit" and error.transient:
                    self.pace.slow_down(sent_at, error.retry_after_s)
                raise
            read, written = answer.prompt_tokens, answer.completion_tokens
            self.usage.answered += 1
            self.usage.prompt_tokens += read or 0
            self.usage.completion_tokens += written or 0
            unknown = read is None or written is None
            self.pace.budget.cost += max_cost if unknown else self.spending.cost(read or 0, written or 0)
            self.pace.speed_up()
        return answer


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds before a request is repeated: the server's own wait, plus a random part that grows."""
    error = state.outcome.exception() if state.outcome else None
    least = error.retry_after_s if isinstance(error, RequestError) else 0.0
    jitter = tenacity.wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)
    return least + jitter(state)
