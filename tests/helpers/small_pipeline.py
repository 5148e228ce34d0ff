"""The phases of the quickstart's recipe, with a few steps each."""

import json
from pathlib import Path

from places import ROOT
from text2grad.config import Recipe, load_recipe

SHORT = [
    "sft.steps=2",
    "sft.batch_size=4",
    "quickstart.after_reward_model=0",
    "quickstart.examples=12",
    "data.eval_examples=8",
    "quickstart.responses=8",
    "reward_model.steps=1",
    "reward_model.batch_size=2",
]


def recipe_of(*overrides: str) -> Recipe:
    return load_recipe(ROOT / "recipes" / "quickstart.toml", overrides)


def assert_start_is_fine_tuned(made: Path) -> None:
    """Two phases left a start that is the fine-tuned model, and its scores; no reward model."""
    assert sorted(path.name for path in made.iterdir()) == ["phases.json", "sft", "sft_evaluation.json", "start"]
    assert [*json.loads((made / "phases.json").read_bytes())] == ["sft", "start"]
    assert (made / "start" / "model.safetensors").read_bytes() == (made / "sft" / "model.safetensors").read_bytes()
    scores = json.loads((made / "sft_evaluation.json").read_bytes())
    assert {*scores} >= {"fact_f1", "exact"}  # evidence adds ROUGE-L
