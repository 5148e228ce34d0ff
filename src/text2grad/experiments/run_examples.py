"""The prompts of a run: examples to train on, and held-out examples for evaluations; no prompt is in both."""

from collections.abc import Sequence
from typing import NamedTuple

from text2grad.config import Recipe
from text2grad.errors import DataError
from text2grad.feedback import read_examples, split_by_prompt
from text2grad.tasks import built_in
from text2grad.types import Example


class RunExamples(NamedTuple):
    """Examples to train on, held-out examples, and the number of training examples whose prompts are held out."""

    train: list[Example]
    held_out: list[Example]
    removed: int = 0


def run_examples(recipe: Recipe) -> RunExamples:
    """Return the examples that [data] names.

    A share is held out by a hash of `data.eval_seed` and the prompt, so that neither the order of the file nor
    `run.seed` changes it, and equal prompts stay together. At most `data.eval_examples` held-out examples are kept,
    chosen by the same hash.

    Raises:
        DataError: if a file cannot be read, or no prompt is left to train on or to hold out.
    """
    data = recipe.data
    if data.task:
        task = built_in(data.task)
        held_out = task.held_out(data.eval_examples, data.eval_seed) if data.eval_examples else []
        return RunExamples(task.train(data.examples, recipe.run.seed), held_out)
    examples = read_examples(str(data.train))
    if data.held_out_file:
        held_out = read_examples(data.held_out_file)
        prompts = {example.prompt_text for example in held_out}
        train = [example for example in examples if example.prompt_text not in prompts]
        if not train:
            raise DataError(
                f"all {len(examples)} prompts of {data.train} are in {data.held_out_file}, too, so none is left to "
                "train on; name other files in data.train and data.held_out_file"
            )
        return RunExamples(train, _first(held_out, data.eval_examples, data.eval_seed), len(examples) - len(train))
    train, held_out = split_by_prompt(examples, data.held_out, data.eval_seed, key=_prompt)
    if data.held_out and not held_out:
        raise DataError(
            f"data.held_out = {data.held_out}: {data.train} has one prompt only, and it cannot be trained on and held "
            "out; add prompts, or name a data.held_out_file"
        )
    return RunExamples(train, _first(held_out, data.eval_examples, data.eval_seed))


def held_out_prompts(recipe: Recipe) -> set[str]:
    """Return all prompts that [data] holds out, also those beyond `data.eval_examples`; none for a built-in task."""
    data = recipe.data
    if data.held_out_file:
        return {example.prompt_text for example in read_examples(data.held_out_file)}
    if not data.held_out:
        return set()
    held_out = split_by_prompt(read_examples(str(data.train)), data.held_out, data.eval_seed, key=_prompt)[1]
    return {example.prompt_text for example in held_out}


def _first(examples: Sequence[Example], limit: int, seed: int) -> list[Example]:
    """Return at most `limit` examples, whose prompts a hash chooses, in the order of the file."""
    prompts = len({example.prompt_text for example in examples})
    chosen = list(examples) if prompts <= limit else split_by_prompt(examples, limit / prompts, seed, key=_prompt)[1]
    return chosen[:limit]


def _prompt(example: Example) -> str:
    return example.prompt_text
