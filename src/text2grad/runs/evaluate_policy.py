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


class PolicySampler:
    """A policy with the settings of [rollout]: samples one response per example."""

    def __init__(self, recipe: Recipe, path: str, *, dtype: str = "auto") -> None:
        """Load the policy.

        Args:
            recipe: its sections [rollout] and [model] are used.
            path: directory or hub name of the policy.
            dtype: of the weights.
        """
        settings, code = recipe.rollout, recipe.model.trust_remote_code
        self.policy = load_policy(path, dtype=dtype, trust_remote_code=code).eval().to(best_device())
        self.tokenizer = load_tokenizer(path, trust_remote_code=code)
        eos = stop_ids(self.policy, self.tokenizer, settings.eos_token_ids)
        pad, rows = padding_id(self.policy, self.tokenizer, eos), settings.rows_at_once
        self.sampling = Sampling(settings.max_new_tokens, settings.temperature, eos, pad, rows)
        self.prompt_format = recipe.model.prompt_format

    def __call__(self, examples: Sequence[Example], **more: Any) -> list[Rollout]:
        """Sample responses; `more` are the seed and further arguments of `sample_rollouts`."""
        how: dict[str, Any] = {"prompt_format": self.prompt_format, **more}
        return sample_rollouts(self.policy, self.tokenizer, examples, self.sampling, **how)

    def fitting(self, examples: Sequence[Example], too_long: str) -> list[Example]:
        """Return the examples whose prompts leave room for a response; `too_long` as in `fitting_prompts`."""
        limits: dict[str, Any] = {"max_new_tokens": self.sampling.max_new_tokens, "too_long": too_long}
        how: dict[str, Any] = {"prompt_format": self.prompt_format, **limits}
        return list(fitting_prompts(self.policy, self.tokenizer, examples, **how)[0])
