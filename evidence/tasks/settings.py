"""The section [world] of recipes: knobs of the built-in tasks and of their models, which experiments vary."""

from typing import Annotated, Any

from pydantic import Field

from evidence.tasks.lengths import check_response_limit
from text2grad.config.section import Count, Fraction, Section
from text2grad.errors import ConfigError
from text2grad.tasks import TaskSettings
from text2grad.tasks.registry import PROCEDURAL


class WorldConfig(Section):
    """Knobs of the built-in tasks and of the models before RL."""

    length: Annotated[int, Field(ge=0)] = 0
    """Length of a task's answers: posts to summarize, claims, or steps of a program; 0: the usual mixture."""
    faults: Fraction = 1.0
    """Share of the usual rates of faults in a task's demonstrations, on which the start is fine-tuned."""
    truths: bool = True
    """The critiques of a task state the true fact beside each quote; false: verdicts only, same spans."""
    eval_seed: Annotated[int, Field(ge=0)] = 0
    """Seed that chooses the held-out examples: tune on one seed, report on another."""
    layers: Count = 2
    """Transformer blocks of the task's Llama."""
    fresh_reward_model: bool = False
    """The reward model begins at random weights, not at the fine-tuned policy."""

    def of(self, recipe: Any) -> tuple[TaskSettings, int]:
        """Return the settings of the recipe's task, and `eval_seed`.

        Raises:
            ConfigError: if the task is changed and the recipe names none, or answers of this length do not fit the
                limit.
        """
        changed = self.changed(("length", "faults", "truths"))
        if changed and not recipe.data.task:
            raise ConfigError(f"{' and '.join(changed)} in [world]: only a built-in task has them; set data.task")
        task = TaskSettings(self.length, self.faults, self.truths)
        if self.length and recipe.data.task in PROCEDURAL:
            check_response_limit(recipe, task)
        return task, self.eval_seed
