"""Prompts → responses, drawn from π_old itself: temperature and nothing else.

PPO's ratio π_θ/π_old is only right when π_old is the distribution that was sampled from. Top-p, top-k, repetition
penalties, minimum lengths and beams all sample from something else, so there is no way to ask for them here.

One uniform number per row and step is turned into a token by the inverse CDF (`torch.multinomial` draws one per
vocabulary entry). The numbers depend on the seed and the step alone, never on what ran before: that is what makes a
resumed run equal to one that was never stopped, and a response independent of how many processes share the work.

Shapes: B rows, V vocabulary, T new tokens.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from text2grad.batch import left_padded
from text2grad.errors import DataError, ModelError
from text2grad.pretrained import context_of
from text2grad.shared_prefix import prefill
from text2grad.types import Example, Rollout


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


def batch_indices(examples: int, batch_size: int, *, step: int, seed: int) -> list[int]:
    """Return which examples step `step` uses: each epoch is a permutation that follows from seed and epoch alone.

    Args:
        examples: how many there are.
        batch_size: how many a step takes.
        step: number of the batch, from 0.
        seed: the run's.
    """
    chosen: list[int] = []
    position = step * batch_size
    while len(chosen) < batch_size:
        epoch, offset = divmod(position, examples)
        order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed * 7_919 + epoch)).tolist()
        chosen += order[offset : offset + batch_size - len(chosen)]
        position = step * batch_size + len(chosen)
    return chosen


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
    """Return an id to fill padding with; any will do, since masks come from lengths."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_ids[0])


def step_uniforms(*, seed: int, step: int, rows: int, tokens: int) -> Tensor:
    """Return the uniform numbers of one step, [rows, tokens] in [0, 1), from seed and step alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    return torch.rand(rows, tokens, generator=generator)


def sample_inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return one token id per row, int64 [B]: the first v with Σ_{u≤v} p_u > uniform.

    Args:
        logits: [B, V], already divided by the temperature.
        uniform: one number in [0, 1) per row, [B].
    """
    cdf = logits.float().softmax(-1).cumsum(-1)  # [B, V]
    threshold = uniform.to(cdf)[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, threshold, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


@torch.no_grad()
def sample(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    uniforms: Tensor,
    *,
    eos_ids: Sequence[int],
    pad_id: int,
    temperature: float = 1.0,
    rows_at_once: int = 64,
) -> list[tuple[int, ...]]:
    """Return one response per prompt, end-of-sequence included where it was sampled.

    Args:
        model: the policy; its own generation config is set aside for the call.
        prompt_ids: token ids of each prompt.
        uniforms: [B, T]; T is the most tokens a response may have.
        eos_ids: ids that end a response.
        pad_id: fills the left of short prompts.
        temperature: divides the logits; above 0.
        rows_at_once: rows of one generate call; changes memory, not results.
    """
    responses: list[tuple[int, ...]] = []
    for start in range(0, len(prompt_ids), rows_at_once):
        chunk = prompt_ids[start : start + rows_at_once]
        drawn = uniforms[start : start + rows_at_once].to(model.device)
        draw = _InverseCdfProcessor(drawn, temperature, max(map(len, chunk)))
        responses += _generate(model, chunk, uniforms.shape[1], eos_ids, pad_id, processors=[draw])
    return responses


@torch.no_grad()
def decode_greedily(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    eos_ids: Sequence[int],
    pad_id: int,
    processors: Sequence[Any] = (),
    groups: Sequence[Hashable] = (),
) -> list[tuple[int, ...]]:
    """Return the most likely continuation of each prompt, token by token, end-of-sequence included; one batch.

    The processors may change the scores, in the manner of transformers. What the prompts of a group begin with alike is
    read once (`shared_prefix`); that saves time, and changes results by rounding alone.
    """
    return _generate(model, prompt_ids, max_new_tokens, eos_ids, pad_id, processors, groups)


def _generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos_ids: Sequence[int],
    pad_id: int,
    processors: Sequence[Any],
    groups: Sequence[Hashable] = (),
) -> list[tuple[int, ...]]:
    """Decode one batch by transformers' own generate, which the processors may steer."""
    from transformers import LogitsProcessorList

    with _plain_generation(model, eos_ids, pad_id):
        shared = prefill(model, prompts, groups, pad_id) if groups else None
        ids, attention_mask, cache = shared or (*left_padded(prompts, pad_id, model.device), None)
        output = model.generate(
            input_ids=ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            logits_processor=LogitsProcessorList(list(processors)),
        )
    return [_until_stop(row, eos_ids) for row in output[:, ids.shape[1] :].tolist()]


def make_rollouts(
    tokenizer: Any,
    examples: Sequence[Example],
    prompt_ids: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
) -> list[Rollout]:
    """Return rollouts with their decoded text; one that does not end in an end-of-sequence was cut."""
    texts = tokenizer.batch_decode([list(ids) for ids in responses], skip_special_tokens=True)
    return [
        Rollout(example, tuple(prompt), tuple(ids), text, truncated=not ids or ids[-1] not in eos_ids)
        for example, prompt, ids, text in zip(examples, prompt_ids, responses, texts, strict=True)
    ]


class _InverseCdfProcessor:
    """Draw each row's next token and leave generate's argmax no choice."""

    def __init__(self, uniforms: Tensor, temperature: float, prompt_width: int) -> None:
        self.uniforms, self.temperature, self.prompt_width = uniforms, temperature, prompt_width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        uniform = self.uniforms[:, input_ids.shape[1] - self.prompt_width]
        choice = sample_inverse_cdf(scores / self.temperature, uniform)
        return torch.full_like(scores, -torch.inf).scatter_(1, choice[:, None], 0.0)


def _until_stop(ids: list[int], eos_ids: Sequence[int]) -> tuple[int, ...]:
    for position, token in enumerate(ids):
        if token in eos_ids:
            return tuple(ids[: position + 1])
    return tuple(ids)


@contextmanager
def _plain_generation(model: Any, eos_ids: Sequence[int], pad_id: int) -> Iterator[None]:
    """Set the model's own generation config aside: it may hold a top_p, a penalty, a minimum length."""
    from transformers import GenerationConfig

    owner = model.get_base_model() if hasattr(model, "get_base_model") else model
    before, was_training = owner.generation_config, model.training
    plain = {"eos_token_id": list(eos_ids), "pad_token_id": pad_id, "use_cache": True}
    owner.generation_config = GenerationConfig(**plain)  # type: ignore[no-untyped-call]
    model.eval()
    try:
        yield
    finally:
        owner.generation_config = before
        model.train(was_training)
