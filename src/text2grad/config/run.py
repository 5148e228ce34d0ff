"""Settings of a run: [data], [run]."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Fraction, Section


class DataConfig(Section):
    """Prompts: a built-in task, or a JSONL file."""

    task: str | None = None
    """A built-in task, such as "summarization"; it brings prompts, a critic and a metric."""
    train: str | None = None
    """JSONL file of examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}}."""
    held_out: Fraction = 0.0
    """Share of the prompts of `train` that is held out for evaluations and never trained on; 0 for none."""
    held_out_file: str = ""
    """JSONL file of held-out examples instead; their prompts are removed from the training examples."""
    metric: str = ""
    """ "module:function" of a metric, (example, response) → dict of numbers; the curves show the first number."""
    length: Annotated[int, Field(ge=0)] = 0
    """Length of a built-in task's answers: posts to summarize, claims, or steps of a program; 0: the usual mixture."""
    faults: Fraction = 1.0
    """Share of the usual rates of faults in a built-in task's demonstrations, on which the start is fine-tuned."""
    truths: bool = True
    """The critiques of a built-in task state the true fact beside each quote; false: verdicts only, same spans."""
    examples: Count = 10_000
    """Training examples that a built-in task generates."""
    eval_examples: Annotated[int, Field(ge=0)] = 200
    """Most held-out examples of one evaluation, which the critic judges once each; 0 skips evaluations."""
    eval_seed: Annotated[int, Field(ge=0)] = 0
    """Seed that chooses the held-out examples: tune on one seed, report on another."""
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations, beside those before and after training; 0 for none."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """Treatment of prompts that leave no room for a response."""

    @property
    def holds_out(self) -> bool:
        """True when there are held-out examples: of a built-in task, a share of the file, or a file."""
        return bool(self.task or self.held_out or self.held_out_file)

    @model_validator(mode="after")
    def _held_out_fits(self) -> "DataConfig":
        if self.held_out and self.held_out_file:
            raise ValueError("held_out and held_out_file are both set; choose a share of `train`, or a file")
        if self.held_out == 1.0:
            raise ValueError("held_out = 1.0 leaves no prompt to train on; choose a share between 0 and 1")
        if self.task and not self.train and (self.held_out or self.held_out_file):
            raise ValueError(
                "held_out and held_out_file belong to a `train` file; a built-in task has held-out examples of its own"
            )
        changed = self.changed(("length", "faults", "truths"))
        if changed and not self.task:
            raise ValueError(
                f"{' and '.join(changed)} {'belongs' if len(changed) == 1 else 'belong'} to a built-in task; set task, "
                f"or leave out {' and '.join(changed)}"
            )
        if self.metric and not self.holds_out:
            raise ValueError(
                f'metric = "{self.metric}" has no responses to measure; hold out prompts with held_out = 0.1, or name '
                "a held_out_file"
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
    compact_memory: bool | Literal["auto"] = "auto"
    """On a CPU, free memory at once; false: up to twice the memory, less time; "auto": false where memory is plenty."""
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Tracker of metrics, settings and tables of responses, beside the files of the run."""
    project: str = "text2grad"
    """Project of the run in wandb and trackio."""
    name: str = ""
    """Name of the run in wandb and trackio; empty takes the name of the directory `out`."""
    table_every: Annotated[int, Field(ge=0)] = 10
    """Steps between tables of rollouts sent to the tracker; 0 sends no prompt, response or critique."""
