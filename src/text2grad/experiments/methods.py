"""What is compared: policies that learn from the same judgement, given as spans or as one number.

Every method starts at the same weights, samples as many rollouts, and is trained by `text2grad train` in a process of
its own; a run that was stopped goes on where it was.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from text2grad.experiments.jobs import Job

METHODS: Mapping[str, str] = {
    "text2grad": "Text2Grad",
    "scalar_ppo": "scalar PPO",
    "reward_head_ppo": "reward-head PPO",
    "gamma_1": "Text2Grad, γ = 1",
    "frozen": "Text2Grad, frozen reward model",
    "no_words": "Text2Grad, spans without words",
    "linear_decay": "Text2Grad, linear decay",
}
COMPARED = ("text2grad", "scalar_ppo", "reward_head_ppo")
"""What is compared unless somebody asks for the rest, which are Text2Grad with one thing changed."""

NEEDS: Mapping[str, str] = {"reward_head_ppo": "reward_head", "no_words": "reward_model_without_words"}
"""The model that a method needs beside those of Text2Grad."""

ABLATIONS: Mapping[str, tuple[str, ...]] = {
    "gamma_1": ("ppo.gamma=1.0",),
    "frozen": ("refresh.steps=[]",),
    "no_words": ("critic.quoted_in_feedback=false", "critic.verbatim=false"),  # both are of words
    "linear_decay": ("reward.weighting=linear_decay",),
}

ONE_NUMBER = ("reward.placement=last_token", "ppo.gamma=1.0", "ppo.whiten=full")
"""The very same δ, summed on the last token, with the discount that lets the number reach the first."""

# The learning rate that is best for the one number, of those tried: docs/results/quickstart.md.
SCALAR_LR: Mapping[str, float] = {"summarization": 1e-3, "code": 1e-3, "qa": 5e-4}


def settings(method: str, task: str, phases: Path) -> list[str]:
    """Return what a method overrides in the recipe.

    Args:
        method: a key of `METHODS`.
        task: name of the task.
        phases: directory of the models of phases 1 and 2.
    """
    start = [f"model.path='{phases / 'start'}'"]
    writer = "reward_model_without_words" if method == "no_words" else "reward_model"
    words = [f"critic.model='{phases / writer}'", f"refresh.replay_from='{phases / 'annotations.jsonl'}'"]
    scalar = [*ONE_NUMBER, f"optim.lr={SCALAR_LR[task]}"]
    if method == "text2grad" or method in ABLATIONS:
        return [*start, *words, *ABLATIONS.get(method, ())]
    if method == "scalar_ppo":
        return [*start, *words, *scalar]
    head = [f"critic.model='{phases / 'reward_head'}'", "critic.kind=scalar", "refresh.steps=[]", "refresh.audit=0"]
    return [*start, *head, *scalar]


def method_job(recipe: Path, directory: Path, overrides: Sequence[str], *, needs: str | None = None) -> Job:
    """Return the training of one method.

    Args:
        recipe: the TOML file.
        directory: of the run; one that was begun goes on.
        overrides: what it changes in the recipe.
        needs: the job that makes its models.
    """

    def command() -> list[str]:
        parts = [sys.executable, "-m", "text2grad.cli", "train", str(recipe), "--out", str(directory)]
        parts += [part for setting in overrides for part in ("--set", setting)]
        return [*parts, "--resume"] if (directory / "run.json").exists() else parts

    return Job(command, directory.with_suffix(".log"), (directory / "results.json").exists, needs)


def steps_made(directory: Path) -> int:
    """Return how many steps a run has made."""
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
