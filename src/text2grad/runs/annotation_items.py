"""A recipe → the items to annotate, from a file of responses, or sampled from the policy.

Each line of the file is an example, as for training, which may also have "response", "feedback", "outcome" and "id".
If no line has a "response", the policy ([model] path) generates the responses. They are saved, so that the next run
annotates the same responses. "feedback" is a critique by a human: only its quotes are requested; a human's "outcome"
stays. A file of annotations is accepted too: its critiques are the feedback and the outcomes, and its spans are
ignored. With template = "code" the "tests" run in the sandbox, and their outcome is part of the prompt.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from text2grad.config import Recipe, digest_of
from text2grad.critics.servers import Item, Store, add_test_outcomes, hash_of
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import is_finite, read_examples
from text2grad.files import append_records, appended_records
from text2grad.progress import Progress
from text2grad.runs.prompts import recipe_task
from text2grad.types import Critique, Example

RESPONSES = "responses.jsonl"
SAMPLING_STEP = 2**21  # no training step uses its random numbers


def annotated_examples(recipe: Recipe, limit: int | None = None) -> list[Example]:
    """Return the examples of [data], at most `limit` of them.

    Raises:
        ConfigError: if the recipe names no data.
        DataError: if the data cannot be used.
    """
    data = recipe.data
    if not data.task and not data.train:
        raise ConfigError("[data] names neither a task nor a train file; set one of them")
    task = recipe_task(recipe)
    if task is not None and not data.train:
        return task.train(recipe.quickstart.examples, recipe.run.seed)[:limit]
    examples = read_examples(str(data.train), unique_ids=True)[:limit]
    for example in examples:
        for key, kind in (
            ("response", "a text"),
            ("feedback", "a text"),
            ("outcome", "a number (feedback import --map)"),
        ):
            value = _said(example, key)
            if value is not None and not (is_finite(value) if key == "outcome" else isinstance(value, str)):
                place = f'{data.train}: "{key}" of the example {example.prompt_text[:60]!r}'
                raise DataError(f"{place} must be {kind}, got {str(value)[:60]!r}")
    return examples


def items_of(recipe: Recipe, out: Path, store: Store, examples: Sequence[Example]) -> list[Item]:
    """Return the items of a recipe, in the order of its data.

    Args:
        recipe: the settings.
        out: directory for the policy's responses.
        store: for the outcomes of unit tests.
        examples: of `annotated_examples`.

    Raises:
        ConfigError: if the recipe names no policy to generate missing responses.
        DataError: if the data cannot be used.
    """
    data = recipe.data
    responses: list[str | None] = [example.meta.get("response") for example in examples]
    if all(response is None for response in responses):
        examples, sampled = sampled_responses(recipe, examples, out / RESPONSES)
        responses = list(sampled)
    items = [
        Item(
            str(name if isinstance(name := example.meta.get("id"), str | int) else row),
            replace(example, meta={}),
            response,
            _said(example, "feedback"),
            outcome=_said(example, "outcome"),
        )
        for row, (example, response) in enumerate(zip(examples, responses, strict=True), start=1)
        if response is not None
    ]
    if len(items) < len(examples):
        row = responses.index(None) + 1
        raise DataError(
            f'{data.train}: example {row} has no "response", but other examples have; add it to all, or to none'
        )
    return add_test_outcomes(items, store) if recipe.annotate.template == "code" else items


def _said(example: Example, key: str) -> Any:
    """Return the human feedback or outcome of an example: its own key, or that of its critique."""
    critique = example.meta.get("critique")
    if key in example.meta or not isinstance(critique, dict):
        return example.meta.get(key)
    return None if critique.get(key) == "" else critique.get(key)


def with_word_of_people(example: Example, critique: Critique) -> Critique:
    """Return a critique of an example's own response with a human's feedback and outcome, where there are some."""
    words, outcome = _said(example, "feedback"), _said(example, "outcome")
    if critique.failed:
        return critique
    return replace(
        critique,
        feedback=critique.feedback if words is None else words,
        outcome=critique.outcome if outcome is None else outcome,
    )


def sampled_responses(recipe: Recipe, examples: Sequence[Example], path: Path) -> tuple[list[Example], list[str]]:
    """Return examples and the policy's responses; missing responses are sampled.

    Responses to one prompt are sampled in one batch, which computes the prompt once, and saved after each batch.

    Args:
        recipe: names the policy, [rollout], and data.too_long, which may leave examples out.
        examples: the task instances; the same ones as before, and perhaps further ones.
        path: the file of the responses.

    Raises:
        ConfigError: if the recipe names no policy.
        DataError: if the file holds responses to other prompts, or of another policy or sampling.
    """
    rollout, policy = recipe.rollout, Path(recipe.model.path)
    settings = (rollout.max_new_tokens, rollout.temperature, rollout.eos_token_ids, recipe.model.prompt_format)
    sampling = hash_of(*settings, digest_of(policy) if policy.is_dir() else "")
    known = {"policy": recipe.model.path, "sampling": sampling}
    saved = _saved(known, examples, path)
    missing = [row for row in range(len(examples)) if row not in saved]
    if missing:
        if not recipe.model.path:
            raise ConfigError('the data has no "response", and [model] path names no policy to generate one')
        with Progress("sample", len(missing), unit="response") as progress:
            for batch in _sampled(recipe, examples, missing):
                saved |= batch
                records = (
                    {"row": row, "prompt": examples[row].prompt_text, **known, "response": batch[row]} for row in batch
                )
                append_records(path, records)
                progress.advance(len(batch))
    pairs = [(example, saved[row]) for row, example in enumerate(examples)]
    kept = [example for example, response in pairs if response is not None]
    return kept, [response for _, response in pairs if response is not None]


def _saved(known: Mapping[str, str], examples: Sequence[Example], path: Path) -> dict[int, str | None]:
    """Return the responses that an earlier run saved, by row; None if the prompt was too long."""
    saved: dict[int, str | None] = {}
    for record in appended_records(path):
        row = record["row"]
        same_prompt = row >= len(examples) or record["prompt"] == examples[row].prompt_text
        if not same_prompt or {name: record[name] for name in known} != known:
            raise DataError(
                f"{path} contains responses to other prompts, or of another policy than {known['policy'] or '(none)'}, "
                "of other weights, or with other settings of [rollout]; choose another [annotate] out, or remove the "
                "file to sample again"
            )
        saved[row] = record["response"]
    return saved


def _sampled(recipe: Recipe, examples: Sequence[Example], rows: Sequence[int]) -> Iterator[dict[int, str | None]]:
    """Yield the policy's responses to the examples of rows, a batch at a time; None if a prompt is too long."""
    from text2grad.runs.evaluate_policy import PolicySampler

    sampler = PolicySampler(recipe, recipe.model.path, dtype=recipe.model.dtype)
    fitting = set(map(id, sampler.fitting([examples[row] for row in rows])))
    yield {row: None for row in rows if id(examples[row]) not in fitting}
    of_prompt: dict[str, list[int]] = {}
    for row in rows:
        if id(examples[row]) in fitting:
            of_prompt.setdefault(examples[row].prompt_text, []).append(row)
    kept = list(chain.from_iterable(of_prompt.values()))
    for start in range(0, len(kept), recipe.rollout.rows_at_once):
        part = kept[start : start + recipe.rollout.rows_at_once]
        rollouts = sampler([examples[row] for row in part], seed=recipe.run.seed, step=SAMPLING_STEP + part[0])
        yield {row: rollout.response for row, rollout in zip(part, rollouts, strict=True)}
