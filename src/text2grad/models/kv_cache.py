"""A KV cache with room for the next tokens.

transformers' `DynamicCache` copies the keys and values of all tokens for each new token: at 600 tokens more than half
of the time of a decoding step on a CPU. Here they lie in buffers that grow by a quarter.

Shapes: B rows, H heads of keys, L cached tokens, D size of a head.
"""

from collections.abc import Collection
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from text2grad.models.adapters import base_of

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
