"""A policy on held-out examples: responses, KL from the start and the metrics of the task."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from text2grad.config import Recipe
from text2grad.models import (
    PolicyWithValue,
    Reference,
    collate,
    fitting_prompts,
    load_policy,
    load_tokenizer,
    make_rollouts,
    padding_id,
    sample,
    step_uniforms,
    stop_ids,
)
from text2grad.types import Example, Rollout

EVALUATION_SEED = 20_250_522  # keeps its random numbers apart from the numbers of training steps


class Sampling(NamedTuple):
    """Settings of sampling: length limit, temperature, stop ids, padding id, rows of one generate call."""

    max_new_tokens: int
    temperature: float
    eos_ids: Sequence[int]
    pad_id: int
    rows_at_once: int = 64


class Evaluation(NamedTuple):
    """Responses to held-out examples and their metrics."""

    rollouts: list[Rollout]
    metrics: dict[str, float]


def sample_rollouts(
    policy: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    sampling: Sampling,
    *,
    prompt_format: str,
    seed: int,
    step: int = 0,
    too_long: str = "refuse",
) -> list[Rollout]:
    """Sample one response per example, as in training.

    Args:
        policy: the language model.
        tokenizer: the policy's.
        examples: task instances.
        sampling: settings of sampling.
        prompt_format: as in `fitting_prompts`.
        seed: of the sampling.
        step: with the seed, selects the random numbers.
        too_long: as in `fitting_prompts`; skipped examples have no rollout.
    """
    fitting, prompts = fitting_prompts(
        policy,
        tokenizer,
        examples,
        prompt_format=prompt_format,
        max_new_tokens=sampling.max_new_tokens,
        too_long=too_long,
    )
    responses = sample(
        policy,
        prompts,
        step_uniforms(seed=seed, step=step, rows=len(prompts), tokens=sampling.max_new_tokens),
        eos_ids=sampling.eos_ids,
        pad_id=sampling.pad_id,
        temperature=sampling.temperature,
        rows_at_once=sampling.rows_at_once,
    )
    return make_rollouts(tokenizer, fitting, prompts, responses, sampling.eos_ids)


def sample_by_recipe(
    recipe: Recipe, path: str, examples: Sequence[Example], *, dtype: str = "auto", **more: Any
) -> list[Rollout]:
    """Load a policy and sample one response per example, with the settings of [rollout].

    Args:
        recipe: its sections [rollout] and [model] are used.
        path: directory or hub name of the policy.
        examples: task instances.
        dtype: of the weights.
        more: seed and further arguments of `sample_rollouts`.
    """
    settings, code = recipe.rollout, recipe.model.trust_remote_code
    policy = load_policy(path, dtype=dtype, trust_remote_code=code).eval()
    tokenizer = load_tokenizer(path, trust_remote_code=code)
    eos = stop_ids(policy, tokenizer, settings.eos_token_ids)
    pad, rows = padding_id(policy, tokenizer, eos), settings.rows_at_once
    sampling = Sampling(settings.max_new_tokens, settings.temperature, eos, pad, rows)
    return sample_rollouts(policy, tokenizer, examples, sampling, prompt_format=settings.prompt_format, **more)


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
        reference: the frozen policy of step 0.
        tokenizer: the policy's.
        examples: held-out task instances.
        score: (examples, responses) → metrics.
        sampling: settings of sampling.
        prompt_format: as in `fitting_prompts`.
        seed: of the sampling; the same seed before and after training makes the comparison paired.

    Returns:
        The rollouts, and the task's metrics with `kl_per_token` (k1, nats), `mean_tokens` and `truncated_share`.
    """
    rollouts = sample_rollouts(
        model.policy, tokenizer, examples, sampling, prompt_format=prompt_format, seed=seed + EVALUATION_SEED
    )
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
