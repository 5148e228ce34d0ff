"""One run by a recipe: load policy, critic and prompts; evaluate, train, evaluate."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from text2grad.align import response_deltas
from text2grad.config import Recipe, check_directory
from text2grad.experiments.evaluate_policy import Sampling, evaluate
from text2grad.feedback import Critic, ask, load_critic, read_examples
from text2grad.files import to_json, write_atomically
from text2grad.models import load_tokenizer
from text2grad.reward_models import LOCAL, Refresher, critic_from_recipe, judge, shares_base
from text2grad.rl import Text2GradTrainer, prepare_policy, response_records
from text2grad.tasks import BuiltIn, built_in
from text2grad.types import Example

SHOWN = 12  # held-out responses that the evaluation file keeps whole, with their critiques
EVALUATIONS = "evaluations"


def run_recipe(recipe: Recipe, *, model: Any = None, tokenizer: Any = None, resume: bool = False) -> Path:
    """Train by a recipe; evaluate on held-out examples before, between and after where the task has them.

    Args:
        recipe: the settings.
        model: the policy; None loads `model.path`.
        tokenizer: the policy's; None loads it from `model.path`.
        resume: continue the run in `run.out`.

    Returns:
        The directory of the trained policy.
    """
    check_directory(Path(recipe.run.out), resume=resume)
    task = built_in(recipe.data.task) if recipe.data.task else None
    if task is not None:
        examples = task.train(recipe.data.examples, recipe.run.seed)
    else:
        examples = read_examples(str(recipe.data.train))
    task_critic = task.critic() if task else None
    annotator = load_critic(recipe.refresh.annotator) if recipe.refresh.annotator else task_critic
    settings, policy = recipe.model, None
    if model is None and shares_base(recipe):
        torch.manual_seed(recipe.run.seed)  # as the trainer does before it makes the policy's adapter
        model = policy = prepare_policy(settings.path, settings)
    critic = critic_from_recipe(recipe, task_critic=task_critic, policy=policy)
    tokenizer = tokenizer or load_tokenizer(settings.path, trust_remote_code=settings.trust_remote_code)
    refresher, model = Refresher.from_recipe(recipe, critic, annotator), model or settings.path
    trainer = Text2GradTrainer(model, critic, tokenizer, examples, recipe, refresher=refresher, resume=resume)
    if isinstance(critic, LOCAL):
        critic.model.to(trainer.accelerator.device)
    if task is None or not recipe.data.eval_examples:
        return trainer.train()

    evaluator = _Evaluator(trainer, task, task.held_out(recipe.data.eval_examples, recipe.data.eval_seed), annotator)
    evaluator(trainer)
    return trainer.train(after_step=evaluator)


def learned_critic(recipe: Recipe, directory: Path, checkpoint: Path) -> Critic | None:
    """Return a run's learned critic as it was at a checkpoint, or None where the run's critic was not learned."""
    current = json.loads((checkpoint / "state.json").read_bytes())["critic"]["current"]
    settings = recipe.critic
    if current:  # retrained during the run; only generative reward models are
        retrained = {"use": "", "model": str(directory / "critic" / current), "kind": "generative"}
        recipe = recipe.model_copy(update={"critic": settings.model_copy(update=retrained)})
    elif settings.use or not settings.model:
        return None
    return critic_from_recipe(recipe)


class _Evaluator:
    """Evaluates a run at its first and last step, and every `data.eval_every` steps between.

    The first and the last evaluation also compare a learned critic with the annotator on the same responses.
    """

    def __init__(
        self, trainer: Text2GradTrainer, task: BuiltIn, examples: Sequence[Example], annotator: Critic | None
    ) -> None:
        self.task, self.examples, self.critic, self.annotator = task, examples, trainer.critic, annotator
        self.directory = trainer.directory / EVALUATIONS
        self.directory.mkdir(exist_ok=True)

    def __call__(self, trainer: Text2GradTrainer) -> None:
        every, step = trainer.recipe.data.eval_every, trainer.step
        path = self.directory / f"{step:06d}.json"
        due = step in (0, trainer.recipe.run.steps) or (every and step % every == 0)
        if due and not path.exists():
            found = self._evaluate(trainer)
            if trainer.accelerator.is_main_process:
                write_atomically(path, to_json(found))
            trainer.accelerator.log({f"eval/{k}": v for k, v in found["metrics"].items()}, step=step)

    def _evaluate(self, trainer: Text2GradTrainer) -> dict[str, Any]:
        recipe, step = trainer.recipe, trainer.step
        rollout, match = recipe.rollout, recipe.critic.match
        sampling = Sampling(
            rollout.max_new_tokens, rollout.temperature, trainer.eos_ids, trainer.pad_id, rollout.rows_at_once
        )
        found = evaluate(
            trainer.model,
            trainer.reference,
            trainer.tokenizer,
            self.examples,
            self.task.score,
            sampling,
            prompt_format=rollout.prompt_format,
            seed=recipe.run.seed,
        )
        ends = step in (0, recipe.run.steps)
        annotator = self.annotator if ends and self.critic is not self.annotator else None
        shown = found.rollouts[:SHOWN] if annotator is None else found.rollouts
        critiques = ask(self.critic, [r.example for r in shown], [r.response for r in shown], match=match)
        deltas, offsets = response_deltas(trainer.tokenizer, shown, critiques, trainer.delta_settings)
        quality = {}
        if annotator is not None:
            settings = trainer.delta_settings
            judged = judge(annotator, trainer.tokenizer, shown, deltas, critiques, settings, match=match)
            quality = judged.metrics()
        records = response_records(step, shown[:SHOWN], critiques[:SHOWN], deltas[:SHOWN], offsets[:SHOWN], {})
        return {"step": step, "metrics": found.metrics, "critic": quality, "records": records}


def main_metric(recipe: Recipe) -> str:
    """Return the name of the task's main metric, or "" where the run has no built-in task."""
    return built_in(recipe.data.task).metric if recipe.data.task else ""
