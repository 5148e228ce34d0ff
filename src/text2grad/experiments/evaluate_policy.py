"""A policy on held-out examples: what it says, how far it has moved, and what a task makes of it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from text2grad.models import PolicyWithValue, Reference, collate, fitting_prompts, make_rollouts, sample, step_uniforms
from text2grad.types import Example, Rollout

EVALUATION_SEED = 20_250_522  # its random numbers are no training step's


class Sampling(NamedTuple):
    """How responses are drawn: length limit, temperature, ids that end one, padding, rows of one generate call."""

    max_new_tokens: int
    temperature: float
    eos_ids: Sequence[int]
    pad_id: int
    rows_at_once: int = 64


class Evaluation(NamedTuple):
    """Responses to held-out examples and the numbers made from them."""

    rollouts: list[Rollout]
    metrics: dict[str, float]


def evaluate(
    model: PolicyWithValue,
    reference: Reference,
    tokenizer: Any,
    examples: Sequence[Example],
    score: Callable[[Sequence[Example], Sequence[str]], dict[str, float]],
    sampling: Sampling,
    *,
    prompt_format: str = "auto",
    seed: int = 0,
) -> Evaluation:
    """Sample one response per example, as in training, and score them.

    Args:
        model: the policy with its value function.
        reference: the frozen start.
        tokenizer: the policy's.
        examples: held-out task instances.
        score: (examples, responses) → metrics.
        sampling: how responses are drawn.
        prompt_format: as in `fitting_prompts`.
        seed: of the sampling; the same before and after makes the comparison paired.

    Returns:
        The rollouts, and the task's metrics with `kl_per_token` (k1, nats), `mean_tokens` and `truncated_share`.
    """
    examples, prompts = fitting_prompts(
        model.policy,
        tokenizer,
        examples,
        prompt_format=prompt_format,
        max_new_tokens=sampling.max_new_tokens,
        too_long="refuse",
    )
    uniforms = step_uniforms(seed=seed + EVALUATION_SEED, step=0, rows=len(prompts), tokens=sampling.max_new_tokens)
    responses = sample(
        model.policy,
        prompts,
        uniforms,
        eos_ids=sampling.eos_ids,
        pad_id=sampling.pad_id,
        temperature=sampling.temperature,
        rows_at_once=sampling.rows_at_once,
    )
    rollouts = make_rollouts(tokenizer, examples, prompts, responses, sampling.eos_ids)
    kl, tokens = 0.0, 0
    for start in range(0, len(rollouts), sampling.rows_at_once):
        batch = collate(
            rollouts[start : start + sampling.rows_at_once], pad_id=sampling.pad_id, device=model.policy.device
        )
        kl += float(model.score(batch, reference, temperature=sampling.temperature, kl="k1").kl.sum())
        tokens += int(batch.response_mask.sum())
    metrics = score(examples, [rollout.response for rollout in rollouts])
    return Evaluation(
        rollouts,
        {
            **metrics,
            "kl_per_token": kl / max(tokens, 1),
            "mean_tokens": tokens / len(rollouts),
            "truncated_share": sum(rollout.truncated for rollout in rollouts) / len(rollouts),
        },
    )
