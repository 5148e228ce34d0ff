"""A recipe from beginning to end: evaluate, train, evaluate, report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.critics import Critic, ask, load_critic
from text2grad.evaluate import Sampling, evaluate
from text2grad.examples import read_examples
from text2grad.loop import Text2GradTrainer
from text2grad.metrics import response_records
from text2grad.models import load_tokenizer
from text2grad.rewards import response_deltas
from text2grad.runlog import to_json, write_atomically
from text2grad.tasks.registry import BuiltIn, built_in
from text2grad.types import Example

SHOWN = 12  # held-out responses kept whole, with the critic's words, for the report
EVALUATIONS = "evaluations"


def run_recipe(recipe: Recipe, *, model: Any = None, tokenizer: Any = None, resume: bool = False) -> Path:
    """Train by a recipe and evaluate on held-out examples before, between and after where the task has them.

    Args:
        recipe: the settings.
        model: the policy; None loads `model.path`.
        tokenizer: its tokenizer; None loads it from `model.path`.
        resume: go on with the run in `run.out`.

    Returns:
        The directory of the trained policy.
    """
    task = built_in(recipe.data.task) if recipe.data.task else None
    if task is not None:
        examples = task.train(recipe.data.examples, recipe.run.seed)
    else:
        examples = read_examples(str(recipe.data.train))
    critic = load_critic(recipe.critic.use) if recipe.critic.use or task is None else task.critic()
    settings = recipe.model
    tokenizer = tokenizer or load_tokenizer(settings.path, trust_remote_code=settings.trust_remote_code)
    trainer = Text2GradTrainer(model or settings.path, critic, tokenizer, examples, recipe, resume=resume)
    if task is None or not recipe.data.eval_examples:
        return trainer.train()

    evaluator = _Evaluator(trainer, task, task.held_out(recipe.data.eval_examples, 0), critic)
    evaluator(trainer)
    return trainer.train(after_step=evaluator)


class _Evaluator:
    """Evaluates a run at its first and last step, and every `data.eval_every` steps between."""

    def __init__(self, trainer: Text2GradTrainer, task: BuiltIn, examples: Sequence[Example], critic: Critic) -> None:
        self.task, self.examples, self.critic = task, examples, critic
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
        rollout = trainer.recipe.rollout
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
            seed=trainer.recipe.run.seed,
        )
        shown = found.rollouts[:SHOWN]
        critiques = ask(
            self.critic,
            [r.example for r in shown],
            [r.response for r in shown],
            match=trainer.recipe.critic.match,
        )
        deltas, offsets = response_deltas(trainer.tokenizer, shown, critiques, trainer.recipe.reward)
        records = response_records(trainer.step, shown, critiques, deltas, offsets, {})
        return {"step": trainer.step, "metrics": found.metrics, "records": records}


def main_metric(recipe: Recipe) -> str:
    """Return the name of the task's main metric, or "" where the run has no built-in task."""
    return built_in(recipe.data.task).metric if recipe.data.task else ""
