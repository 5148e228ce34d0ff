"""What is compared: policies that learn from the same judgement, given as spans or as one number.

Every method starts at the same weights, samples as many rollouts, and is trained by `text2grad train` in a process of
its own; a run that was stopped goes on where it was.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from text2grad.errors import TrainingError

POLL_SECONDS = 0.5

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
    "no_words": ("critic.supported=false", "critic.verbatim=false"),  # both are of words
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


def train_all(
    recipe: Path,
    jobs: Mapping[Path, Sequence[str]],
    progress: Callable[[Path, int, str], None],
    *,
    at_once: int,
) -> None:
    """Train several runs side by side, one thread each.

    Args:
        recipe: the TOML file that all share.
        jobs: what each run overrides, by its directory.
        progress: told of each run how many steps it has made, with a note on the last.
        at_once: how many processes.

    Raises:
        TrainingError: if one of them fails; its log is named, and the others are stopped.
    """
    waiting, running = list(jobs), dict[Path, "subprocess.Popen[bytes]"]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                directory = waiting.pop(0)
                if not (directory / "results.json").exists():
                    running[directory] = _start(recipe, directory, jobs[directory])
            for directory in jobs:
                progress(directory, *steps_made(directory))
            for directory, process in list(running.items()):
                if process.poll() is not None:
                    del running[directory]
                    if process.returncode:
                        raise TrainingError(
                            f"{directory.name} stopped with exit code {process.returncode}; its output is in "
                            f"{directory.with_suffix('.log')}"
                        )
            time.sleep(POLL_SECONDS)
    finally:
        for process in running.values():
            process.terminate()
            process.wait()
    for directory in jobs:
        progress(directory, *steps_made(directory))


def steps_made(directory: Path) -> tuple[int, str]:
    """Return how many steps a run has made, and a note on the last of them."""
    path = directory / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if not whole:
        return 0, ""
    last = json.loads(whole[-1])
    return len(whole), f"reward {last['reward/per_response']:5.2f}  KL {last['kl/per_token']:.2f}"


def _start(recipe: Path, directory: Path, overrides: Sequence[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "text2grad.cli", "train", str(recipe), "--out", str(directory)]
    for setting in overrides:
        command += ["--set", setting]
    if (directory / "run.json").exists():
        command.append("--resume")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".log").open("ab") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
