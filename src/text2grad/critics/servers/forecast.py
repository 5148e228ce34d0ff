"""Requests that are not answered yet → number, tokens and price of the requests of a run, printed before the first one.

A token has about four bytes of English. An answer is taken to be as long as the model's stored answers in the mean, or
`ANSWER_TOKENS` before there are any, and never longer than the endpoint allows.
"""

from collections.abc import Iterable
from typing import NamedTuple

from text2grad.critics.servers.annotation import Question
from text2grad.critics.servers.cached_client import prompt_bytes, request_for
from text2grad.critics.servers.endpoint import Endpoint, Spending
from text2grad.critics.servers.store import Store
from text2grad.errors import ConfigError

BYTES_PER_TOKEN = 4
ANSWER_TOKENS = 250


class Forecast(NamedTuple):
    """Expected expense of a run.

    Attributes:
        model: the model that is asked.
        requests: questions without a stored answer.
        stored: questions with a stored answer.
        prompt_tokens: estimated tokens of the prompts of all requests.
        answer_tokens: estimated tokens of their answers.
        cost: estimated US dollars for the requests; None without prices.
        spent: US dollars for the answers that are stored already.
    """

    model: str
    requests: int
    stored: int
    prompt_tokens: int
    answer_tokens: int
    cost: float | None
    spent: float

    def __str__(self) -> str:
        """Return the forecast as a line."""
        known = f" ({self.stored:,} are answered already)" if self.stored else ""
        if not self.requests:
            return f"{self.model}: no request{known}"
        tokens = f"about {self.prompt_tokens:,} tokens of prompts and {self.answer_tokens:,} of answers"
        price = "no prices given" if self.cost is None else f"about ${self.cost:.4f}"
        return f"{self.model}: {self.requests:,} requests{known}, {tokens}, {price}"


def expected_expense(endpoint: Endpoint, spending: Spending, store: Store, questions: Iterable[Question]) -> Forecast:
    """Return the expected expense of some questions; equal questions count once."""
    asked = [request_for(endpoint, *question) for question in questions]
    requests = {request.key: request for request in asked}
    missing = [request for request in requests.values() if store.get(request) is None]
    read = sum(prompt_bytes(request.prompt) for request in missing) // BYTES_PER_TOKEN
    written = round(len(missing) * min(store.mean_answer(endpoint.model) or ANSWER_TOKENS, endpoint.max_tokens))
    cost = spending.cost(read, written) if any(spending.prices) else None
    spent = spending.cost(*store.tokens(endpoint.model))
    return Forecast(endpoint.model, len(missing), len(requests) - len(missing), read, written, cost, spent)


def refuse_beyond_budget(forecasts: Iterable[Forecast], max_cost: float | None) -> None:
    """Refuse a run that is expected to cost more than its budget; nothing was requested.

    Raises:
        ConfigError: if so; names cost and budget.
    """
    expected = list(forecasts)
    cost = sum(forecast.cost or 0.0 for forecast in expected)
    spent = sum(forecast.spent for forecast in expected)
    if max_cost is not None and cost and spent + cost > max_cost:
        before = f" (${spent:.4f} are spent already)" if spent else ""
        requests = sum(forecast.requests for forecast in expected)
        raise ConfigError(
            f"{requests:,} requests cost about ${cost:.4f}{before}, above max_cost = ${max_cost:g}; nothing was "
            "requested. Raise max_cost, judge fewer texts, or choose a cheaper model"
        )
