"""Completions of one model, each requested once: from the store if it has the answer, else from the server.

A request without an answer is repeated after exponential waits with jitter, at least as long as the server asks for.
Equal requests at the same time become one. An answer is on disk before it is returned. Number, tokens and price of
requests without a stored answer are told before the first one (`expected_expense`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import uniform
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from text2grad.config import Endpoint
from text2grad.critics.servers.client import Prompt, ServerClient
from text2grad.critics.servers.pace import Pace, Usage
from text2grad.critics.servers.store import Answer, Store, hash_of
from text2grad.errors import ConfigError, RequestError

RETRIES = 6  # most repetitions of a request without an answer
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # bounds of the random wait before a request is repeated
GIVE_UP_AFTER = 20  # requests in a row without an answer after all retries: the server is down
BUSY = ("rate_limit", "timeout", "connection", 408, 503, 504, 524, 529)  # fewer requests at a time can help
REJECTED_IN_ROW = 3  # after so many rejections without an answer, and after twice as many, ..., a short prompt is tried
NEWER_NAME = "max_completion_tokens"  # OpenAI's reasoning models refuse `max_tokens`, and name this in the error
_TEMPLATE_BYTES = 100  # upper bound of the tokens that a chat template adds to a message
SHOWN_CHARS = 160
BYTES_PER_TOKEN = 4  # of English
ANSWER_TOKENS = 250  # expected of an answer, or fewer, where the endpoint allows no longer ones


class ResponseFormat(NamedTuple):
    """The format of an answer that is requested beside the prompt: a JSON schema, a grammar, or log-probabilities.

    A server that refuses a schema or log-probabilities is asked without them; a grammar is never left out.
    """

    name: Literal["schema", "grammar", "logprobs"]
    content: Mapping[str, Any] | str | int  # of "logprobs": how many of the most likely tokens

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a request for this format: OpenAI's, but for grammars vLLM's."""
        if self.name == "logprobs":
            return {"logprobs": True, "top_logprobs": self.content}
        if self.name == "grammar":
            return {"structured_outputs": {"grammar": self.content}}
        schema = {"name": "critique", "strict": True, "schema": self.content}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class Request(NamedTuple):
    """A request for a completion.

    Attributes:
        prompt: chat messages, or a text to continue.
        response_format: the format that the server enforces, if it supports such formats; None for free text.
        sample: number of the answer among several answers to the same prompt.
        more: further parameters of this request, by their names in the API; they replace the endpoint's.
    """

    prompt: Prompt
    response_format: ResponseFormat | None = None
    sample: int = 0
    more: Mapping[str, Any] = MappingProxyType({})

    def key(self, endpoint: Endpoint) -> str:
        """Return the hash of everything that the answer depends on."""
        parameters: dict[str, Any] = {"max_tokens": endpoint.max_tokens, "temperature": endpoint.temperature}
        if self.response_format is not None:
            name, content = self.response_format
            parameters |= {"structured": "json_schema" if name == "grammar" else "auto", name: content}
        prompt = self.prompt if isinstance(self.prompt, str) else list(map(dict, self.prompt))
        return hash_of(endpoint.model, prompt, parameters | dict(self.more), self.sample)

    @property
    def prompt_bytes(self) -> int:
        """An upper bound of the tokens of the prompt: no token is shorter than a byte; a template adds some."""
        texts = [self.prompt] if isinstance(self.prompt, str) else [message["content"] for message in self.prompt]
        return sum(len(text.encode()) + _TEMPLATE_BYTES for text in texts)


def unusable(answer: Answer) -> RequestError:
    """Return the error of an answer that cannot be used: of the kind refused, unreadable or empty (`annotation`)."""
    kind = "refused" if answer.finish == "refused" else "unreadable" if answer.text.strip() else "empty"
    ending, _, beside = answer.finish.partition(", ")
    told = f"no content{beside and f', {beside}'} (finish_reason {ending}); raise max_tokens (--max-new-tokens)"
    return RequestError(kind, told if kind == "empty" else answer.text[:SHOWN_CHARS])


