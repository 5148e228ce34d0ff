"""Prompts → new tokens, one at a time: rows that have ended leave the batch.

`generate` of transformers computes the rows of a batch until the longest one ends. Here the cache and the batch shrink
when half of the rows have ended, so a few long responses cost little.

Models without a cache of keys and values for every position (`empty_cache` returns None) are decoded by `generate`.

Shapes: B rows, S slots of the padded prompts, V vocabulary.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from text2grad.models.batch import left_padded
from text2grad.models.kv_cache import empty_cache
from text2grad.models.shared_prefix import prefill, read_tokens

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits of the rows [B, V], their numbers [B], number of the token) → chosen tokens [B]."""
Ended = Callable[[list[int]], bool]


def most_likely(logits: Tensor, rows: Tensor, step: int) -> Tensor:
    """Choose the token with the highest logit."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))  # a quarter of torch's time
    return logits.argmax(-1)


@torch.no_grad()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    choose: Choose = most_likely,
    *,
    max_new_tokens: int | Sequence[int],
    eos_ids: Sequence[int],
    pad_id: int,
    groups: Sequence[Hashable] = (),
    ended: Ended | None = None,
) -> list[tuple[int, ...]]:
    """Return the new tokens of each prompt, end-of-sequence included; one batch.

    Args:
        model: a Hugging Face causal language model; its own generation config is set aside for the call.
        prompts: token ids, at least one each.
        choose: chooses the next token of rows. It is also asked about rows that have ended, until they leave the batch.
        max_new_tokens: the most tokens of a row; or of each row.
        eos_ids: ids that end a row.
        pad_id: fills the left of short prompts.
        groups: the group of each row. The common beginning of a group's prompts is computed once (`shared_prefix`),
            which changes results by rounding only.
        ended: called with the new tokens of a row after each token; True ends the row.
    """
    was_training = model.training
    model.eval()
    try:
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        run = _Run(choose, eos_ids, ended, limits)
        if not prompts:
            return []
        shared = prefill(model, prompts, groups, pad_id) if groups else None
        ids, mask, cache = shared or (*left_padded(prompts, pad_id, model.device), empty_cache(model))  # [B, S]
        if cache is None:
            _generate(model, ids, mask, run, max(limits), pad_id)
        else:
            _decode(model, ids, mask, run, cache)
    finally:
        model.train(was_training)
    return [tuple(tokens) for tokens in run.tokens]


class _Run:
    """The tokens of the rows of one batch, and which rows have not ended."""

    def __init__(self, choose: Choose, eos_ids: Sequence[int], ended: Ended | None, limits: Sequence[int]) -> None:
        self.choose, self.eos_ids, self.ended, self.limits = choose, eos_ids, ended, limits
        self.tokens = [list[int]() for _ in limits]
        self.running = set(range(len(limits)))

    def step(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """Choose and keep the next token of each row."""
        tokens = self.choose(logits, rows, step)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if row in self.running:
                self._keep(row, token)
        return tokens

    def _keep(self, row: int, token: int) -> None:
        self.tokens[row].append(token)
        full = len(self.tokens[row]) >= self.limits[row]
        if full or token in self.eos_ids or (self.ended is not None and self.ended(self.tokens[row])):
            self.running.remove(row)


def _decode(model: Any, ids: Tensor, mask: Tensor, run: _Run, cache: Any) -> None:
    """Decode with a cache that holds the first slots of the prompts, or none."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    first = cache.get_seq_length()
    ids, positions = ids[:, first:], positions[:, first:]
    rows = torch.arange(len(ids), device=model.device)  # rows of the batch
    for step in count():
        logits = read_tokens(model, ids, mask, positions, cache).logits[:, -1].float()
        tokens = run.step(logits, rows, step)
        if not run.running:
            break
        runs = torch.tensor([[row in run.running] for row in rows.tolist()], device=rows.device)  # [B, 1]
        # An ended row may be at the end of the context, so its tokens all stand at its last position.
        ids, positions = tokens[:, None].to(model.device), positions[:, -1:] + runs
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        if 2 * len(run.running) <= len(rows):
            kept = runs[:, 0].nonzero()[:, 0]
            rows, ids, positions, mask = (part[kept] for part in (rows, ids, positions, mask))
            cache.batch_select_indices(kept)


def _generate(model: Any, ids: Tensor, mask: Tensor, run: _Run, max_new_tokens: int, pad_id: int) -> None:
    """Decode with `generate`: a logits processor forces its argmax to take the chosen tokens.

    The model's own generation config is ignored: it may hold a top_p, a penalty or a minimum length.
    """
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    rows, start = torch.arange(len(ids), device=ids.device), ids.shape[1]

    def force(input_ids: Tensor, scores: Tensor) -> Tensor:
        tokens = run.step(scores, rows, input_ids.shape[1] - start)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def ends(input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return torch.tensor([row not in run.running for row in range(len(ids))], device=ids.device)

    owner = model.get_base_model() if hasattr(model, "get_base_model") else model
    before = owner.generation_config
    plain = {"eos_token_id": list(run.eos_ids), "pad_token_id": pad_id, "use_cache": True}
    owner.generation_config = GenerationConfig(**plain)  # type: ignore[no-untyped-call]
    try:
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            logits_processor=LogitsProcessorList([force]),
            stopping_criteria=StoppingCriteriaList([ends]),
        )
    finally:
        owner.generation_config = before
