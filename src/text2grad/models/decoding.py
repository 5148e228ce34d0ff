"""Prompts → new tokens, one at a time: rows that have ended leave the batch.

`generate` of transformers computes the rows of a batch until the longest one ends. Here the cache and the batch shrink
when half of the rows have ended, so a few long responses cost little.

Some architectures count padding, hand a state from row to row, or have no cache at all. A few tokens tell
(`steps_are_right`); such models read all tokens again for each new one, as scoring does.

Shapes: B rows, S slots of the padded prompts, V vocabulary.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache

from text2grad.errors import ModelError, is_out_of_memory
from text2grad.models.adapters import base_of, half_precision
from text2grad.models.batch import left_padded, right_padded
from text2grad.models.kv_cache import Caches, arguments_of, empty_cache
from text2grad.models.packed_weights import packed_weights
from text2grad.models.pretrained import context_of, vocabulary_of
from text2grad.models.probing import evaluating
from text2grad.models.shared_prefix import prefill, read_tokens, reads_in_parts
from text2grad.progress import note

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits of the rows [B, V], their numbers [B], number of the token) → chosen tokens [B]."""
Ended = Callable[[list[int]], bool]

LEAST_SPREAD = 0.1  # nats
TOLERANCE, TOLERANCE_HALF = 5e-5, 0.1
"""Largest difference of log-probs in 32 and in 16 bits, as a part of their deviation, which is small at small weights.

Over 130 architectures of random weights the noise of 32 bits is at most 1e-5 (bfloat16: 0.09) of the deviation; padding
or neighbours that are read change log-probs by 1e-4 to 2 of it (bfloat16: 0.1 to 2; it hides what its noise exceeds).
"""
_RIGHT: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def most_likely(logits: Tensor, rows: Tensor, step: int) -> Tensor:
    """Choose the token with the highest logit."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))  # a quarter of torch's time
    return logits.argmax(-1)


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
    caches: Caches | None = None,
) -> list[tuple[int, ...]]:
    """Return the new tokens of each prompt, end-of-sequence included; one batch.

    Args:
        model: a Hugging Face causal language model; its own generation config has no say.
        prompts: token ids, at least one each.
        choose: chooses the next token of rows. It is also asked about rows that have ended, until they leave the batch.
        max_new_tokens: the most tokens of a row; or of each row.
        eos_ids: ids that end a row.
        pad_id: fills the left of short prompts.
        groups: the group of each row. The common beginning of a group's prompts is computed once (`shared_prefix`),
            which changes results by rounding only.
        ended: called with the new tokens of a row after each token; True ends the row.
        caches: what rows of the call before have read; prompts that begin with it go on from there, and leave the same
            for the next call. Models that read each row whole take and leave nothing (`reads_in_parts`).
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    run = _Run(choose, eos_ids, ended, limits)
    if prompts:
        with evaluating(model):
            if steps_are_right(model, pad_id):
                with packed_weights(model, rows=len(prompts), steps=max(limits)):
                    _decode_batch(model, prompts, run, pad_id, groups, caches if reads_in_parts(model) else None)
            else:
                _decode_whole(model, prompts, run)
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

    def read(self, prompts: Sequence[Sequence[int]], rows: Tensor) -> dict[int, tuple[int, ...]]:
        """Return the ids that rows have read, by their numbers: all but the last, behind which nothing is said."""
        return {row: (*prompts[row], *self.tokens[row][:-1]) for row in rows.tolist()}

    def _keep(self, row: int, token: int) -> None:
        self.tokens[row].append(token)
        full = len(self.tokens[row]) >= self.limits[row]
        if full or token in self.eos_ids or (self.ended is not None and self.ended(self.tokens[row])):
            self.running.remove(row)


def _decode_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    run: _Run,
    pad_id: int,
    groups: Sequence[Hashable],
    caches: Caches | None = None,
) -> None:
    """Decode prompts that are padded on the left, with a cache; the common beginning of a group is read once."""
    shared = prefill(model, prompts, groups, pad_id, caches) if groups else None
    cache: Any = empty_cache(model) or DynamicCache(config=model.config)
    ids, mask, cache = shared or (*left_padded(prompts, pad_id, model.device), cache)  # [B, S]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    first = cache.get_seq_length() if shared else 0  # slots that the cache holds
    ids, positions = ids[:, first:], positions[:, first:]
    rows = torch.arange(len(ids), device=model.device)  # rows of the batch
    for step in count():
        logits = read_tokens(model, ids, mask, positions, cache).logits[:, -1].float()
        tokens = run.step(logits, rows, step)
        runs = torch.tensor([row in run.running for row in rows.tolist()], device=rows.device)  # [B]
        shrinks = 2 * len(run.running) <= len(rows)
        if caches is not None and shrinks:
            caches.keep(cache, mask, run.read(prompts, rows[~runs]), ~runs)
        if not run.running:
            break
        # An ended row may be at the end of the context, so its tokens all stand at its last position.
        ids, positions = tokens[:, None].to(model.device), positions[:, -1:] + runs[:, None]
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        if shrinks:
            kept = runs.nonzero()[:, 0]
            rows, ids, positions, mask = (part[kept] for part in (rows, ids, positions, mask))
            cache.reorder_cache(kept)  # also the states of linear attention


