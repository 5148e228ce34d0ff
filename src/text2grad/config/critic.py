"""Settings of the critic: [annotate], [critic], [reward]."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Fraction, NonNegative, Positive, Section


class CriticConfig(Section):
    """Who judges the responses."""

    use: str = ""
    """ "module:name" of a Python critic; empty takes `model`, or else the built-in task's own."""
    model: str = ""
    """Directory of a reward model that was trained to judge responses; of kind "server" its name on the server."""
    kind: Literal["generative", "vllm", "server", "scalar", "process"] = "generative"
    """What `model` is: one that writes critiques, here, in [vllm] or on [server]; gives a number; labels steps."""
    match: Literal["exact", "normalized"] = "exact"
    """How quotes of critiques in text form are found in the response."""
    constrain: bool | None = None
    """A generative model writes whole JSON and verbatim quotes alone; leave out for what it was saved with: true."""
    whole_words: bool = False
    """Constrained quotes neither begin nor end within a word."""
    max_quote_words: Count | None = None
    """The most words of a constrained quote; leave out for any number."""
    max_quotes: Count | None = None
    """The most constrained quotes in each of the two lists; leave out for any number."""
    one_list: bool = False
    """Constrained quotes that are listed as good are not listed as poor."""
    quoted_in_feedback: bool = False
    """A constrained span must also be quoted, between quotation marks, in the feedback."""
    verbatim: bool = False
    """What constrained words hold between double quotation marks is a piece of the response."""
    votes: Count | None = None
    """Critiques a generative model draws of a response, to mark what enough of them mark; leave out for as saved: 1."""
    vote_threshold: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the votes that marks a character; leave out for the best on what `text2grad reward` held out, or 0.5."""
    max_failure_rate: Fraction = 0.25
    """The run stops when more of the last 100 or more critiques than this could not be read."""


class RewardConfig(Section):
    """From spans to the reward on each token (section 3.3, Appendix I)."""

    positive: float = 1.0
    """Reward of a token in a positive span."""
    negative: float = -1.0
    """Reward of a token in a negative span."""
    unlabelled: float = 0.0
    """Reward of a token in no span; the paper's 0. The published KodCode trainer gives +1, which pays for length."""
    outcome: float = 1.0
    """Factor on `Critique.outcome`, which stands on the last token."""
    truncated: float = 0.0
    """Reward added on the last token of a response that the length limit cut."""
    placement: Literal["spans", "last_token"] = "spans"
    """ "last_token" sums the very same rewards on the last token: scalar PPO."""
    mode: Literal["strict", "contract", "expand"] = "expand"
    """Which tokens a span marks: all it touches (expand), those inside (contract), or none unless exact (strict)."""
    weighting: Literal["uniform", "linear_decay", "token_importance"] = "uniform"
    """How a span's reward spreads over its tokens (Appendix I.1); token_importance needs the extra [importance]."""
    overlap: Literal["cancel", "negative_wins", "last_wins"] = "cancel"
    """What a token in both a positive and a negative span gets."""
    span_mass: Literal["token", "span", "response"] = "token"
    """1 per token; 1 per span, shared by its tokens; or divided by the response's length."""


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