class CachedClient:
    """Requests completions of one model for one run. It belongs to one event loop."""

    def __init__(self, endpoint: Endpoint, store: Store, usage: Usage) -> None:
        """Open a client that counts in `usage`.

        Raises:
            ConfigError: if the endpoint is incomplete or its key is missing.
        """
        self.endpoint, self.store, self.usage = endpoint, store, usage
        self.server = ServerClient(endpoint)
        self.pace = Pace(endpoint.concurrency, usage, endpoint.max_cost)
        self.pace.answered = any(store.tokens(endpoint.model))
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._takes_formats: bool | None = None  # unknown before the first request with one
        self._length_name = "max_tokens"  # the server's name of that parameter
        self._failed_in_row = self._rejected_in_row = 0
        self._try_short_at = REJECTED_IN_ROW

    async def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            RequestError: if no answer came.
            DataError: if the answer cannot be stored.
        """
        key = request.key(self.endpoint)
        if (stored := self.store.get(key)) is not None:
            self.usage.reused += 1
            return stored
        if (task := self._under_way.get(key)) is None:
            task = self._under_way[key] = asyncio.create_task(self._request(key, request))
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await task

    async def _request(self, key: str, request: Request) -> Answer:
        """Return the server's answer, which is stored, after as many attempts as it takes."""
        for attempt in range(RETRIES + 1):
            try:
                answer = await self._send(request)
                break
            except RequestError as error:
                if attempt == RETRIES or not error.transient:
                    self._count_failure(error)
                    raise
                self.usage.retried += 1
                jitter_s = uniform(0.0, min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S))
                await self.pace.sleep(error.retry_after_s + jitter_s)
        self._failed_in_row = self._rejected_in_row = 0
        await self.store.put(key, answer, model=self.endpoint.model, sample=request.sample)
        return answer

    def _count_failure(self, error: RequestError) -> None:
        """Stop the run if every other request would fail too."""
        self._failed_in_row += error.transient
        if error.fatal:
            self.pace.stop(error.detail)
        elif self._failed_in_row >= GIVE_UP_AFTER:
            self.pace.stop(f"{self._failed_in_row} requests in a row got no answer, the last one: {error}")

    async def _send(self, request: Request) -> Answer:
        """Make a request when its turn comes, and in the same turn what a rejection calls for."""
        async with self.pace.turn(self.endpoint.cost(request.prompt_bytes, self.endpoint.max_tokens)) as sent_at:
            try:
                answer = await self._ask(request, request.response_format, self._length_name)
            except RequestError as error:
                if error.transient and (error.kind in BUSY or error.status in BUSY):
                    self.pace.slow_down(sent_at, error.retry_after_s if error.kind == "rate_limit" else 0.0)
                if error.kind == "rejected" and not error.fatal:
                    await self._find_blame(request)
                raise
            self.pace.speed_up()
        return answer

    async def _find_blame(self, request: Request) -> None:
        """After some rejections in a row, stop the run if the shortest prompt is rejected, too."""
        self._rejected_in_row += 1
        if self._rejected_in_row != self._try_short_at:
            return
        self._try_short_at *= 2
        prompt = "Hi" if isinstance(request.prompt, str) else ({"role": "user", "content": "Hi"},)
        form = request.response_format
        grammar = form if form and form.name == "grammar" else None  # which is never left out
        try:
            await self._request_once(request._replace(prompt=prompt), grammar, self._length_name)
        except RequestError as error:
            if error.kind == "rejected":
                self.pace.stop(f"the server rejects every request, also the shortest: {error.detail}")

    async def _ask(self, request: Request, wanted: ResponseFormat | None, length_name: str) -> Answer:
        """Make one request, and repeat it without what the server refuses: the name `max_tokens`, or the format."""
        optional = wanted is not None and wanted.name != "grammar"
        if optional and self._takes_formats is False:
            wanted, optional = None, False
        try:
            answer = await self._request_once(request, wanted, length_name)
        except RequestError as error:
            rejected = error.kind == "rejected" and (not error.fatal or error.status == 404)  # perhaps of the format
            if rejected and length_name != NEWER_NAME and NEWER_NAME in error.detail:
                self._length_name = NEWER_NAME
                return await self._ask(request, wanted, NEWER_NAME)
            refused = rejected or error.status in (500, 501) or "response_format" in error.detail
            if not optional or not refused or self._takes_formats:
                raise
            answer = await self._request_once(request, None, length_name)  # if it fails too, the next one asks anew
            self._takes_formats = bool(self._takes_formats)  # another request may have learned that it does
        else:
            self._takes_formats = optional or self._takes_formats
        return answer

    async def _request_once(self, request: Request, wanted: ResponseFormat | None, length_name: str) -> Answer:
        """Make one request, and count what it costs."""
        parameters: dict[str, Any] = {length_name: self.endpoint.max_tokens}
        if self.endpoint.temperature is not None:
            parameters["temperature"] = self.endpoint.temperature
        parameters |= (wanted.parameters if wanted else {}) | dict(request.more)
        self.usage.requests += 1
        most = request.prompt_bytes, self.endpoint.max_tokens
        try:
            answer = await self.server.complete(request.prompt, parameters)
        except RequestError as error:
            self.usage.cost += self.endpoint.cost(*most) if error.may_cost else 0.0
            raise
        if answer.prompt_tokens is None or answer.completion_tokens is None:
            self.usage.cost += self.endpoint.cost(*most)
            return replace(answer, prompt_tokens=-most[0], completion_tokens=-most[1])
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        self.usage.cost += self.endpoint.cost(answer.prompt_tokens, answer.completion_tokens)
        return answer


