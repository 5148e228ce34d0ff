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
from text2grad.critics import CachedCritic
from text2grad.feedback import critique_from_json
from text2grad.progress import Progress
from text2grad.rl import Text2GradTrainer, rewards_of
from text2grad.rl.rollouts import chosen_examples
from text2grad.rl.step import Step, observed, phase, watched
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

    @observed
    def train_step(self) -> Step:
        """Sample and judge one batch; at the end of a round, learn."""
        step = self.judged_step(self.sample())
        self.update(step)
        self.follow(step)
        step.metrics["rival/rollouts"] = float((step.number + 1) * len(step.rollouts))
        return step

    def judged_step(self, rollouts: list[Rollout]) -> Step:
        """Return a step of rollouts with their critiques and rewards, and without advantages."""
        critiques = self.criticize(rollouts)
        batch = self.collate(rollouts)
        scores = self.score(batch, kl=self.recipe.ppo.kl)
        deltas, offsets, _, rewards = self.rewards(rollouts, critiques, batch)
        nothing = torch.zeros_like(rewards)
        return Step(
            self.step, rollouts, batch, scores, critiques, deltas, offsets, rewards, advantages=nothing, returns=nothing
        )

    def update(self, step: Step) -> None:
        """Add the judged responses to the round; at its end, learn from all of them."""
        self.add_judged(step)
        if self.round_of(step.number)[1] == step.number + 1:
            step.metrics |= self._learned()
            self.judged = []

    def add_judged(self, step: Step) -> None:
        """Make the records of a step, and add its responses to the round."""
        self._tell("before_update", step)
        del step.metrics["value/explained_variance"]  # there is no value function
        self.judged += [
            Judged(rollout, critique, sum(record["reward"]))
            for rollout, critique, record in zip(step.rollouts, step.critiques, step.records, strict=True)
        ]

    @phase("update")
    def _learned(self) -> dict[str, float]:
        return self._learn()

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
                with watched(self, "critic"):
                    critiques = critic([rollout.example for rollout in part], [rollout.response for rollout in part])
                rewards = rewards_of(self.recipe.reward, self.tokenizer, part, critiques).rewards
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
            for record, index in zip(records, chosen_examples(self, step), strict=True)
        ]

    def _read(self, record: Mapping[str, Any], index: int) -> Judged:
        """Return a logged response to the prompt of an index."""
        response = record["response"]
        rollout = Rollout(
            self.examples[index], self.prompt_ids[index], tuple(record["ids"]), response, record["truncated"]
        )
        critique = critique_from_json(record["critique"], response, where=str(self.directory / "rollouts"))
        return Judged(rollout, critique, sum(record["reward"]))
