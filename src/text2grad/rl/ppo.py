"""Clipped PPO on tokens: the losses of section 3.5 and Algorithm 4, and the KL penalty (arXiv 1707.06347, 1909.08593).

    ρ_t    = π_θ(y_t) / π_old(y_t)
    L^CLIP = mean_t min(ρ_t A_t, clip(ρ_t, 1−ε, 1+ε) A_t)          maximised
    L^VF   = mean_t ½ max((V−R)², (clip(V, V_old ± ε_v) − R)²)      minimised
    L^ENT  = mean_t H(π_θ(· | x, y_<t))                             maximised: a bonus, as the text says
    L^KL   = mean_t π_ref/π_θ − 1 − log(π_ref/π_θ)                  minimised, where the KL term is not in the reward

(The paper's pseudo-code prints −β L^ENT inside a maximised objective and calls it a bonus.)

A mean over tokens always divides by the token count of the whole optimizer batch over all processes, so that neither
micro-batches nor the number of processes change a gradient. Shapes: B responses, T response tokens.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from text2grad.rl.nl_gradient import check_same_shape

LOG_RATIO_LIMIT = 20.0  # e^20: far beyond any update that should be made, far from overflow


class TokenMean(NamedTuple):
    """A mean over the tokens of an optimizer batch.

    Attributes:
        kind: "token": over all tokens. "response": the mean over responses of the mean over their tokens (GRPO,
            arXiv 2402.03300). "constant": Σ / (responses · limit), without a bias of length (Dr. GRPO, 2503.20783).
        limit: length limit of a response, in tokens.
    """

    kind: Literal["token", "response", "constant"] = "token"
    limit: int = 1

    def weights(self, response_mask: Tensor, *, token_count: float, row_count: float) -> Tensor:
        """Return the weights w_t ≥ 0 with which Σ w_t x_t / token_count is this mean of x, [B, T].

        Args:
            response_mask: True on response tokens, bool [B, T].
            token_count: response tokens in the whole optimizer batch.
            row_count: responses in the whole optimizer batch.
        """
        weights = response_mask.float()
        if self.kind == "response":
            return weights * token_count / row_count / response_mask.sum(dim=1, keepdim=True).clamp(min=1)
        return weights * token_count / row_count / self.limit if self.kind == "constant" else weights


TOKEN_MEAN = TokenMean()


class PolicyLoss(NamedTuple):
    """The clipped surrogate and its statistics: sums over the tokens of the mask, each []."""

    loss: Tensor  # −Σ_t min(...) / token_count, differentiable
    ratio_sum: Tensor
    ratio_max: Tensor
    clipped_count: Tensor
    approx_kl_sum: Tensor  # k3 of π_old against π_θ, nats: (ρ − 1) − log ρ


def policy_loss(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, response_mask: Tensor, *, clip_range: float, token_count: float
) -> PolicyLoss:
    """Return the negated clipped surrogate −L^CLIP.

    Args:
        logp: log π_θ(y_t), [B, T], differentiable.
        logp_old: log π_old(y_t), from a forward pass of the trainer, [B, T].
        advantages: A_t, [B, T].
        response_mask: True on response tokens, bool [B, T].
        clip_range: ε > 0.
        token_count: response tokens in the whole optimizer batch.

    Raises:
        ShapeError: if the shapes differ.
    """
    check_same_shape(logp=logp, logp_old=logp_old, advantages=advantages, response_mask=response_mask)
    log_ratio = (logp - logp_old).masked_fill(~response_mask, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    advantages = advantages.masked_fill(~response_mask, 0.0)
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_range, 1 + clip_range) * advantages)
    ratio, log_ratio = ratio.detach(), log_ratio.detach()
    clipped = (ratio * advantages > ratio.clamp(1 - clip_range, 1 + clip_range) * advantages) & response_mask
    seen = ratio.masked_fill(~response_mask, 0.0)
    return PolicyLoss(
        loss=-surrogate.sum() / token_count,
        ratio_sum=seen.sum(),
        ratio_max=seen.max() if response_mask.any() else seen.new_ones(()),
        clipped_count=clipped.sum(),
        approx_kl_sum=(ratio - 1 - log_ratio).sum(),
    )


def value_loss(
    values: Tensor,
    values_old: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    *,
    clip_range: float | None,
    token_count: float,
) -> Tensor:
    """Return the clipped value loss L^VF, [].

    Args:
        values: V_ψ(x, y_<t), [B, T], differentiable.
        values_old: the same at rollout time, [B, T].
        returns: targets R_t, [B, T].
        response_mask: True on response tokens, bool [B, T].
        clip_range: ε_v > 0, in units of reward; None leaves the loss unclipped.
        token_count: response tokens in the whole optimizer batch.

    Raises:
        ShapeError: if the shapes differ.
    """
    check_same_shape(values=values, values_old=values_old, returns=returns, response_mask=response_mask)
    values, values_old, returns = (x.masked_fill(~response_mask, 0.0) for x in (values, values_old, returns))
    loss = (values - returns).square()
    if clip_range is not None:
        near = values_old + (values - values_old).clamp(-clip_range, clip_range)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss.sum() / token_count


def kl_loss(logp: Tensor, logp_ref: Tensor, response_mask: Tensor, weights: Tensor, *, token_count: float) -> Tensor:
    """Return L^KL, [], nats per token: the estimator k3 of KL(π_θ ‖ π_ref), never negative (GRPO, arXiv 2402.03300).

    Args:
        logp: log π_θ(y_t), [B, T], differentiable.
        logp_ref: log π_ref(y_t), [B, T].
        response_mask: True on response tokens, bool [B, T].
        weights: weight of each token in the mean, [B, T], see `TokenMean`.
        token_count: response tokens in the whole optimizer batch.

    Raises:
        ShapeError: if the shapes differ.
    """
    check_same_shape(logp=logp, logp_ref=logp_ref, response_mask=response_mask, weights=weights)
    log_ratio = (logp_ref - logp).masked_fill(~response_mask, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return ((log_ratio.exp() - 1 - log_ratio) * weights).sum() / token_count


def masked_token_mean(x: Tensor, response_mask: Tensor, *, token_count: float) -> Tensor:
    """Return Σ x_t over the mask / token_count, []; the entropy bonus is this mean of entropies."""
    check_same_shape(x=x, response_mask=response_mask)
    return x.masked_fill(~response_mask, 0.0).sum() / token_count


@dataclass(slots=True)
class KLController:
    """The coefficient β of the KL penalty, fixed or steered towards a target (arXiv 1909.08593, section 2.2).

    Attributes:
        beta: β now, reward per nat.
        target_kl: nats *per sequence* to steer to; None keeps β fixed.
        horizon: responses over which the controller acts: after one step of n responses β changes by at most a factor
            of 1 ± 0.2·n/horizon.
    """

    beta: float
    target_kl: float | None = None
    horizon: int = 10_000

    def update(self, kl_per_sequence: float, responses: int) -> None:
        """Move β by the proportional error, clipped to ±0.2 and scaled by responses/horizon.

        Args:
            kl_per_sequence: mean over responses of Σ_t KL_t, nats.
            responses: responses in this step, over all processes.
        """
        if self.target_kl is None:
            return
        error = min(max(kl_per_sequence / self.target_kl - 1.0, -0.2), 0.2)
        self.beta *= 1.0 + error * min(responses / self.horizon, 1.0)
