"""Prompts → responses, sampled from π_old itself, with a temperature only.

PPO's ratio π_θ/π_old is only right when π_old is the distribution that was sampled from. Top-p, top-k, repetition
penalties, minimum lengths and beams all sample from something else, so there is no way to ask for them here.

One uniform number per row and step is turned into a token by the inverse CDF (`torch.multinomial` draws one per
vocabulary entry). The numbers depend on the seed and the step alone, never on what ran before: that is what makes a
resumed run equal to one that was never stopped, and a response independent of how many processes share the work.

Shapes: B rows, V vocabulary, T new tokens.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from text2grad.models.batch import left_padded
from text2grad.models.decoding import Ended, decode
from text2grad.models.randomness import sample_inverse_cdf
from text2grad.models.shared_prefix import prefill
from text2grad.types import Example, Rollout


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
    ended: Ended | None = None,
    on_part: Callable[[list[tuple[int, ...]]], None] | None = None,
) -> list[tuple[int, ...]]:
    """Return one response per prompt, end-of-sequence included where it was sampled.

    Equal prompts of one batch are computed once (`shared_prefix`), which changes results by rounding only.

    Args:
        model: the policy; its own generation config is set aside for the call.
        prompt_ids: token ids of each prompt.
        uniforms: [B, T]; T is the most tokens a response may have.
        eos_ids: ids that end a response.
        pad_id: fills the left of short prompts.
        temperature: divides the logits; 0 takes the most likely token, without random numbers.
        rows_at_once: rows of one batch; changes memory, and results by rounding only.
        ended: told the ids of a row after each token; True ends the row with this token.
        on_part: told the responses of each batch, in order.
    """
    responses: list[tuple[int, ...]] = []
    for start in range(0, len(prompt_ids), rows_at_once):
        chunk = prompt_ids[start : start + rows_at_once]
        draw = _Draw(uniforms[start : start + rows_at_once].to(model.device), temperature)
        prompts = [tuple(ids) for ids in chunk]
        groups = prompts if len(set(prompts)) < len(prompts) else ()
        part = _decode(model, chunk, draw, uniforms.shape[1], eos_ids, pad_id, groups, ended)
        responses += part
        if on_part is not None:
            on_part(part)
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

    The processors are transformers' logits processors. The common prefix of each group of prompts is computed once
    (`shared_prefix`), which changes results by rounding only.
    """
    return _generate(model, prompt_ids, max_new_tokens, eos_ids, pad_id, processors, groups)


def _decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    draw: "_Draw",
    max_new_tokens: int,
    eos_ids: Sequence[int],
    pad_id: int,
    groups: Sequence[Hashable],
    ended: Ended | None,
) -> list[tuple[int, ...]]:
    """Decode one batch by `decode` where the model's cache allows it, else by `generate`."""
    from text2grad.models.kv_cache import empty_cache

    cache = empty_cache(model)
    if cache is None:
        return _generate(model, prompts, max_new_tokens, eos_ids, pad_id, [draw], groups, ended)
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_ids": eos_ids, "pad_id": pad_id}
    with _plain_generation(model, eos_ids, pad_id):
        return decode(model, prompts, draw.choose, **limits, cache=cache, groups=groups, ended=ended)


def _generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos_ids: Sequence[int],
    pad_id: int,
    processors: Sequence[Any],
    groups: Sequence[Hashable] = (),
    ended: Ended | None = None,
) -> list[tuple[int, ...]]:
    """Decode one batch with transformers' `generate` and optional logits processors."""
    from transformers import LogitsProcessorList, StoppingCriteriaList

    from text2grad.models.kv_cache import empty_cache

    with _plain_generation(model, eos_ids, pad_id):
        shared = prefill(model, prompts, groups, pad_id) if groups else None
        ids, attention_mask, cache = shared or (*left_padded(prompts, pad_id, model.device), empty_cache(model))
        ends = _Ends(len(prompts), ids.shape[1], ended) if ended else None
        output = model.generate(
            input_ids=ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            logits_processor=LogitsProcessorList(list(processors)),
            stopping_criteria=StoppingCriteriaList([ends] if ends else []),
        )
    rows = output[:, ids.shape[1] :].tolist()
    lengths = ends.lengths if ends else [None] * len(rows)
    return [until_stop(row[:length], eos_ids) for row, length in zip(rows, lengths, strict=True)]


def make_rollouts(
    tokenizer: Any,
    examples: Sequence[Example],
    prompt_ids: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    engine_logps: Sequence[Sequence[float]] | None = None,
) -> list[Rollout]:
    """Return rollouts with their decoded text; a response without end-of-sequence is marked as truncated."""
    texts = tokenizer.batch_decode([list(ids) for ids in responses], skip_special_tokens=True)
    logps = [()] * len(responses) if engine_logps is None else engine_logps
    return [
        Rollout(example, tuple(prompt), tuple(ids), text, not ids or ids[-1] not in eos_ids, tuple(logp))
        for example, prompt, ids, text, logp in zip(examples, prompt_ids, responses, texts, logps, strict=True)
    ]


class _Ends:
    """Stopping criterion that ends each row by its own ids, and remembers the length at which it ended."""

    def __init__(self, rows: int, start: int, ended: Ended) -> None:
        self.start, self.ended = start, ended
        self.lengths: list[int | None] = [None] * rows

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        for row, length in enumerate(self.lengths):
            if length is None and self.ended(input_ids[row, self.start :].tolist()):
                self.lengths[row] = input_ids.shape[1] - self.start
        return torch.tensor([length is not None for length in self.lengths], device=input_ids.device)


class _Draw:
    """Chooses tokens by the inverse CDF; as a logits processor it forces `generate`'s argmax to take them."""

    def __init__(self, uniforms: Tensor, temperature: float) -> None:
        self.uniforms, self.temperature, self.step = uniforms, temperature, 0

    def choose(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """Return the tokens of rows; the most likely ones at temperature 0."""
        if not self.temperature:
            return logits.argmax(-1)
        return sample_inverse_cdf(logits / self.temperature, self.uniforms[rows, step])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        choice = self.choose(scores, torch.arange(len(scores), device=scores.device), self.step)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, choice[:, None], 0.0)


def until_stop(ids: list[int], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the ids up to and including the first end-of-sequence."""
    for position, token in enumerate(ids):
        if token in eos_ids:
            return tuple(ids[: position + 1])
    return tuple(ids)


@contextmanager
def _plain_generation(model: Any, eos_ids: Sequence[int], pad_id: int) -> Iterator[None]:
    """Ignore the model's own generation config, which may hold a top_p, a penalty or a minimum length."""
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
