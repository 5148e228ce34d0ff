"""What an update did: log π of its own tokens before and after all epochs, and where its gradient came from.

With `[analysis] track_update = n`, every n-th step adds to the records of its rollouts

    logp                     log π_old(y_t)
    logp_after               log π_θ(y_t) after all epochs of the step
    logp_without_momentum    the same, had AdamW's momentum been zero before the step (`EarlierMomentum`)

and to its metrics the norms of the surrogate's gradient at π_old, over the whole batch and before clipping,

    ∇_S = −1/N Σ_{t in S} w_t A_t ∇_θ log π_θ(y_t),   S: all tokens, tokens with δ ≠ 0, tokens with δ = 0

(N: all tokens of the batch; w: the weights of `ppo.loss_mean`) as update/gradient_norm, update/gradient_norm_labelled
and update/gradient_norm_unlabelled. A KL term in the loss and the entropy bonus are left out.

Nothing of the training changes: no gradient is stored, no random number drawn. A measurement costs two forward passes,
three forward and backward passes, and memory for three copies of the trained weights. Shapes: B responses of this
process, T response tokens.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
from accelerate.utils import gather_object
from pydantic import Field
from torch import Tensor

from text2grad.config.section import Section
from text2grad.errors import ConfigError
from text2grad.models import PolicyWithValue, TokenBatch, response_logprobs
from text2grad.rl.metrics import Record
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.ppo import TOKEN_MEAN, TokenMean
from text2grad.rl.step import Instrument, Step

DIGITS = 6  # of a log-prob in a record
LOGGED = ("logp", "logp_after", "logp_without_momentum")


class EarlierMomentum:
    """How far the weights move in an update because of the momentum that AdamW kept of earlier updates.

    AdamW's first moment is m_k = β1 m_{k−1} + (1 − β1) g_k. Of m_0, the moment before the update, β1^k m_0 is left
    after k optimizer steps, so that of the way of the weights this part is due to earlier gradients:

        −Σ_k lr β1^k m_0 / ((1 − β1^n_k) (√(v_k / (1 − β2^n_k)) + ε)),   n_k: AdamW's count of steps
    """

    def __init__(self, optimizer: torch.optim.AdamW) -> None:
        """Keep the momentum, and follow the steps of the optimizer until `end`."""
        self._momentum = {p: state["exp_avg"].clone() for p, state in optimizer.state.items() if "exp_avg" in state}
        self._begin = {p: float(optimizer.state[p]["step"]) for p in self._momentum}
        self.moved = {p: torch.zeros_like(p) for p in self._momentum}
        self._hook = optimizer.register_step_post_hook(self._add)

    def end(self) -> dict[Tensor, Tensor]:
        """Follow no more steps; return the way of each parameter that had momentum."""
        self._hook.remove()
        return self.moved

    @torch.no_grad()
    def _add(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter not in self._momentum or parameter.grad is None:  # without a gradient it is not stepped
                    continue
                count = float(optimizer.state[parameter]["step"])
                root = (optimizer.state[parameter]["exp_avg_sq"] / (1 - second**count)).sqrt() + group["eps"]
                left = first ** (count - self._begin[parameter]) / (1 - first**count)
                self.moved[parameter] -= group["lr"] * left * self._momentum[parameter] / root


class UpdateEffect(Instrument):
    """Measures every n-th update, without changing it."""

    def __init__(
        self,
        model: PolicyWithValue,
        accelerator: Any,
        sizes: PieceSizes,
        optimizer: torch.optim.AdamW | None,
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
            optimizer: of the policy; None if nothing of it is trained.
            every: steps between measurements; 0 measures none.
            temperature: of the rollout.
            loss_mean: the mean of the surrogate.
        """
        self.model, self.accelerator, self.sizes = model, accelerator, sizes
        self.every, self.temperature, self.loss_mean = every, temperature, loss_mean
        self.optimizer = optimizer
        self._earlier: EarlierMomentum | None = None

    def due(self, step: int) -> bool:
        """Tell whether the update of this step is measured."""
        return self.every > 0 and step % self.every == 0

    def before_update(self, step: Step) -> None:
        """Add the norms of the gradient to the metrics of a step that is due."""
        step.metrics |= self.before(step.number, step.batch, step.advantages, step.deltas)

    def after_update(self, step: Step) -> None:
        """Add the log-probs to the records of a step that is due."""
        self.after(step.number, step.batch, step.scores.logp, step.records)

    def before(
        self, step: int, batch: TokenBatch, advantages: Tensor, deltas: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return the norms of the surrogate's gradient before the update, or nothing if the step is not due.

        From here to `after` the steps of the optimizer are followed.

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
        if self._earlier:
            self._earlier.end()
        self._earlier = EarlierMomentum(self.optimizer) if self.optimizer else None
        return norms

    def after(self, step: int, batch: TokenBatch, before: Tensor, records: Sequence[Record]) -> None:
        """Add the log-probs before and after the update to the records of a step that is due.

        Args:
            step: number of the step.
            batch: this process's rollouts.
            before: log π_old, [B, T].
            records: of the responses of all processes, in the order of the processes.
        """
        if not self.due(step):
            return
        after = self.sizes.in_micro_batches(batch, lambda: self._log_probs(batch))
        without = self._without_momentum(batch)
        logged = (one.tolist() for one in (before, after, without, batch.response_lengths))
        columns = gather_object(
            [[_rounded(row[:length]) for row in rows] for *rows, length in zip(*logged, strict=True)]
        )
        for record, found in zip(records, columns, strict=True):
            record |= dict(zip(LOGGED, found, strict=True))

    @torch.no_grad()
    def _without_momentum(self, batch: TokenBatch) -> Tensor:
        """Return the log-probs after the update without the way that earlier momentum made; the weights stay."""
        moved = self._earlier.end() if self._earlier else {}
        self._earlier = None
        kept = {parameter: parameter.detach().clone() for parameter in moved}
        try:
            for parameter, way in moved.items():
                parameter.sub_(way)
            return self.sizes.in_micro_batches(batch, lambda: self._log_probs(batch))
        finally:
            for parameter, weights in kept.items():
                parameter.copy_(weights)

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


class AnalysisConfig(Section):
    """Measurements of a training for the analysis of its updates."""

    track_update: Annotated[int, Field(ge=0)] = 0
    """Steps between measurements of what an update did to the log-probs of its own tokens; 0 for none."""


def update_effect(trainer: Any) -> UpdateEffect | None:
    """Return the instrument that [analysis] of a trainer's recipe asks for.

    Raises:
        ConfigError: if the weights are in shards.
    """
    recipe = trainer.recipe
    every = recipe.analysis.track_update
    if not every:
        return None
    if trainer.sharding:
        raise ConfigError(
            f"analysis.track_update = {every} measures whole gradients, and FSDP has them in shards; set it to 0, or "
            "launch plain data parallelism"
        )
    return UpdateEffect(
        trainer.model,
        trainer.accelerator,
        trainer.sizes,
        trainer.optimizers.by_name.get("policy"),
        every=every,
        temperature=recipe.rollout.temperature,
        loss_mean=TokenMean(recipe.ppo.loss_mean, recipe.rollout.max_new_tokens),
    )
