"""Critiques become the reward of each sampled token (sections 3.3 and 3.5).

    δ'_t = positive · [δ_t]₊ + negative · [−δ_t]₊ + unlabelled · 1[δ_t = 0],   plus the outcome on the last token

With the default settings δ' is the paper's δ in {−1, 0, +1}. Shapes: B responses, T response tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from text2grad.config import RewardConfig
from text2grad.rl.nl_gradient import at_last_token, is_last_token
from text2grad.types import Critique


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
