"""Rows attend to a beginning that they share and to tokens of their own: two attentions, added by their weights.

    o = (exp(a) · o_shared + exp(b) · o_own) / (exp(a) + exp(b))

where a and b are the log-sum-exps of the scores. So keys and values of a beginning lie in memory once, and one matrix
product reads them for all queries of the rows that share it. With the merged output and log-sum-exp, the backward pass
of either attention gives its part of the gradient. This is for CPUs, whose kernel hands out the log-sum-exp.

Shapes: B rows, G groups with a beginning each, n most rows of a group, P tokens of the longest beginning, T new tokens,
L own tokens, K heads of keys, H heads of queries, D size of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import sdpa_mask

from text2grad.models.adapters import half_precision
from text2grad.models.kv_cache import arguments_of, cache_argument
from text2grad.models.pretrained import vocabulary_of
from text2grad.models.probing import evaluating

NAME = "text2grad_shared"
LEAST_SHARED = 128
"""Tokens of a beginning: copies of a shorter one cost less than a second attention."""

_FLASH: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Beginnings:
    """Keys and values of the beginnings, in each layer, and the rows that share them."""

    def __init__(self, cache: Any, groups: Tensor, mask: Tensor) -> None:
        """Take the cache of the beginnings.

        Args:
            cache: [G, K, P, D] in each layer.
            groups: the group of each row, [B].
            mask: of the beginnings, 0 on padding, [G, P].
        """
        self.layers = [(layer.keys, layer.values) for layer in cache.layers]
        self.mask = mask
        self.hold(groups)
        least = torch.finfo(self.layers[0][0].dtype).min / 2  # finite: a beginning may be empty
        self.bias = None if mask.all() else (1 - mask[:, None, None]).to(self.layers[0][0].dtype) * least

    def hold(self, groups: Tensor) -> None:
        """Take the group of each row, [B], in place of the rows before."""
        self.groups = groups
        self.place = (groups[:, None] == groups).tril(-1).sum(1)  # of a row in its group, [B]
        self.most = int(self.place.max()) + 1  # n

    def gather(self, rows: Tensor) -> Tensor:
        """Return tensors of rows, [B, H, T, …], by groups, [G, K, n · H / K · T, …]; zeros where a group has fewer."""
        keys = self.layers[0][0].shape[1]
        rows = rows.reshape(len(rows), keys, -1, *rows.shape[3:])  # [B, K, H / K · T, …]
        whole = rows.new_zeros(len(self.mask), self.most, *rows.shape[1:])
        whole[self.groups, self.place] = rows
        return whole.transpose(1, 2).flatten(2, 3)

    def spread(self, groups: Tensor) -> Tensor:
        """Return what `gather` made into groups as rows."""
        apart = groups.reshape(*groups.shape[:2], self.most, -1, *groups.shape[3:])  # [G, K, n, H / K · T, …]
        return apart.transpose(1, 2)[self.groups, self.place]


class SharingCache(DynamicCache):
    """The cache of tokens that rows have for themselves, behind shared beginnings."""

    def __init__(self, own: Any, beginnings: Beginnings) -> None:
        """Take an empty cache and the beginnings."""
        super().__init__()
        self.layers, self.beginnings = own.layers, beginnings

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many slots of a row are filled, those of its beginning included."""
        return self.beginnings.mask.shape[1] + super().get_seq_length(layer_idx)

    def reorder_cache(self, beam_idx: Any) -> None:
        """Keep some rows."""
        super().reorder_cache(beam_idx)
        self.beginnings.hold(self.beginnings.groups[beam_idx])


def attends_to_shared(trunk: Any, cache: Any, rows: int) -> bool:
    """Return whether B rows of a trunk can attend to the beginnings in a cache, [G, K, P, D], and that pays."""
    keys = cache.layers[0].keys
    return keys.shape[2] >= LEAST_SHARED and rows >= 2 * len(keys) and can_attend_to_shared(trunk)


