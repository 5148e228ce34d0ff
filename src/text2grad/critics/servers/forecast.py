"""Requests without a stored answer → number, tokens and price of these requests, printed before the first one."""

from collections.abc import Iterable
from typing import NamedTuple

from text2grad.critics.servers.cached_client import Request
from text2grad.critics.servers.endpoint import Endpoint
from text2grad.critics.servers.store import Store
from text2grad.errors import ConfigError

BYTES_PER_TOKEN = 4  # of English
ANSWER_TOKENS = 250  # or fewer, where the endpoint allows no longer answers


class Forecast(NamedTuple):
    """Expected expense of a run.

    Attributes:
        model: the model that is asked.
        requests: those without a stored answer.
        stored: those with a stored answer.
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


def expected_expense(endpoint: Endpoint, store: Store, requests: Iterable[Request]) -> Forecast:
    """Return the expected expense of some requests; equal requests count once."""
    by_key = {request.key(endpoint): request for request in requests}
    missing = [request for key, request in by_key.items() if store.get(key) is None]
    read = sum(request.prompt_bytes for request in missing) // BYTES_PER_TOKEN
    written = len(missing) * min(ANSWER_TOKENS, endpoint.max_tokens)
    cost = endpoint.cost(read, written) if any(endpoint.prices) else None
    spent = endpoint.cost(*store.tokens(endpoint.model))
    return Forecast(endpoint.model, len(missing), len(by_key) - len(missing), read, written, cost, spent)


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
