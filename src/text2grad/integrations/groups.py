"""What a group of responses to one prompt teaches: by one number per response, and by rewards of tokens.

GRPO learns from a number only where it differs within the group. Rewards of tokens still differ there: the return of a
token, G_t = Σ_k γ^(k−t) r_k, is compared with the mean return of the group's tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from text2grad.rl import group_advantages
from text2grad.types import Critique

ROUNDING = 1e-5  # a smaller part of the group's largest return is no advantage


def one_number(rewards: Tensor, critiques: Sequence[Critique]) -> list[float]:
    """Return the number of each response: the critique's outcome, or without one the sum of rewards [B, T]."""
    sums = rewards.sum(dim=1).tolist()
    return [
        total if critique.outcome is None else critique.outcome for total, critique in zip(sums, critiques, strict=True)
    ]


def group_shares(
    numbers: Tensor,
    rewards: Tensor,
    response_mask: Tensor,
    *,
    group_size: int,
    gamma: float | Tensor,
    lam: float = 1.0,
    learned: Tensor | None = None,
) -> tuple[float, float]:
    """Return the share of groups that one number cannot teach, and the share of those of them that token rewards teach.

    One number per response teaches nothing where all numbers of the group are the same; both are shares of all groups.

    Args:
        numbers: one per response, [B]; `group_size` neighbours answer one prompt.
        rewards: of each token, [B, T].
        response_mask: True on tokens of the policy, right-padded, bool [B, T].
        group_size: responses per prompt, 2 or more; divides B.
        gamma: discount γ in [0, 1], also of each token, [B, T].
        lam: multiplied with γ.
        learned: True on tokens in the loss, bool [B, T]; None has all of the mask.

    Example:
        >>> rewards, mask = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2, 2, dtype=torch.bool)
        >>> group_shares(torch.ones(2), rewards, mask, group_size=2, gamma=1.0)  # returns (1, 0) and (1, 1)
        (1.0, 1.0)
    """
    groups = numbers.view(-1, group_size)
    same = torch.isclose(groups.amax(dim=1), groups.amin(dim=1))
    advantages, returns = group_advantages(rewards, response_mask, group_size=group_size, gamma=gamma, lam=lam)
    kept = response_mask if learned is None else response_mask & learned
    largest, scale = (each.abs().view(len(groups), -1).amax(dim=1) for each in (advantages * kept, returns))
    learns = largest > ROUNDING * scale
    return float(same.float().mean()), float((same & learns).float().mean())
