"""Settings of the critic: [annotate], [critic], [reward]."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, model_validator

from text2grad.config.section import Count, Fraction, NonNegative, Positive, Section, is_of_a_run
from text2grad.types import Placement

SAMPLING = ("generative", "vllm")
"""Kinds of reward models that can sample several critiques of a response."""


class CriticConfig(Section):
    """The critic of the policy's responses."""

    use: str = ""
    """ "module:name" of a Python critic; empty takes `model`, or else the critic of the built-in task."""
    model: str = ""
    """Directory of a reward model; for kind = "server" the model's name on the server."""
    kind: str = "generative"
    """Kind of `model`: generative, vllm and server write critiques here, in [vllm], on [server]; probe labels parts."""
    match: Literal["exact", "normalized"] = "exact"
    """How a quote in a critique's text is found in the response."""
    constrain: bool | None = None
    """Constrain decoding to JSON with verbatim quotes, or a label per word; leave out for the saved setting (true)."""
    whole_words: bool = False
    """A constrained quote begins and ends at word boundaries."""
    max_quote_words: Count | None = None
    """Most words of a constrained quote; leave out for no limit."""
    max_quotes: Count | None = None
    """Most constrained quotes in each of the two lists; leave out for no limit."""
    one_list: bool = False
    """A constrained quote in the positive list cannot appear in the negative list."""
    quoted_in_feedback: bool = False
    """A constrained quote must also stand in the feedback, between quotation marks."""
    verbatim: bool = False
    """Text between double quotation marks in the constrained feedback must occur in the response."""
    votes: Count | None = None
    """Critiques sampled per response, which vote on each character; leave out for the saved setting (1)."""
    vote_threshold: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of votes that marks a character, or probability for a probe; leave out for the saved one, else 0.5."""
    overlap: Annotated[int, Field(ge=0)] | None = None
    """Parts of a step judged at a time while others are sampled; leave out for the critic's own number (0: after)."""
    max_failure_rate: Fraction = 0.25
    """Stop the run when a larger share of the last critiques (100 or one batch) could not be read."""

    @property
    def learned(self) -> bool:
        """True when the critic is a reward model: `use`, a critic in Python, comes before `model`."""
        return bool(self.model) and not self.use

    @model_validator(mode="after")
    def _judges_elsewhere(self) -> "CriticConfig":
        if self.overlap and self.learned and self.kind != "server":
            raise ValueError(
                f"overlap = {self.overlap}: a reward model of kind {self.kind!r} judges in this process, on the "
                "policy's devices, and cannot do so while the policy samples; leave it out, or serve the model "
                "(kind = 'server')"
            )
        return self

    @model_validator(mode="after")
    def _has_effect(self, info: ValidationInfo) -> "CriticConfig":
        if is_of_a_run(info):
            return self
        for name, kinds in (("votes", SAMPLING), ("vote_threshold", (*SAMPLING, "probe"))):
            if self.learned and getattr(self, name) is not None and self.kind not in kinds:
                raise ValueError(
                    f"{name} has no effect with kind = {self.kind!r}, but with {', '.join(kinds)}; leave it out"
                )
        limits = ("whole_words", "max_quote_words", "max_quotes", "one_list", "quoted_in_feedback", "verbatim")
        if self.constrain is False and (limited := list(self.changed(limits))):
            raise ValueError(f"{limited[0]} limits constrained decoding, and constrain is false; leave one of them out")
        return self


class RewardConfig(Section):
    """From spans to the reward on each token (section 3.3, Appendix I)."""

    positive: float = 1.0
    """Reward of a token in a positive span."""
    negative: float = -1.0
    """Reward of a token in a negative span."""
    unlabelled: float = 0.0
    """Reward of a token in no span: 0 in the paper; +1 in the published KodCode trainer, which rewards length."""
    outcome: float = 1.0
    """Factor on `Critique.outcome`, a reward on the last token."""
    truncated: float = 0.0
    """Reward added on the last token of a truncated response."""
    placement: Placement = "spans"
    """Place of rewards: each token; summed at the end of lines, sentences, clauses, responses; or one verdict."""
    mode: Literal["strict", "contract", "expand"] = "expand"
    """Tokens of a span: all that it touches (expand), only tokens inside (contract), exact boundaries only (strict)."""
    weighting: str = "uniform"
    """Weights of the tokens of a span (Appendix I.1): "uniform", "linear_decay", or a name that is registered."""
    overlap: Literal["cancel", "negative_wins", "last_wins"] = "cancel"
    """Reward of a token in a positive and in a negative span: 0, the negative one, or the later one."""
    span_mass: Literal["token", "span", "response"] = "token"
    """Total reward of a span: 1 per token; 1, shared by its tokens; or 1 per token divided by the response length."""
    balance: bool = False
    """Scale each response's positive rewards to the total of its negative ones where it has both (balanced credit)."""


class AnnotateConfig(Section):
    """Phase 1: annotation by a language model on an OpenAI-compatible server, `text2grad annotate` (section 3.3)."""

    base_url: str = "https://api.openai.com/v1"
    """URL of the server up to /v1 (OpenAI, vLLM, `transformers serve`, Ollama, ...)."""
    model: str = ""
    """The model's name on that server."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; empty for a server without keys. The key is never written to disk."""
    template: Literal["summarization", "code", "qa", "grounded"] = "qa"
    """Prompt template: the kind of response that is judged; "grounded": an answer, by its passage alone."""
    reasoning: bool = True
    """Ask for reasoning, critique and quotes; false asks for quotes only (the ablation of section 5.3)."""
    temperature: NonNegative | None = 0.3
    """Sampling temperature; None (in Python) for a model that refuses the parameter."""
    max_tokens: Count = 1200
    """Length limit of an answer in tokens, reasoning included."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The server's name of that limit; OpenAI's reasoning models need the second."""
    structured: Literal["auto", "json_schema", "off"] = "auto"
    """Ask for answers in a JSON schema; "auto" stops asking if the first request is refused. Any answer is read."""
    concurrency: Count = 32
    """Most requests in flight; lowered after HTTP 429 and raised again later."""
    timeout_s: Positive = 120.0
    """Time limit of one request in seconds, to its last byte."""
    retries: Annotated[int, Field(ge=0)] = 6
    """Retries of a request without answer."""
    reask: Annotated[int, Field(ge=0)] = 0
    """Further requests for a response whose critique failed, or whose quotes are not in the response."""
    input_price: NonNegative = 0.0
    """US dollars per million tokens of prompts."""
    output_price: NonNegative = 0.0
    """US dollars per million tokens of answers."""
    max_cost: NonNegative | None = None
    """Budget in US dollars for all answers in `out`, earlier runs included; needs the prices."""
    max_requests: Count | None = None
    """Most requests of one run, retries included."""
    out: str = "runs/annotations"
    """Directory of annotations.jsonl, failures.jsonl and answers.sqlite, which keeps every answer."""

    @model_validator(mode="after")
    def _knows_prices(self) -> "AnnotateConfig":
        if self.max_cost is not None and not self.input_price and not self.output_price:
            raise ValueError("max_cost needs input_price and output_price: without them nothing costs anything")
        return self
