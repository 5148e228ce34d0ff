"""A recipe → the items to annotate, from a file of responses, or sampled from the policy; or their critiques at once.

Each line of the file is an example, as for training, which may also have "response", "feedback", "outcome" and "id".
If no line has a "response", the policy ([model] path) generates the responses. They are saved, so that the next run
annotates the same responses. "feedback" is a critique by a human: only its quotes are requested; a human's "outcome"
stays. A file of annotations is accepted too: its critiques are the feedback and the outcomes, and its spans are
ignored. With template = "code", or a file of your own with {tests}, the "tests" run in the sandbox, and their outcome
is part of the prompt.

A critic in this process, such as a program, judges the responses without items (`annotate_by_critic`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from text2grad.config import Recipe, digest_of
from text2grad.critics import CachedCritic
from text2grad.critics.servers import Item, Store, Template, add_test_outcomes, hash_of, with_word_of_people
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import Annotation, check_examples, is_finite, load_callable, read_examples, write_annotations
from text2grad.files import append_records, appended_records
from text2grad.progress import Progress
from text2grad.runs.critic_quality import check_identity, identity_of
from text2grad.runs.prompts import recipe_task
from text2grad.types import Example

RESPONSES, CRITIQUES, ANNOTATIONS = "responses.jsonl", "critiques.jsonl", "annotations.jsonl"
KINDS = {"response": "a text", "feedback": "a text", "outcome": "a number (feedback import --map)"}
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
        for key, kind in KINDS.items():
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
    return add_test_outcomes(items, store) if Template.of(recipe.annotate).shows_tests else items


def _said(example: Example, key: str) -> Any:
    """Return the human feedback or outcome of an example: its own key, or that of its critique."""
    critique = example.meta.get("critique")
    if key in example.meta or not isinstance(critique, dict):
        return example.meta.get(key)
    return None if critique.get(key) == "" else critique.get(key)


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
    if missing := [row for row in range(len(examples)) if row not in saved]:
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


def annotate_by_critic(recipe: Recipe, out: Path, *, samples: int, limit: int | None = None) -> list[Annotation]:
    """Sample responses, have them judged, and write annotations.jsonl.

    What was sampled and judged before in the directory is read from it: responses are saved after each batch, critiques
    at once.

    Args:
        recipe: [data], [model] and [rollout] say what is sampled; refresh.annotator, critic.use or data.task name
            the critic.
        out: the directory of responses.jsonl, critiques.jsonl and annotations.jsonl.
        samples: responses to each prompt.
        limit: the first prompts only.

    Raises:
        ConfigError: if the recipe names no critic or no policy, or the directory holds critiques of another critic.
        DataError: if the data cannot be used, or the directory holds responses to other prompts.
        CriticError: if the critic fails.
    """
    task, named = recipe_task(recipe), recipe.refresh.annotator or recipe.critic.use
    if named:
        critic = load_callable(named, "critic")
    elif task is not None:
        critic = task.critic()
    else:
        raise ConfigError(
            "--own-critic: the recipe names no critic in Python; set critic.use or refresh.annotator, or a data.task"
        )
    prompts = annotated_examples(recipe, limit)
    check_examples(critic, prompts)
    given = [text for example in prompts if isinstance(text := example.meta.get("response"), str)]
    if given and (len(given) < len(prompts) or samples > 1):
        raise ConfigError(
            f'{recipe.data.train}: {len(given)} of {len(prompts)} examples have a "response", and {samples} for each '
            "are asked for; leave the responses and --samples out together, or give each example one response"
        )
    check_identity(out, identity_of(critic, named or f"data.task = {recipe.data.task}", recipe))
    examples, responses = (
        (prompts, given) if given else sampled_responses(recipe, [*prompts] * samples, out / RESPONSES)
    )
    cached = CachedCritic(critic, out / CRITIQUES, **recipe.critic.asking())
    critiques = cached.in_batches(examples, responses, recipe.rollout.batch_size)
    if given:
        said = ((_said(example, "feedback"), _said(example, "outcome")) for example in examples)
        critiques = [with_word_of_people(critique, *own) for critique, own in zip(critiques, said, strict=True)]
    prompts_of = [example.prompt_text for example in examples]
    annotations = list(map(Annotation, prompts_of, responses, critiques))
    write_annotations(out / ANNOTATIONS, annotations)
    return annotations
