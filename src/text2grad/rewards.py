"""Critiques become the reward of each sampled token (sections 3.3 and 3.5).

    δ'_t = positive · [δ_t]₊ + negative · [−δ_t]₊ + unlabelled · 1[δ_t = 0],   plus the outcome on the last token

With the default settings δ' is the paper's δ in {−1, 0, +1}. Shapes: B responses, T response tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from text2grad.align import pseudo_rewards
from text2grad.nl_gradient import at_last_token, is_last_token
from text2grad.offsets import token_offsets
from text2grad.sections import RewardConfig
from text2grad.types import Critique, Rollout

Offsets = list[tuple[int, int]]


def response_deltas(
    tokenizer: Any, rollouts: Sequence[Rollout], critiques: Sequence[Critique], config: RewardConfig
) -> tuple[list[list[float]], list[Offsets]]:
    """Return δ of each response in its own sampled tokens, and where each token stands in the text.

    Args:
        tokenizer: the policy's.
        rollouts: the responses.
        critiques: one per response; a failed one gives zeros.
        config: mode, weighting, overlap and span_mass are used here.
    """
    deltas, all_offsets = [], []
    for rollout, critique in zip(rollouts, critiques, strict=True):
        offsets = policy_offsets(tokenizer, rollout.response_ids)
        spans = () if critique.failed else critique.spans
        deltas.append(
            pseudo_rewards(
                tokenizer,
                rollout.response_ids,
                spans,
                mode=config.mode,
                weighting=config.weighting,
                overlap=config.overlap,
                span_mass=config.span_mass,
                offsets=offsets,
            )
        )
        all_offsets.append(offsets)
    return deltas, all_offsets


def policy_offsets(tokenizer: Any, ids: Sequence[int]) -> Offsets:
    """Return the character range of each sampled id.

    Many models have more rows in their embedding than their tokenizer has tokens (padding to a round number). A policy
    can sample such a row; it adds nothing to the text, so its range is empty.
    """
    known = [i < len(tokenizer) for i in ids]
    if all(known):
        return token_offsets(tokenizer, ids)
    found = iter(token_offsets(tokenizer, [i for i, is_known in zip(ids, known, strict=True) if is_known]))
    offsets: Offsets = []
    for is_known in known:
        end = offsets[-1][1] if offsets else 0
        offsets.append(next(found) if is_known else (end, end))
    return offsets


def reward_tensor(
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    response_mask: Tensor,
    truncated: Tensor,
    config: RewardConfig,
) -> Tensor:
    """Return what each token earns before the KL term, [B, T] fp32.

    Args:
        deltas: δ of each response, one number per sampled token.
        critiques: one per response; a failed one earns nothing anywhere, but a cut response is still a cut one.
        response_mask: True on response tokens, bool [B, T].
        truncated: True where the length limit ended the response, bool [B].
        config: the values of labels, outcome and truncation, and where the reward stands.
    """
    delta = torch.zeros(response_mask.shape)
    for row, values in enumerate(deltas):
        delta[row, : len(values)] = torch.tensor(values)
    delta = delta.to(response_mask.device)
    judged = torch.tensor([not critique.failed for critique in critiques], device=delta.device)
    outcome = torch.tensor([critique.outcome or 0.0 for critique in critiques], device=delta.device)
    last = is_last_token(response_mask)

    earned = config.positive * delta.clamp(min=0) + config.negative * (-delta).clamp(min=0)
    earned = earned + config.unlabelled * (delta == 0)
    earned = earned.masked_fill(~response_mask, 0.0) * judged[:, None]
    if config.placement == "last_token":
        earned = at_last_token(earned, response_mask)
    return earned + last * (config.outcome * outcome * judged + config.truncated * truncated)[:, None]
