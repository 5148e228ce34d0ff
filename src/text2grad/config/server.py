"""Settings of servers and of vLLM, with the blocks that they share: [annotate], [server], [engine]."""

import os
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from text2grad.config.section import Count, Listed, NonNegative, Positive, Section, Table, refuse_weight
from text2grad.errors import ConfigError


def _criteria(given: Any) -> Any:
    """Return the criteria of a rubric as tables with a name, a question and a weight; a text is both of the first."""
    if not isinstance(given, list | tuple):
        return given
    criteria = [{"name": each, "ask": each} if isinstance(each, str) else each for each in given]
    for criterion in criteria:
        if not isinstance(criterion, dict) or not isinstance(name := criterion.get("name"), str) or not name.strip():
            raise ValueError(f'a criterion is a text, or a table with the text "name", got {criterion!r}')
        if odd := criterion.keys() - {"name", "ask", "weight"}:
            raise ValueError(f'"{name}" has the key "{min(odd)}"; a criterion has name, ask and weight')
        refuse_weight(name, criterion.get("weight", 1.0))
        if not isinstance(criterion.get("ask", ""), str):
            raise ValueError(f'"{name}" asks {criterion["ask"]!r}; a text is needed')
    names = [criterion["name"].casefold() for criterion in criteria]
    if again := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f'two criteria have the name "{again}"; each is a category of spans and needs its own')
    return [{"ask": criterion["name"], "weight": 1.0, **criterion} for criterion in criteria]


Criteria = Annotated[tuple[Table, ...], BeforeValidator(_criteria), Listed]


class Server(Section):
    """An OpenAI-compatible server."""

    base_url: str = "http://localhost:8000/v1"
    """URL of the server up to /v1 (OpenAI, vLLM, SGLang, `transformers serve`, Ollama, ...)."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty for a server without keys. The key is never written to disk."""
    max_tokens: Count = 512
    """Length limit of an answer in tokens, reasoning included."""
    concurrency: Count = 32
    """Most requests in flight; lowered after HTTP 429 and raised again later."""
    timeout_s: Positive = 120.0
    """Time limit of one request in seconds, to its last byte."""


class Endpoint(Server):
    """A model on a server: its sampling, the prices of its tokens and the budget of a run."""

    model: str = ""
    """The model's name on that server."""
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    max_tokens: Count = 1200
    temperature: NonNegative | None = 0.3
    """Sampling temperature; None (in Python) for a model that refuses the parameter."""
    prices: Annotated[tuple[NonNegative, NonNegative], Listed] = (0.0, 0.0)
    """US dollars per million tokens of prompts, and per million tokens of answers."""
    max_cost: NonNegative | None = None
    """Budget in US dollars for all answers in `out`, earlier runs included; needs the prices."""

    def checked(self, section: str = "annotate") -> Self:
        """Return this endpoint, after the check that it can be used, holds no secret, and that the key exists.

        Raises:
            ConfigError: if not; an address that holds a password is not repeated in the message.
        """
        if self.max_cost is not None and not any(self.prices):
            raise ConfigError(f"[{section}] max_cost needs prices: without them nothing costs anything")
        if not self.model:
            raise ConfigError(f"[{section}] model is not set; name a model that the server has, such as gpt-4o")
        parts = urlsplit(self.base_url)
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                f"[{section}] base_url contains a user, a password or a query, but a recipe must not contain secrets. "
                "Put the key into the environment variable that api_key_env names"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"[{section}] base_url must be an address such as http://localhost:8000/v1, got {self.base_url!r}"
            )
        if self.api_key_env and not self.api_key:
            raise ConfigError(
                f"the environment variable {self.api_key_env} holds no key for {self.base_url}. Set it, or set "
                f'[{section}] api_key_env = "" for a server without keys'
            )
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError(
                f"the environment variable {self.api_key_env} holds a line break or a letter outside ASCII, which no "
                "header of HTTP can carry. Set it to the key alone"
            )
        return self

    @property
    def api_key(self) -> str:
        """The key, read from the environment and stored nowhere, without white space around it; empty without one."""
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of some tokens in US dollars.

        Example:
            >>> Endpoint(prices=(2.5, 10.0)).cost(1_000, 500)
            0.0075
        """
        return (prompt_tokens * self.prices[0] + completion_tokens * self.prices[1]) / 1e6


class AnnotateConfig(Endpoint):
    """Phase 1: annotation by a language model, `text2grad annotate` (section 3.3)."""

    template: str = "qa"
    """Prompt: "qa", "summarization", "code", "grounded" (an answer, by its passage alone), or a file of your own."""
    criteria: Criteria = ()
    """What is judged, in place of the template's questions: texts, or {name = "tone", ask = "…", weight = 0.3}."""
    reasoning: bool = True
    """Ask for reasoning, critique and quotes; false asks for quotes only (the ablation of section 5.3)."""
    out: str = "runs/annotations"
    """Directory of annotations.jsonl, failures.jsonl and answers.sqlite, which keeps every answer."""


class ServerConfig(Server):
    """The server of a generative reward model, critic.kind = "server"; critic.model is its name, or its directory."""

    concurrency: Count = 64


class EngineConfig(Section):
    """vLLM as the sampler of rollouts, rollout.engine = "vllm"; its weights are the policy's at each step."""

    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """Share of the GPU's memory for vLLM, weights included; the rest is left to training."""
    tensor_parallel_size: Count = 1
    """GPUs that share the weights."""
    sleep: bool = False
    """Free vLLM's memory during scoring and update; waking up takes time."""
