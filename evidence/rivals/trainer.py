"""The trainer of rivals: rounds of learning from judged responses in place of Algorithm 4's update.

    round of steps:  sample y ~ π_round → critiques → log each step as `train` does
    its end:         the method learns from all judged responses of the round → π of the next round

Prompts, random numbers, critic, refreshes of the critic, log, evaluations and checkpoints are those of the trainer. A
resumed run reads the judged responses of an unfinished round from its log, and repeats only the learning of the round.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import torch

from evidence.rivals.judged import Judged
from evidence.rivals.rounds import round_of, rounds_of
from evidence.rivals.settings import rival_of
from text2grad.align import response_deltas
from text2grad.costs import tokens_of
from text2grad.critics import CachedCritic
from text2grad.feedback import critique_from_json
from text2grad.progress import Progress
from text2grad.rl import Clock, Text2GradTrainer, response_records, rewards_of, token_rewards
from text2grad.rl.metrics import step_metrics
from text2grad.types import Rollout


class Learner(Protocol):
    """A method: learns from the judged responses of a round."""

    def __call__(self, run: "RivalTrainer", judged: list[Judged], /) -> dict[str, float]:
        """Change the policy of a run in place, and return metrics."""
        ...


LEARNERS: Mapping[str, str] = {
    "dpo": "dpo:learn_preferences",
    "sft_best": "imitation:imitate_best",
    "ilf": "imitation:imitate_refined",
    "sdpo": "self_distillation:distil",
}
"""Method → module of this package and name of its `Learner`; TRL loads only for the method that needs it."""


class RivalTrainer(Text2GradTrainer):
    """The trainer of a rival.

    Attributes:
        judged: responses of the round under way.
    """

    sections = (*Text2GradTrainer.sections, "rival")
    judged: list[Judged]

    def round_of(self, step: int) -> tuple[int, int]:
        """Return the first step of the round of a step, and the first step after it."""
        return round_of(step, steps=self.recipe.run.steps, rounds=rounds_of(self.recipe))

    @property
    def policy_is_new(self) -> bool:
        """Whether the policy learned at the end of the last step, or no step has been made."""
        return self.step == 0 or self.round_of(self.step - 1)[1] == self.step

    def train_step(self) -> dict[str, float]:
        """Sample and judge one batch; at the end of a round, learn."""
        clock = Clock()
        with self.within_memory("rollout"), clock("rollout"):
            rollouts = self._sample()
        told = tokens_of(self.critic)
        metrics, records = self._judged(rollouts, clock)
        if self.round_of(self.step)[1] == self.step + 1:
            with self.within_memory("update"), clock("update"):
                metrics |= self._learn()
            self.judged = []
        with clock("refresh"), self._critic_at_work(can_save=False):
            examples = [rollout.example for rollout in rollouts]
            self.refresher.observe(examples, [rollout.response for rollout in rollouts])
            metrics |= self.refresher.refresh_if_due(self.step + 1)
        metrics |= {"rival/rollouts": float((self.step + 1) * len(rollouts)), **clock.seconds}
        metrics |= self.step_costs(rollouts, told, clock)
        self._finish(records, metrics)
        return metrics

    def _judged(self, rollouts: Sequence[Rollout], clock: Clock) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Ask the critic about rollouts, add them to the round, and return metrics and records of the step."""
        with self.within_memory("critic"), clock("critic"):
            critiques = self._criticize(rollouts)
        with self.within_memory("score"), clock("score"):
            batch = self.collate(rollouts)
            scores = self.score(batch, kl=self.recipe.ppo.kl)
            deltas, offsets = response_deltas(self.tokenizer, rollouts, critiques, self.delta_settings)
            texts = [rollout.response for rollout in rollouts]
            rewards = token_rewards(self.recipe, deltas, critiques, batch, responses=texts, offsets=offsets)
        tokens = {"reward": rewards, "kl": scores.kl}
        records = response_records(self.step, rollouts, critiques, deltas, offsets, tokens)
        metrics = step_metrics(records, scores, torch.zeros_like(rewards), batch.response_mask)
        del metrics["value/explained_variance"]  # there is no value function
        with clock("audit"), self._critic_at_work(can_save=True):
            metrics |= self.refresher.audit(self.tokenizer, rollouts, deltas, critiques)
        self.judged += [
            Judged(rollout, critique, sum(record["reward"]))
            for rollout, critique, record in zip(rollouts, critiques, records, strict=True)
        ]
        return metrics, records

    def judge(self, rollouts: Sequence[Rollout]) -> list[Judged]:
        """Return answers of a method with the critic's critiques, which are on disk before anything uses them."""
        critic = CachedCritic(
            self.critic,
            self.directory / "refinements" / f"critiques-{self.step:06d}.jsonl",
            match=self.recipe.critic.match,
        )
        found: list[Judged] = []
        size = self.recipe.rollout.batch_size
        with Progress("judge refinements", len(rollouts), unit="response") as progress:
            for start in range(0, len(rollouts), size):
                part = rollouts[start : start + size]
                with self._critic_at_work(can_save=True):
                    critiques = critic([one.example for one in part], [one.response for one in part])
                rewards = rewards_of(self.recipe, self.tokenizer, part, critiques).rewards
                found += map(Judged, part, critiques, rewards.sum(dim=1).tolist())
                progress.advance(len(part))
        return found

    def _learn(self) -> dict[str, float]:
        module, _, name = LEARNERS[str(rival_of(self.recipe).method)].partition(":")
        learn: Learner = getattr(import_module(f"{__package__}.{module}"), name)
        return learn(self, self.judged)

    def _restore(self) -> None:
        """Restore the newest checkpoint, and the judged responses of its round from the log."""
        super()._restore()
        first = self.round_of(self.step)[0] if self.step < self.recipe.run.steps else self.step
        self.judged = [
            self._read(record, index)
            for step, records in self.log.rollouts(since=first)
            for record, index in zip(records, self._chosen(step), strict=True)
        ]

    def _read(self, record: Mapping[str, Any], index: int) -> Judged:
        """Return a logged response to the prompt of an index."""
        response = record["response"]
        rollout = Rollout(
            self.examples[index], self.prompt_ids[index], tuple(record["ids"]), response, record["truncated"]
        )
        critique = critique_from_json(record["critique"], response, where=str(self.directory / "rollouts"))
        return Judged(rollout, critique, sum(record["reward"]))
