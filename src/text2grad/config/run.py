"""Settings of a run: [data], [run]."""

from typing import Annotated, Literal

from pydantic import Field

from text2grad.config.section import Count, Section


class DataConfig(Section):
    """Prompts: a built-in task, or a JSONL file."""

    task: str | None = None
    """A built-in task: "stories", "summarization", "code" or "qa"."""
    train: str | None = None
    """JSONL file of examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}}."""
    examples: Count = 10_000
    """Training examples that a built-in task generates."""
    eval_examples: Annotated[int, Field(ge=0)] = 200
    """Held-out examples of a built-in task for the evaluations before and after; 0 skips them."""
    eval_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the held-out examples: tune on one seed, report on another."""
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Steps between further evaluations; 0 for none."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """Treatment of prompts that leave no room for a response."""


class RunConfig(Section):
    """Length, directory and reproducibility of the run."""

    steps: Count = 100
    """Batches of rollouts."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of all randomness."""
    out: str = "runs/text2grad"
    """Directory of metrics, rollouts, checkpoints and the trained policy."""
    save_every: Count = 10
    """Steps between checkpoints."""
    keep_checkpoints: Count = 2
    """Checkpoints to keep; older ones are removed."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of torch; 0 for torch's default. Exact resume needs the same number."""
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Tracker of the metrics, beside metrics.jsonl."""
