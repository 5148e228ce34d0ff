"""A policy and prompts → sampled responses, as in training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from text2grad.config import Recipe
from text2grad.models import (
    best_device,
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


class Sampling(NamedTuple):
    """Settings of sampling: length limit, temperature, stop ids, padding id, rows of one generate call."""

    max_new_tokens: int
    temperature: float
    eos_ids: Sequence[int]
    pad_id: int
    rows_at_once: int = 64


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
    policy = load_policy(path, dtype=dtype, trust_remote_code=code).eval().to(best_device())
    tokenizer = load_tokenizer(path, trust_remote_code=code)
    eos = stop_ids(policy, tokenizer, settings.eos_token_ids)
    pad, rows = padding_id(policy, tokenizer, eos), settings.rows_at_once
    sampling = Sampling(settings.max_new_tokens, settings.temperature, eos, pad, rows)
    return sample_rollouts(policy, tokenizer, examples, sampling, prompt_format=settings.prompt_format, **more)
