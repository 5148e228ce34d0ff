"""Rewards and values become advantages and returns (section 3.5, Algorithm 4 lines 15-16 and 24).

    TD error   δ^TD_t = r_t + γ V_{t+1} − V_t          (V after the last token: 0, or the bootstrap of a cut response)
    advantage  A_t    = Σ_l (γλ)^l δ^TD_{t+l}          GAE, arXiv 1506.02438
    return     R_t    = A_t + V_t                      the λ-return; at λ = 1 the discounted sum of Algorithm 4

With V = 0 this is A_t = Σ_k (γλ)^(k−t) r_k, Appendix A's A_t^A: a reward k−t tokens away weighs (γλ)^(k−t).

Tokens of all turns of the policy follow each other: what it was given between them is no step. γ may differ from token
to token (`discounts`): γ_t stands between t and t + 1, so (γλ)^(k−t) is Π_{t ≤ s < k} γ_s λ.

A group of responses to one prompt gives a baseline without a value function (GRPO, arXiv 2402.03300; RLOO, 2402.14740):

    A_it = G_it − mean_j mean_t G_jt          G = A at V = 0; with one number on the last token and γλ = 1, G_it = R_i

No baseline is a mean over the n-th turns of a group: whether a response has an n-th turn depends on what it did before.

Shapes: B responses, T response tokens, right-padded. All arithmetic is fp32.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from text2grad.config import PPOConfig
from text2grad.errors import ShapeError
from text2grad.models import TokenBatch
from text2grad.rl.nl_gradient import check_same_shape, is_last_token

Gamma = float | Tensor  # a discount, or one of what follows each token, [B, T]
GROUP_EPS = 1e-4  # keeps the division by a deviation near zero finite


class Advantages(NamedTuple):
    """GAE advantages and the value function's targets, both [B, T] fp32, zero outside the mask."""

    advantages: Tensor
    returns: Tensor


def gae(
    rewards: Tensor, values: Tensor, response_mask: Tensor, *, gamma: Gamma, lam: float, bootstrap: Tensor | None = None
) -> Advantages:
    """Return GAE advantages and λ-returns.

    Args:
        rewards: r_t, [B, T].
        values: V_ψ(x, y_<t), the value *before* token t is chosen, [B, T]. Zeros for a run without value function.
        response_mask: True on response tokens, right-padded, bool [B, T].
        gamma: discount γ in [0, 1] of what follows a token; of each where it is a tensor, [B, T].
        lam: GAE's λ in [0, 1].
        bootstrap: V_ψ(x, y) after the last token of each response, [B]: the value of going on, for responses that
            the length limit cut. None, or 0, says that the episode ended.

    Returns:
        Advantages and returns.

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> rewards, mask = torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([[True, True, False]])
        >>> gae(rewards, torch.zeros(1, 3), mask, gamma=0.5, lam=1.0).advantages
        tensor([[0.5000, 1.0000, 0.0000]])
    """
    check_same_shape(rewards=rewards, values=values, response_mask=response_mask)
    rewards = rewards.float().masked_fill(~response_mask, 0.0)
    values = values.float().masked_fill(~response_mask, 0.0)
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    if bootstrap is not None:
        next_values = next_values + bootstrap.float()[:, None] * is_last_token(response_mask)
    discount = torch.as_tensor(gamma, dtype=torch.float64, device=rewards.device).expand_as(rewards)
    td_error = (rewards + discount.float() * next_values - values).masked_fill(~response_mask, 0.0)

    decay = (discount * lam).float()
    advantages = torch.zeros_like(td_error)
    running = torch.zeros_like(td_error[:, 0]) if td_error.shape[1] else td_error.sum(dim=1)
    for t in range(td_error.shape[1] - 1, -1, -1):
        running = td_error[:, t] + decay[:, t] * running
        advantages[:, t] = running
    advantages = advantages.masked_fill(~response_mask, 0.0)
    return Advantages(advantages, (advantages + values).masked_fill(~response_mask, 0.0))


