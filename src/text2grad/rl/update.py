"""The gradient of one PPO minibatch (Algorithm 4, lines 21-28), and the rows that each minibatch holds.

    loss = −L^CLIP + c_v L^VF − c_e L^ENT + β L^KL          (the last term only where the KL is not in the reward)

Micro-batches bound memory and change nothing else: every loss divides by the token count of the whole minibatch over
all processes, and gradients are summed. Shapes: B responses of this process, T response tokens.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from text2grad.config import PPOConfig
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
    row's minibatch does not depend on the number of processes, and all minibatches have the same size. `rows` are those
    of this process, whose number is `rank`; `rows · processes` is a multiple of `minibatches`.
    """
    generator = torch.Generator().manual_seed(seed)
    assigned = torch.rand(rows * processes // minibatches, minibatches, generator=generator).argsort(dim=1).flatten()
    mine = assigned[rank * rows :][:rows]
    for number in range(minibatches):
        yield (mine == number).nonzero()[:, 0]


class MinibatchGradient:
    """Accumulates the gradient of the PPO losses over the micro-batches of one minibatch."""

    def __init__(
        self,
        model: Any,
        accelerator: Any,
        ppo: PPOConfig,
        *,
        temperature: float,
        loss_mean: TokenMean = TOKEN_MEAN,
        sizes: PieceSizes,
        half_precision: bool,
    ) -> None:
        """Take the model and the constants of the losses.

        Args:
            model: `PolicyWithValue`, wrapped for several processes where there are several.
            accelerator: accelerate's view of the processes.
            ppo: [ppo] of a recipe: the clip ranges, the weights of the losses, epochs and minibatches.
            temperature: divides the logits, as in the rollout.
            loss_mean: the mean of the surrogate and of the KL term in the loss.
            sizes: the most tokens of one forward pass, padding included; halved where memory runs out.
            half_precision: True for weights of fewer than 32 bits. Their log-probs depend on the other rows of a batch,
                so the mean of the first |log ρ| is checked, not the largest.
        """
        self.model, self.accelerator, self.ppo, self.sizes = model, accelerator, ppo, sizes
        self.temperature, self.loss_mean, self.half_precision = temperature, loss_mean, half_precision
        self._checked = False  # whether a second pass over new rollouts gave log π_old

    @contextmanager
    def sharing_first_pass(self) -> Iterator[None]:
        """Let scoring in the block make the first pass of the update, too: π_θ is π_old there.

        The graph of one micro-batch stays in memory until the update. The first update of a process makes a pass of its
        own, which shows that the model is deterministic; so do several processes, several minibatches, whose
        micro-batches are others, and an entropy bonus, since scoring computes no gradient of the entropy.
        """
        alone = self.accelerator.num_processes == self.ppo.minibatches == 1 and self.sizes.largest is None
        self.sizes.keeps = self._checked and alone and not self.ppo.entropy_coef
        try:
            yield
        finally:
            self.sizes.keeps = False

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
        sums: dict[str, Any] = defaultdict(float)
        largest: dict[str, list[Tensor]] = defaultdict(list)
        batch, groups = self.sizes.pieces(minibatch.batch)
        minibatch = replace(minibatch, batch=batch)
        kept, self.sizes.kept = self.sizes.kept, None
        for number, index in enumerate(groups, start=1):
            part, last = minibatch.rows(index), number == len(groups)
            # Shards add up their gradients after each piece: whole gradients would take the memory of whole weights.
            with nullcontext() if last or self.sizes.largest else self.accelerator.no_sync(self.model):
                same = kept[1] if first and kept and torch.equal(index, kept[0]) else None
                part_sums, part_largest = self._micro_batch(part, token_count, row_count, same)
            for name, value in part_sums.items():
                sums[name] += value
            for name, value in part_largest.items():
                largest[name].append(value)
        totals = self._sum(torch.stack(list(sums.values())))
        means = dict(zip(sums, (totals / token_count).tolist(), strict=True))
        maxima = {name: self.largest(torch.stack(values).max()) for name, values in largest.items()}
        _refuse_infinite(means)
        if first:
            self._refuse_other_policy((means if self.half_precision else maxima)["deviation"])
            self._checked = True
        return {name: value for name, value in {**means, **maxima}.items() if name.startswith("update/")}

    def _micro_batch(
        self, part: PPOBatch, token_count: float, row_count: float, kept: Scores | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Run forward, unless scoring has kept its pass, and backward.

        Returns:
            Sums over the tokens by name, each [] fp64; divided by the number of tokens they are the means of the
            metrics, of `not_finite` (micro-batches whose loss is not finite) and of `deviation` (|log ρ| in nats). And
            the largest ratio and deviation.
        """
        mask, scores, ppo = part.batch.response_mask, part.scores, self.ppo
        passes = kept or self.model(part.batch, temperature=self.temperature, with_entropy=ppo.entropy_coef > 0)
        weights = self.loss_mean.weights(mask, token_count=token_count, row_count=row_count)
        surrogate = policy_loss(
            passes.logp,
            scores.logp,
            part.advantages * weights,
            mask,
            clip_range=ppo.clip_range,
            token_count=token_count,
        )
        near = ppo.value_clip_range or None
        value = value_loss(passes.values, scores.values, part.returns, mask, clip_range=near, token_count=token_count)
        loss = surrogate.loss + ppo.vf_coef * value
        if ppo.entropy_coef:
            loss = loss - ppo.entropy_coef * masked_token_mean(passes.entropy, mask, token_count=token_count)
        if part.kl_coef:
            loss = loss + part.kl_coef * kl_loss(passes.logp, scores.logp_ref, mask, weights, token_count=token_count)
        if not loss.requires_grad:
            raise TrainingError(
                "the loss has no gradient, so no weight would be learned: "
                + ("no weight is trainable" if torch.is_grad_enabled() else "autograd is off (torch.set_grad_enabled)")
            )
        # DDP and FSDP average gradients over processes; the losses need their sum.
        self.accelerator.backward(loss * self.accelerator.num_processes)
        log_ratio = (passes.logp.detach() - scores.logp).abs().masked_fill(~mask, 0.0)
        sums = {
            "update/policy_loss": surrogate.loss.detach().double() * token_count,
            "update/value_loss": value.detach().double() * token_count,
            "update/ratio_mean": surrogate.ratio_sum.double(),
            "update/clip_fraction": surrogate.clipped_count.double(),
            "update/approx_kl_per_token": surrogate.approx_kl_sum.double(),
            "not_finite": (~torch.isfinite(loss.detach())).double(),
            "deviation": log_ratio.double().sum(),
        }
        if ppo.entropy_coef:
            sums["update/entropy_per_token"] = passes.entropy.detach().masked_fill(~mask, 0.0).sum().double()
        deviation = log_ratio.max() if log_ratio.numel() else log_ratio.new_zeros(())
        return sums, {"update/ratio_max": surrogate.ratio_max, "deviation": deviation}

    def _refuse_other_policy(self, deviation: float) -> None:
        """Stop where the first pass is not that of π_old: the ratios would compare the wrong distributions."""
        tolerance = RATIO_TOLERANCE_HALF if self.half_precision else RATIO_TOLERANCE
        if deviation > tolerance:
            which = "mean" if self.half_precision else "largest"
            raise TrainingError(
                f"before the first optimizer step the policy is π_old, but the {which} |log π − log π_old| is "
                f"{deviation:.2g} (tolerance {tolerance:.0e}): the model is not deterministic (dropout, or "
                "a layer that depends on the batch), so PPO's ratios would compare noise"
            )

    def _sum(self, x: Tensor) -> Tensor:
        return self.accelerator.reduce(x, reduction="sum")  # type: ignore[no-any-return]

    def largest(self, x: Tensor) -> float:
        """Return the largest of the numbers [] of all processes."""
        return float(self.accelerator.gather(x.reshape(1)).max())


def _refuse_infinite(means: Mapping[str, float]) -> None:
    """Stop before an optimizer step that would break the weights."""
    if means["not_finite"] or not all(map(math.isfinite, means.values())):
        raise TrainingError(
            f"the loss is not finite (policy {means['update/policy_loss']:.4g}, value {means['update/value_loss']:.4g})"
            " before an optimizer step, which was not made. Resume from the last checkpoint with a lower optim.lr or a "
            "higher ppo.beta, or look at the last rollouts for what was sampled."
        )


def ppo_epochs(
    gradient: MinibatchGradient, optimizers: Optimizers, data: PPOBatch, *, seed: int, max_ratio: float = MOST_RATIO
) -> dict[str, float]:
    """Run lines 19-31 of Algorithm 4 on one batch of rollouts and return the means of the minibatches' metrics.

    Args:
        gradient: accumulates the gradient of one minibatch.
        optimizers: the optimizers of policy and value function.
        data: this process's rollouts.
        seed: decides which rows each minibatch holds, anew in each pass.
        max_ratio: a minibatch with a larger mean ratio is skipped: no optimizer step is made, and it is counted.

    Raises:
        TrainingError: if a loss or a gradient is not finite, the first ratio is not 1, or the gradient of the policy is
            exactly 0 although a token has an advantage.
    """
    accelerator, values = gradient.accelerator, defaultdict[str, list[float]](list)
    rank, processes = accelerator.process_index, accelerator.num_processes
    count, epochs = gradient.ppo.minibatches, gradient.ppo.epochs
    for epoch in range(epochs):
        rows = minibatch_rows(len(data.batch.ids), count, seed=seed + epoch, rank=rank, processes=processes)
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
    if means.get("update/policy_grad_norm") == 0.0 and gradient.largest(data.advantages.abs().sum()) > 0.0:
        raise TrainingError(
            "the gradient of the policy is exactly 0 although tokens have advantages, so nothing is learned: its "
            "trainable weights do not reach its log-probs. Look at what is frozen, detached or cast on the way."
        )
    return {**means, "update/skipped": skips, "update/epochs": float(epochs)}
