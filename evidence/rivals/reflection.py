"""SFT + reflection: no training; each held-out answer is criticised, and written again with its critique."""

from pathlib import Path
from typing import Any

from evidence.rivals.refiners import log_refinements, logged_refinements, refine
from evidence.rivals.trainer import RivalTrainer
from text2grad.config import Recipe
from text2grad.rl import held_out_responses
from text2grad.rl.step import Step, observed, watched
from text2grad.runs.evaluations import Evaluations
from text2grad.runs.recipe_run import run_recipe
from text2grad.types import Rollout


class ReflectionTrainer(RivalTrainer):
    """One step without training: answers to the held-out prompts, their critiques, and the answers written again."""

    @observed
    def train_step(self) -> Step:
        """Answer, ask the critic, and answer again."""
        with watched(self, "rollout"):
            rollouts = held_out_responses(self, range(len(self.held_out)), "answer")
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


class RefinedEvaluations(Evaluations):
    """Evaluates the answers before the step, and the answers that are written again after it."""

    trainer: RivalTrainer

    def sample(self, rows: range) -> list[Rollout]:
        """Return a response to each held-out prompt of `rows`."""
        rollouts = Evaluations.sample(self, rows)
        return logged_refinements(self.trainer, rollouts, step=0) if self.trainer.step else rollouts


def reflect(recipe: Recipe, *, model: Any = None, tokenizer: Any = None, resume: bool = False) -> Path:
    """Evaluate a policy twice: its answers, and the answers that are written again with their critiques."""
    recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"steps": 1})})
    classes: dict[str, Any] = {"trainer_class": ReflectionTrainer, "evaluations_class": RefinedEvaluations}
    return run_recipe(recipe, model=model, tokenizer=tokenizer, resume=resume, **classes)
