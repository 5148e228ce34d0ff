"""Settings of the policy: [model], [rollout], [sft], [ppo], [optim]."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Fraction, Listed, NonNegative, Positive, Section, refuse_no_measure
from text2grad.types import Optimizer

NOT_THE_POLICY = (
    "top_p top_k min_p typical_p repetition_penalty no_repeat_ngram_size min_length min_new_tokens num_beams"
)


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
    """Modules that get an adapter."""
    value: Literal["none", "trunk", "adapter", "model"] = "trunk"
    """Input of the value head: the policy's trunk, an adapter of its own, a model of its own; or no value function."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    trust_remote_code: bool = False
    """Run Python code from the model's repository. Leave it off unless you trust that code."""


class RolloutConfig(Section):
    """Sampling of responses: from the policy itself, with a temperature only."""

    engine: Literal["hf", "vllm"] = "hf"
    """Sampler: transformers, exact and reproducible; or vLLM with the policy's weights, set up in [engine]."""
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
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """"chat" applies the chat template, "plain" does not, "auto" does if the tokenizer has one."""
    rows_at_once: Count = 64
    """Rows at a time of the policy, and of a reward model in this process: more memory, less time."""

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


class PPOConfig(Section):
    """The update (section 3.5, Algorithm 4)."""

    gamma: Fraction = 1.0
    """Discount γ of later rewards: 1 in the paper; 0.5 is often better for spans."""
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
    whiten: Literal["none", "scale", "full", "group"] = "full"
    """Unit deviation of advantages over the global batch ("scale"), and zero mean ("full"); or over the group."""
    certainty: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Largest probability of a sampled token that has an advantage; above it only spans blamed whole (0.9, say) do."""
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
    kl_horizon: Count = 10_000
    """Horizon of the adaptive β, in responses."""
    stop_kl: Positive | None = None
    """End the epochs on a batch when the KL from π_old per token (nats) exceeds 1.5 times this."""
    max_ratio: Positive = 10.0
    """Skip and count a minibatch whose mean ratio exceeds this."""


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
    weight_decay: NonNegative = 0.0
    """AdamW's weight decay, both optimizers."""
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """AdamW's β₁, both optimizers: the weight of earlier gradients in a step; 0 follows the newest gradient alone."""
    max_grad_norm: Positive = 1.0
    """Largest gradient norm, for each optimizer separately."""


class SFTConfig(Section):
    """Supervised fine-tuning of the policy on demonstrations: `text2grad sft`, and the start of the quickstart."""

    model: str = ""
    """Model to fine-tune; empty takes model.path."""
    data: Annotated[tuple[str, ...], Listed] = ()
    """JSONL files of demonstrations: {"prompt", "reference"} or {"messages": [...]}; empty takes data.train."""
    out: str = "runs/sft"
    """Directory of the fine-tuned model (`model/`), metrics and checkpoints."""
    steps: Count = 800
    """Optimizer steps."""
    epochs: Positive | None = None
    """Passes over the demonstrations; replaces `steps`."""
    batch_size: Count = 32
    """Demonstrations per step; packed rows with `packing`."""
    accumulate: Count = 1
    """Gradient accumulation steps: less memory, more time."""
    lr: Positive = 1e-5
    """Peak learning rate, after the first 5 % of the steps; then it falls as a cosine."""
    optimizer: Optimizer = "adamw"
    """adamw; or muon for the hidden matrices, several times faster for tiny models."""
    lora_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout before the LoRA adapter (model.lora_r > 0) in fine-tuning: 0.05 in the paper. RL runs without dropout."""
    max_tokens: Count = 1_024
    """Length limit of a demonstration in tokens; longer ones are left out and counted, never truncated."""
    packing: bool = False
    """Pack several demonstrations into one row of `max_tokens`, without attention between them."""
    bf16: bool = False
    """Mixed precision: bfloat16 arithmetic with 32-bit weights."""
    held_out: Fraction = 0.05
    """Share of the prompts that is held out to measure the loss, where [data] holds out no demonstration."""
    held_out_file: str = ""
    """JSONL file of held-out demonstrations instead; their prompts are removed from the training demonstrations."""
    eval_limit: Count = 500
    """Most held-out demonstrations of one measurement."""
    eval_every: Count = 100
    """Steps between measurements; each writes a checkpoint."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Early stopping: measurements without a lower held-out loss; 0 never stops early."""
    merge: bool = False
    """Also write the LoRA model merged into its base (`merged/`)."""
    layers: Count = 2
    """Transformer blocks of the quickstart's Llama."""
    after_reward_model: Annotated[int, Field(ge=0)] = 0
    """The quickstart's fine-tuning steps from the reward model's weights; 0 starts from the fine-tuned policy."""

    @model_validator(mode="after")
    def _measures_something(self) -> "SFTConfig":
        refuse_no_measure(self.held_out, self.held_out_file)
        return self
