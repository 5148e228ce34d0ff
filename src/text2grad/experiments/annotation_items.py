"""A recipe → the items to be judged: from a file of responses, or by letting the policy respond to prompts.

Each line of the file is an example, as for training, with two more keys:

    {"prompt": ..., "response": ..., "reference": ..., "tests": ..., "feedback": ..., "id": ...}

"response" may be missing from all lines: then the policy, [model] path, responds first, and its responses are kept, so
that the next run asks about the same ones. "feedback" is what a person said: only its places are asked for. A file of
annotations will do as well: the words of each critique are that feedback, whatever spans it has. With
template = "code" the "tests" run in the sandbox, and what they say goes into the prompt.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.critics.servers import Item, Store, tested
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import read_examples
from text2grad.files import write_records
from text2grad.tasks import built_in
from text2grad.types import Example

RESPONSES = "responses.jsonl"
SAMPLING_STEP = 2**21  # its random numbers are no training step's


def items_of(recipe: Recipe, out: Path, store: Store, *, limit: int | None = None) -> list[Item]:
    """Return what a recipe wants judged, in the order of its data.

    Args:
        recipe: the settings.
        out: where responses are kept that the policy gives.
        store: where the outcomes of tests are kept.
        limit: judge only so many.

    Raises:
        ConfigError: if the recipe names no data, or no policy for prompts without responses.
        DataError: if the data cannot be used.
    """
    data = recipe.data
    if not data.task and not data.train:
        raise ConfigError("[data] names neither a task nor a train file; set one of them")
    if data.task:
        examples = built_in(data.task).train(data.examples, recipe.run.seed)[:limit]
    else:
        examples = read_examples(str(data.train))[:limit]
    responses = [_text(example, "response") for example in examples]
    if all(response is None for response in responses):
        examples, sampled = _responses(recipe, examples, out / RESPONSES)
        responses = list(sampled)
    items = [
        Item(_id(example, row), replace(example, meta={}), response, _feedback(example))
        for row, (example, response) in enumerate(zip(examples, responses, strict=True), start=1)
        if response is not None
    ]
    if len(items) < len(examples):
        row = responses.index(None) + 1
        raise DataError(f'{data.train}: example {row} has no "response", and others have; give one to all, or to none')
    return tested(items, store) if recipe.annotate.template == "code" else items


def _id(example: Example, row: int) -> str:
    """Return the name of an example: its own, or its number."""
    name = example.meta.get("id")
    return str(name) if isinstance(name, str | int) else str(row)


def _feedback(example: Example) -> str | None:
    """Return what a person said: by itself, or in the critique of an annotation."""
    critique = example.meta.get("critique")
    if "feedback" in example.meta or not isinstance(critique, dict):
        return _text(example, "feedback")
    return str(critique.get("feedback") or "") or None


def _text(example: Example, key: str) -> str | None:
    """Return a text that an example may have beside its fields."""
    value = example.meta.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f'"{key}" of the example {example.prompt_text[:60]!r} is a text, got {str(value)[:60]!r}')
    return value


def _responses(recipe: Recipe, examples: Sequence[Example], path: Path) -> tuple[list[Example], list[str]]:
    """Return examples and the policy's responses to them; those that are not kept yet are sampled, and kept."""
    kept = _kept(recipe, examples, path)
    missing = [row for row in range(len(examples)) if row not in kept]
    if missing:
        if not recipe.model.path:
            raise ConfigError('the data has no "response", and [model] path names no policy that could respond')
        numbered = [replace(examples[row], meta={**examples[row].meta, "row": row}) for row in missing]
        fitting, responses = _sampled(recipe, numbered)
        kept |= dict.fromkeys(missing)  # a prompt that is too long is passed over
        kept |= {one.meta["row"]: response for one, response in zip(fitting, responses, strict=True)}
        records: list[dict[str, Any]] = [
            {"row": row, "prompt": examples[row].prompt_text, "response": kept[row], "policy": recipe.model.path}
            for row in sorted(kept)
            if row < len(examples)
        ]
        write_records(path, records)
    pairs = [(example, kept[row]) for row, example in enumerate(examples)]
    return [one for one, response in pairs if response is not None], [one for _, one in pairs if one is not None]


def _kept(recipe: Recipe, examples: Sequence[Example], path: Path) -> dict[int, str | None]:
    """Return the responses that an earlier run kept, by row; None where the prompt was too long.

    Raises:
        DataError: if they are responses to other prompts, or another policy's.
    """
    kept: dict[int, str | None] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        record = json.loads(line)
        row = record["row"]
        other = row < len(examples) and record["prompt"] != examples[row].prompt_text
        if other or record["policy"] != recipe.model.path:
            raise DataError(
                f"{path} holds responses to other prompts, or of another policy than {recipe.model.path or '(none)'}; "
                "choose another [annotate] out, or remove the file to let the policy respond again"
            )
        kept[row] = record["response"]
    return kept


def _sampled(recipe: Recipe, examples: Sequence[Example]) -> tuple[list[Example], list[str]]:
    """Return the examples whose prompts fit, and the policy's responses to them."""
    from text2grad.models import (
        fitting_prompts,
        load_policy,
        load_tokenizer,
        make_rollouts,
        padding_id,
        sample,
        step_uniforms,
        stop_ids,
    )

    path, code, settings = recipe.model.path, recipe.model.trust_remote_code, recipe.rollout
    policy = load_policy(path, dtype=recipe.model.dtype, trust_remote_code=code).eval()
    tokenizer = load_tokenizer(path, trust_remote_code=code)
    fitting, prompts = fitting_prompts(
        policy,
        tokenizer,
        examples,
        prompt_format=settings.prompt_format,
        max_new_tokens=settings.max_new_tokens,
        too_long=recipe.data.too_long,
    )
    eos = stop_ids(policy, tokenizer, settings.eos_token_ids)
    uniforms = step_uniforms(
        seed=recipe.run.seed,
        step=SAMPLING_STEP + int(examples[0].meta["row"]),
        rows=len(prompts),
        tokens=settings.max_new_tokens,
    )
    answers = sample(
        policy,
        prompts,
        uniforms,
        eos_ids=eos,
        pad_id=padding_id(tokenizer, eos),
        temperature=settings.temperature,
        rows_at_once=settings.rows_at_once,
    )
    return fitting, [one.response for one in make_rollouts(tokenizer, fitting, prompts, answers, eos)]
