"""The gradient of one PPO minibatch (Algorithm 4, lines 21-28), and the rows that each minibatch holds.

    loss = −L^CLIP + c_v L^VF − c_e L^ENT + β L^KL          (the last term only where the KL is not in the reward)

Micro-batches bound memory and change nothing else: every loss divides by the token count of the whole minibatch over
all processes, and gradients are summed. Shapes: B responses of this process, T response tokens.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.errors import TrainingError
from text2grad.models import Scores, TokenBatch
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.ppo import TOKEN_MEAN, TokenMean, kl_loss, masked_token_mean, policy_loss, value_loss

MOST_RATIO = 10.0  # largest mean ratio of a minibatch: beyond it the policy is far from π_old
RATIO_TOLERANCE = 1e-4  # before the first optimizer step π_θ = π_old, so the ratio is 1 up to fp32 noise
RATIO_TOLERANCE_HALF = 0.1  # mean |log ρ| in 16 bits: SmolLM2 in bf16 gives 0.03 if rows are batched differently


@dataclass(frozen=True, slots=True)
class PPOBatch:
    """Rollouts with their scores, advantages and returns; tensors are [B, T].

    Attributes:
        batch: the rollouts.
        scores: log π_old, log π_ref, KL, entropy and values.
        advantages: A_t.
        returns: targets of the value function.
        kl_coef: β of the KL term in the loss, per nat; 0 with the KL in the reward.
    """

    batch: TokenBatch
    scores: Scores
    advantages: Tensor
    returns: Tensor
    kl_coef: float = 0.0

    def rows(self, index: Tensor) -> "PPOBatch":
        """Return the rows of an index, trimmed to the longest of them."""
        batch = self.batch.rows(index)
        width = batch.response_mask.shape[1]
        scores = Scores(*(x[index, :width] if x.ndim == 2 else x[index] for x in self.scores))
        return PPOBatch(batch, scores, self.advantages[index, :width], self.returns[index, :width], self.kl_coef)


def minibatch_rows(rows: int, minibatches: int, *, seed: int, rank: int = 0, processes: int = 1) -> Iterator[Tensor]:
    """Yield this process's row indices of each minibatch, int64 [rows / minibatches] on average.

    Of every `minibatches` neighbouring rows of the global batch, each goes to a different minibatch, at random. So a
    row's minibatch does not depend on the number of processes, and all minibatches have the same size.

    Args:
        rows: rows of this process; `rows · processes` is a multiple of `minibatches`.
        minibatches: optimizer steps per epoch.
        seed: decides the assignment.
        rank: number of this process.
        processes: number of processes.
    """
    generator = torch.Generator().manual_seed(seed)
    assigned = torch.rand(rows * processes // minibatches, minibatches, generator=generator).argsort(dim=1).flatten()
    mine = assigned[rank * rows :][:rows]
    for number in range(minibatches):
        yield (mine == number).nonzero()[:, 0]


class Totals(NamedTuple):
    """Sums over the tokens of a minibatch, each [] fp64; divided by the number of tokens they are means.

    Attributes:
        policy_loss: −min(ρ A, clip(ρ) A), weighted.
        value_loss: ½ (V − R)², clipped.
        entropy: of the policy, nats.
        ratio: ρ.
        clipped: 1 where the ratio is clipped.
        approx_kl: (ρ − 1) − log ρ, nats.
        not_finite: number of micro-batches whose loss is not finite.
        deviation: |log ρ|, nats.
    """

    policy_loss: Any
    value_loss: Any
    entropy: Any
    ratio: Any
    clipped: Any
    approx_kl: Any
    not_finite: Any
    deviation: Any


def _refuse_infinite(means: Totals) -> None:
    """Stop before an optimizer step that would break the weights."""
    if means.not_finite or not all(map(math.isfinite, means)):
        raise TrainingError(
            f"the loss is not finite (policy {means.policy_loss:.4g}, value {means.value_loss:.4g}) before an "
            "optimizer step, which was not made. Resume from the last checkpoint with a lower optim.lr or a higher "
            "ppo.beta, or look at the last rollouts for what was sampled."
        )


class MinibatchGradient:
    """Accumulates the gradient of the PPO losses over the micro-batches of one minibatch."""

    def __init__(
        self,
        model: Any,
        accelerator: Any,
        *,
        clip_range: float,
        value_clip_range: float | None,
        vf_coef: float,
        entropy_coef: float,
        temperature: float,
        loss_mean: TokenMean = TOKEN_MEAN,
        sizes: PieceSizes,
        half_precision: bool,
    ) -> None:
        """Take the model and the constants of the losses.

        Args:
            model: `PolicyWithValue`, wrapped for several processes where there are several.
            accelerator: accelerate's view of the processes.
            clip_range: ε of the clipped surrogate.
            value_clip_range: ε_v of the value loss, in units of reward; None or 0 leaves it unclipped.
            vf_coef: c_v, weight of the value loss.
            entropy_coef: c_e, weight of the entropy bonus.
            temperature: divides the logits, as in the rollout.
            loss_mean: the mean of the surrogate and of the KL term in the loss.
            sizes: the most tokens of one forward pass, padding included; halved where memory runs out.
            half_precision: True for weights of fewer than 32 bits. Their log-probs depend on the other rows of a batch,
                so the mean of the first |log ρ| is checked, not the largest.
        """
        self.model, self.accelerator = model, accelerator
        self.clip_range, self.value_clip_range = clip_range, value_clip_range or None
        self.vf_coef, self.entropy_coef = vf_coef, entropy_coef
        self.temperature, self.sizes = temperature, sizes
        self.loss_mean = loss_mean
        self.half_precision = half_precision
        self.tolerance = RATIO_TOLERANCE_HALF if half_precision else RATIO_TOLERANCE

    def __call__(self, minibatch: PPOBatch, *, first: bool) -> dict[str, float]:
        """Add the gradient of one minibatch to the parameters and return its metrics.

        Args:
            minibatch: this process's rows of the minibatch.
            first: True before the first optimizer step on these rollouts, when every ratio must be 1.

        Raises:
            TrainingError: if a loss is not finite, or a first ratio is not 1.
        """
        return self.sizes.in_micro_batches(minibatch.batch, lambda: self._minibatch(minibatch, first))

    def _minibatch(self, minibatch: PPOBatch, first: bool) -> dict[str, float]:
        """Do the work of `__call__` in micro-batches of the present size; a failed attempt leaves no gradient."""
        self.model.zero_grad(set_to_none=True)
        mask = minibatch.batch.response_mask
        counts = torch.tensor([float(mask.sum()), len(mask)], dtype=torch.float64, device=mask.device)
        token_count, row_count = self._sum(counts).clamp(min=1.0).tolist()
        sums = torch.zeros(len(Totals._fields), dtype=torch.float64, device=minibatch.batch.ids.device)
        deviation = ratio_max = torch.zeros((), device=sums.device)
        batch, groups = self.sizes.pieces(minibatch.batch)
        minibatch = replace(minibatch, batch=batch)
        for number, index in enumerate(groups, start=1):
            part, last = minibatch.rows(index), number == len(groups)
            # Shards add up their gradients after each piece: whole gradients would take the memory of whole weights.
            with nullcontext() if last or self.sizes.largest else self.accelerator.no_sync(self.model):
                totals, part_deviation, part_ratio_max = self._micro_batch(part, token_count, row_count)
            sums += torch.stack(totals)
            deviation = torch.maximum(deviation, part_deviation)
            ratio_max = torch.maximum(ratio_max, part_ratio_max)
        means = Totals(*(self._sum(sums) / token_count).tolist())
        _refuse_infinite(means)
        if first:
            self._refuse_other_policy(means.deviation if self.half_precision else self._max(deviation))
        metrics = {
            "update/policy_loss": means.policy_loss,
            "update/value_loss": means.value_loss,
            "update/ratio_mean": means.ratio,
            "update/ratio_max": self._max(ratio_max),
            "update/clip_fraction": means.clipped,
            "update/approx_kl_per_token": means.approx_kl,
        }
        return metrics | ({"update/entropy_per_token": means.entropy} if self.entropy_coef else {})

    def _micro_batch(self, part: PPOBatch, token_count: float, row_count: float) -> tuple["Totals", Tensor, Tensor]:
        """Run forward and backward; return the totals, the largest |log ρ| and the largest ρ."""
        mask, scores = part.batch.response_mask, part.scores
        passes = self.model(part.batch, temperature=self.temperature, with_entropy=self.entropy_coef > 0)
        weights = self.loss_mean.weights(mask, token_count=token_count, row_count=row_count)
        surrogate = policy_loss(
            passes.logp,
            scores.logp,
            part.advantages * weights,
            mask,
            clip_range=self.clip_range,
            token_count=token_count,
        )
        value = value_loss(
            passes.values, scores.values, part.returns, mask, clip_range=self.value_clip_range, token_count=token_count
        )
        loss = surrogate.loss + self.vf_coef * value
        entropy = passes.entropy.detach().masked_fill(~mask, 0.0).sum()
        if self.entropy_coef:
            loss = loss - self.entropy_coef * masked_token_mean(passes.entropy, mask, token_count=token_count)
        if part.kl_coef:
            loss = loss + part.kl_coef * kl_loss(passes.logp, scores.logp_ref, mask, weights, token_count=token_count)
        if loss.requires_grad:  # DDP and FSDP average gradients over processes; the losses need their sum
            self.accelerator.backward(loss * self.accelerator.num_processes)
        log_ratio = (passes.logp.detach() - scores.logp).abs().masked_fill(~mask, 0.0)
        totals = Totals(
            policy_loss=surrogate.loss.detach().double() * token_count,
            value_loss=value.detach().double() * token_count,
            entropy=entropy.double(),
            ratio=surrogate.ratio_sum.double(),
            clipped=surrogate.clipped_count.double(),
            approx_kl=surrogate.approx_kl_sum.double(),
            not_finite=(~torch.isfinite(loss.detach())).double(),
            deviation=log_ratio.double().sum(),
        )
        largest = log_ratio.max() if log_ratio.numel() else torch.zeros((), device=log_ratio.device)
        return totals, largest, surrogate.ratio_max

    def _refuse_other_policy(self, deviation: float) -> None:
        """Stop where the first pass is not that of π_old: the ratios would compare the wrong distributions."""
        if deviation > self.tolerance:
            which = "mean" if self.half_precision else "largest"
            raise TrainingError(
                f"before the first optimizer step the policy is π_old, but the {which} |log π − log π_old| is "
                f"{deviation:.2g} (tolerance {self.tolerance:.0e}): the model is not deterministic (dropout, or "
                "a layer that depends on the batch), so PPO's ratios would compare noise"
            )

    def _sum(self, x: Tensor) -> Tensor:
        return self.accelerator.reduce(x, reduction="sum")  # type: ignore[no-any-return]

    def _max(self, x: Tensor) -> float:
        return float(self.accelerator.gather(x.reshape(1)).max())


def ppo_epochs(
    gradient: MinibatchGradient,
    optimizers: Optimizers,
    data: PPOBatch,
    *,
    epochs: int,
    minibatches: int,
    seed: int,
    max_ratio: float = MOST_RATIO,
) -> dict[str, float]:
    """Run lines 19-31 of Algorithm 4 on one batch of rollouts and return the means of the minibatches' metrics.

    Args:
        gradient: accumulates the gradient of one minibatch.
        optimizers: the optimizers of policy and value function.
        data: this process's rollouts.
        epochs: passes over the rollouts.
        minibatches: optimizer steps per pass.
        seed: decides which rows each minibatch holds, anew in each pass.
        max_ratio: a minibatch with a larger mean ratio is skipped: no optimizer step is made, and it is counted.

    Raises:
        TrainingError: if a loss or a gradient is not finite, or the first ratio is not 1.
    """
    accelerator, values = gradient.accelerator, defaultdict[str, list[float]](list)
    rank, processes = accelerator.process_index, accelerator.num_processes
    for epoch in range(epochs):
        rows = minibatch_rows(len(data.batch.ids), minibatches, seed=seed + epoch, rank=rank, processes=processes)
        for number, index in enumerate(rows):
            metrics = gradient(data.rows(index), first=epoch == number == 0)
            skipped = metrics["update/ratio_mean"] > max_ratio
            if skipped:
                optimizers.zero_grad()
            else:
                metrics |= optimizers.step()
            for name, value in {**metrics, "update/skipped": float(skipped)}.items():
                values[name].append(value)
    skips = sum(values.pop("update/skipped"))
    means = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
    return {**means, "update/skipped": skips, "update/epochs": float(epochs)}
