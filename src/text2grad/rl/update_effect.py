"""What an update did: log π of its own tokens before and after all epochs, and where its gradient came from.

With `run.track_update = n`, every n-th step adds to the records of its rollouts

    logp          log π_old(y_t)
    logp_after    log π_θ(y_t) after all epochs of the step

and to its metrics the norms of the surrogate's gradient at π_old, over the whole batch and before clipping,

    ∇_S = −1/N Σ_{t in S} w_t A_t ∇_θ log π_θ(y_t),   S: all tokens, tokens with δ ≠ 0, tokens with δ = 0

(N: all tokens of the batch; w: the weights of `ppo.loss_mean`) as update/gradient_norm, update/gradient_norm_labelled
and update/gradient_norm_unlabelled. A KL term in the loss and the entropy bonus are left out.

Nothing of the training changes: no gradient is stored, no random number drawn. A measurement costs a forward pass and
three forward and backward passes. Shapes: B responses of this process, T response tokens.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from text2grad.models import PolicyWithValue, TokenBatch, response_logprobs
from text2grad.rl.metrics import Record
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.ppo import TOKEN_MEAN, TokenMean

DIGITS = 6  # of a log-prob in a record


class UpdateEffect:
    """Measures every n-th update, without changing it."""

    def __init__(
        self,
        model: PolicyWithValue,
        accelerator: Any,
        sizes: PieceSizes,
        *,
        every: int,
        temperature: float,
        loss_mean: TokenMean = TOKEN_MEAN,
    ) -> None:
        """Take the model, not wrapped for several processes.

        Args:
            model: policy and value function.
            accelerator: accelerate's.
            sizes: the most tokens of one forward pass.
            every: steps between measurements; 0 measures none.
            temperature: of the rollout.
            loss_mean: the mean of the surrogate.
        """
        self.model, self.accelerator, self.sizes = model, accelerator, sizes
        self.every, self.temperature, self.loss_mean = every, temperature, loss_mean

    def due(self, step: int) -> bool:
        """Tell whether the update of this step is measured."""
        return self.every > 0 and step % self.every == 0

    def before(
        self, step: int, batch: TokenBatch, advantages: Tensor, deltas: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return the norms of the surrogate's gradient before the update, or nothing if the step is not due.

        Args:
            step: number of the step.
            batch: this process's rollouts.
            advantages: A_t, [B, T].
            deltas: δ of each response, one number per sampled token.
        """
        if not self.due(step):
            return {}
        labelled = torch.zeros_like(batch.response_mask)
        for row, values in enumerate(deltas):
            labelled[row, : len(values)] = torch.tensor(values, device=labelled.device) != 0
        mask = batch.response_mask
        counts = torch.tensor([float(mask.sum()), len(mask)], dtype=torch.float64, device=mask.device)
        count, rows = self._sum(counts).clamp(min=1.0).tolist()
        weighted = advantages * self.loss_mean.weights(mask, token_count=count, row_count=rows) / count
        parts = {"": mask, "_labelled": labelled, "_unlabelled": mask & ~labelled}
        norms = {}
        for name, tokens in parts.items():
            work = partial(self._norm, batch, weighted * tokens)
            norms[f"update/gradient_norm{name}"] = self.sizes.in_micro_batches(batch, work)
        return norms

    def after(self, step: int, batch: TokenBatch, before: Tensor, records: Sequence[Record]) -> None:
        """Add `logp` and `logp_after` to the records of a step that is due.

        Args:
            step: number of the step.
            batch: this process's rollouts.
            before: log π_old, [B, T].
            records: of the responses of all processes, in the order of the processes.
        """
        if not self.due(step):
            return
        after = self.sizes.in_micro_batches(batch, lambda: self._log_probs(batch))
        rows = zip(before.tolist(), after.tolist(), batch.response_lengths.tolist(), strict=True)
        columns = gather_object([(_rounded(old[:length]), _rounded(new[:length])) for old, new, length in rows])
        for record, (old, new) in zip(records, columns, strict=True):
            record |= {"logp": old, "logp_after": new}

    @torch.no_grad()
    def _log_probs(self, batch: TokenBatch) -> Tensor:
        found = torch.zeros(batch.response_mask.shape, device=batch.ids.device)
        for index in batch.groups(self.sizes.micro_batch_tokens):
            logp, _, _ = response_logprobs(self.model.policy, batch.rows(index), temperature=self.temperature)
            found[index, : logp.shape[1]] = logp
        return found

    def _norm(self, batch: TokenBatch, weights: Tensor) -> float:
        """Return the norm of Σ weights · ∇_θ log π_θ over all processes; weights: [B, T], zero outside the mask."""
        parameters = self.model.policy_parameters()
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for index in batch.groups(self.sizes.micro_batch_tokens):
            part = batch.rows(index)
            logp, _, _ = response_logprobs(self.model.policy, part, temperature=self.temperature)
            if not logp.requires_grad:
                continue
            weighted = (weights[index, : logp.shape[1]] * logp).sum()
            for found, gradient in zip(
                total, torch.autograd.grad(weighted, parameters, allow_unused=True), strict=True
            ):
                if gradient is not None:
                    found += gradient
        squares = [self._sum(found).float().square().sum().double() for found in total]
        return float(torch.stack(squares).sum().sqrt()) if squares else 0.0

    def _sum(self, x: Tensor) -> Tensor:
        return self.accelerator.reduce(x, reduction="sum")  # type: ignore[no-any-return]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]
