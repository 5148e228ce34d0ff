"""A policy and prompts → sampled responses, as in training; their critiques, and means of rewards and metric."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from text2grad.config import Recipe, RolloutConfig
from text2grad.feedback import Critic, ask, load_callable
from text2grad.models import (
    best_device,
    fitting_prompts,
    format_of,
    load_policy,
    load_tokenizer,
    make_rollouts,
    messages_of,
    padding_id,
    prompt_text,
    sample,
    step_uniforms,
    stop_ids,
    tools_of,
    with_chat_template,
)
from text2grad.reward_models import LocalRewardModel
from text2grad.rl import read_turn, rewards_of, turn_of
from text2grad.runs.metric import measure
from text2grad.types import Conversation, Critique, Example, Rollout


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
    """A policy with a recipe: samples answers, and has them judged and measured as in a run."""

    def __init__(self, recipe: Recipe, path: str, *, dtype: str = "auto") -> None:
        """Load the policy of a directory or of the hub, its weights as `dtype`."""
        self.recipe, code = recipe, recipe.model.trust_remote_code
        self.policy = load_policy(path, dtype=dtype, trust_remote_code=code).eval().to(best_device())
        self.tokenizer = with_chat_template(load_tokenizer(path, trust_remote_code=code), recipe)
        self._form: dict[str, Any] = {"prompt_format": recipe.model.prompt_format}

    def __call__(self, examples: Sequence[Example], **how: Any) -> list[Rollout]:
        """Sample a response to each example; arguments and errors as in `sample_rollouts`."""
        return sample_rollouts(self.policy, self.tokenizer, examples, self.recipe.rollout, **self._form, **how)

    def with_turns(self, rollout: Rollout) -> str:
        """Return a response to a chat with its prompt as a conversation, if either has parts; else the response alone.

        Parts are several messages, or thought and calls of tools in the answer.
        """
        example = rollout.example
        if format_of(self.tokenizer, self.recipe.model.prompt_format) != "chat":
            return rollout.response
        before, tools = prompt_text(self.tokenizer, example), tools_of(example) or []
        answer = read_turn(self.tokenizer, rollout.response_ids, before, tools)[0]
        turns = [*map(turn_of, messages_of(example)), answer]
        return Conversation(turns) if len(turns) > 2 or answer.thought or answer.tool_calls else rollout.response

    def fitting(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples whose prompts leave room for a response, as `data.too_long` says."""
        limit, too_long = self.recipe.rollout.max_new_tokens, self.recipe.data.too_long
        how: dict[str, Any] = {**self._form, "max_new_tokens": limit, "too_long": too_long}
        return list(fitting_prompts(self.policy, self.tokenizer, examples, **how)[0])

    def judge(self, rollouts: Sequence[Rollout], critic: Critic) -> tuple[list[Critique], dict[str, float]]:
        """Return the critique of each answer, and means by name: the reward as in training, and shares of tokens.

        Raises:
            CriticError: if the critic breaks its contract.
        """
        if isinstance(critic, LocalRewardModel):
            critic.model.to(best_device())
        examples, responses = [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts]
        how = self.recipe.critic.asking(self.tokenizer, [rollout.prompt_ids for rollout in rollouts])
        critiques = ask(critic, examples, responses, **how)
        rewarded = rewards_of(self.recipe.reward, self.tokenizer, rollouts, critiques)
        deltas = [value for row in rewarded.deltas for value in row]
        tokens = max(len(deltas), 1)
        return critiques, {
            "reward": float(rewarded.rewards.sum(dim=1).mean()),
            "positive share": sum(value > 0 for value in deltas) / tokens,
            "negative share": sum(value < 0 for value in deltas) / tokens,
        }

    def measure(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return the mean of each number of `data.metric` over the answers; empty without a metric.

        Raises:
            MetricError: if the metric breaks its contract.
        """
        if not self.recipe.data.metric:
            return {}
        metric = load_callable(self.recipe.data.metric, "metric")
        values = measure(metric, [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts])
        return {name: fmean(row[name] for row in values) for name in values[0]}
