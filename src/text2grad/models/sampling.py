"""Prompts → responses, sampled from π_old itself, with a temperature only.

PPO's ratio π_θ/π_old is only right when π_old is the distribution that was sampled from. Top-p, top-k, repetition
penalties, minimum lengths and beams all sample from something else, so there is no way to ask for them here.

One uniform number per row and step is turned into a token by the inverse CDF (`torch.multinomial` draws one per
vocabulary entry). The numbers depend on the seed and the step alone, never on what ran before: that is what makes a
resumed run equal to one that was never stopped, and a response independent of how many processes share the work.

Shapes: B rows, V vocabulary, T new tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from text2grad.models.decoding import Ended, decode, most_likely
from text2grad.models.kv_cache import Caches
from text2grad.models.randomness import sample_inverse_cdf
from text2grad.types import Example, Rollout

OnPart = Callable[[list[tuple[int, ...]], list[tuple[float, ...]]], None]
"""Called with responses, and the log-prob of each id at the temperature, in nats, in the pass that sampled it."""


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
    on_part: OnPart | None = None,
    caches: Caches | None = None,
) -> list[tuple[int, ...]]:
    """Return one response per prompt, end-of-sequence included where it was sampled.

    Equal prompts of one batch are computed once (`shared_prefix`), which changes results by rounding only.

    Args:
        model: the policy; its own generation config has no say.
        prompt_ids: token ids of each prompt.
        uniforms: [B, T]; T is the most tokens a response may have.
        eos_ids: ids that end a response.
        pad_id: fills the left of short prompts.
        temperature: divides the logits; 0 takes the most likely token, without random numbers.
        rows_at_once: rows of one batch; changes memory, and results by rounding only.
        ended: called with the ids of a row after each token; True ends the row with this token.
        on_part: called with each batch's responses, in order, and their ids' log-probs (zeros at temperature 0).
        caches: what rows leave from one turn to the next, and their groups; None: one turn, equal prompts are a group.
    """
    responses: list[tuple[int, ...]] = []
    groups = () if caches is None else caches.groups
    for start in range(0, len(prompt_ids), rows_at_once):
        chunk = prompt_ids[start : start + rows_at_once]
        drawn = uniforms[start : start + rows_at_once].to(model.device)
        logps = torch.zeros(drawn.shape, device=drawn.device)
        prompts = [tuple(ids) for ids in chunk]
        part = decode(
            model,
            prompts,
            partial(_draw, drawn, temperature, logps=logps) if temperature else most_likely,
            max_new_tokens=uniforms.shape[1],
            eos_ids=eos_ids,
            pad_id=pad_id,
            groups=groups[start : start + rows_at_once] or prompts,
            ended=ended,
            caches=caches,
        )
        responses += part
        if on_part is not None:
            on_part(part, [tuple(logp[: len(ids)]) for ids, logp in zip(part, logps.tolist(), strict=True)])
    return responses


def texts_of(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """Return the text of each row of token ids, without special tokens; transformers 5 has one text for no rows."""
    return list(tokenizer.batch_decode([list(ids) for ids in rows], skip_special_tokens=True)) if rows else []


def make_rollouts(
    tokenizer: Any,
    examples: Sequence[Example],
    prompt_ids: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    engine_logps: Sequence[Sequence[float]] | None = None,
) -> list[Rollout]:
    """Return rollouts with their decoded text; a response without end-of-sequence is marked as truncated."""
    texts = texts_of(tokenizer, responses)
    logps = [()] * len(responses) if engine_logps is None else engine_logps
    return [
        Rollout(example, tuple(prompt), tuple(ids), text, not ids or ids[-1] not in eos_ids, tuple(logp))
        for example, prompt, ids, text, logp in zip(examples, prompt_ids, responses, texts, logps, strict=True)
    ]


def _draw(uniforms: Tensor, temperature: float, logits: Tensor, rows: Tensor, step: int, *, logps: Tensor) -> Tensor:
    """Choose the tokens of some rows of a batch by the inverse CDF; write their log-probs into `logps`, [B, T]."""
    logits = logits / temperature
    tokens = sample_inverse_cdf(logits, uniforms[rows, step])
    logps[rows, step] = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return tokens