def _decode_whole(model: Any, prompts: Sequence[Sequence[int]], run: _Run) -> None:
    """Decode without a cache: each step reads the rows, padded on the right, from their first token on."""
    keeps = "logits_to_keep" in arguments_of(model)
    for step in count():
        running = sorted(run.running)
        rows = [[*prompts[row], *run.tokens[row]] for row in running]
        ends = torch.tensor([len(row) - 1 for row in rows], device=model.device)
        last, place = torch.unique(ends, return_inverse=True)
        ids = right_padded(rows, 0).to(model.device)
        logits = model(input_ids=ids, use_cache=False, **({"logits_to_keep": last} if keeps else {})).logits
        chosen = logits[torch.arange(len(rows), device=logits.device), place if keeps else last[place]]  # [B, V]
        run.step(chosen.float(), torch.tensor(running, device=logits.device), step)
        if not run.running:
            break


def check_rows(model: Any) -> None:
    """Refuse a model whose log-probs of a row change with the padding behind it or the other rows of a batch.

    Raises:
        ModelError: with the difference.
    """
    prompts, tokens = _trial_rows(model)
    together = _forced(_decode_whole, model, prompts, tokens)
    alone = torch.cat([_forced(_decode_whole, model, prompts[:1], tokens[:1]), together[1:]])
    if nats := _difference(model, alone, together):
        raise ModelError(
            f"{type(base_of(model)).__name__}: the log-probs of a row change by {nats:.2g} nats with the padding "
            "behind it and the other rows of its batch, so rows cannot be scored or trained together. Where tokens see "
            "what follows them, the model is no causal one (BERT and its kind need is_decoder = true in config.json); "
            "else choose another architecture"
        )


def steps_are_right(model: Any, pad_id: int) -> bool:
    """Return whether steps with a cache, after padded and shared prompts, give the log-probs of a pass over each row.

    Tried once per model, with a few tokens; where they do not, a warning says so, and `decode` makes no such steps.

    Raises:
        ModelError: as `check_rows`, which is asked where they do not.
    """
    base = base_of(model)
    if base not in _RIGHT:
        (prompts, tokens), faults = _trial_rows(model), list[str]()
        expected = _forced(_decode_whole, model, prompts, tokens)
        for groups in (), list(map(tuple, prompts)):
            compute = partial(_decode_batch, pad_id=pad_id, groups=groups)
            try:
                if nats := _difference(model, _forced(compute, model, prompts, tokens), expected):
                    faults.append(f"give log-probs that are off by {nats:.2g} nats")
            except Exception as error:  # each architecture fails in its own way where it has no such cache
                if is_out_of_memory(error):
                    raise
                faults.append(f"end in {type(error).__name__}")
        if faults:
            check_rows(model)
            note(
                f"{type(base).__name__}: steps with a cache, after prompts of several lengths, {faults[0]}. Text2grad "
                "computes each new token by a pass over its whole row, as it scores: right, but slow in long responses",
                warning=True,
            )
        _RIGHT[base] = not faults
    return _RIGHT[base]


def _trial_rows(model: Any) -> tuple[list[list[int]], Tensor]:
    """Return a short prompt and twice one of 11 tokens, or as the context allows, and what follows them, [3, 5]."""
    width, vocabulary = int(min(context_of(model), 16)), int(min(vocabulary_of(model), 2**16))
    ids = (torch.arange(3 * width).reshape(3, width) * 5 + 3) % vocabulary
    first, second, _ = ids[:, :-5].tolist()
    return [first[:3], second, second], ids[:, -5:]


def _forced(compute: Callable[..., None], model: Any, prompts: Sequence[Sequence[int]], tokens: Tensor) -> Tensor:
    """Return the log-probs of tokens, [B, T], that are forced on rows; random generators stay as they are."""
    logp = torch.zeros(tokens.shape)

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        own = rows.cpu()
        logp[own, step] = logits.float().log_softmax(-1).cpu()[torch.arange(len(own)), tokens[own, step]]
        return tokens[own, step].to(logits.device)

    with evaluating(model), torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        compute(model, prompts, _Run(choose, (), None, [tokens.shape[1]] * len(prompts)))
    return logp


def _difference(model: Any, ours: Tensor, theirs: Tensor) -> float:
    """Return by how many nats log-probs of rows, [B, T], differ; 0 within the noise of the arithmetic.

    The median of a row's tokens counts: in 16 bits a router of experts changes its mind about single tokens.
    """
    nats = (ours - theirs).abs().median(1).values.max()
    rounded = half_precision(model) or torch.get_float32_matmul_precision() != "highest"
    spread = theirs.std() + LEAST_SPREAD  # of a model that knows nothing yet all log-probs are nearly equal
    return (
        float(nats) if nats > (TOLERANCE_HALF if rounded else TOLERANCE) * spread else 0.0
    )  # no number: a broken weight
