"""Self-distillation (SDPO, arXiv 2601.20802): the policy with the critique in its prompt teaches the policy without.

    A_t = log π_old(y_t | x with y and c, y_<t) − log π_old(y_t | x, y_<t)

on the policy's own samples. The expectation of A_t ∇ log π(y_t | x, y_<t) over y_t is the negative gradient of the
reverse KL from the policy to its teacher at this token. So the update is the trainer's, with A_t as advantages.
TRL's trainer reads the feedback from its data set before it samples, so it cannot be given critiques of the samples.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evidence.rivals.judged import Judged
from evidence.rivals.refiners import prompts_with_critiques
from text2grad.rl import PPOBatch
from text2grad.rl.update import ppo_epochs
from text2grad.types import Rollout

if TYPE_CHECKING:
    from evidence.rivals.trainer import RivalTrainer


def distil(run: "RivalTrainer", judged: list[Judged]) -> dict[str, float]:
    """Train the policy towards its teacher, by `ppo.epochs` passes of clipped policy gradient; no KL from the start."""
    recipe, rollouts = run.recipe, [one.rollout for one in judged]
    batch = run.collate(rollouts)
    scores = run.score(batch, kl="k1")
    advantages, taught = teacher_advantages(run, judged, scores.logp)
    tokens = max(int(batch.response_mask[list(taught)].sum()), 1)
    metrics = {"rival/taught": float(len(taught)), "rival/teacher_kl_per_token": float(-advantages.sum() / tokens)}
    if not taught:
        return metrics
    metrics |= run.optimizers.begin(run.round_of(run.step)[0])  # at the end of a round the rate would be near zero
    data = PPOBatch(batch, scores, advantages, torch.zeros_like(advantages))
    return metrics | ppo_epochs(run.gradient, run.optimizers, data, seed=recipe.run.seed + run.step)


@torch.no_grad()
def teacher_advantages(run: "RivalTrainer", judged: Sequence[Judged], logp: Tensor) -> tuple[Tensor, list[int]]:
    """Return A_t [B, T], and the rows that have a teacher.

    A response without a critique, or whose prompt with critique leaves no room in the context, has A_t = 0.

    Args:
        run: the run, whose policy sampled the responses.
        judged: the responses and their critiques.
        logp: log π_old(y_t | x, y_<t), [B, T].
    """
    rollouts = [one.rollout for one in judged]
    prompts = prompts_with_critiques(run, rollouts, [one.critique for one in judged])
    taught = [replace(rollouts[row], prompt_ids=ids) for row, ids in prompts.items()]
    advantages = torch.zeros_like(logp)
    if taught:
        rows = torch.tensor(list(prompts), device=logp.device)
        teacher = _logp(run, taught)
        width = teacher.shape[1]
        advantages[rows, :width] = teacher - logp[rows, :width]
    return advantages, list(prompts)


def _logp(run: "RivalTrainer", rollouts: Sequence[Rollout]) -> Tensor:
    batch = run.collate(rollouts)
    found = torch.zeros(batch.response_mask.shape, device=batch.ids.device)
    for index in batch.groups(run.sizes.micro_batch_tokens):
        part = run.model(batch.rows(index), temperature=run.recipe.rollout.temperature).logp
        found[index, : part.shape[1]] = part
    return found
