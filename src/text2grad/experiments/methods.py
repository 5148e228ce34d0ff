"""The compared methods: policies that learn from the same critiques, as spans or as one number per response.

Every method starts at the same weights and samples the same number of rollouts. `text2grad train` trains each in a
process of its own; an interrupted run is resumed.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from text2grad.experiments.jobs import Job

METHODS: Mapping[str, str] = {
    "text2grad": "Text2Grad",
    "scalar_ppo": "same spans, summed",
    "scalar_reward_model": "learned scalar reward model",
    "gamma_1": "Text2Grad, γ = 1",
    "frozen": "Text2Grad, frozen reward model",
    "no_words": "Text2Grad, spans without words",
    "linear_decay": "Text2Grad, linear decay",
}
"""Name in results, directories and on the command line → label in tables and pictures."""

EARLIER_NAMES: Mapping[str, str] = {"reward_head_ppo": "scalar_reward_model"}
"""Name of a method in earlier versions → its name; accepted on the command line and as a run's directory."""

COMPARED = ("text2grad", "scalar_ppo", "scalar_reward_model")
"""The methods of a comparison unless others are chosen; the others are ablations of Text2Grad."""

NEEDS: Mapping[str, str] = {"scalar_reward_model": "reward_head", "no_words": "reward_model_without_words"}
"""Method → the model that it needs beside the models of Text2Grad: a directory of phase 2."""

ABLATIONS: Mapping[str, tuple[str, ...]] = {
    "gamma_1": ("ppo.gamma=1.0",),
    "frozen": ("refresh.steps=[]",),
    "no_words": ("critic.quoted_in_feedback=false", "critic.verbatim=false"),  # both concern the feedback
    "linear_decay": ("reward.weighting=linear_decay",),
}

ONE_NUMBER = ("reward.placement=last_token", "ppo.gamma=1.0", "ppo.whiten=full")
"""The same δ, summed on the last token, with the discount at which the sum reaches the first token undiminished."""

# The best of the tried learning rates for one number per response: docs/results/quickstart.md.
SCALAR_LR: Mapping[str, float] = {"summarization": 1e-3, "code": 1e-3, "qa": 5e-4}


def settings(method: str, task: str, phases: Path) -> list[str]:
    """Return the settings by which a method differs from the recipe, each as "section.key=value".

    Args:
        method: a key of `METHODS`.
        task: name of the task.
        phases: directory of the models of phases 1 and 2.
    """
    start = [f"model.path='{phases / 'start'}'"]
    generative = phases / NEEDS.get(method, "reward_model")
    spans = [f"critic.model='{generative}'", f"refresh.replay_from='{phases / 'annotations.jsonl'}'"]
    scalar = [*ONE_NUMBER, f"optim.lr={SCALAR_LR[task]}"]
    if method == "text2grad" or method in ABLATIONS:
        return [*start, *spans, *ABLATIONS.get(method, ())]
    if method == "scalar_ppo":
        return [*start, *spans, *scalar]
    learned = [f"critic.model='{generative}'", "critic.kind=scalar", "refresh.steps=[]", "refresh.audit=0"]
    return [*start, *learned, *scalar]


def method_job(recipe: Path, directory: Path, overrides: Sequence[str], *, needs: str | None = None) -> Job:
    """Return the job that trains one method, or resumes its run; `needs` names the job that makes its models."""

    def command() -> list[str]:
        parts = [sys.executable, "-m", "text2grad.cli", "train", str(recipe), "--out", str(directory)]
        parts += [part for setting in overrides for part in ("--set", setting)]
        return [*parts, "--resume"] if (directory / "run.json").exists() else parts

    return Job(command, directory.with_suffix(".log"), (directory / "results.json").exists, needs)


def method_directory(phases: Path, method: str) -> Path:
    """Return the directory of a method's run; a run that an earlier version started keeps its directory."""
    earlier = (phases / old for old, name in EARLIER_NAMES.items() if name == method)
    return next((path for path in earlier if path.exists()), phases / method)


def steps_made(directory: Path) -> int:
    """Return the number of finished steps of a run."""
    path = directory / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def last_figures(directory: Path) -> dict[str, float]:
    """Return reward per response and KL per token of a run's last finished step."""
    path = directory / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    names = {"reward": "reward/per_response", "KL": "kl/per_token"}
    return {name: last[key] for name, key in names.items() if key in last}
