"""Importance sampling: responses come from an engine whose log-probs differ from the policy's.

    E_{y ~ π_old}[A_t ∇ log π] = E_{y ~ π_engine}[w_t A_t ∇ log π],    ρ_t = π_old(y_t | ·) / π_engine(y_t | ·)

    token       w_t = ρ_t, as if the tokens before were the policy's (Yao et al. 2025, rollouts from inference engines)
    sequence    w_t = Π_s ρ_s, exact, and of a variance that grows with the length
    truncate    w is cut at the limits;  mask: w beyond them is 0, and teaches nothing (IcePop)

These are TRL's four modes. PPO's own ratio is π_θ / π_old with both from the trainer, and so is the KL term. Shapes: B
responses of this process, T response tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from text2grad.errors import TrainingError
from text2grad.types import Rollout

MOST_KL = 0.1
"""KL(π_engine ‖ π_old) in nats per token above which the engine's weights are not the policy's; 16 bits cause 0.001."""

USUAL_GAP, USUAL_GAP_HALF = 1e-3, 0.05
"""Largest usual mean |log π_engine − log π_old| in nats: rounding causes 1e-6 in 32 bits, 0.01 to 0.03 in 16 bits."""


def engine_weights(
    rollouts: Sequence[Rollout], logp: Tensor, mask: Tensor, how: tuple[str, float, float], *, accelerator: Any
) -> tuple[Tensor, dict[str, float]]:
    """Return the factor of each token's advantage where another engine sampled, and metrics over all processes.

    Args:
        rollouts: responses, with `engine_logp` where it is known.
        logp: log π_old from the trainer, [B, T], at the temperature of the rollouts.
        mask: True on response tokens, bool [B, T].
        how: mode of the factors, their lower and upper limit, as `RolloutConfig.correction`.
        accelerator: adds up and gathers the metrics of all processes.

    Returns:
        Factors [B, T], 1 outside the mask; and metrics: `engine/kl_per_token`, the mean of log π_engine − log π_old in
        nats, `engine/logp_gap` of its size, `engine/logp_gap_max` the largest; `engine/weight_mean` of the factors,
        `engine/capped_share` of ratios beyond the limits. As verl computes them: `engine/k3_kl`, mean ρ − 1 − log ρ;
        `engine/ppl_ratio`, mean over responses of the policy's perplexity / the engine's; `engine/eff_sample_size`,
        mean(w)² / mean(w²), the share of samples that is left where w varies.

    Raises:
        TrainingError: if the responses are not sampled from the policy.
    """
    theirs = logp.clone()  # where a log-prob is not known, the factor is 1
    for row, rollout in enumerate(rollouts):
        theirs[row, : len(rollout.engine_logp)] = torch.tensor(rollout.engine_logp).to(logp)
    log_ratio = (logp - theirs).masked_fill(~mask, 0.0)
    in_total, (mode, lower, upper) = log_ratio.sum(dim=1, keepdim=True), how
    ratio = (in_total.expand_as(logp) if mode.startswith("sequence") else log_ratio).exp()
    beyond = (ratio < lower) | (ratio > upper)
    weights = ratio.masked_fill(beyond, 0.0) if mode.endswith("mask") else ratio.clamp(lower, upper)
    numbers = {"kl_per_token": -log_ratio, "logp_gap": log_ratio.abs(), "weight_mean": weights, "capped_share": beyond}
    numbers |= {"k3_kl": log_ratio.expm1() - log_ratio, "squares": weights.square(), "tokens": torch.ones_like(ratio)}
    ppl_ratios = (-in_total[:, 0] / mask.sum(dim=1).clamp(min=1)).exp()
    sums = [x.double().masked_fill(~mask, 0.0).sum() for x in numbers.values()]
    sums += [ppl_ratios.double().sum(), torch.ones_like(ppl_ratios).double().sum()]
    *totals, tokens, ppl_ratio, rows = accelerator.reduce(torch.stack(sums), reduction="sum").tolist()
    metrics = {f"engine/{name}": total / max(tokens, 1.0) for name, total in zip(numbers, totals, strict=False)}
    metrics["engine/eff_sample_size"] = metrics["engine/weight_mean"] ** 2 / max(metrics.pop("engine/squares"), 1e-300)
    metrics["engine/ppl_ratio"] = ppl_ratio / rows
    largest = torch.cat([log_ratio.abs().flatten(), log_ratio.new_zeros(1)]).max()
    metrics["engine/logp_gap_max"] = float(accelerator.gather(largest.reshape(1)).max())
    if not metrics["engine/kl_per_token"] < MOST_KL:
        raise TrainingError(
            f"the responses are not the policy's: KL(engine ‖ policy) is {metrics['engine/kl_per_token']:.3g} nats per "
            f"token (limit {MOST_KL}). vLLM's weights were not taken over, or its kernels compute another model: go on "
            'with rollout.engine = "hf", or another version of vLLM. With "hf", the cache computes another model since '
            "the run began: begin a new run at the last checkpoint's policy, which tries its cache anew"
        )
    return weights.masked_fill(~mask, 1.0), metrics


def warning_of_gap(metrics: Mapping[str, float], *, rounded: bool) -> str:
    """Return a warning where log-probs in sampling and scoring differ by more than rounding in 16 or 32 bits does."""
    gap, usual = metrics.get("engine/logp_gap", 0.0), USUAL_GAP_HALF if rounded else USUAL_GAP
    told = (
        f"the log-probs of sampled tokens differ by {gap:.2g} nats from those of scoring on average (usual: up to "
        f"{usual}), so the responses are not quite the policy's; see engine/kl_per_token and engine/logp_gap"
    )
    return "" if gap <= usual else told
