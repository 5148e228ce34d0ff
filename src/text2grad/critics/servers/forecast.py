"""Requests without a stored answer → number, tokens and price of these requests, printed before the first one."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from text2grad.config import Endpoint
from text2grad.critics.servers.cached_client import Request
from text2grad.critics.servers.store import Store
from text2grad.errors import ConfigError

BYTES_PER_TOKEN = 4  # of English
ANSWER_TOKENS = 250  # or fewer, where the endpoint allows no longer answers


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
