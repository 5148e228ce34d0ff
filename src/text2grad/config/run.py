"""Settings of a run: [data], [run]; of the critic and of its rewards: [critic], [reward]."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, Fraction, Section
from text2grad.types import Placement


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


class CriticConfig(Section):
    """The critic of the policy's responses."""

    use: str = ""
    """ "module:name" of a Python critic; empty takes `model`, or else the critic of the built-in task."""
    model: str = ""
    """Directory of a reward model; for kind = "server" the model's name on the server."""
    kind: str = "generative"
    """Kind of `model`: generative and server write critiques, here or on [server]."""
    match: Literal["exact", "normalized"] = "exact"
    """How a quote in a critique's text is found in the response."""
    constrain: bool | None = None
    """Constrain decoding to JSON with verbatim quotes, or a label per word; leave out for the saved setting (true)."""
    whole_words: bool = False
    """A constrained quote begins and ends at word boundaries."""
    one_list: bool = False
    """A constrained quote in the positive list cannot appear in the negative list."""
    quoted_in_feedback: bool = False
    """A constrained quote must also stand in the feedback, between quotation marks."""
    verbatim: bool = False
    """Text between double quotation marks in the constrained feedback must occur in the response."""
    votes: Count | None = None
    """Critiques sampled per response, which vote on each character; leave out for the saved setting (1)."""
    max_failure_rate: Fraction = 0.25
    """Stop the run when a larger share of the last critiques (100 or one batch) could not be read."""

    @property
    def learned(self) -> bool:
        """True when the critic is a reward model: `use`, a critic in Python, comes before `model`."""
        return bool(self.model) and not self.use


class RewardConfig(Section):
    """From spans to the reward on each token (section 3.3, Appendix I)."""

    positive: float = 1.0
    """Reward of a token in a positive span."""
    negative: float = -1.0
    """Reward of a token in a negative span."""
    unlabelled: float = 0.0
    """Reward of a token in no span: 0 in the paper; +1 in the published KodCode trainer, which rewards length."""
    truncated: float = 0.0
    """Reward added on the last token of a truncated response."""
    placement: Placement = "spans"
    """Place of rewards: each token; summed at the end of lines, sentences, clauses, responses; or one verdict."""
    mode: Literal["strict", "contract", "expand"] = "expand"
    """Tokens of a span: all that it touches (expand), only tokens inside (contract), exact boundaries only (strict)."""
    weighting: str = "uniform"
    """Weights of the tokens of a span (Appendix I.1): "uniform", "linear_decay", or a name that is registered."""
    overlap: Literal["cancel", "negative_wins", "last_wins"] = "cancel"
    """Reward of a token in a positive and in a negative span: 0, the negative one, or the later one."""
    span_mass: Literal["token", "span", "response"] = "token"
    """Total reward of a span: 1 per token; 1, shared by its tokens; or 1 per token divided by the response length."""
