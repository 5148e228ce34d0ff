"""Run each group's common prefix once and share its KV cache: votes on one response, responses to one prompt.

Each group's common beginning goes through the model as one row; its keys and values are then handed to the rows of the
group, which go on from there. The ends of the rows are aligned as ever, so padding stands between the two parts:

    [padding, beginning of the group][padding, rest of the row] → new tokens

Beginnings of different lengths, such as requests of people, are read in runs of similar length, and so are rests, such
as the marks of a probe that votes stand behind, up to their last tokens; keys and values then end in one column.

In the later turns of a conversation the beginning of a row is all that it has read and sampled (`Caches`).

That is no place for padding where attention counts distances in slots, so models with sliding windows, local attention
(GPT-Neo), recurrent layers or more than text read every row whole.

Scoring and update do the same with gradients (`shared_states`): there the prompts are padded on the right, and the
cache is part of the graph, so the gradient of a prompt's keys and values is the sum over the responses that read them.

Shapes: B rows, G groups, P tokens of the longest beginning, R of the longest rest, C slots of the cache. In
`shared_states`: G distinct prompts, R tokens behind them, N response tokens of the batch packed, H hidden size.
"""

from collections.abc import Hashable, Iterable, Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import CacheLayerMixin, DynamicCache

from text2grad.models.adapters import base_of, trunk_of
from text2grad.models.batch import TokenBatch, left_padded
from text2grad.models.kv_cache import Caches, arguments_of, cache_argument, empty_cache
from text2grad.models.shared_attention import Beginnings, SharingCache, attending, attends_to_shared

LEAST_APART = 16  # tokens of the longest rest in a run, to read shorter ones apart


class States(NamedTuple):
    """Last hidden states of responses.

    Attributes:
        before: the state that predicts each response token, packed, [N, H].
        after: the state after each row's last token, [B, H].
    """

    before: Tensor
    after: Tensor


def can_share_prompts(model: Any) -> bool:
    """Return whether the responses to one prompt can share its forward pass in scoring and update.

    Models with sliding windows, local attention or recurrent layers cannot; nor can gradient checkpointing, because it
    leaves no cache.
    """
    trunk = trunk_of(model)
    new, old = "is_activation_checkpointing", "is_gradient_checkpointing"  # transformers renamed it
    if trunk.training and getattr(trunk, new if hasattr(trunk, new) else old, False):
        return False
    known = arguments_of(trunk)
    needed = {"attention_mask", "position_ids", cache_argument(known)}
    return needed <= set(known) and reads_in_parts(model)


def reads_in_parts(model: Any) -> bool:
    """Return whether rows can go on from a cache behind padding: it keeps every token, and attention counts no slots.

    Slots are counted by local attention (GPT-Neo), MPT's ALiBi, and GIT's images.
    """
    config = base_of(model).config.get_text_config()
    is_local = "local" in (getattr(config, "attention_layers", None) or ())
    return config.model_type not in ("mpt", "git") and not is_local and empty_cache(base_of(model)) is not None


