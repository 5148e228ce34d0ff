"""Muon for the matrices of a model and AdamW for the rest: small models learn to read several times as fast.

Muon (arXiv 2502.16982) makes the momentum of a matrix orthogonal before it is added, so that each of its directions
is learned at the same pace. Its step is scaled to the size of AdamW's, hence one learning rate serves both.

`torch.optim.Muon` makes one matrix after another orthogonal, in bf16, which many CPUs compute slowly: a fifth of the
training time of a small model, or more. Here the matrices of one shape are made orthogonal together, on a CPU in fp32.
"""

from collections import defaultdict
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c: a x + b x³ + c x⁵ brings singular values from (0, 1] near 1


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and steps of the size of AdamW's (`match_rms_adamw` of `torch.optim.Muon`)."""

    def __init__(self, matrices: list[nn.Parameter], lr: float) -> None:
        """Take matrices and their learning rate."""
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no trainer has a closure
        """Add the orthogonal momentum to the matrices that have a gradient."""
        for group in self.param_groups:
            alike = defaultdict[torch.Size, list[nn.Parameter]](list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for shape, matrices in alike.items():
                steps = orthogonal(torch.stack([self._momentum(matrix) for matrix in matrices]))
                for matrix, step in zip(matrices, steps, strict=True):
                    matrix.add_(step, alpha=-group["lr"] * 0.2 * sqrt(max(shape)))

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        """Add the gradient to a matrix's momentum, and return it as the next step will find it (Nesterov)."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        momentum = state["momentum_buffer"].lerp_(matrix.grad, 1.0 - MOMENTUM)
        return matrix.grad.lerp(momentum, MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1, by Newton-Schulz iterations.

    Args:
        matrices: [N, rows, columns].
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.float() if matrices.device.type == "cpu" else matrices.bfloat16()
    result = result.mT if tall else result
    result = result / result.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = result @ result.mT
        result = torch.baddbmm(result, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), result, beta=a)
    return (result.mT if tall else result).to(matrices.dtype)


class MuonAdamW(torch.optim.Optimizer):
    """One optimizer of two: Muon for the hidden matrices; AdamW for embeddings, the output layer and vectors."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        """Take the trainable parameters of a model.

        Args:
            model: embedding and output layers are known by type and by `get_output_embeddings`.
            lr: peak learning rate of both.
        """
        outer = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        outer |= {id(p) for p in head.parameters()} if head is not None else set()
        trainable = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in trainable if p.ndim == 2 and min(p.shape) > 1 and id(p) not in outer]
        chosen = {id(p) for p in matrices}
        rest = [p for p in trainable if id(p) not in chosen]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(Muon(matrices, lr))
        if rest:
            self._parts.append(torch.optim.AdamW(rest, lr=lr, weight_decay=0.0))
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step both, with the learning rates that a schedule has put into `param_groups`."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()
