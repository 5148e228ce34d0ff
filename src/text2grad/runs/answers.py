"""Answers of a run's policy → critiques, and means of rewards and of the user's metric."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from text2grad.config import Recipe
from text2grad.feedback import Critic, ask
from text2grad.models import best_device
from text2grad.reward_models import LocalRewardModel
from text2grad.rl import rewards_of
from text2grad.runs.metric import load_metric, measure
from text2grad.types import Critique, Rollout


def judge_answers(
    recipe: Recipe, tokenizer: Any, rollouts: Sequence[Rollout], critic: Critic
) -> tuple[list[Critique], dict[str, float]]:
    """Return the critique of each answer, and means by name: the reward as in training, and shares of tokens.

    Raises:
        CriticError: if the critic breaks its contract.
    """
    if isinstance(critic, LocalRewardModel):
        critic.model.to(best_device())
    examples, responses = [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts]
    critiques = ask(critic, examples, responses, match=recipe.critic.match)
    rewarded = rewards_of(recipe.reward, tokenizer, rollouts, critiques)
    deltas = [value for row in rewarded.deltas for value in row]
    tokens = max(len(deltas), 1)
    return critiques, {
        "reward": float(rewarded.rewards.sum(dim=1).mean()),
        "positive share": sum(value > 0 for value in deltas) / tokens,
        "negative share": sum(value < 0 for value in deltas) / tokens,
    }


def measure_answers(recipe: Recipe, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean of each number of `data.metric` over the answers; empty without a metric.

    Raises:
        MetricError: if the metric breaks its contract.
    """
    if not recipe.data.metric:
        return {}
    metric = load_metric(recipe.data.metric)
    values = measure(metric, [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts])
    return {name: fmean(row[name] for row in values) for name in values[0]}
