"""The NL-Gradient: a critique in words, as a gradient on the tokens it is about (arXiv 2505.22338, section 3).

    δ_t = +1 where y_t lies in a positive span, −1 in a negative one, 0 elsewhere     (section 3.3)
    ∇_NL(c → y) = Σ_t δ_t ∇_θ log π_θ(y_t | x, y_<t)                                  (Definition 1)
    r_t = δ_t + r_t^KL,   r_t^KL = −β KL_t                                            (section 3.5)

`align.pseudo_rewards` turns spans into δ; here δ becomes a gradient or, for PPO, a reward; `advantages.gae`
and `ppo.policy_loss` take it from there. With advantages A = δ and π_θ = π_old the gradient of PPO's surrogate
*is* the NL-Gradient up to a factor, the number of tokens by which the surrogate divides; a test holds the two together.

Shapes: B responses, T response tokens. Everything is response-aligned: index t is the token y_t itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from text2grad.errors import ShapeError


def nl_gradient_loss(logp: Tensor, delta: Tensor, response_mask: Tensor) -> Tensor:
    """Return the scalar whose negative gradient is the NL-Gradient (Definition 1).

    Args:
        logp: log π_θ(y_t | x, y_<t) in nats, [B, T], differentiable.
        delta: pseudo-rewards δ_t in {−1, 0, +1}, [B, T].
        response_mask: True on response tokens, False on padding, bool [B, T].

    Returns:
        −Σ_t δ_t log π_θ(y_t), summed over tokens and averaged over the batch, [].

    Raises:
        ShapeError: if the three shapes differ.

    Example:
        >>> import torch
        >>> logp = torch.tensor([[-1.0, -2.0, -9.0]])
        >>> delta = torch.tensor([[1.0, -1.0, 1.0]])
        >>> mask = torch.tensor([[True, True, False]])
        >>> nl_gradient_loss(logp, delta, mask)
        tensor(-1.)
    """
    check_same_shape(logp=logp, delta=delta, response_mask=response_mask)
    padding = ~response_mask
    per_token = delta.masked_fill(padding, 0.0) * logp.masked_fill(padding, 0.0)  # [B, T]
    return -per_token.sum(dim=1).mean()


def total_rewards(delta: Tensor, kl: Tensor, response_mask: Tensor, *, beta: float) -> Tensor:
    """Return r_t = δ_t − β KL_t (section 3.5), zero outside the mask.

    Args:
        delta: pseudo-rewards after any scaling, [B, T].
        kl: KL_t between policy and reference at each response token, in nats per token, [B, T].
        response_mask: True on response tokens, bool [B, T].
        beta: the KL coefficient β ≥ 0, reward per nat.

    Returns:
        Rewards, [B, T], fp32.

    Raises:
        ShapeError: if the three shapes differ.
    """
    check_same_shape(delta=delta, kl=kl, response_mask=response_mask)
    return (delta.float() - beta * kl.float()).masked_fill(~response_mask, 0.0)


def at_last_token(delta: Tensor, response_mask: Tensor) -> Tensor:
    """Return the sum of the rewards on the last response token, 0 elsewhere.

    This is scalar PPO's reward in section 3.6 (reward B), made from the spans that Text2Grad uses, so that the two
    differ only in the position of the reward. Rows without tokens stay zero.

    Args:
        delta: pseudo-rewards, [B, T].
        response_mask: True on response tokens, right-padded, bool [B, T].

    Returns:
        Rewards, [B, T].

    Raises:
        ShapeError: if the shapes differ.

    Example:
        >>> import torch
        >>> mask = torch.tensor([[True, True, False]])
        >>> at_last_token(torch.tensor([[1.0, -3.0, 5.0]]), mask)
        tensor([[ 0., -2.,  0.]])
    """
    check_same_shape(delta=delta, response_mask=response_mask)
    total = delta.masked_fill(~response_mask, 0.0).sum(dim=1, keepdim=True)  # [B, 1]
    return torch.where(is_last_token(response_mask), total, 0.0)


def at_step_ends(rewards: Tensor, ends: Sequence[Sequence[int]]) -> Tensor:
    """Return the sum of the rewards of each step on the step's last token, 0 elsewhere (PRM-PPO, section 5.1).

    Args:
        rewards: [B, T], zero outside the mask.
        ends: for each token of a response, the index of the last token of its step; one list per response.

    Returns:
        Rewards, [B, T].

    Example:
        >>> import torch
        >>> at_step_ends(torch.tensor([[1.0, -3.0, 5.0]]), [[1, 1, 2]])
        tensor([[ 0., -2.,  5.]])
    """
    summed = torch.zeros_like(rewards)
    for row, own in enumerate(ends):
        summed[row].index_add_(0, torch.tensor(own, dtype=torch.long, device=rewards.device), rewards[row, : len(own)])
    return summed


def is_last_token(response_mask: Tensor) -> Tensor:
    """Return True on each row's last response token, bool [B, T]; rows without tokens are all False."""
    later = response_mask.flip(1).cumsum(1).flip(1)  # [B, T] response tokens from t on
    return response_mask & (later == 1)


def check_same_shape(**tensors: Tensor) -> None:
    """Raise ShapeError unless all the named tensors are [B, T] of one shape."""
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    first = next(iter(shapes.values()))
    if len(first) != 2 or any(shape != first for shape in shapes.values()):
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"expected one shape [B, T], got {got}")
