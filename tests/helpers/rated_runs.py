"""Short runs of the quickstart's recipe with a critic of `critics_by_name`, for tests that make them again."""

from pathlib import Path
from typing import Any

from places import ROOT
from text2grad.config import latest_checkpoint, load_recipe
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs.recipe_run import run_recipe

SETTINGS = (
    "rollout.batch_size=8",
    "rollout.max_new_tokens=12",
    "data.eval_every=0",
    "run.threads=1",
    "quickstart.examples=20",
    "refresh.steps=[]",
    "refresh.audit=0",
)


def rated_run(start: Path, out: Path, critic: str, *settings: str, trainer_class: Any = Text2GradTrainer) -> Path:
    """Train a policy from its start with a critic of `critics_by_name`, and return the directory of the run."""
    named = {"model.path": start, "run.out": out, "critic.use": f"critics_by_name:{critic}"}
    overrides = [*SETTINGS, *settings, *(f"{name}='{value}'" for name, value in named.items())]
    run_recipe(load_recipe(str(ROOT / "recipes" / "quickstart.toml"), overrides), trainer_class=trainer_class)
    return out


def last_weights(directory: Path) -> bytes:
    """Return the trained weights of the last checkpoint of a run."""
    checkpoint = latest_checkpoint(directory / "checkpoints")
    assert checkpoint is not None
    return (checkpoint / "trainable.safetensors").read_bytes()
