"""Critiques become the reward of each sampled token (sections 3.3 and 3.5).

    δ'_t = positive · [δ_t]₊ + negative · [−δ_t]₊ + unlabelled · 1[δ_t = 0],   plus the outcome on the last token

With the default settings δ' is the paper's δ in {−1, 0, +1}. Shapes: B responses, T response tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.align import AlignSettings, response_deltas, step_ends
from text2grad.config import RewardConfig
from text2grad.models import TokenBatch, collate
from text2grad.progress import note
from text2grad.rl.nl_gradient import at_last_token, at_step_ends, is_last_token
from text2grad.types import Critique, Rollout

_TOLD = set[str]()  # tables of weights whose names were looked for


def token_rewards(
    settings: RewardConfig,
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    batch: TokenBatch,
    *,
    responses: Sequence[str],
    offsets: Sequence[Sequence[tuple[int, int]]],
) -> Tensor:
    """Return the reward of each token before the KL term as [reward] says, [B, T] fp32.

    "spans" leaves each reward on its token. "last_token" sums a response's rewards on its last token (scalar PPO).
    "lines", "sentences" and "clauses" sum each step's rewards on its last token (PRM-PPO). "verdict" puts `negative` on
    the last token of a response with a negative δ, else `positive` if it has a positive δ.

    Args:
        settings: the section [reward] of a recipe.
        deltas: δ of each response, one number per sampled token.
        critiques: one per response. A failed critique gives no reward; the reward of a truncation stays.
        batch: the collated rollouts.
        responses: the texts of the responses.
        offsets: character range of each sampled token.
    """
    mask = batch.response_mask
    delta = torch.zeros(mask.shape)
    for row, values in enumerate(deltas):
        delta[row, : len(values)] = torch.tensor(values)
    delta = delta.to(mask.device)
    judged = torch.tensor([not critique.failed for critique in critiques], device=mask.device)

    rewards = settings.positive * delta.clamp(min=0) + settings.negative * (-delta).clamp(min=0)
    rewards = rewards + settings.unlabelled * (delta == 0)
    rewards = rewards.masked_fill(~mask, 0.0) * judged[:, None]
    if settings.placement == "verdict":
        delta = delta.masked_fill(~mask, 0.0)
        right = settings.positive * (delta > 0).any(dim=1)
        verdicts = torch.where((delta < 0).any(dim=1), settings.negative, right)  # the worst span decides
        rewards = is_last_token(mask) * (verdicts * judged)[:, None]
    elif settings.placement == "last_token":
        rewards = at_last_token(rewards, mask)
    elif settings.placement != "spans":
        rule = settings.placement
        rewards = at_step_ends(rewards, [step_ends(*of_one, rule) for of_one in zip(responses, offsets, strict=True)])
    return rewards + whole_rewards(critiques, batch, truncated=settings.truncated)


def whole_rewards(critiques: Sequence[Critique], batch: TokenBatch, *, truncated: float) -> Tensor:
    """Return the rewards that judge each response as a whole, on its last token, [B, T]: outcome and truncation."""
    mask = batch.response_mask
    outcomes = [0.0 if critique.failed else critique.outcome or 0.0 for critique in critiques]
    whole = torch.tensor(outcomes, device=mask.device) + truncated * batch.truncated
    return is_last_token(mask) * whole[:, None]


class Rewarded(NamedTuple):
    """The rewards of rollouts, [B, T], and what `token_rewards` made them of."""

    deltas: list[list[float]]
    offsets: list[list[tuple[int, int]]]
    batch: TokenBatch
    rewards: Tensor


def rewards_of(
    settings: RewardConfig,
    tokenizer: Any,
    rollouts: Sequence[Rollout],
    critiques: Sequence[Critique],
    batch: TokenBatch | None = None,
) -> Rewarded:
    """Return the rewards of judged rollouts as [reward] says; None collates them on the CPU."""
    tell_missing(settings, critiques)
    deltas, offsets = response_deltas(tokenizer, rollouts, critiques, AlignSettings.of(settings))
    batch = collate(rollouts, pad_id=0) if batch is None else batch  # padding gets no reward
    texts = [rollout.response for rollout in rollouts]
    rewards = token_rewards(settings, deltas, critiques, batch, responses=texts, offsets=offsets)
    return Rewarded(deltas, offsets, batch, rewards)


def tell_missing(settings: RewardConfig, critiques: Sequence[Critique]) -> None:
    """Tell once in a process which names in a table of weights none of the first spans has, such as misspelled ones."""
    spans = [span for critique in critiques for span in critique.spans]
    for attribute, weights in settings.weights.items() if spans else ():
        there = {(getattr(span, attribute) or "").strip().casefold() for span in spans} - {""}
        missing, table = weights.keys() - there, f"{attribute} {weights}"
        if missing and table not in _TOLD:
            note(
                f"[reward] gives a weight to the {attribute} {', '.join(sorted(missing))}, which none of the first "
                f"{len(spans)} spans has; there are: {', '.join(sorted(there)) or 'none'}",
                warning=True,
            )
        _TOLD.add(table)
