"""The models of the phases before RL in a directory of their own, and the settings by which they were made."""

import json
from pathlib import Path

from text2grad.config import Recipe, changed_settings, make_recipe
from text2grad.errors import ConfigError
from text2grad.files import to_json, write_atomically

DECIDE_MODELS = ("data", "rollout", "sft", "reward_model", "critic", "quickstart", "world")
"""Sections of the recipe; the last one is of experiments."""


def refuse_other_settings(out: Path, recipe: Recipe, *, way_out: str) -> None:
    """Write the settings by which the models of one task and seed are made, or compare them with an earlier run's.

    Args:
        out: directory of the models.
        recipe: the settings of the models.
        way_out: the advice at the end of the error.

    Raises:
        ConfigError: if the models are made, or being made, by other settings.
    """
    path, now = out / "recipe.json", recipe.model_dump(mode="json")
    now = {section: now[section] for section in DECIDE_MODELS if section in now}
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(now))
        return
    before = make_recipe(json.loads(path.read_bytes()), where=str(path), strict=False).model_dump(mode="json")
    changed = changed_settings(before, now)
    if changed:
        raise ConfigError(f"{out} holds models that were made by other settings: {'; '.join(changed)}. {way_out}")