def shared_states(trunk: Any, batch: TokenBatch) -> States:
    """Return the states of responses, each distinct prompt read once; differentiable.

    Args:
        trunk: a decoder without output layer, for which `can_share_prompts` holds.
        batch: right-padded rollouts with `prompts`.
    """
    numbers: dict[int, int] = {}
    own = [numbers.setdefault(prompt, len(numbers)) for prompt in batch.prompts]
    firsts = [own.index(number) for number in range(len(numbers))]
    device = batch.ids.device
    of_row, first = torch.tensor(own, device=device), torch.tensor(firsts, device=device)
    lengths, behind = batch.prompt_lengths[first], batch.prompt_lengths[:, None]  # [G], [B, 1]
    width = int(lengths.max())
    cache = DynamicCache(config=trunk.config)
    # Right padding: causal attention keeps it out of every real position, so this pass needs no mask.
    given: dict[str, Any] = {cache_argument(arguments_of(trunk)): cache, "use_cache": True}
    read = trunk(input_ids=batch.ids[first, :width], **given).last_hidden_state
    last = read[torch.arange(len(first), device=device), lengths - 1][of_row]  # [B, H], predicts the first token
    mask = (torch.arange(width, device=device) < lengths[:, None]).long()  # [G, P]
    positions = behind + torch.arange(int((batch.lengths[:, None] - behind).max()), device=device)  # [B, R]
    ids = batch.ids.gather(1, positions.clamp(max=batch.ids.shape[1] - 1))
    rests = {"input_ids": ids, "position_ids": positions}
    if attends_to_shared(trunk, cache, len(own)):
        with attending(trunk, Beginnings(cache, of_row, mask)):
            rest = trunk(**rests, use_cache=False).last_hidden_state
    else:
        cache.batch_select_indices(of_row)
        whole = torch.cat([mask[of_row], torch.ones_like(ids)], 1)  # [B, P + R]
        rest = trunk(**rests, attention_mask=whole, **given).last_hidden_state
    states = torch.cat([last[:, None], rest], 1)  # [B, R + 1, H], before each token behind the prompt, and after them
    rows, tokens = torch.arange(len(own), device=device), batch.response_mask.nonzero(as_tuple=True)
    before = states[tokens[0], (batch.positions - behind)[tokens]]
    return States(before, states[rows, batch.lengths - batch.prompt_lengths])