def can_attend_to_shared(trunk: Any) -> bool:
    """Return whether a few tokens behind shared ones get the states of whole rows; tried once per architecture.

    Some architectures change keys and values behind the cache, or have an attention of their own. Models in shards
    (FSDP 2) keep copies: a pass of theirs waits for all processes, whose prompts are of other lengths.
    """
    config, sharded = trunk.config, any(hasattr(module, "unshard") for module in trunk.modules())
    if sharded or trunk.device.type != "cpu" or config._attn_implementation != "sdpa":
        return False
    if config.model_type not in _right:
        ids = (torch.arange(16).reshape(2, 8) * 5 + 3) % int(min(vocabulary_of(trunk), 2**16))
        ids[1, :4] = ids[0, :4]
        cache, given = DynamicCache(config=config), cache_argument(arguments_of(trunk))
        with evaluating(trunk):
            whole = trunk(input_ids=ids, use_cache=False).last_hidden_state[:, 4:]
            trunk(input_ids=ids[:1, :4], use_cache=True, **{given: cache})
            try:
                with attending(trunk, Beginnings(cache, torch.zeros(2, dtype=torch.long), torch.ones(1, 4))):
                    states = trunk(input_ids=ids[:, 4:], position_ids=torch.arange(4, 8)[None], use_cache=False)
            except Exception:  # noqa: BLE001  each architecture fails in its own way where it has another attention
                return _right.setdefault(config.model_type, False)
        far = (states.last_hidden_state - whole).abs().max() / whole.abs().max()
        _right[config.model_type] = bool(far < (0.05 if half_precision(trunk) else 1e-4))
    return _right[config.model_type]


@contextmanager
def attending(model: Any, beginnings: Beginnings) -> Iterator[None]:
    """Let the rows of a model's passes attend to beginnings in the block."""
    config = model.config
    before, config._attn_implementation = config._attn_implementation, NAME
    _now.append(beginnings)
    try:
        yield
    finally:
        _now.pop()
        config._attn_implementation = before


_now: list[Beginnings] = []
_right: dict[str, bool] = {}  # by type of model


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, scaling: Any = None, **_: Any
) -> tuple[Tensor, None]:
    """Return the output of a layer's attention, [B, T, H, D]; called by transformers."""
    rows, heads, steps, size = query.shape
    per_key = heads // key.shape[1]
    if steps == 1:
        query = query.reshape(rows, key.shape[1], per_key, size)
    else:
        key, value = (part.repeat_interleave(per_key, 1) if per_key > 1 else part for part in (key, value))
    beginnings = _now[-1]
    tensors = (query, key, value, *beginnings.layers[module.layer_idx])
    out = _Attention.apply(beginnings, steps > 1, scaling, *tensors)  # type: ignore[no-untyped-call]
    return out.reshape(rows, heads, steps, size).transpose(1, 2), None


class _Attention(torch.autograd.Function):
    """Queries [B, H, T, D] attend to own keys, [B, H, L, D], and to shared ones, [G, K, P, D]."""

    @staticmethod
    def forward(ctx: Any, beginnings: Beginnings, causal: bool, scale: float | None, *tensors: Tensor) -> Tensor:
        """Return the merged output, [B, H, T, D].

        Args:
            ctx: autograd's.
            beginnings: the rows of each group.
            causal: True for a pass over all own tokens, False for one token behind them.
            scale: of the scores; None is 1 / √D.
            tensors: queries, own keys and values, shared keys and values.
        """
        query, key, value, shared_key, shared_value = tensors
        own, own_sum = _FLASH(query, key, value, 0.0, causal, scale=scale)
        queries = beginnings.gather(query)
        ctx.bias = beginnings.bias if beginnings.bias is None else beginnings.bias.expand(-1, -1, queries.shape[2], -1)
        shared = _FLASH(queries, shared_key, shared_value, 0.0, False, attn_mask=ctx.bias, scale=scale)
        out, out_sum = (beginnings.spread(part).reshape(*query.shape[:3], *part.shape[3:]) for part in shared)
        log_sum = torch.logaddexp(own_sum, out_sum)
        weight = (out_sum - log_sum).exp()[..., None]  # in fp32 where the output has 16 bits
        out = torch.lerp(own.to(weight), out.to(weight), weight).to(query)
        ctx.save_for_backward(*tensors, out, log_sum)
        ctx.beginnings, ctx.causal, ctx.scale = beginnings, causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients: with the merged log-sum-exp, exp(score − it) is a key's share."""
        query, key, value, shared_key, shared_value, out, log_sum = ctx.saved_tensors
        own = _FLASH_BACKWARD(grad, query, key, value, out, log_sum, 0.0, ctx.causal, scale=ctx.scale)
        grads, queries, outs, sums = map(ctx.beginnings.gather, (grad, query, out, log_sum))
        shared = _FLASH_BACKWARD(
            grads, queries, shared_key, shared_value, outs, sums, 0.0, False, attn_mask=ctx.bias, scale=ctx.scale
        )
        grad_query = own[0] + ctx.beginnings.spread(shared[0]).reshape(query.shape)
        return None, None, None, grad_query, *own[1:], *shared[1:]


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
