"""A policy and prompts → sampled responses, as in training."""

from collections.abc import Sequence
from typing import Any

from text2grad.config import Recipe, RolloutConfig
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


def sample_rollouts(
    policy: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    rollout: RolloutConfig,
    *,
    prompt_format: str,
    seed: int,
    step: int = 0,
) -> list[Rollout]:
    """Sample a response to each example, as in training; `seed` and `step` select the random numbers.

    Raises:
        DataError: if a prompt leaves no room for a response.
    """
    limit = rollout.max_new_tokens
    eos_ids = stop_ids(policy, tokenizer, rollout.eos_token_ids, prompt_format=prompt_format)
    fitting, prompts = fitting_prompts(
        policy, tokenizer, examples, prompt_format=prompt_format, max_new_tokens=limit, too_long="refuse"
    )
    responses = sample(
        policy,
        prompts,
        step_uniforms(seed=seed, step=step, rows=len(prompts), tokens=limit),
        eos_ids=eos_ids,
        pad_id=padding_id(policy, tokenizer, eos_ids),
        temperature=rollout.temperature,
        rows_at_once=rollout.rows_at_once,
    )
    return make_rollouts(tokenizer, fitting, prompts, responses, eos_ids)


class PolicySampler:
    """A policy with the settings of [rollout]: samples a response to each example."""

    def __init__(self, recipe: Recipe, path: str, *, dtype: str = "auto") -> None:
        """Load the policy of a directory or of the hub, its weights as `dtype`."""
        self.rollout, self.prompt_format = recipe.rollout, recipe.model.prompt_format
        code = recipe.model.trust_remote_code
        self.policy = load_policy(path, dtype=dtype, trust_remote_code=code).eval().to(best_device())
        self.tokenizer = load_tokenizer(path, trust_remote_code=code)

    def __call__(self, examples: Sequence[Example], *, seed: int, step: int = 0) -> list[Rollout]:
        """Sample a response to each example; arguments and errors as in `sample_rollouts`."""
        how: dict[str, Any] = {"prompt_format": self.prompt_format, "seed": seed, "step": step}
        return sample_rollouts(self.policy, self.tokenizer, examples, self.rollout, **how)

    def fitting(self, examples: Sequence[Example], too_long: str) -> list[Example]:
        """Return the examples whose prompts leave room for a response; `too_long` as in `fitting_prompts`."""
        limits: dict[str, Any] = {"max_new_tokens": self.rollout.max_new_tokens, "too_long": too_long}
        how: dict[str, Any] = {"prompt_format": self.prompt_format, **limits}
        return list(fitting_prompts(self.policy, self.tokenizer, examples, **how)[0])
