"""The prompts of a run: examples to train on, and held-out examples for evaluations; no prompt is in both."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from text2grad.config import Recipe
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import hold_out, read_examples, split_by_prompt
from text2grad.tasks import BuiltIn, TaskSettings, built_in
from text2grad.types import Example

_PROMPT = attrgetter("prompt_text")


class RunExamples(NamedTuple):
    """Examples to train on, held-out examples, and the number of training examples whose prompts are held out."""

    train: list[Example]
    held_out: list[Example]
    removed: int = 0


def world_of(recipe: Recipe) -> tuple[TaskSettings, int]:
    """Return the settings of a built-in task, and the seed that chooses its held-out examples.

    Experiments set them in a section of their own, [world]; all other runs have the defaults.
    """
    world = getattr(recipe, "world", None)
    return (TaskSettings(), 0) if world is None else world.of(recipe)


def recipe_task(recipe: Recipe) -> BuiltIn | None:
    """Return the built-in task that [data] names, or None.

    Raises:
        ConfigError: if the task is unknown, it cannot have the settings of [data], or it makes its own prompts and
            `data.train` names others.
    """
    if not recipe.data.task:
        return None
    task = built_in(recipe.data.task, world_of(recipe)[0])
    if recipe.data.train and not task.reads_files:
        raise ConfigError("data.task and data.train are both set; choose one source of prompts")
    return task


def run_examples(recipe: Recipe) -> RunExamples:
    """Return the examples that [data] names.

    A share is held out by a hash of the prompt, so that neither the order of the file nor
    `run.seed` changes it, and equal prompts stay together. At most `data.eval_examples` held-out examples are kept,
    chosen by the same hash.

    Raises:
        DataError: if a file cannot be read, or no prompt is left to train on or to hold out.
    """
    data, (_, seed) = recipe.data, world_of(recipe)
    task = recipe_task(recipe)
    if task is not None and not data.train:
        held_out = task.held_out(data.eval_examples, seed) if data.eval_examples else []
        return RunExamples(task.train(recipe.quickstart.examples, recipe.run.seed), held_out)
    examples = read_examples(str(data.train))
    train, held_out, removed = hold_out(examples, data.held_out, seed, read=read_examples, key=_PROMPT)
    if not train:
        raise DataError(
            f"all {len(examples)} prompts of {data.train} are in {data.held_out}, too, so none is left to train "
            "on; name other files in data.train and data.held_out"
        )
    if data.held_out and not held_out:
        raise DataError(
            f"data.held_out = {data.held_out}: {data.train} has one prompt only, and it cannot be trained on and held "
            "out; add prompts, or name a file in data.held_out"
        )
    return RunExamples(train, _first(held_out, data.eval_examples, seed), removed)


def held_out_prompts(recipe: Recipe) -> set[str]:
    """Return all prompts that [data] holds out, also those beyond `data.eval_examples`; none for a built-in task."""
    data, (_, seed) = recipe.data, world_of(recipe)
    if not data.held_out:
        return set()
    examples = [] if isinstance(data.held_out, str) else read_examples(str(data.train))
    return set(map(_PROMPT, hold_out(examples, data.held_out, seed, read=read_examples, key=_PROMPT)[1]))


def _first(examples: Sequence[Example], limit: int, seed: int) -> list[Example]:
    """Return at most `limit` examples, whose prompts a hash chooses, in the order of the file."""
    prompts = len({example.prompt_text for example in examples})
    chosen = list(examples) if prompts <= limit else split_by_prompt(examples, limit / prompts, seed, key=_PROMPT)[1]
    return chosen[:limit]
