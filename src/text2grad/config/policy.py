"""Settings of the policy: [model], [rollout], [ppo], [optim]."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from text2grad.config.section import Count, Fraction, Listed, NonNegative, Positive, Section, Table


class ModelConfig(Section):
    """The policy, its reference and its value function."""

    path: str = ""
    """Directory or hub name of a Hugging Face causal language model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights; "auto" takes float32 where all weights are trained, else the checkpoint's."""
    lora_r: Annotated[int, Field(ge=0)] = 0
    """Rank of the policy's LoRA adapter; 0 trains all weights and keeps a frozen copy as reference."""
    lora_alpha: Count = 32
    """LoRA's alpha; the adapter's update is alpha / r · BA."""
    lora_targets: str | Annotated[tuple[str, ...], Listed] = "all-linear"
    """Modules that get an adapter: names, a regular expression, all-linear, or "upper-third" of the layers."""
    value: Literal["none", "trunk", "adapter", "model"] = "trunk"
    """Input of the value head: the policy's trunk, an adapter of its own, a model of its own; or no value function."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """Prompts of policy and reward model: by the chat template, "plain" without; "auto": chat if there is one."""
    trust_remote_code: bool = False
    """Run Python code from the model's repository. Leave it off unless you trust that code."""


_CORRECTED = re.compile(r"vllm ((?:token|sequence)_(?:truncate|mask))(?: (\d+(?:\.\d+)?))? (\d+(?:\.\d+)?|inf)")


class RolloutConfig(Section):
    """Sampling of responses: from the policy itself, with a temperature only."""

    engine: str = "hf"
    """Sampler: "hf", exact; "vllm", by [engine]; or "vllm MODE LOWER UPPER", a correction by name, as token_mask."""
    batch_size: Count = 64
    """Responses per step, over all processes."""
    group_size: Count = 1
    """Responses per prompt; `batch_size` is a multiple of it. A group baseline (ppo.baseline) needs at least 2."""
    max_new_tokens: Count = 128
    """Length limit of a response, in tokens."""
    temperature: Positive = 1.0
    """Divides the logits in sampling, scoring and the update."""
    eos_token_ids: Annotated[tuple[int, ...], Listed] = ()
    """Ids that end a response; empty takes them from the tokenizer and the model's generation config."""
    max_turns: Count = 8
    """Most turns of a response with tools, of 2 · max_turns · max_new_tokens tokens at most, with what tools say."""
    chat_template: str = ""
    """Chat template of the policy, a text or the path of a file; empty takes the tokenizer's."""
    chat_template_kwargs: Table = Field(default={}, validate_default=True)
    """Variables of the chat template, such as {enable_thinking = false}; a row's own "chat_template_kwargs" win."""
    rows_at_once: Count = 64
    """Rows at a time of the policy, and of a reward model in this process: more memory, less time."""

    @field_validator("engine")
    @classmethod
    def _is_known(cls, engine: str) -> str:
        corrected = _CORRECTED.fullmatch(engine)
        if engine not in ("hf", "vllm") and not (corrected and float(corrected[2] or 0) < float(corrected[3])):
            raise ValueError(
                'write "hf", "vllm", or "vllm MODE LOWER UPPER" with one of the modes token_truncate, token_mask, '
                "sequence_truncate and sequence_mask, and LOWER, which may be left out, below UPPER"
            )
        return engine

    @property
    def correction(self) -> tuple[str, float, float]:
        """Mode and limits of the factors of what vLLM sampled; "vllm" alone is "vllm token_truncate 2"."""
        corrected = _CORRECTED.fullmatch(self.engine)
        mode, lower, upper = corrected.groups() if corrected else ("token_truncate", None, 2)
        return mode, float(lower or 0), float(upper)


class PPOConfig(Section):
    """The update (section 3.5, Algorithm 4)."""

    gamma: Fraction = 1.0
    """Discount γ of later rewards: 1 in the paper; 0.5 is often better for spans."""
    gamma_turn: Fraction | None = None
    """Discount of all that follows a turn of the policy, at the turn's last token; leave out for γ there, too."""
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
    baseline: Literal["value", "group", "leave_one_out"] = "value"
    """Baseline of advantages: the value function, the mean of the prompt's group (GRPO), or of its others (RLOO)."""
    credit: Literal["spans", "self_teacher", "gated"] = "spans"
    """Source of advantages: spans; the policy that has read the critique (SDPO); or gated, its size where spans are."""
    teacher_update_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Part of the way to the policy that the self-teacher's weights go after each step; with 1 it is the policy."""
    whiten: Literal["none", "scale", "full", "group"] = "full"
    """Unit deviation of advantages over the global batch ("scale"), and zero mean ("full"); or over the group."""
    loss_mean: Literal["token", "response", "constant"] = "token"
    """Mean of the surrogate: over tokens; per response first (GRPO); Σ / (responses · max_new_tokens) (Dr. GRPO)."""
    beta: NonNegative = 0.05
    """KL coefficient β, reward per nat; the initial value if target_kl is set."""
    kl: Literal["k1", "full"] = "k1"
    """KL in the reward: the sampled log-ratio (k1), or exact over the vocabulary (full) as in the paper."""
    kl_in: Literal["reward", "loss"] = "reward"
    """Place of the KL term: each token's reward (section 3.5), or the loss as the estimator k3 (GRPO)."""
    target_kl: Positive | None = None
    """Target of the adaptive β: KL per sequence in nats; leave out for a fixed β."""

    @property
    def has_own_teacher(self) -> bool:
        """True when the self-teacher has weights of its own."""
        return self.credit != "spans" and self.teacher_update_rate < 1.0


class OptimConfig(Section):
    """AdamW of the policy and AdamW of the value function."""

    lr: Positive = 1e-6
    """Peak learning rate of the policy."""
    value_lr: Positive = 1e-5
    """Peak learning rate of the value function."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Schedule of both learning rates; linear and cosine decay to zero over the run."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
    value_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """First steps, in which only the value function learns."""
