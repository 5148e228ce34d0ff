"""Prompts → new tokens, one at a time: rows that have ended leave the batch.

`generate` of transformers computes the rows of a batch until the longest one ends. Here the cache and the batch shrink
when half of the rows have ended, so a few long responses cost little. Models whose layers keep other states than keys
and values of every position (`empty_cache`) stay with `generate`.

Shapes: B rows, S slots of the padded prompts, V vocabulary.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from text2grad.models.batch import left_padded
from text2grad.models.shared_prefix import prefill, read_tokens

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits of the rows [B, V], their numbers [B], number of the token) → chosen tokens [B]."""
Ended = Callable[[list[int]], bool]


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    choose: Choose,
    *,
    max_new_tokens: int,
    eos_ids: Sequence[int],
    pad_id: int,
    cache: Any,
    groups: Sequence[Hashable] = (),
    ended: Ended | None = None,
) -> list[tuple[int, ...]]:
    """Return the new tokens of each prompt, end-of-sequence included.

    Args:
        model: a Hugging Face causal language model for which `empty_cache` returns a cache.
        prompts: token ids, at least one each.
        choose: chooses the next token of rows.
        max_new_tokens: the most tokens of a row.
        eos_ids: ids that end a row.
        pad_id: fills the left of short prompts.
        cache: an empty one.
        groups: as in `prefill`.
        ended: told the new tokens of a row after each; True ends the row.
    """
    shared = prefill(model, prompts, groups, pad_id) if groups else None
    ids, mask, cache = shared or (*left_padded(prompts, pad_id, model.device), cache)  # [B, S]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    first = cache.get_seq_length()
    ids, positions = ids[:, first:], positions[:, first:]
    found = [list[int]() for _ in prompts]
    rows = torch.arange(len(prompts), device=model.device)  # rows of the batch
    running = set(range(len(prompts)))
    for step in range(max_new_tokens):
        logits = read_tokens(model, ids, mask, positions, cache).logits[:, -1].float()
        tokens = choose(logits, rows, step)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if row in running:
                found[row].append(token)
                if token in eos_ids or (ended is not None and ended(found[row])):
                    running.remove(row)
        if not running:
            break
        ids, positions = tokens[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        if 2 * len(running) <= len(rows):
            kept = torch.tensor([at for at, row in enumerate(rows.tolist()) if row in running], device=rows.device)
            rows, ids, positions, mask = (one[kept] for one in (rows, ids, positions, mask))
            cache.batch_select_indices(kept)
    return [tuple(tokens) for tokens in found]
