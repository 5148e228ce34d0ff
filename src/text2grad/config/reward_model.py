"""The sections of a recipe for the phases before the policy learns, and for keeping the reward model honest."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Fraction, Listed, Positive, Section
from text2grad.types import CritiqueForm, Optimizer


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
    write_feedback: bool = True
    """Write the feedback before the spans; false is the ablation without reasoning (section 5.3)."""
    annotations: Annotated[tuple[str, ...], Listed] = ()
    """JSONL files that `text2grad reward` learns from; this and all below are that command's alone."""
    form: CritiqueForm = "spans"
    """What it learns to write: quotes; a label per word (Appendix I.1); the response's words with scores (SLF5K)."""
    epochs: Positive | None = None
    """Passes over the annotations; goes before `steps`."""
    prompt_format: Literal["auto", "plain", "chat"] = "auto"
    """How it is asked: "chat" by its chat template, "plain" not, "auto" by one where there is one."""
    max_tokens: Count = 1_024
    """Longest question with its critique; longer annotations are left out and counted, never cut."""
    packing: bool = False
    """Lay several annotations into one row of `max_tokens`, none of which sees another: less padding."""
    accumulate: Count = 1
    """Micro-batches that a step's annotations are shared among: memory against speed."""
    bf16: bool = False
    """Compute in bfloat16 beside weights in 32 bits, on machines that can."""
    held_out: Fraction = 0.1
    """Share of the prompts whose annotations it never learns from, and is measured on."""
    held_out_file: str = ""
    """JSONL file of annotations to measure on instead; what it learns from holds none of their prompts then."""
    unseen: Literal["prompts", "responses"] = "prompts"
    """What is held out: whole prompts; or responses, as for a policy that learns on the prompts of the annotations."""
    eval_limit: Count = 200
    """Most held-out annotations that a measurement decodes."""
    eval_every: Count = 100
    """Steps between measurements on held-out annotations, each with a checkpoint."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Measurements without a better held-out F1 after which it stops; 0 never stops early."""
    merge: bool = False
    """Write a LoRA model as an ordinary model, too, with its adapter merged into the base."""

    @model_validator(mode="after")
    def _measures_something(self) -> "RewardModelConfig":
        if not self.held_out_file and not 0.0 < self.held_out < 1.0:
            raise ValueError(
                f"held_out = {self.held_out} leaves nothing to measure on or to learn from; choose a share between 0 "
                "and 1, or name a held_out_file"
            )
        return self


class ServerConfig(Section):
    """Where a generative reward model is served, for critic.kind = "server"; critic.model is its name there."""

    base_url: str = "http://localhost:8000/v1"
    """The server, up to /v1: vLLM's, SGLang's, `transformers serve`'s."""
    api_key_env: str = ""
    """Environment variable that holds the key; empty for a server that wants none. The key is written nowhere."""
    prompt_format: Literal["plain", "chat"] = "plain"
    """As it was trained: "plain" goes on with prompt and response, "chat" asks by the server's chat template."""
    write_feedback: bool = True
    """False for a model that was trained to write spans only."""
    max_tokens: Count = 512
    """Length limit of a critique."""
    concurrency: Count = 64
    """Most requests at once; fewer after "too many requests", until the server keeps up again."""
    timeout_s: Positive = 120.0
    """Longest that one request may take, from its start to its last byte."""
    retries: Annotated[int, Field(ge=0)] = 6
    """How often a request is repeated that got no answer."""


class VLLMConfig(Section):
    """How vLLM runs a generative reward model in this process, for critic.kind = "vllm"."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights; "auto" is that of the checkpoint, and 16 bits where that has 32."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.4
    """Share of the GPU's memory that vLLM takes, weights included; the policy trains in the rest."""
    max_model_len: Count | None = None
    """The most tokens of a prompt and its critique; leave out for the model's own limit."""
    tensor_parallel_size: Count = 1
    """GPUs that share the weights."""
    enforce_eager: bool = False
    """Compile nothing: starts sooner, writes slower."""


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
    negative_share: Fraction = 0.0
    """Least share of new annotations that hold a negative span; others are left out at random to reach it."""
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
