"""A run → answers of its policy to prompts, with critiques, rewards and the user's metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from text2grad.config import Recipe
from text2grad.feedback import Critic, ask
from text2grad.models import best_device, load_tokenizer
from text2grad.reward_models import LocalRewardModel
from text2grad.rl import rewards_of
from text2grad.runs.metric import load_metric, measure
from text2grad.types import Critique, Rollout


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes:
        rollout: prompt and response.
        critique: by the run's critic; None without one.
        reward: as in training, before the KL term; None without critique.
        delta: one number per token; empty without critique.
        metrics: the numbers of `data.metric`; empty without one.
    """

    rollout: Rollout
    critique: Critique | None = None
    reward: float | None = None
    delta: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


def judge_answers(recipe: Recipe, policy: Path, answers: Sequence[Answer], critic: Critic) -> list[Answer]:
    """Return answers with critiques and rewards.

    Raises:
        CriticError: if the critic breaks its contract.
    """
    rollouts = [answer.rollout for answer in answers]
    tokenizer = load_tokenizer(str(policy), trust_remote_code=recipe.model.trust_remote_code)
    if isinstance(critic, LocalRewardModel):
        critic.model.to(best_device())
    examples, responses = [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts]
    critiques = ask(critic, examples, responses, match=recipe.critic.match)
    rewards = rewards_of(recipe.reward, tokenizer, rollouts, critiques)
    totals = rewards.rewards.sum(dim=1).tolist()
    return [
        replace(answer, critique=critique, delta=delta, reward=total)
        for answer, critique, delta, total in zip(answers, critiques, rewards.deltas, totals, strict=True)
    ]


def measure_answers(recipe: Recipe, answers: Sequence[Answer]) -> list[Answer]:
    """Return answers with the numbers of `data.metric`, or as they are without a metric.

    Raises:
        MetricError: if the metric breaks its contract.
    """
    if not recipe.data.metric:
        return list(answers)
    rollouts = [answer.rollout for answer in answers]
    measured = measure(load_metric(recipe.data.metric), [r.example for r in rollouts], [r.response for r in rollouts])
    return [replace(answer, metrics=values) for answer, values in zip(answers, measured, strict=True)]
