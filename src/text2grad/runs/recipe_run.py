"""One run by a recipe: load policy, critic and prompts; evaluate, train, evaluate."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from text2grad.config import Recipe, check_directory
from text2grad.feedback import Critic, load_callable
from text2grad.models import load_tokenizer
from text2grad.progress import note
from text2grad.reward_models import LocalRewardModel, Refresher, critic_from_recipe, shares_base
from text2grad.rl import Text2GradTrainer, check_tracker, prepare_policy
from text2grad.runs.evaluations import Evaluations
from text2grad.runs.metric import Metric
from text2grad.runs.prompts import RunExamples, recipe_task, run_examples
from text2grad.tasks import BuiltIn


def run_recipe(
    recipe: Recipe,
    *,
    model: Any = None,
    tokenizer: Any = None,
    resume: bool = False,
    trainer_class: Callable[..., Text2GradTrainer] = Text2GradTrainer,
    evaluations_class: Callable[..., Callable[[Any], None]] = Evaluations,
) -> Path:
    """Train by a recipe; evaluate on held-out examples before, between and after.

    Args:
        recipe: the settings.
        model: the policy; None loads `model.path`.
        tokenizer: the policy's; None loads it from `model.path`.
        resume: continue the run in `run.out`.
        trainer_class: makes the steps.
        evaluations_class: evaluates between them, where there are held-out examples.

    Returns:
        The directory of the trained policy.
    """
    task, metric, task_critic, annotator, examples = read_inputs(recipe, resume=resume)
    settings, policy = recipe.model, None
    if model is None and shares_base(recipe):
        torch.manual_seed(recipe.run.seed)  # as the trainer does before it makes the policy's adapter
        model = policy = prepare_policy(settings.path, settings)
    critic = critic_from_recipe(recipe, task_critic=task_critic, policy=policy)
    tokenizer = tokenizer or load_tokenizer(settings.path, trust_remote_code=settings.trust_remote_code)
    refresher = Refresher(recipe, critic, annotator) if recipe.refresh.asks else None
    trainer = trainer_class(
        model or settings.path,
        critic,
        examples.train,
        recipe,
        eval_dataset=examples.held_out or None,
        processing_class=tokenizer,
        refresher=refresher,
        tools=task.tools if task else (),
        resume=resume,
    )
    if isinstance(critic, LocalRewardModel):
        critic.model.to(trainer.accelerator.device)
    if trainer.accelerator.is_main_process:
        _note_examples(recipe, examples)
    if not examples.held_out:
        return trainer.train()
    evaluate = evaluations_class(
        trainer,
        task,
        metric,
        annotator if critic is not annotator else None,
        # A learned critic takes as long as the policy itself; a built-in task has a metric without it.
        judge_all=task is None or bool(recipe.critic.use) or not recipe.critic.model,
    )
    if trainer.step < recipe.run.steps:
        trainer.tracker.start(trainer.step)
    evaluate(trainer)
    return trainer.train(after_step=evaluate)


class Inputs(NamedTuple):
    """What a run reads before any model: its built-in task, its metric, two critics and its prompts."""

    task: BuiltIn | None
    metric: Metric | None
    task_critic: Critic | None
    annotator: Critic | None
    examples: RunExamples


def read_inputs(recipe: Recipe, *, resume: bool = False) -> Inputs:
    """Check and read what a run needs beside its models.

    Raises:
        ConfigError: if a setting is wrong, or `run.out` cannot be used.
        DataError: if the prompts cannot be used.
    """
    check_directory(Path(recipe.run.out), resume=resume)
    check_tracker(recipe.run.tracker)
    task = recipe_task(recipe)
    metric = load_callable(recipe.data.metric, "metric") if recipe.data.metric else None
    task_critic = task.critic() if task else None
    annotator = load_callable(recipe.refresh.annotator, "critic") if recipe.refresh.annotator else task_critic
    return Inputs(task, metric, task_critic, annotator, run_examples(recipe))


def _note_examples(recipe: Recipe, examples: RunExamples) -> None:
    """Log the numbers of prompts, where they come from files."""
    data = recipe.data
    if not data.train:
        return
    note(f"{len(examples.train)} prompts to train on, {len(examples.held_out)} held out for evaluations")
    if examples.removed:
        note(
            f"{examples.removed} of the prompts of {data.train} are in {data.held_out}, too; they are held out, "
            "and not trained on",
            warning=True,
        )


def refreshed_critic(directory: Path, checkpoint: Path | None) -> Path | None:
    """Return the reward model that a run had retrained by a checkpoint; None where it had none, or at the start."""
    current = json.loads((checkpoint / "state.json").read_bytes())["critic"]["current"] if checkpoint else ""
    return directory / "critic" / current if current else None


def critic_of_run(recipe: Recipe, directory: Path, checkpoint: Path | None) -> Critic | None:
    """Return a run's critic as it was at a checkpoint (None: at the start), or None where the recipe names none.

    Raises:
        ConfigError: if a Python critic cannot be imported.
        ModelError: if a learned critic cannot be loaded.
    """
    settings, refreshed = recipe.critic, refreshed_critic(directory, checkpoint)
    if refreshed is not None:
        retrained = {"use": "", "model": str(refreshed)}
        recipe = recipe.model_copy(update={"critic": settings.model_copy(update=retrained)})
    elif not settings.use and not settings.model and not recipe.data.task:
        return None
    task = recipe_task(recipe)
    return critic_from_recipe(recipe, task_critic=task.critic() if task else None)
