"""The sections of a recipe: every setting, its default, and in the text under it what it does."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
Listed = Field(strict=False)  # TOML has lists, a frozen setting is a tuple

NOT_THE_POLICY = (
    "top_p top_k min_p typical_p repetition_penalty no_repeat_ngram_size min_length min_new_tokens num_beams"
)


class Section(BaseModel):
    """A section of a recipe: frozen, its field docstrings are its help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )


class ModelConfig(Section):
    """The policy, its reference and its value function."""

    path: str = ""
    """Directory or hub name of a Hugging Face causal language model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights; "auto" is that of the checkpoint."""
    lora_r: Annotated[int, Field(ge=0)] = 0
    """Rank of the policy's LoRA adapter; 0 trains all weights and keeps a frozen copy as reference."""
    lora_alpha: Count = 32
    """LoRA's alpha; the adapter's update is alpha / r · BA."""
    lora_targets: str | Annotated[tuple[str, ...], Listed] = "all-linear"
    """Modules to adapt."""
    value: Literal["none", "trunk", "adapter", "model"] = "trunk"
    """Where the value head reads: the policy's trunk, its own adapter, its own model, or no value function."""
    detach_trunk: bool = True
    """With value = "trunk": keep the value loss out of the policy's weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Leave it off unless you wrote that code."""


class DataConfig(Section):
    """Where prompts come from: a built-in task, or a JSONL file."""

    task: str | None = None
    """A built-in task: "stories", "summarization", "code" or "qa"."""
    train: str | None = None
    """JSONL file of examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}}."""
    examples: Count = 10_000
    """How many training examples a built-in task makes."""
    eval_examples: Annotated[int, Field(ge=0)] = 200
    """How many held-out examples a built-in task is evaluated on before and after; 0 skips it."""
    eval_seed: Annotated[int, Field(ge=0)] = 0
    """Which held-out examples: tune on one seed, report on another."""
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Steps between further evaluations; 0 makes none."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """What to do with prompts that leave no room for a response."""


class RolloutConfig(Section):
    """How responses are sampled: from the policy itself, at a temperature."""

    batch_size: Count = 64
    """Responses per step, over all processes."""
    max_new_tokens: Count = 128
    """Length limit of a response, in tokens."""
    temperature: Positive = 1.0
    """Divides the logits here and in every pass of the update."""
    eos_token_ids: Annotated[tuple[int, ...], Listed] = ()
    """Ids that end a response; empty takes those of the tokenizer and the model's generation config."""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """"chat" applies the chat template, "plain" does not, "auto" does where there is one."""
    rows_at_once: Count = 64
    """Rows of one generate call: memory against speed."""

    @model_validator(mode="before")
    @classmethod
    def _only_temperature(cls, data: Any) -> Any:
        for key in NOT_THE_POLICY.split():
            if isinstance(data, Mapping) and key in data:
                raise ValueError(
                    f"{key} would sample from something other than the policy, and PPO's ratios would compare the "
                    "wrong distributions; only temperature is possible in rollouts"
                )
        return data


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
    supported: bool = False
    """Constrained quotes stand between quotation marks in the critique's words, too."""
    verbatim: bool = False
    """What constrained words hold between double quotation marks is a piece of the response."""
    votes: Count | None = None
    """Critiques a generative model draws of a response, to mark what enough of them mark; leave out for as saved: 1."""
    agreement: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
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


class PPOConfig(Section):
    """The update (section 3.5, Algorithm 4)."""

    gamma: Fraction = 1.0
    """Discount γ: how far a token answers for what comes after it. The paper's 1; 0.5 is often better for spans."""
    lam: Fraction = 0.95
    """GAE's λ."""
    clip_range: Positive = 0.2
    """ε of the clipped surrogate."""
    value_clip_range: NonNegative = 0.2
    """Clip of the value loss, in units of reward; 0 leaves it unclipped."""
    vf_coef: NonNegative = 0.1
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    epochs: Count = 4
    """Passes over each batch of rollouts."""
    minibatches: Count = 1
    """Optimizer steps per pass."""
    micro_batch_tokens: Count = 16_384
    """Most tokens (padding included) of one forward and backward pass; changes memory, not results."""
    whiten: Literal["none", "scale", "full"] = "full"
    """Advantages: unit deviation over the global batch ("scale"), zero mean too ("full")."""
    beta: NonNegative = 0.05
    """KL coefficient β, reward per nat; the start value with a target."""
    kl: Literal["k1", "full"] = "k1"
    """KL in the reward: the sampled log-ratio, or exact over the vocabulary as in the paper."""
    target_kl: Positive | None = None
    """Steer β so that the KL per sequence (nats) stays near this; leave out to keep β fixed."""
    kl_horizon: Count = 10_000
    """Responses over which the controller of β acts."""
    stop_kl: Positive | None = None
    """Stop the passes over a batch when the KL from π_old, per token, exceeds 1.5 times this."""
    max_ratio: Positive = 10.0
    """Skip a minibatch, and count it, when its mean ratio exceeds this."""


class OptimConfig(Section):
    """AdamW for the policy, AdamW for the value function."""

    lr: Positive = 1e-6
    """Peak learning rate of the policy."""
    value_lr: Positive = 1e-5
    """Peak learning rate of the value function."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Decay to zero over the run."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises."""
    value_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which only the value function learns."""
    weight_decay: NonNegative = 0.0
    """AdamW's weight decay, both optimizers."""
    max_grad_norm: Positive = 1.0
    """Gradient clipping, each optimizer on its own."""


class RunConfig(Section):
    """How long, where, and how reproducible."""

    steps: Count = 100
    """Batches of rollouts."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Everything random follows from it."""
    out: str = "runs/text2grad"
    """Directory of metrics, rollouts, checkpoints and the trained policy."""
    save_every: Count = 10
    """Steps between checkpoints."""
    keep_checkpoints: Count = 2
    """Older ones are removed."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of torch; 0 leaves its own choice. Exact resume needs the same number."""
    rollout_file_mb: Count = 64
    """Size at which a rollouts file is closed and the next begun."""
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Where metrics go besides metrics.jsonl."""