def group_advantages(
    rewards: Tensor,
    response_mask: Tensor,
    *,
    group_size: int,
    gamma: Gamma,
    lam: float,
    leave_one_out: bool = False,
    scale: bool = False,
) -> Advantages:
    """Return advantages over the mean of each prompt's group of responses.

    Every response counts the same in its group's mean and deviation, however long it is. With one number R per
    response (γλ = 1, no KL in the reward) these are exactly the advantages of GRPO, Dr. GRPO (`scale=False`) and RLOO
    (`leave_one_out=True`); with spans each token is compared with the average token of the group.

    Args:
        rewards: r_t, [B, T]; rows i·group_size … (i+1)·group_size − 1 answer one prompt.
        response_mask: True on response tokens, right-padded, bool [B, T].
        group_size: responses per prompt, 2 or more; divides B.
        gamma: discount γ in [0, 1], also of each token, [B, T].
        lam: multiplied with γ; 1 leaves the discounted sum.
        leave_one_out: subtract the mean of the other responses, which makes the baseline independent of the response.
        scale: divide by the deviation within the group (Bessel's correction over responses).

    Returns:
        Advantages, and G as returns.

    Raises:
        ShapeError: if the shapes differ, or group_size does not divide B.

    Example:
        >>> rewards, mask = torch.tensor([[0.0, 4.0], [0.0, 2.0]]), torch.ones(2, 2, dtype=torch.bool)
        >>> group_advantages(rewards, mask, group_size=2, gamma=1.0, lam=1.0).advantages
        tensor([[ 1.,  1.],
                [-1., -1.]])
    """
    returns = gae(rewards, torch.zeros_like(rewards), response_mask, gamma=gamma, lam=lam).advantages
    tokens = response_mask.sum(dim=1).clamp(min=1)
    if len(rewards) % group_size or group_size < 2:
        raise ShapeError(f"{len(rewards)} responses are not groups of {group_size}; a group needs at least 2 responses")
    means = (returns.sum(dim=1) / tokens).view(-1, group_size)
    center = means.mean(dim=1, keepdim=True).expand_as(means)
    baseline = (means.sum(dim=1, keepdim=True) - means) / (group_size - 1) if leave_one_out else center
    advantages = (returns - baseline.reshape(-1, 1)).masked_fill(~response_mask, 0.0)
    if scale:
        from_center = (returns - center.reshape(-1, 1)).masked_fill(~response_mask, 0.0)
        squares = (from_center.square().sum(dim=1) / tokens).view(-1, group_size)
        deviation = (squares.sum(dim=1, keepdim=True) / (group_size - 1)).sqrt().expand_as(means)
        advantages = advantages / (deviation.reshape(-1, 1) + GROUP_EPS)
    return Advantages(advantages, returns)


def discounts(ppo: PPOConfig, batch: TokenBatch) -> Gamma:
    """Return the discount of what follows each token, [B, T]: γ, and γ_turn at each turn's last token if it is set.

    A turn ends where given ids follow (`TokenBatch.turn_ends`), so γ_turn also stands before the bootstrap of a
    trajectory that was cut behind a turn; γ where it was cut in one. λ is the same at all tokens.
    """
    if ppo.gamma_turn is None:
        return ppo.gamma
    of_token = torch.full(batch.response_mask.shape, ppo.gamma, dtype=torch.float64, device=batch.ids.device)
    return of_token.masked_fill(batch.turn_ends(), ppo.gamma_turn)


def advantages_over_baseline(
    ppo: PPOConfig,
    rewards: Tensor,
    values: Tensor,
    batch: TokenBatch,
    *,
    group_size: int = 1,
    bootstrap: Tensor | None = None,
) -> Advantages:
    """Return advantages over the baseline of [ppo], the value function or each prompt's group, and returns.

    A group's baseline does not use `values`, and its responses are neighbours. See `gae` and `group_advantages`.
    """
    gamma = discounts(ppo, batch)
    if ppo.baseline == "value":
        return gae(rewards, values, batch.response_mask, gamma=gamma, lam=ppo.lam, bootstrap=bootstrap)
    return group_advantages(
        rewards,
        batch.response_mask,
        group_size=group_size,
        gamma=gamma,
        lam=ppo.lam,
        leave_one_out=ppo.baseline == "leave_one_out",
        scale=ppo.whiten == "group",
    )


def whiten(
    x: Tensor,
    response_mask: Tensor,
    *,
    center: bool = True,
    add_up: Callable[[Tensor], Tensor] = lambda moments: moments,
) -> Tensor:
    """Return x scaled to unit deviation (and zero mean) over the tokens of the mask.

    Args:
        x: [B, T].
        response_mask: True on response tokens, bool [B, T].
        center: subtract the mean too; False keeps the sign of every advantage.
        add_up: adds up the count, the sum and the sum of squares of x, [3] fp64, over all processes.

    Returns:
        Whitened x, [B, T] fp32, zero outside the mask. With fewer than two tokens, or a deviation of zero, nothing can
        be scaled: x comes back as it is (masked).

    Raises:
        ShapeError: if the shapes differ.
    """
    check_same_shape(x=x, response_mask=response_mask)
    x = x.float().masked_fill(~response_mask, 0.0)
    exact = x.double()
    moments = torch.stack([response_mask.sum().double(), exact.sum(), exact.square().sum()])
    tokens, total, total_sq = add_up(moments).unbind()
    if tokens < 2:
        return x
    mean = total / tokens
    variance = (total_sq / tokens - mean.square()).clamp(min=0.0) * tokens / (tokens - 1)
    if variance <= 1e-16 + 1e-13 * total_sq / tokens:  # equal entries, but for the sums' rounding
        return x
    shift = mean if center else torch.zeros_like(mean)
    return ((x - shift) * (variance + 1e-8).rsqrt()).float().masked_fill(~response_mask, 0.0)
