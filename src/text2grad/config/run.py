"""Settings of a run: [data], [run]."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Section


class DataConfig(Section):
    """Prompts: a built-in task, or a JSONL file."""

    task: str | None = None
    """A built-in task, such as "summarization"; it brings prompts, a critic and a metric."""
    train: str | None = None
    """JSONL file of examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}}."""
    held_out: Annotated[float, Field(ge=0.0, lt=1.0)] | str = 0.0
    """Prompts for evaluations, never trained on: a share of the prompts of `train`, or a JSONL file; 0 for none."""
    metric: str = ""
    """ "module:function" of a metric, (example, response) → dict of numbers; the curves show the first number."""
    eval_examples: Annotated[int, Field(ge=0)] = 200
    """Most held-out examples of one evaluation, which the critic judges once each; 0 skips evaluations."""
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations, beside those before and after training; 0 for none."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """Treatment of prompts that leave no room for a response."""

    @property
    def holds_out(self) -> bool:
        """True when there are held-out examples: of a built-in task, a share of the file, or a file."""
        return bool(self.task or self.held_out)

    @model_validator(mode="after")
    def _held_out_fits(self) -> "DataConfig":
        if self.task and not self.train and self.held_out:
            raise ValueError("held_out belongs to a `train` file; a built-in task has held-out examples of its own")
        if self.metric and not self.holds_out:
            raise ValueError(
                f'metric = "{self.metric}" has no responses to measure; hold out prompts with held_out = 0.1, or '
                "name a file of them"
            )
        return self


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
    keep_best: Literal["none", "highest", "lowest"] = "none"
    """Keep the checkpoint of the best evaluation, too: by the highest or the lowest value of the main metric."""
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    """CPU threads of torch; 0 for torch's default. Exact resume needs the same number."""
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Tracker of metrics and settings, beside the files of the run."""
