"""Settings of reward models: [reward_model], [server], [vllm], [refresh]."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Fraction, Listed, Positive, Section, refuse_no_measure
from text2grad.errors import ConfigError
from text2grad.types import Optimizer


class RewardModelConfig(Section):
    """Phase 2: a language model learns to write critiques and quotes (section 3.4)."""

    responses: Count = 20_000
    """Responses that the quickstart annotates: half sampled from the fine-tuned policy, half corrupted."""
    steps: Count = 1_000
    """Optimizer steps."""
    batch_size: Count = 32
    """Annotations per step."""
    lr: Positive = 1e-5
    """Peak learning rate, after the first 5 % of the steps; then it falls as a cosine."""
    optimizer: Optimizer = "adamw"
    """adamw; or muon for the hidden matrices, several times faster for tiny models."""
    start: Literal["sft", "fresh"] = "sft"
    """Initial weights: the fine-tuned policy, or random weights."""
    max_new_tokens: Count = 512
    """Length limit of a critique in tokens."""
    write_feedback: bool = True
    """Write the feedback before the spans; false is the ablation without reasoning (section 5.3)."""
    annotations: Annotated[tuple[str, ...], Listed] = ()
    """JSONL files of annotations. This setting and all below belong to `text2grad reward` only."""
    model: str = ""
    """Model to train; empty takes model.path."""
    out: str = ""
    """Directory of the reward model (`model/`), metrics and checkpoints; empty takes run.out."""
    form: str = "spans"
    """Form of critiques: spans (quotes); labelled_spans (each with its label) or tagged_words, both with an outcome."""
    epochs: Positive | None = None
    """Passes over the annotations; replaces `steps`."""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """Prompt format: "chat" applies the chat template, "plain" does not, "auto" does if the tokenizer has one."""
    max_tokens: Count = 1_024
    """Length limit of prompt plus critique in tokens; longer annotations are left out and counted, never truncated."""
    packing: bool = False
    """Pack several annotations into one row of `max_tokens`, without attention between them."""
    accumulate: Count = 1
    """Gradient accumulation steps: less memory, more time."""
    bf16: bool = False
    """Mixed precision: bfloat16 arithmetic with 32-bit weights."""
    lora_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout before the LoRA adapter (model.lora_r > 0) in training: 0.05 in the paper."""
    held_out: Fraction = 0.1
    """Share of the prompts that is held out for measurement."""
    held_out_file: str = ""
    """JSONL file of held-out annotations instead; their prompts are removed from the training annotations."""
    unseen: Literal["prompts", "responses"] = "prompts"
    """Unit that is held out: whole prompts, or single responses whose prompts may occur in training."""
    eval_limit: Count = 200
    """Most held-out annotations that one measurement decodes."""
    eval_every: Count = 100
    """Steps between measurements; each writes a checkpoint."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Early stopping: measurements without a better held-out F1; 0 never stops early."""
    merge: bool = False
    """Also write the LoRA model merged into its base."""

    @model_validator(mode="after")
    def _measures_something(self) -> "RewardModelConfig":
        refuse_no_measure(self.held_out, self.held_out_file)
        return self


class ServerConfig(Section):
    """The server of a generative reward model, for critic.kind = "server"; critic.model is the model's name there."""

    base_url: str = "http://localhost:8000/v1"
    """URL of the server up to /v1 (vLLM, SGLang, `transformers serve`)."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty for a server without keys. The key is never written to disk."""
    prompt_format: Literal["plain", "chat"] = "plain"
    """Prompt format of its training: "plain" uses completions, "chat" the server's chat template."""
    write_feedback: bool = True
    """False for a model that was trained to write spans only."""
    form: str = "spans"
    """Form of its critiques, as reward_model.form was in training."""
    max_tokens: Count = 512
    """Length limit of a critique in tokens."""
    concurrency: Count = 64
    """Most requests in flight; lowered after HTTP 429 and raised again later."""
    timeout_s: Positive = 120.0
    """Time limit of one request in seconds, to its last byte."""


class VLLMConfig(Section):
    """vLLM's settings for a generative reward model in this process, critic.kind = "vllm"."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights; "auto" takes the checkpoint's, or 16 bits for a 32-bit checkpoint."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.4
    """Share of the GPU's memory for vLLM, weights included; the rest is left to the policy."""
    max_model_len: Count | None = None
    """Most tokens of prompt plus critique; leave out for the model's limit."""
    tensor_parallel_size: Count = 1
    """GPUs that share the weights."""
    enforce_eager: bool = False
    """Do not compile: faster start, slower decoding."""


class RefreshConfig(Section):
    """Retraining of the reward model on current responses of the policy, so that its errors are not exploited."""

    steps: Annotated[tuple[int, ...], Listed] = ()
    """Steps after which the reward model is retrained."""
    drift: Positive | None = None
    """Also retrain when the KL per token (nats) moved by this much since the last time."""
    annotator: str = ""
    """ "module:name" of the annotating critic; empty takes the critic of the built-in task."""
    window: Count = 640
    """Number of latest responses that are annotated."""
    negative_share: Fraction = 0.0
    """Least share of new annotations that hold a negative span; others are left out at random to reach it."""
    positive_share: Fraction = 0.0
    """The same for positive spans: where nearly all is wrong, the reward model would learn to blame alone."""
    replay: Fraction = 0.5
    """Share of older annotations, from `replay_from`, in the training data."""
    replay_from: str = ""
    """JSONL file of older annotations (phase 1); empty for none."""
    train_steps: Count = 100
    """Optimizer steps of one refresh."""
    batch_size: Count = 32
    """Annotations per step."""
    accumulate: Count = 1
    """Gradient accumulation steps: less memory, more time."""
    lr: Positive = 1e-5
    """Peak learning rate, after the first 5 % of the steps; then it falls as a cosine."""
    optimizer: Optimizer = "adamw"
    """adamw; or muon for the hidden matrices, several times faster for tiny models."""
    audit: Annotated[int, Field(ge=0)] = 0
    """Responses per step that the annotator also judges, to measure the reward model; 0 for none."""

    @model_validator(mode="after")
    def _can_replay(self) -> "RefreshConfig":
        if self.replay == 1.0:
            raise ValueError("replay = 1.0 leaves no room for new annotations; choose less")
        return self

    def check_processes(self, processes: int) -> None:
        """Refuse a batch that the processes and their micro-batches cannot share evenly.

        Raises:
            ConfigError: naming the divisor.
        """
        parts = processes * self.accumulate
        if self.active and self.batch_size % parts:
            raise ConfigError(
                f"refresh.batch_size = {self.batch_size} cannot be shared evenly by {processes} processes × "
                f"refresh.accumulate = {self.accumulate}; choose a multiple of {parts}"
            )

    @property
    def active(self) -> bool:
        """True when the reward model is ever trained again."""
        return bool(self.steps) or self.drift is not None

    @property
    def asks(self) -> bool:
        """True when the annotator is ever asked: to train the reward model again, or to audit it."""
        return self.active or bool(self.audit)
