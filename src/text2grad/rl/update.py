"""One PPO update on one batch of rollouts (Algorithm 4, lines 19-31).

Micro-batches bound memory and change nothing else: every loss divides by the token count of the whole optimizer batch
over all processes, and gradients are summed. Shapes: B responses of this process, T response tokens.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from text2grad.config import PPOConfig
from text2grad.errors import TrainingError
from text2grad.models import Scores, TokenBatch
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.ppo import masked_token_mean, policy_loss, value_loss

RATIO_TOLERANCE = 1e-4  # before the first optimizer step the policy is π_old: ratio 1 up to fp32 noise
RATIO_TOLERANCE_HALF = 0.05


@dataclass(frozen=True, slots=True)
class Learning:
    """What PPO learns from: rollouts, their scores, advantages and returns; tensors are [B, T]."""

    batch: TokenBatch
    scores: Scores
    advantages: Tensor
    returns: Tensor

    def rows(self, index: Tensor) -> "Learning":
        """Return some rows, trimmed to the longest of them."""
        batch = self.batch.rows(index)
        width = batch.response_mask.shape[1]
        scores = Scores(*(x[index, :width] if x.ndim == 2 else x[index] for x in self.scores))
        return Learning(batch, scores, self.advantages[index, :width], self.returns[index, :width])


class Updater:
    """Runs epochs × minibatches × micro-batches of clipped PPO and counts what it saw."""

    def __init__(
        self,
        model: Any,
        accelerator: Any,
        config: PPOConfig,
        *,
        temperature: float,
        optimizers: Optimizers,
        half_precision: bool,
    ) -> None:
        """Take the (possibly wrapped) `PolicyWithValue` and its optimizers.

        Args:
            model: the trainable module, wrapped for several processes where there are several.
            accelerator: accelerate's.
            config: the PPO settings.
            temperature: the rollout's.
            optimizers: those of policy and value function.
            half_precision: True when weights have fewer than 32 bits, which widens the first ratio's tolerance.
        """
        self.model, self.accelerator, self.config = model, accelerator, config
        self.temperature, self.optimizers = temperature, optimizers
        self.tolerance = RATIO_TOLERANCE_HALF if half_precision else RATIO_TOLERANCE

    def __call__(self, learning: Learning, *, seed: int) -> dict[str, float]:
        """Update on one batch and return the means of what was seen.

        Args:
            learning: this process's rows.
            seed: orders rows into minibatches.

        Raises:
            TrainingError: if a loss is not finite, or the first ratio is not 1.
        """
        seen: dict[str, list[float]] = defaultdict(list)
        for epoch in range(self.config.epochs):
            for number, index in enumerate(self._minibatches(len(learning.batch.ids), seed + epoch)):
                found = self._minibatch(learning.rows(index), first=epoch == number == 0)
                for name, value in found.items():
                    seen[name].append(value)
            limit = self.config.stop_kl
            if limit is not None and seen["update/approx_kl_per_token"][-1] > 1.5 * limit:
                break
        counted = {name: sum(seen.pop(name)) for name in ("update/skipped",)}
        means = {name: sum(values) / len(values) for name, values in seen.items()}
        return {**means, **counted, "update/epochs": float(epoch + 1)}

    def _minibatches(self, rows: int, seed: int) -> Iterator[Tensor]:
        """Yield this process's rows of each minibatch.

        Of every `minibatches` neighbouring rows of the global batch each goes to another minibatch, at random. So a
        row's minibatch does not depend on how many processes there are, and each has as many rows.
        """
        count, processes = self.config.minibatches, self.accelerator.num_processes
        generator = torch.Generator().manual_seed(seed)
        assigned = torch.rand(rows * processes // count, count, generator=generator).argsort(dim=1).flatten()
        mine = assigned[self.accelerator.process_index * rows :][:rows]
        for number in range(count):
            yield (mine == number).nonzero()[:, 0]

    def _minibatch(self, learning: Learning, *, first: bool) -> dict[str, float]:
        tokens = float(self._sum(learning.batch.response_mask.sum().double()))
        token_count = max(tokens, 1.0)
        sums = torch.zeros(7, dtype=torch.float64, device=learning.batch.ids.device)
        deviation = ratio_max = torch.zeros((), device=sums.device)
        micro_batches = [learning.rows(index) for index in learning.batch.groups(self.config.micro_batch_tokens)]
        for number, part in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                found = self._micro_batch(part, token_count)
            sums += found[0]
            deviation, ratio_max = torch.maximum(deviation, found[1]), torch.maximum(ratio_max, found[2])
        return self._finish(self._sum(sums), self._max(deviation), self._max(ratio_max), token_count, first)

    def _micro_batch(self, part: Learning, token_count: float) -> tuple[Tensor, Tensor, Tensor]:
        """Run forward and backward; return sums over tokens, and the largest |log ρ| and ρ."""
        config, mask, scores = self.config, part.batch.response_mask, part.scores
        passes = self.model(part.batch, temperature=self.temperature, with_entropy=config.entropy_coef > 0)
        surrogate = policy_loss(
            passes.logp,
            scores.logp,
            part.advantages,
            mask,
            clip_range=config.clip_range,
            token_count=token_count,
        )
        value = value_loss(
            passes.values,
            scores.values,
            part.returns,
            mask,
            clip_range=config.value_clip_range or None,
            token_count=token_count,
        )
        loss = surrogate.loss + config.vf_coef * value
        entropy = passes.entropy.detach().masked_fill(~mask, 0.0).sum()
        if config.entropy_coef:
            loss = loss - config.entropy_coef * masked_token_mean(passes.entropy, mask, token_count=token_count)
        if loss.requires_grad:  # DDP averages over processes what must be summed
            self.accelerator.backward(loss * self.accelerator.num_processes)
        log_ratio = (passes.logp.detach() - scores.logp).abs().masked_fill(~mask, 0.0)
        sums = torch.stack(
            [
                surrogate.loss.detach().double() * token_count,
                value.detach().double() * token_count,
                entropy.double(),
                surrogate.ratio_sum.double(),
                surrogate.clipped_count.double(),
                surrogate.approx_kl_sum.double(),
                (~torch.isfinite(loss.detach())).double(),
            ]
        )
        return sums, log_ratio.max() if log_ratio.numel() else sums.new_zeros(()).float(), surrogate.ratio_max

    def _finish(
        self, sums: Tensor, deviation: float, ratio_max: float, token_count: float, first: bool
    ) -> dict[str, float]:
        loss, value, entropy, ratio, clipped, approx_kl, broken = (float(x) for x in sums)
        if broken or not all(map(torch.isfinite, sums)):
            raise TrainingError(
                f"the loss is not finite (policy {loss / token_count:.4g}, value {value / token_count:.4g}) before an "
                "optimizer step, which was not made. Resume from the last checkpoint with a lower optim.lr or a higher "
                "ppo.beta, or look at the last rollouts for what was sampled."
            )
        if first and deviation > self.tolerance:
            raise TrainingError(
                f"before the first optimizer step the policy is π_old, but log π − log π_old is {deviation:.2g} "
                f"(tolerance {self.tolerance:.0e}): the model is not deterministic (dropout, or a layer that depends "
                "on the batch), so PPO's ratios would compare noise"
            )
        found = {
            "update/policy_loss": loss / token_count,
            "update/value_loss": value / token_count,
            "update/ratio_mean": ratio / token_count,
            "update/ratio_max": ratio_max,
            "update/clip_fraction": clipped / token_count,
            "update/approx_kl_per_token": approx_kl / token_count,
            "update/skipped": 0.0,
        }
        if self.config.entropy_coef:
            found["update/entropy_per_token"] = entropy / token_count
        if found["update/ratio_mean"] > self.config.max_ratio:
            self.optimizers.zero_grad()
            return {**found, "update/skipped": 1.0}
        return {**found, **self.optimizers.step()}

    def _sum(self, x: Tensor) -> Tensor:
        return self.accelerator.reduce(x, reduction="sum")  # type: ignore[no-any-return]

    def _max(self, x: Tensor) -> float:
        return float(self.accelerator.gather(x.reshape(1)).max())
