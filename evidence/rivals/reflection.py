"""SFT + reflection: no training; each held-out answer is criticised, and written again with its critique."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evidence.rivals.refiners import log_refinements, logged_refinements, refine
from evidence.rivals.trainer import RivalTrainer
from text2grad.config import Recipe
from text2grad.rl import held_out_responses
from text2grad.rl.step import Step, observed, watched
from text2grad.runs.recipe_run import prepare_run
from text2grad.types import Rollout


class ReflectionTrainer(RivalTrainer):
    """One step without training: answers to the held-out prompts, their critiques, and the answers written again.

    Attributes:
        answer: returns the answers to the held-out prompts.
    """

    answer: Callable[[], list[Rollout]]

    @observed
    def train_step(self) -> Step:
        """Answer, ask the critic, and answer again."""
        with watched(self, "rollout"):
            rollouts = self.answer()
        step = self.judged_step(rollouts)
        self.add_judged(step)
        with watched(self, "refine"):
            refined = refine(self, rollouts, [judged.critique for judged in self.judged])
            log_refinements(self, self.judged, refined)
        changed = sum(new.response != old.response for old, new in zip(rollouts, refined, strict=True))
        step.metrics |= {"rival/rollouts": 0.0, "rival/refined": float(changed)}
        step.metrics["rival/critiques_at_inference"] = float(len(rollouts))
        step.metrics["length/mean"] = 0.0  # no token is sampled in training
        step.rollouts = [*rollouts, *refined]  # whose tokens are counted
        return step

    def revise(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Return the answers written again."""
        return logged_refinements(self, rollouts, step=0)


def reflect(recipe: Recipe, *, model: Any = None, tokenizer: Any = None, resume: bool = False) -> Path:
    """Evaluate a policy twice: its answers, and the answers that are written again with their critiques."""
    recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"steps": 1})})
    trainer, evaluate = prepare_run(
        recipe, model=model, tokenizer=tokenizer, resume=resume, trainer_class=ReflectionTrainer
    )
    assert evaluate is not None  # `run_rival` has found held-out prompts
    assert isinstance(trainer, ReflectionTrainer)
    trainer.answer = partial(held_out_responses, trainer, range(len(trainer.held_out)), "answer")
    refined = replace(evaluate, revise=trainer.revise)
    (refined if trainer.step else evaluate)(trainer)  # a run that was killed in its last evaluation resumes with it
    return trainer.train(after_step=refined)
