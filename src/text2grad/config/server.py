"""Settings of servers and of vLLM, with the blocks that they share: [annotate], [server], [engine]."""

from typing import Annotated, Literal

from pydantic import Field

from text2grad.config.section import Count, Listed, NonNegative, Positive, Section


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


class AnnotateConfig(Server):
    """Phase 1: annotation by a language model, `text2grad annotate` (section 3.3)."""

    model: str = ""
    """The model's name on that server."""
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    max_tokens: Count = 1200
    template: Literal["summarization", "code", "qa", "grounded"] = "qa"
    """Prompt template: the kind of response that is judged; "grounded": an answer, by its passage alone."""
    reasoning: bool = True
    """Ask for reasoning, critique and quotes; false asks for quotes only (the ablation of section 5.3)."""
    temperature: NonNegative | None = 0.3
    """Sampling temperature; None (in Python) for a model that refuses the parameter."""
    prices: Annotated[tuple[NonNegative, NonNegative], Listed] = (0.0, 0.0)
    """US dollars per million tokens of prompts, and per million tokens of answers."""
    max_cost: NonNegative | None = None
    """Budget in US dollars for all answers in `out`, earlier runs included; needs the prices."""
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
