"""The losses of the rivals of a lesson: REINFORCE, GRPO, DPO, cross-entropy.

Shapes: B answers of a step, T tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from text2grad.rl import group_advantages, kl_loss, nl_gradient_loss, policy_loss
from text2grad.rl.nl_gradient import is_last_token
from text2grad.rl.ppo import TokenMean

GROUP = 4  # answers to a prompt
CLIP, GRPO_BETA = 0.2, 0.04  # of GRPO, as in its paper
DPO_BETA = 0.1

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""log π and log π at the start, both [B, T] in nats; the mask of tokens, bool [B, T]; rewards, [B] → loss, []."""


def reinforce(logp: Tensor, start: Tensor, mask: Tensor, rewards: Tensor) -> Tensor:
    """Return -mean_i R_i Σ_t log π(y_it), with the baseline taken from R before."""
    return nl_gradient_loss(logp, rewards[:, None].expand_as(logp), mask)


def grpo(logp: Tensor, start: Tensor, mask: Tensor, rewards: Tensor) -> Tensor:
    """Return GRPO's clipped loss with its KL term; `GROUP` neighbours answer one prompt."""
    last = torch.where(is_last_token(mask), rewards[:, None], 0.0)
    own = group_advantages(last, mask, group_size=GROUP, gamma=1.0, lam=1.0, scale=True).advantages
    tokens = float(mask.sum())
    weights = TokenMean("response").weights(mask, token_count=tokens, row_count=len(mask))
    loss = policy_loss(logp, start, own * weights, mask, clip_range=CLIP, token_count=tokens).loss
    return loss + GRPO_BETA * kl_loss(logp, start, mask, weights, token_count=tokens)


def dpo(logp: Tensor, start: Tensor, mask: Tensor, rewards: Tensor) -> Tensor:
    """Return -mean log σ(β (chosen - rejected)) of log-ratios; two neighbours, with rewards of 1 and -1, are a pair."""
    ratios = (logp - start).masked_fill(~mask, 0.0).sum(dim=1)
    return -logsigmoid(DPO_BETA * (ratios * rewards).view(-1, 2).sum(dim=1)).mean()


def cross_entropy(logp: Tensor, start: Tensor, mask: Tensor, rewards: Tensor) -> Tensor:
    """Return the mean of -log π over the tokens of all answers."""
    return -logp.masked_fill(~mask, 0.0).sum() / mask.sum()
