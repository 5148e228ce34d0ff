"""Settings of supervised training: [sft], [reward_model], [refresh], with the blocks that they share; [quickstart]."""

from typing import Annotated, Literal

from pydantic import Field

from text2grad.config.section import Count, Fraction, Listed, Positive, Section

Measured = Annotated[float, Field(gt=0.0, lt=1.0)] | str  # a share of the data, or a file


class Optimization(Section):
    """The optimizer steps of a supervised training."""

    batch_size: Count = 32
    """Demonstrations or annotations per step."""
    accumulate: Count = 1
    """Gradient accumulation steps: less memory, more time."""
    lr: Positive = 1e-5
    """Peak learning rate, after the first 5 % of the steps; then it falls as a cosine."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw; or muon for the hidden matrices, several times faster for tiny models."""


class Training(Optimization):
    """A supervised training: what is trained, for how long, and how it is measured."""

    model: str = ""
    """Model to train; empty takes model.path."""
    out: str = ""
    """Directory of the trained model (`model/`, and with LoRA `merged/`), metrics and checkpoints; empty: run.out."""
    steps: Count = 1_000
    """Optimizer steps."""
    epochs: Positive | None = None
    """Passes over the data; replaces `steps`."""
    lora_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout before the LoRA adapter (model.lora_r > 0): 0.05 in the paper. RL runs without dropout."""
    max_tokens: Count = 1_024
    """Length limit of a prompt with its answer in tokens; longer ones are left out and counted, never truncated."""
    bf16: bool = False
    """Mixed precision: bfloat16 arithmetic with 32-bit weights."""
    held_out: Measured = 0.1
    """Share of the prompts that is held out to measure on, or a JSONL file whose prompts are never trained on."""
    eval_limit: Count = 200
    """Most held-out examples of one measurement."""
    eval_every: Count = 100
    """Steps between measurements; each writes a checkpoint."""


class SFTConfig(Training):
    """Supervised fine-tuning of the policy on demonstrations: `text2grad sft`, and the start of the quickstart."""

    data: Annotated[tuple[str, ...], Listed] = ()
    """JSONL files of demonstrations: {"prompt", "reference"} or {"messages": [...]}; empty takes data.train."""
    out: str = "runs/sft"
    steps: Count = 800
    held_out: Measured = 0.05
    eval_limit: Count = 500


class RewardModelConfig(Training):
    """Phase 2: a language model learns to write critiques and quotes (section 3.4)."""

    annotations: Annotated[tuple[str, ...], Listed] = ()
    """JSONL files of annotations."""
    form: str = "spans"
    """Form of critiques: spans (quotes); labelled_spans (each with its label) or tagged_words, both with an outcome."""
    write_feedback: bool = True
    """Write the feedback before the spans; false is the ablation without reasoning (section 5.3)."""
    max_new_tokens: Count = 512
    """Length limit of a critique in tokens."""


class RefreshConfig(Optimization):
    """Retraining of the reward model on current responses of the policy, so that its errors are not exploited."""

    steps: Annotated[tuple[int, ...], Listed] = ()
    """Steps of the policy after which the reward model is retrained."""
    train_steps: Count = 100
    """Optimizer steps of one refresh."""
    annotator: str = ""
    """"module:name" of the annotating critic; empty takes the critic of the built-in task."""
    window: Count = 640
    """Number of latest responses that are annotated."""
    negative_share: Fraction = 0.0
    """Least share of new annotations that hold a negative span; others are left out at random to reach it."""
    positive_share: Fraction = 0.0
    """The same for positive spans: where nearly all is wrong, the reward model would learn to mark nothing else."""
    replay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Share of older annotations, from `replay_from`, in the training data."""
    replay_from: str = ""
    """JSONL file of older annotations (phase 1); empty for none."""
    audit: Annotated[int, Field(ge=0)] = 0
    """Responses per step that the annotator also judges, to measure the reward model; 0 for none."""

    @property
    def active(self) -> bool:
        """True when the reward model is ever trained again."""
        return bool(self.steps)

    @property
    def asks(self) -> bool:
        """True when the annotator is ever asked: to train the reward model again, or to audit it."""
        return self.active or bool(self.audit)


class QuickstartConfig(Section):
    """Sizes of the quickstart and of other runs of a built-in task, which make their own data."""

    examples: Count = 10_000
    """Training examples that the task generates."""
    responses: Count = 20_000
    """Responses that its critic annotates: half sampled from the fine-tuned policy, half corrupted."""
    after_reward_model: Annotated[int, Field(ge=0)] = 0
    """Fine-tuning steps from the reward model's weights to the policy; 0 starts from the fine-tuned policy."""
