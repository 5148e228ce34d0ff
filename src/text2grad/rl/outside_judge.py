"""A critic behind the trainer of another engine: sampled ids → the reward of each id, as section [reward] says."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from text2grad.config import make_recipe
from text2grad.errors import check_known
from text2grad.feedback import Critic, Match, ask, load_callable
from text2grad.models import collate
from text2grad.rl.metrics import FailureRate
from text2grad.rl.rewards import rewards_of
from text2grad.types import Critique, Example, Rollout


class JudgedIds(NamedTuple):
    """Critiques of B responses and the rewards of their ids.

    Attributes:
        responses: the texts that the critic read; spans count their characters.
        critiques: one per response.
        rewards: reward of each sampled id, [B, T].
        response_mask: True on sampled ids, bool [B, T].
    """

    responses: list[str]
    critiques: list[Critique]
    rewards: Tensor
    response_mask: Tensor


class OutsideJudge:
    """Asks a critic, and stops the run when too many of its critiques could not be read; for several threads.

    Attributes:
        failures: share of the critiques that could not be read.
    """

    def __init__(
        self, critic: Critic | str, *, reward: Mapping[str, Any], match: Match, max_failure_rate: float
    ) -> None:
        """Take the critic.

        Args:
            critic: the critic, or "module:name" of one, which is loaded after the checks of the settings.
            reward: the section [reward] of a recipe.
            match: how the quotes of critiques in text form are located.
            max_failure_rate: share of unreadable critiques, of the last 100, above which the run stops.

        Raises:
            ConfigError: if a setting is wrong, or the critic cannot be loaded.
        """
        check_known("match", match, get_args(Match))
        self.match, self.reward = match, make_recipe({"reward": dict(reward)}).reward
        self.critic = load_callable(critic, "critic") if isinstance(critic, str) else critic
        self.prompt_end: str | None = ""  # as in `ask`; None shows thoughts
        self.failures, self._lock = FailureRate(max_failure_rate, 1), threading.Lock()

    def __call__(self, tokenizer: Any, rollouts: Sequence[Rollout], *, device: torch.device | str = "cpu") -> JudgedIds:
        """Return critiques and rewards of responses, at least one.

        Raises:
            CriticError: if the critic fails, or too many of its critiques could not be read.
        """
        examples, responses = [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts]
        critiques = ask(self.critic, examples, responses, match=self.match, prompt_end=self.prompt_end)
        with self._lock:
            self.failures.count(critique.status for critique in critiques)
            if self.failures.too_many:
                raise self.failures.error("Mend the critic, and resume the training from its last checkpoint.")
        batch = collate(rollouts, pad_id=0, device=device)  # padding gets no reward
        rewards = rewards_of(self.reward, tokenizer, rollouts, critiques, batch).rewards
        return JudgedIds(responses, critiques, rewards, batch.response_mask)


def single_turn(tokenizer: Any, example: Example, ids: Sequence[int], *, truncated: bool) -> Rollout:
    """Return a response of one turn, given by its sampled ids; the prompt, which gets no reward, is any id."""
    return Rollout(example, (0,), tuple(ids), tokenizer.decode(list(ids), skip_special_tokens=True), truncated)
