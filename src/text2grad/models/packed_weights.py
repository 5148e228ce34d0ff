"""Weights in the layout of oneDNN's matrix products, for steps of a few rows on a CPU.

Torch's own product reads a weight in the order in which it lies in memory, which suits many rows. With 16 rows the
packed product takes 0.55 of the time at 896 × 4,864, and 0.4 of it at an output layer of 151,936 tokens; in bfloat16
0.6 of it at both (torch 2.13, one thread with AVX-512 and its bf16 products). Packing copies the weights, once for all
steps of a batch.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

LEAST_STEPS = 16  # below, the copy takes longer than it saves
LEAST_WEIGHTS = 2**17  # of a matrix; smaller ones lie in the processor's caches


@contextmanager
def packed_weights(model: Any, *, rows: int, steps: int) -> Iterator[None]:
    """Let the linear layers of a model multiply by packed weights; not for gradients.

    Args:
        model: changed within the context alone; not at all on other devices than a CPU, nor in 16 bits but for bfloat16
            on a CPU that has products of it.
        rows: of the products, which packing is for; others are right, too.
        steps: about as many passes will follow.
    """
    with ExitStack() as undo:
        if steps >= LEAST_STEPS and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            for layer in filter(_can_be_packed, model.modules()):
                packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
                layer.forward = partial(_product, packed, layer.bias)
                undo.callback(layer.__dict__.pop, "forward")
        yield


def _can_be_packed(layer: nn.Module) -> bool:
    """Return whether a layer is torch's own, whole, of a type with packed products, on a CPU, and large."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    weight = layer.weight.data
    if type(weight) is not Tensor or weight.device.type != "cpu" or weight.numel() < LEAST_WEIGHTS:
        return False
    halves = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return halves or weight.dtype == torch.float32


def _product(packed: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    """Return x Wᵀ + b."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")
    return product
