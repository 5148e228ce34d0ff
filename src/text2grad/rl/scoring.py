"""A batch of rollouts under policy, value function and reference, and the advantages that follow (sections 3.5, 3.6).

Shapes: B responses of this process, T response tokens.
"""

from typing import Any

import torch
from torch import Tensor

from text2grad.config import Recipe
from text2grad.models import PolicyWithValue, Reference, Scores, TokenBatch
from text2grad.rl.advantages import Advantages, Moments, gae, moments, whiten


def score_batch(model: PolicyWithValue, reference: Reference, batch: TokenBatch, recipe: Recipe) -> Scores:
    """Return the scores of a batch; rows of similar length go together, so that padding and memory stay small."""
    full = Scores.zeros(batch.response_mask.shape, batch.ids.device)
    for index in batch.groups(recipe.ppo.micro_batch_tokens):
        part = model.score(batch.rows(index), reference, temperature=recipe.rollout.temperature, kl=recipe.ppo.kl)
        for whole, piece in zip(full, part, strict=True):
            if piece.ndim == 2:
                whole[index, : piece.shape[1]] = piece
            else:
                whole[index] = piece
    return full


def estimate_advantages(rewards: Tensor, scores: Scores, mask: Tensor, recipe: Recipe, accelerator: Any) -> Advantages:
    """Return GAE's advantages, whitened over the responses of all processes, and returns; each is [B, T]."""
    ppo = recipe.ppo
    advantages, returns = gae(rewards, scores.values, mask, gamma=ppo.gamma, lam=ppo.lam, bootstrap=scores.bootstrap)
    if ppo.whiten != "none":
        over = Moments(*accelerator.reduce(torch.stack(moments(advantages, mask)), reduction="sum"))
        advantages = whiten(advantages, mask, over, center=ppo.whiten == "full")
    return Advantages(advantages, returns)
