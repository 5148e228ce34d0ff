"""Muon for the matrices of a model and AdamW for the rest: small models learn to read several times as fast.

Muon (arXiv 2502.16982) makes the momentum of a matrix orthogonal before it is added, so that each of its directions
is learned at the same pace. Its step is scaled to the size of AdamW's, hence one learning rate serves both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MuonAdamW(torch.optim.Optimizer):
    """One optimizer of two: Muon for the hidden matrices; AdamW for embeddings, the output layer and vectors."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        """Take the trainable parameters of a model.

        Args:
            model: an embedding or output layer is told by its type and by `get_output_embeddings`.
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
            self._parts.append(torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
        if rest:
            self._parts.append(torch.optim.AdamW(rest, lr=lr, weight_decay=0.0))
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step both, with the learning rates that a schedule has put into `param_groups`."""
        loss = None if closure is None else closure()
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()
        return loss
