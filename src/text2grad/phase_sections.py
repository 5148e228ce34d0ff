"""The sections of a recipe for the phases before the policy learns, and for keeping the reward model honest."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.sections import Count, Fraction, Listed, NonNegative, Positive, Section

Optimizer = Literal["adamw", "muon"]


class SFTConfig(Section):
    """Supervised fine-tuning of the policy on demonstrations: what everything else starts from."""

    steps: Count = 800
    """Optimizer steps."""
    batch_size: Count = 32
    """Demonstrations of a step."""
    lr: Positive = 1e-5
    """Peak learning rate."""
    optimizer: Optimizer = "adamw"
    """adamw; or muon for the hidden matrices: a small model learns to read several times as fast."""
    answer_only: bool = True
    """Put the loss on the answer alone; an untrained model learns to read from the prompt too."""
    after_reward_model: Annotated[int, Field(ge=0)] = 0
    """Steps of fine-tuning on top of the reward model's weights, where the policy starts from those; 0: it does not."""


class AnnotateConfig(Section):
    """Phase 1 by a language model on an OpenAI-compatible server: `text2grad annotate` (section 3.3)."""

    base_url: str = "https://api.openai.com/v1"
    """The server, up to /v1: OpenAI's, vLLM's, `transformers serve`'s, Ollama's."""
    model: str = ""
    """The model's name on that server."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; empty for a server that wants none. The key is written nowhere."""
    template: Literal["summarization", "code", "qa"] = "qa"
    """What the prompt asks to be judged."""
    reasoning: bool = True
    """Reason, then criticise, then quote; off asks for the quotes alone: the ablation of section 5.3."""
    temperature: NonNegative | None = 0.3
    """Of the judge; leave it unset in Python for a model that refuses the parameter."""
    max_tokens: Count = 1200
    """Length limit of an answer, reasoning included."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls that limit; OpenAI's reasoning models want the second."""
    structured: Literal["auto", "json_schema", "off"] = "auto"
    """Have the server keep answers to a JSON schema; "auto" does until it refuses the first. Any answer is read."""
    concurrency: Count = 32
    """Most requests at once; fewer after "too many requests", until the server keeps up again."""
    timeout_s: Positive = 120.0
    """Longest that one request may take, from its start to its last byte."""
    retries: Annotated[int, Field(ge=0)] = 6
    """How often a request is repeated that got no answer."""
    reask: Annotated[int, Field(ge=0)] = 0
    """How often a response is asked about again: whose quotes are not in it, with the reason; else anew."""
    input_price: NonNegative = 0.0
    """US dollars per million tokens of prompts."""
    output_price: NonNegative = 0.0
    """US dollars per million tokens of answers."""
    max_cost: NonNegative | None = None
    """US dollars that all answers in `out` may cost, those of earlier runs included. Needs the prices."""
    max_requests: Count | None = None
    """Most requests of one run, repeated ones included."""
    out: str = "runs/annotations"
    """Directory of annotations.jsonl, failures.jsonl, and answers.sqlite: every answer ever paid for."""

    @model_validator(mode="after")
    def _knows_prices(self) -> "AnnotateConfig":
        if self.max_cost is not None and not self.input_price and not self.output_price:
            raise ValueError("max_cost needs input_price and output_price: without them nothing costs anything")
        return self


class RewardModelConfig(Section):
    """Phase 2: a language model learns to write critiques and quotes (section 3.4)."""

    responses: Count = 20_000
    """Responses that are annotated for it: half of the fine-tuned policy, half corrupted."""
    steps: Count = 1_000
    """Optimizer steps."""
    batch_size: Count = 32
    """Annotations of a step."""
    lr: Positive = 1e-5
    """Peak learning rate."""
    optimizer: Optimizer = "adamw"
    """adamw; or muon for the hidden matrices: a small model learns to read several times as fast."""
    start: Literal["sft", "fresh"] = "sft"
    """The weights it starts from: those of the fine-tuned policy, or such as were never trained."""
    max_new_tokens: Count = 512
    """Length limit of a critique."""
    words: bool = True
    """Write the critique before the spans; off is the ablation without reasoning (section 5.3)."""


class ServerConfig(Section):
    """Where a generative reward model is served, for critic.kind = "server"; critic.model is its name there."""

    base_url: str = "http://localhost:8000/v1"
    """The server, up to /v1: vLLM's, SGLang's, `transformers serve`'s."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty for a server that wants none. The key is written nowhere."""
    prompt_format: Literal["plain", "chat"] = "plain"
    """As it was trained: "plain" goes on with prompt and response, "chat" asks by the server's chat template."""
    words: bool = True
    """Off where it was trained to write spans alone."""
    max_tokens: Count = 512
    """Length limit of a critique."""
    concurrency: Count = 64
    """Most requests at once; fewer after "too many requests", until the server keeps up again."""
    timeout_s: Positive = 120.0
    """Longest that one request may take, from its start to its last byte."""
    retries: Annotated[int, Field(ge=0)] = 6
    """How often a request is repeated that got no answer."""


class RefreshConfig(Section):
    """The reward model is trained again on what the policy says now, so that its mistakes are not learned."""

    steps: Annotated[tuple[int, ...], Listed] = ()
    """After which steps; empty never."""
    drift: Positive | None = None
    """Also whenever the KL per token (nats) has moved by this much since the last time."""
    annotator: str = ""
    """ "module:name" of the critic that annotates; empty takes the built-in task's own."""
    window: Count = 640
    """How many of the last responses are annotated."""
    replay: Fraction = 0.5
    """Share of older annotations among what it trains on; they come from `replay_from`."""
    replay_from: str = ""
    """JSONL file of the annotations of phase 1; empty replays none."""
    train_steps: Count = 100
    """Optimizer steps of one refresh."""
    batch_size: Count = 32
    """Annotations of a step."""
    lr: Positive = 1e-5
    """Peak learning rate."""
    optimizer: Optimizer = "adamw"
    """adamw; or muon for the hidden matrices: a small model learns to read several times as fast."""
    audit: Annotated[int, Field(ge=0)] = 0
    """Responses of each step that the annotator judges too, to measure the gap; 0 measures none."""

    @model_validator(mode="after")
    def _can_replay(self) -> "RefreshConfig":
        if self.replay == 1.0:
            raise ValueError("replay = 1.0 leaves no room for new annotations; choose less")
        return self

    @property
    def active(self) -> bool:
        """True when the reward model is ever trained again."""
        return bool(self.steps) or self.drift is not None