class Forecast(NamedTuple):
    """Expected expense of a run."""

    requests: int  # without a stored answer
    cost: float  # estimated US dollars for them; 0 without prices
    spent: float  # US dollars for the answers that are stored already
    text: str  # the forecast as a line


def expected_expense(endpoint: Endpoint, store: Store, requests: Iterable[Request]) -> Forecast:
    """Return the expected expense of some requests; equal requests count once."""
    by_key = {request.key(endpoint): request for request in requests}
    missing = [request for key, request in by_key.items() if store.get(key) is None]
    read = sum(request.prompt_bytes for request in missing) // BYTES_PER_TOKEN
    written = len(missing) * min(ANSWER_TOKENS, endpoint.max_tokens)
    cost, spent = endpoint.cost(read, written), endpoint.cost(*store.tokens(endpoint.model))
    stored = len(by_key) - len(missing)
    text = f"{endpoint.model}: {len(missing):,} requests" + (f" ({stored:,} are answered already)" if stored else "")
    if missing:
        price = f"about ${cost:.4f}" if any(endpoint.prices) else "no prices given"
        text += f", about {read:,} tokens of prompts and {written:,} of answers, {price}"
    return Forecast(len(missing), cost, spent, text)


def refuse_beyond_budget(forecasts: Sequence[Forecast], max_cost: float | None) -> None:
    """Refuse a run that is expected to cost more than its budget; nothing was requested.

    Raises:
        ConfigError: if so; names cost and budget.
    """
    cost, spent = sum(forecast.cost for forecast in forecasts), sum(forecast.spent for forecast in forecasts)
    if max_cost is not None and cost and spent + cost > max_cost:
        before = f" (${spent:.4f} are spent already)" if spent else ""
        requests = sum(forecast.requests for forecast in forecasts)
        raise ConfigError(
            f"{requests:,} requests cost about ${cost:.4f}{before}, above max_cost = ${max_cost:g}; nothing was "
            "requested. Raise max_cost, judge fewer texts, or choose a cheaper model"
        )
