"""A rival from a recipe to a finished run; settings that do not fit the method are refused first."""

import os
from pathlib import Path
from typing import Any

from evidence.rivals.refiners import check_refiner
from evidence.rivals.reflection import reflect
from evidence.rivals.rounds import USUAL_ROUNDS
from evidence.rivals.settings import rival_of
from evidence.rivals.trainer import RivalTrainer
from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.runs.recipe_run import run_recipe


def run_rival(recipe: Recipe, *, model: Any = None, tokenizer: Any = None, resume: bool = False) -> Path:
    """Run the rival that `rival.method` names, and return the directory of its policy.

    Args:
        recipe: as for `run_recipe`; a value function, [ppo] and its baseline are not used.
        model: the policy; None loads `model.path`.
        tokenizer: the policy's; None loads it from `model.path`.
        resume: continue the run in `run.out`.

    Raises:
        ConfigError: if the settings do not fit the method.
    """
    _check(recipe)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"value": "none"})})
    if rival_of(recipe).method == "reflection":
        return reflect(recipe, model=model, tokenizer=tokenizer, resume=resume)
    return run_recipe(recipe, model=model, tokenizer=tokenizer, resume=resume, trainer_class=RivalTrainer)


def _check(recipe: Recipe) -> None:
    """Refuse settings that do not fit the method, before anything is loaded."""
    rival, rollout = rival_of(recipe), recipe.rollout
    if rival.method is None:
        raise ConfigError(f"rival.method is not set; choose one of {', '.join(USUAL_ROUNDS)}")
    if rival.rounds > recipe.run.steps:
        raise ConfigError(
            f"rival.rounds = {rival.rounds} is more than run.steps = {recipe.run.steps}; a round has at least one step"
        )
    if rival.method in ("ilf", "reflection", "sdpo"):
        check_refiner(recipe)
    data = recipe.data
    held_out = (data.task and not data.train and data.eval_examples) or data.held_out or data.held_out
    if rival.method == "reflection" and not held_out:
        raise ConfigError(
            "reflection answers held-out prompts and trains nothing, and the recipe holds out no prompts; set "
            "data.held_out or data.held_out (data.eval_examples for a built-in task)"
        )
    if rival.method == "dpo" and rollout.group_size < 2:
        raise ConfigError(
            "dpo compares the best and the worst response to a prompt: set rollout.group_size to 2 or more (4, say)"
        )
    if rival.batch_size % rival.accumulate:
        raise ConfigError(
            f"rival.batch_size = {rival.batch_size} is not a multiple of rival.accumulate = {rival.accumulate}"
        )
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes != "1":
        raise ConfigError(
            f"a rival runs in one process, and the launcher started {processes} (WORLD_SIZE); start "
            "`python -m evidence rival` without torchrun or accelerate launch"
        )
