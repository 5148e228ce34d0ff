"""Truncated importance sampling: responses come from an engine whose log-probs differ from the policy's.

    E_{y ~ π_old}[A_t ∇ log π] = E_{y ~ π_engine}[w_t A_t ∇ log π],    w_t = π_old(y_t | ·) / π_engine(y_t | ·)

per token, as if the tokens before were the policy's; w_t is cut at a cap (Yao et al. 2025, "off-policy RL" of rollouts
from inference engines). PPO's own ratio is π_θ / π_old with both from the trainer, and so is the KL term. Shapes: B
responses of this process, T response tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from text2grad.errors import TrainingError
from text2grad.types import Rollout

CAP = 2.0
"""The largest factor on a token's advantage."""

MOST_KL = 0.1
"""KL(π_engine ‖ π_old) in nats per token above which the engine's weights are not the policy's; 16 bits cause 0.001."""

USUAL_GAP, USUAL_GAP_HALF = 1e-3, 0.05
"""Largest usual mean |log π_engine − log π_old| in nats: rounding causes 1e-6 in 32 bits, 0.01 to 0.03 in 16 bits."""


def engine_weights(
    rollouts: Sequence[Rollout], logp: Tensor, mask: Tensor, *, accelerator: Any
) -> tuple[Tensor, dict[str, float]]:
    """Return the factor of each token's advantage where another engine sampled, and metrics over all processes.

    Args:
        rollouts: responses, with `engine_logp` where it is known.
        logp: log π_old from the trainer, [B, T], at the temperature of the rollouts.
        mask: True on response tokens, bool [B, T].
        accelerator: adds up the metrics of all processes.

    Returns:
        Factors [B, T], 1 outside the mask; `engine/kl_per_token`, the mean of log π_engine − log π_old in nats,
        `engine/logp_gap`, the mean of its absolute value, `engine/weight_mean` and `engine/capped_share`.

    Raises:
        TrainingError: if the responses are not sampled from the policy.
    """
    theirs = logp.clone()  # where a log-prob is not known, the factor is 1
    for row, rollout in enumerate(rollouts):
        theirs[row, : len(rollout.engine_logp)] = torch.tensor(rollout.engine_logp).to(logp)
    log_ratio = (logp - theirs).masked_fill(~mask, 0.0)
    ratio = log_ratio.exp()
    weights = ratio.clamp(max=CAP)
    numbers = [mask, -log_ratio, log_ratio.abs(), weights.masked_fill(~mask, 0.0), (ratio > CAP) & mask]
    sums = torch.stack([number.double().sum() for number in numbers])
    count, *others = accelerator.reduce(sums, reduction="sum").tolist()
    names = ("kl_per_token", "logp_gap", "weight_mean", "capped_share")
    metrics = {f"engine/{name}": value / max(count, 1.0) for name, value in zip(names, others, strict=True)}
    if not metrics["engine/kl_per_token"] < MOST_KL:
        raise TrainingError(
            f"the responses are not the policy's: KL(engine ‖ policy) is {metrics['engine/kl_per_token']:.3g} nats per "
            f"token (limit {MOST_KL}). vLLM's weights were not taken over, or its kernels compute another model: go on "
            'with rollout.engine = "hf", or another version of vLLM. With "hf", the cache computes another model since '
            "the run began: begin a new run at the last checkpoint's policy, which tries its cache anew"
        )
    return weights, metrics


def warning_of_gap(metrics: Mapping[str, float], *, rounded: bool) -> str:
    """Return a warning where log-probs in sampling and scoring differ by more than rounding in 16 or 32 bits does."""
    gap, usual = metrics.get("engine/logp_gap", 0.0), USUAL_GAP_HALF if rounded else USUAL_GAP
    told = (
        f"the log-probs of sampled tokens differ by {gap:.2g} nats from those of scoring on average (usual: up to "
        f"{usual}), so the responses are not quite the policy's; see engine/kl_per_token and engine/logp_gap"
    )
    return "" if gap <= usual else told
