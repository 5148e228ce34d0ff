"""Critiques become the reward of each sampled token (sections 3.3 and 3.5).

    δ'_t = positive · [δ_t]₊ + negative · [−δ_t]₊ + unlabelled · 1[δ_t = 0],   plus the outcome on the last token

With the default settings δ' is the paper's δ in {−1, 0, +1}. Shapes: B responses, T response tokens.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from text2grad.align import AlignSettings, response_deltas, step_ends
from text2grad.config import RewardConfig
from text2grad.models import TokenBatch, collate
from text2grad.rl.nl_gradient import at_last_token, at_step_ends, is_last_token
from text2grad.types import Critique, Rollout


def reward_tensor(
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    response_mask: Tensor,
    truncated: Tensor,
    *,
    positive: float = 1.0,
    negative: float = -1.0,
    unlabelled: float = 0.0,
    truncation: float = 0.0,
    placement: Literal["spans", "last_token", "verdict"] | Sequence[Sequence[int]] = "spans",
) -> Tensor:
    """Return the reward of each token before the KL term, [B, T] fp32.

    Args:
        deltas: δ of each response, one number per sampled token.
        critiques: one per response. A failed critique gives no reward; the reward of a truncation stays.
        response_mask: True on response tokens, bool [B, T].
        truncated: True where the length limit ended the response, bool [B].
        positive: reward of a token with δ = 1.
        negative: reward of a token with δ = −1.
        unlabelled: reward of a token with δ = 0.
        truncation: reward on the last token of a truncated response.
        placement: "spans" leaves each reward on its token. "last_token" sums a response's rewards on its last token
            (scalar PPO). A list per response, with the index of the last token of each token's step, sums each step's
            rewards there (PRM-PPO). "verdict" puts `negative` on the last token of a response with a negative δ, else
            `positive` if it has a positive δ.
    """
    delta = torch.zeros(response_mask.shape)
    for row, values in enumerate(deltas):
        delta[row, : len(values)] = torch.tensor(values)
    delta = delta.to(response_mask.device)
    judged = torch.tensor([not critique.failed for critique in critiques], device=delta.device)
    outcomes = torch.tensor([critique.outcome or 0.0 for critique in critiques], device=delta.device)
    last = is_last_token(response_mask)

    rewards = positive * delta.clamp(min=0) + negative * (-delta).clamp(min=0)
    rewards = rewards + unlabelled * (delta == 0)
    rewards = rewards.masked_fill(~response_mask, 0.0) * judged[:, None]
    if placement == "verdict":
        rewards = last * (_verdicts(delta.masked_fill(~response_mask, 0.0), positive, negative) * judged)[:, None]
    elif placement == "last_token":
        rewards = at_last_token(rewards, response_mask)
    elif placement != "spans":
        rewards = at_step_ends(rewards, placement)
    return rewards + last * (outcomes * judged + truncation * truncated)[:, None]


def _verdicts(delta: Tensor, positive: float, negative: float) -> Tensor:
    """Return the outcome-only reward of each response, [B]: its worst span decides."""
    right = positive * (delta > 0).any(dim=1)
    return torch.where((delta < 0).any(dim=1), negative, right)


def token_rewards(
    settings: RewardConfig,
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    batch: TokenBatch,
    *,
    responses: Sequence[str],
    offsets: Sequence[Sequence[tuple[int, int]]],
) -> Tensor:
    """Return the reward of each token before the KL term as [reward] says, [B, T]; see `reward_tensor`.

    Args:
        settings: the section [reward] of a recipe.
        deltas: δ of each response.
        critiques: one per response.
        batch: the collated rollouts.
        responses: the texts of the responses.
        offsets: character range of each sampled token.
    """
    place: Literal["spans", "last_token", "verdict"] | list[list[int]]
    if settings.placement == "spans" or settings.placement == "last_token" or settings.placement == "verdict":
        place = settings.placement
    else:
        place = [step_ends(text, ranges, settings.placement) for text, ranges in zip(responses, offsets, strict=True)]
    return reward_tensor(
        deltas,
        critiques,
        batch.response_mask,
        batch.truncated,
        positive=settings.positive,
        negative=settings.negative,
        unlabelled=settings.unlabelled,
        truncation=settings.truncated,
        placement=place,
    )


class Rewarded(NamedTuple):
    """Rewards of rollouts, and the steps on the way to them.

    Attributes:
        deltas: δ of each response.
        offsets: character range of each sampled token.
        batch: the collated rollouts.
        rewards: reward of each token before the KL term, [B, T].
    """

    deltas: list[list[float]]
    offsets: list[list[tuple[int, int]]]
    batch: TokenBatch
    rewards: Tensor


def rewards_of(
    settings: RewardConfig,
    tokenizer: Any,
    rollouts: Sequence[Rollout],
    critiques: Sequence[Critique],
    *,
    device: torch.device | str = "cpu",
) -> Rewarded:
    """Return the rewards of judged rollouts as [reward] says."""
    deltas, offsets = response_deltas(tokenizer, rollouts, critiques, AlignSettings.of(settings))
    batch = collate(rollouts, pad_id=0, device=device)  # padding gets no reward
    texts = [rollout.response for rollout in rollouts]
    rewards = token_rewards(settings, deltas, critiques, batch, responses=texts, offsets=offsets)
    return Rewarded(deltas, offsets, batch, rewards)