@torch.no_grad()
def prefill(
    model: Any, rows: Sequence[Sequence[int]], groups: Sequence[Hashable], pad_id: int, caches: Caches | None = None
) -> tuple[Tensor, Tensor, Any] | None:
    """Run the common prefix of each group once; None if that saves nothing, or the model's cache cannot be shared.

    Args:
        model: a Hugging Face causal language model.
        rows: token ids, at least one each.
        groups: the group of each row; rows of one group share a prefix.
        pad_id: the padding id.
        caches: of the rows before; those that begin with them read the rest alone (for models that read in parts).

    Returns:
        Ids, [B, P + R], padded as above, the mask that is 0 on padding, and the cache of the first C slots of each row:
        P, or, where rests were read in runs, P + R − 1; in a `SharingCache` the rows share them.
    """
    if caches is not None and (kept := caches.take(model, rows)) is not None:
        return _behind(model, rows, *kept, pad_id)
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    numbers = {group: number for number, group in enumerate(members)}
    heads = [_beginning([rows[number] for number in own]) for own in members.values()]
    of_rows = [heads[numbers[group]] for group in groups]
    begun = [row[len(head) : -1] for row, head in zip(rows, of_rows, strict=True)]
    runs_of_heads = _of_similar_length(heads)
    parts = (heads, runs_of_heads), (begun, _of_similar_length(begun))
    read = sum(len(run) * len(part[run[0]]) for part, runs in parts for run in runs)
    saves = any(heads) and read + len(rows) < len(rows) * max(map(len, rows))
    if not saves or not reads_in_parts(model):
        return None
    ids, mask = left_padded(heads, pad_id, model.device)
    if len(runs_of_heads) > 1:
        cache = _read_runs(model, heads, runs_of_heads, pad_id, mask[:, :0], ())
    else:  # a single run needs no copies
        cache = empty_cache(model)
        read_tokens(model, ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
    own = torch.tensor([numbers[group] for group in groups], device=model.device)
    if not any(begun) and attends_to_shared(trunk_of(model), cache, len(rows)):
        cache = SharingCache(empty_cache(model), Beginnings(cache, own, mask))
    else:
        cache.batch_select_indices(own)
    return _behind(model, rows, of_rows, cache, pad_id)


def _behind(
    model: Any, rows: Sequence[Sequence[int]], heads: Sequence[Sequence[int]], cache: Any, pad_id: int
) -> tuple[Tensor, Tensor, Any]:
    """Return what `prefill` returns, of rows whose beginnings are in a cache; each row has at least one more id."""
    ids, mask = left_padded(heads, pad_id, model.device)
    rests = [row[len(head) :] for row, head in zip(rows, heads, strict=True)]
    begun = [rest[:-1] for rest in rests]
    if len(runs := _of_similar_length(begun)) > 1:
        layers = (cache.layers.pop(0) for _ in range(len(cache.layers)))  # each is needed once
        cache = _read_runs(model, begun, runs, pad_id, mask, ((layer.keys, layer.values) for layer in layers))
    rest_ids, rest_mask = left_padded(rests, pad_id, model.device)
    return torch.cat([ids, rest_ids], 1), torch.cat([mask, rest_mask], 1), cache


def _of_similar_length(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the rows in runs, the longest first; each row of a run has at least two thirds of the tokens of the first.

    Rows with few tokens form one run, since every forward pass has a fixed cost.
    """
    lengths = list(map(len, rows))
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    runs: list[list[int]] = []
    for row in order:
        if not runs or (3 * lengths[row] < 2 * (most := lengths[runs[-1][0]]) and most >= LEAST_APART):
            runs.append([])
        runs[-1].append(row)
    return runs


def _read_runs(
    model: Any,
    rows: Sequence[Sequence[int]],
    runs: Sequence[Sequence[int]],
    pad_id: int,
    mask: Tensor,
    beginnings: Iterable[Sequence[Tensor]],
) -> Any:
    """Return the cache of all rows, [B, P + R], whose tokens end in one column.

    Args:
        model: a Hugging Face causal language model.
        rows: the tokens to read, of each row.
        runs: the rows that are read together, the longest first.
        pad_id: the padding id.
        mask: of the tokens before them, 0 on padding, [B, P].
        beginnings: keys and values of those tokens in each layer; empty for P = 0.
    """
    width, first = max(map(len, rows)), mask.shape[1]
    layers = [[pad(part, (0, 0, 0, width)) for part in pair] for pair in beginnings]
    for run in runs:
        chosen = torch.tensor(run, device=model.device)
        ids, real = left_padded([rows[row] for row in run], pad_id, model.device)
        if not ids.shape[1]:
            break  # the last run
        cache: Any = empty_cache(model)
        for number, (keys, values) in enumerate(layers if first else ()):
            cache.update(keys[chosen, :, :first], values[chosen, :, :first], number)
        whole = torch.cat([mask[chosen], real], 1)
        read_tokens(model, ids, whole, (whole.cumsum(1) - 1).clamp(min=0)[:, first:], cache)
        for number, layer in enumerate(cache.layers):
            read = layer.keys, layer.values
            if number == len(layers):
                layers.append([part.new_zeros(len(rows), part.shape[1], width, part.shape[3]) for part in read])
            for of_all, part in zip(layers[number], read, strict=True):
                of_all[chosen, :, first + width - ids.shape[1] :] = part[:, :, first:]
    together = empty_cache(model)
    for number, pair in enumerate(layers):
        together.update(*pair, number)
    return together


def _beginning(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the common prefix of rows, without the last token of the shortest: each row reads one to start."""
    alike = takewhile(lambda column: len({*column}) == 1, zip(*rows, strict=False))
    return [column[0] for column in alike][: min(map(len, rows)) - 1]


def read_tokens(model: Any, ids: Tensor, attention_mask: Tensor, positions: Tensor, cache: Any) -> Any:
    """Fill the cache with tokens; return the output, with the logits of the last token alone where the model can.

    Args:
        model: a Hugging Face causal language model.
        ids: new tokens, [B, N].
        attention_mask: of the cached and the new tokens, 0 on padding.
        positions: of the new tokens, [B, N].
        cache: of the tokens before.
    """
    known = arguments_of(model)
    last = torch.tensor([ids.shape[1] - 1], device=ids.device)  # of a slice, a CPU copies the output layer for each row
    more = {"position_ids": positions, "logits_to_keep": last, cache_argument(known): cache}
    if not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers):  # Mamba: no layer attends
        attention_mask = attention_mask[:, -ids.shape[1] :]
    shared = getattr(cache, "beginnings", None)
    with nullcontext() if shared is None else attending(base_of(model), shared):
        return model(
            input_ids=ids,
            attention_mask=attention_mask if shared is None else attention_mask[:, shared.mask.shape[1] :],
            use_cache=True,
            **{name: value for name, value in more.items() if name in known},
        )
