"""The critic of a run in the worker's process: a Python critic, a reward model as of the last checkpoint, a server.

A built-in task's critic needs the item of a prompt (its facts, for example): prompts of the run's data have an item, a
person's own prompt has none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.config import Recipe, latest_checkpoint, make_recipe, recipe_of_run
from text2grad.errors import ConfigError, CriticError, DataError
from text2grad.feedback import ask, critique_to_json
from text2grad.models import best_device
from text2grad.progress import note
from text2grad.reward_models import LocalRewardModel, critic_from_recipe
from text2grad.runs import critic_of_run, run_examples
from text2grad.types import Example


class RunCritic:
    """A critic, and the items that its run knows."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        """Load the critic.

        Args:
            named: "run", the directory of a run; or "critic", "module:name" or a directory of a reward model; and
                "store", where answers of servers are kept.

        Raises:
            ConfigError: if the run names no critic, or a Python critic cannot be imported.
            ModelError: if a reward model cannot be loaded.
        """
        self.items = dict[str, Example]()
        self.recipe, critic = _named(named["critic"]) if "critic" in named else _of_run(named)
        if critic is None:
            raise ConfigError(f"{named['run']} names no critic: start the studio with --critic MODULE:NAME")
        self.critic = critic
        if isinstance(critic, LocalRewardModel):
            critic.model.to(best_device())
        if "critic" not in named:
            self.items = _items(self.recipe)

    def judge(self, prompt: str, response: str) -> dict[str, Any]:
        """Return the critique of a response, as in the records of a run.

        Raises:
            CriticError: if the critic fails.
        """
        example = self.items.get(prompt)
        try:
            [critique] = ask(self.critic, [example or Example(prompt)], [response], **self.recipe.critic.asking())
        except CriticError as error:
            if example is not None or not self.recipe.data.task:
                raise
            raise CriticError(
                f"{error}. The critic of the task {self.recipe.data.task!r} judges prompts of the task alone, and this "
                "prompt is none of the run's"
            ) from error
        return critique_to_json(critique)


def _items(recipe: Recipe) -> dict[str, Example]:
    """Return the items of a run by their prompts; none where its data cannot be read."""
    try:
        train, held_out, _ = run_examples(recipe)
    except DataError as error:
        note(f"{error}; critics see the prompt alone", warning=True)
        return {}
    return {example.prompt_text: example for example in (*train, *held_out)}


def _named(text: str) -> tuple[Recipe, Any]:
    settings = {"model": text} if Path(text).exists() or ":" not in text else {"use": text}
    recipe = make_recipe({"critic": settings}, where="--critic", strict=False)
    return recipe, critic_from_recipe(recipe)


def _of_run(named: Mapping[str, Any]) -> tuple[Recipe, Any]:
    directory = Path(named["run"])
    recipe = recipe_of_run(directory)
    own = recipe.run.model_copy(update={"out": named["store"]})  # a server's answers are not kept in the run
    recipe = recipe.model_copy(update={"run": own})
    return recipe, critic_of_run(recipe, directory, latest_checkpoint(directory / "checkpoints"))
