"""A KV cache with room for the next tokens.

transformers' `DynamicCache` copies the keys and values of all tokens for each new token: at 600 tokens more than half
of the time of a decoding step on a CPU. Here they lie in buffers that grow by a quarter, and stay for the next turn of
a conversation (`Caches`).

Shapes: B rows, H heads of keys, L cached tokens, D size of a head.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from text2grad.models.adapters import base_of
from text2grad.models.batch import left_padded

LEAST_ROOM = 64  # tokens


def arguments_of(model: Any) -> Collection[str]:
    """Return the names of the arguments of a model's forward pass, without peft's wrapper."""
    return signature(base_of(model).forward).parameters.keys()


def cache_argument(known: Collection[str]) -> str:
    """Return which of the arguments is the cache: `cache` since transformers 5.24; "" if the model takes none."""
    return next((name for name in ("cache", "past_key_values", "cache_params") if name in known), "")


def empty_cache(model: Any) -> Any:
    """Return an empty cache in which every layer keeps every position; None for models with other caches."""
    config = model.config
    takes = cache_argument(arguments_of(model)) in ("cache", "past_key_values")
    if config.get_text_config() is not config or not takes or not model._supports_default_dynamic_cache():
        return None
    cache = DynamicCache(config=config)
    if any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None
    cache.layers = [GrowingLayer() for _ in cache.layers]  # type: ignore[no-untyped-call]
    return cache


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The keys and values of one layer, [B, H, L, D]: views of the beginning of buffers. Not for gradients."""

    _buffers: tuple[Tensor, Tensor] | None = None  # [B, H, more than L, D]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens; return all."""
        before = self.get_seq_length()
        if not before or torch.is_grad_enabled():
            return super().update(key_states, value_states, *args, **kwargs)
        after = before + key_states.shape[-2]
        known: Any = (self.keys, self.values)
        buffers = self._buffers
        if buffers is None or not all(
            _begins(tensor, buffer, after) for tensor, buffer in zip(known, buffers, strict=True)
        ):
            more = after - before + max(after // 4, LEAST_ROOM)
            self._buffers = buffers = pad(known[0], (0, 0, 0, more)), pad(known[1], (0, 0, 0, more))
        for buffer, new in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, before:after] = new
        keys, values = (buffer[:, :, :after] for buffer in buffers)
        self.keys, self.values = keys, values
        return keys, values


def _begins(tensor: Tensor, buffer: Tensor, length: int) -> bool:
    """Whether a tensor is the beginning of a buffer that has room for a length; not after rows were selected."""
    return tensor.data_ptr() == buffer.data_ptr() and length <= buffer.shape[2]


class _Part(NamedTuple):
    """Rows of a batch: the ids that each has read, by its number, and their keys and values in each layer."""

    read: Mapping[int, tuple[int, ...]]
    mask: Tensor  # 0 on padding, [B, L]
    layers: list[tuple[tuple[Tensor, Tensor], Sequence[Tensor]]]  # their own, and those of a group before them
    groups: Any  # of each row, [B], where they share beginnings

    def states(self) -> Sequence[Tensor]:
        """Return keys and values of the next layer, [B, H, L, D], and forget them."""
        own, shared = self.layers.pop(0)
        return [torch.cat([of_group[self.groups], part], 2) for of_group, part in zip(shared, own, strict=False)] or own


class Caches:
    """Keys and values that the rows of one call of `decode` leave for the next one, whose rows go on from there.

    Each call takes all: what it has no use for is read again when it is wanted. So no more than one batch is kept.

    Attributes:
        groups: of each row of the next call the group that has a common beginning; empty: equal prompts are a group.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.groups: Sequence[Hashable] = ()
        self._parts = list[_Part]()

    def keep(self, cache: Any, mask: Tensor, read: Mapping[int, tuple[int, ...]], chosen: Tensor) -> None:
        """Keep some rows of a batch.

        Args:
            cache: of the batch, L slots.
            mask: of the slots, 0 on padding, [B, L].
            read: the ids of each of these rows, by its number; what stands behind them in the cache is left out.
            chosen: True on these rows, bool [B].
        """
        rows: Any = slice(None) if chosen.all() else chosen  # all of them need no copy
        shared = getattr(cache, "beginnings", None)
        before: Sequence[Any] = shared.layers if shared else [()] * len(cache.layers)
        own = [(layer.keys[rows], layer.values[rows]) for layer in cache.layers]
        layers = list(zip(own, before, strict=True))
        self._parts.append(_Part(read, mask[rows], layers, shared and shared.groups[rows]))

    def take(self, model: Any, rows: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], Any] | None:
        """Return the ids that each row begins with and need not read, and their cache, padded on the left.

        The rows are some of those that were kept, in their order, each with more ids; None for others.
        """
        parts, self._parts = self._parts, []
        kept = iter(sorted(pair for part in parts for pair in part.read.items()))
        matches = [next((pair for pair in kept if row[:-1][: len(pair[1])] == pair[1]), None) for row in rows]
        known = dict(pair for pair in matches if pair is not None)
        if len(known) < len(rows):
            return None
        cache = empty_cache(model)
        for number, pair in enumerate(_states(parts, known)):
            cache.update(*pair, number)
        return list(known.values()), cache


def _states(parts: list[_Part], known: Mapping[int, tuple[int, ...]]) -> Iterator[list[Tensor]]:
    """Yield keys and values of each layer, [B, H, L, D], padded on the left, of the rows with these numbers and ids."""
    _, real = left_padded(list(known.values()), 0, parts[0].mask.device)  # [B, L]
    slots = list[tuple[Tensor, Tensor]]()  # of each part, and their places in the whole
    for part in parts:
        counts = [[len(ids) if number in known else 0] for number, ids in part.read.items()]
        read = part.mask.cumsum(1) <= torch.tensor(counts, device=real.device)
        here = torch.tensor([[number in part.read] for number in known], device=real.device)
        slots.append((read & (part.mask > 0), here & (real > 0)))
    while parts[0].layers:
        pair = list[Tensor]()
        for states in zip(*(part.states() for part in parts), strict=True):
            whole = states[0].new_zeros(len(real), states[0].shape[1], real.shape[1], states[0].shape[3])
            for (source, place), state in zip(slots, states, strict=True):
                whole.transpose(1, 2)[place] = state.transpose(1, 2)[source]
            pair.append(whole)
        yield pair
