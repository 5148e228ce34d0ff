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
) -> list[Rollout]:
    """Sample a response to each example, as in training; `seed` and `step` select the random numbers.

    Raises:
        DataError: if a prompt leaves no room for a response.
    """
    limits: dict[str, Any] = {"max_new_tokens": sampling.max_new_tokens, "too_long": "refuse"}
    fitting, prompts = fitting_prompts(policy, tokenizer, examples, prompt_format=prompt_format, **limits)
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
    """A policy with the settings of [rollout]: samples a response to each example."""

    def __init__(self, recipe: Recipe, path: str, *, dtype: str = "auto") -> None:
        """Load the policy of a directory or of the hub, its weights as `dtype`."""
        settings, code = recipe.rollout, recipe.model.trust_remote_code
        self.policy = load_policy(path, dtype=dtype, trust_remote_code=code).eval().to(best_device())
        self.tokenizer = load_tokenizer(path, trust_remote_code=code)
        eos = stop_ids(self.policy, self.tokenizer, settings.eos_token_ids)
        pad, rows = padding_id(self.policy, self.tokenizer, eos), settings.rows_at_once
        self.sampling = Sampling(settings.max_new_tokens, settings.temperature, eos, pad, rows)
        self.prompt_format = recipe.model.prompt_format

    def __call__(self, examples: Sequence[Example], *, seed: int, step: int = 0) -> list[Rollout]:
        """Sample a response to each example; arguments and errors as in `sample_rollouts`."""
        form = self.prompt_format
        return sample_rollouts(
            self.policy, self.tokenizer, examples, self.sampling, prompt_format=form, seed=seed, step=step
        )

    def fitting(self, examples: Sequence[Example], too_long: str) -> list[Example]:
        """Return the examples whose prompts leave room for a response; `too_long` as in `fitting_prompts`."""
        limits: dict[str, Any] = {"max_new_tokens": self.sampling.max_new_tokens, "too_long": too_long}
        how: dict[str, Any] = {"prompt_format": self.prompt_format, **limits}
        return list(fitting_prompts(self.policy, self.tokenizer, examples, **how)[0])
