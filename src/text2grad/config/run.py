"""Settings of a run: [data], [run]."""

from typing import Annotated, Literal

from pydantic import Field

from text2grad.config.section import Count, Section


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
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Where metrics go besides metrics.jsonl."""
