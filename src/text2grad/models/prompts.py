"""Prompts → token ids; the ids that end a response, and the id that pads a batch."""

from collections.abc import Sequence
from typing import Any

from text2grad.errors import DataError, ModelError
from text2grad.models.pretrained import context_of
from text2grad.types import Example


def encode_prompts(
    tokenizer: Any, examples: Sequence[Example], *, prompt_format: str = "auto", max_tokens: float | None = None
) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt.

    Args:
        tokenizer: the policy's.
        examples: the task instances.
        prompt_format: "plain" encodes the text as it stands; "chat" applies the chat template, with the generation
            prompt; "auto" is chat where the tokenizer has a template.
        max_tokens: the longest prompt that leaves room for a response; None does not check.

    Raises:
        DataError: if there are no examples, or prompts are empty or too long.
    """
    if not examples:
        raise DataError("there are no prompts: the list of examples is empty")
    if prompt_format == "chat" or (prompt_format == "auto" and getattr(tokenizer, "chat_template", None)):
        chats = [
            [{"role": "user", "content": e.prompt}] if isinstance(e.prompt, str) else list(e.prompt) for e in examples
        ]
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    else:
        encoded = tokenizer([e.prompt_text for e in examples])["input_ids"]
    for row, (ids, example) in enumerate(zip(encoded, examples, strict=True)):
        if not ids:
            raise DataError(
                f"example {row} has no prompt token (prompt {example.prompt_text!r}): nothing would predict its first "
                "response token. Give it some text, or a tokenizer that adds a beginning-of-sequence token."
            )
    if max_tokens is not None:
        _refuse_long_prompts(encoded, examples, max_tokens)
    return [tuple(ids) for ids in encoded]


def fitting_prompts(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    prompt_format: str,
    max_new_tokens: int,
    too_long: str,
) -> tuple[list[Example], list[tuple[int, ...]]]:
    """Return the examples whose prompts leave room for a response in the model's context, and their prompts' ids.

    Args:
        model: the policy; its config names the context length.
        tokenizer: the policy's.
        examples: the task instances.
        prompt_format: as in `encode_prompts`.
        max_new_tokens: the length limit of responses.
        too_long: "refuse" raises when a prompt is too long, "skip" leaves it out.

    Raises:
        DataError: if no prompt is left, or one is refused.
    """
    context = context_of(model)
    room = context - max_new_tokens
    if room < 1:
        raise DataError(
            f"rollout.max_new_tokens = {max_new_tokens} leaves no room for a prompt in the model's context of {context}"
        )
    checked = None if too_long == "skip" else room
    encoded = encode_prompts(tokenizer, examples, prompt_format=prompt_format, max_tokens=checked)
    kept = [row for row, ids in enumerate(encoded) if len(ids) <= room]
    if not kept:
        raise DataError(f"all {len(examples)} prompts are longer than {room} tokens; lower rollout.max_new_tokens")
    return [examples[row] for row in kept], [encoded[row] for row in kept]


def _refuse_long_prompts(encoded: Sequence[Sequence[int]], examples: Sequence[Example], max_tokens: float) -> None:
    long = [row for row, ids in enumerate(encoded) if len(ids) > max_tokens]
    if long:
        first = long[0]
        raise DataError(
            f"{len(long)} of {len(examples)} prompts have more than {max_tokens} tokens, the room that the model's "
            f"context leaves beside max_new_tokens; the first is example {first} with {len(encoded[first])} tokens "
            f"({examples[first].prompt_text[:60]!r}). Shorten them, lower rollout.max_new_tokens, or leave them out "
            'with data.too_long = "skip".'
        )


def stop_ids(model: Any, tokenizer: Any, override: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the ids that end a response: the override, or what the generation config and the tokenizer name.

    Raises:
        ModelError: if nothing names one.
    """
    if override:
        return tuple(override)
    configured = getattr(model.generation_config, "eos_token_id", None)
    found = [] if configured is None else [configured] if isinstance(configured, int) else list(configured)
    if tokenizer.eos_token_id is not None:
        found.append(tokenizer.eos_token_id)
    if not found:
        raise ModelError(
            "neither the tokenizer nor the model's generation config names an end-of-sequence token, so no response "
            "could ever end. Set rollout.eos_token_ids."
        )
    return tuple(dict.fromkeys(found))


def padding_id(tokenizer: Any, eos_ids: Sequence[int]) -> int:
    """Return a padding id; any id will do, since masks come from lengths."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_ids[0])
