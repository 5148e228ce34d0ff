"""NL-Gradient policy optimization (section 3.5, Algorithm 4): `Text2GradTrainer.train_step` is one step of it.

    1. sample responses y ~ π_old(· | x)                        lines 10-11
    2. ask the critic for critiques c and spans A(y)            line 12
    3. spans → δ_t in the policy's own tokens                   line 13
    4. r_t = δ_t − β KL_t                                       line 14
    5. GAE advantages A_t and returns R_t                       lines 15-16
    6. epochs of clipped PPO on policy and value function       lines 19-31

All randomness of step n follows from (seed, n) alone, so a run that was killed and resumed ends with the same weights,
bit for bit (same machine, same number of threads and processes). B: responses of this process, T: response tokens.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from text2grad.models import Scores, TokenBatch
from text2grad.rl.advantages import Advantages, advantages_over_baseline, whiten
from text2grad.rl.credit import credit_of
from text2grad.rl.importance import engine_weights
from text2grad.rl.loop import TrainingLoop
from text2grad.rl.nl_gradient import total_rewards
from text2grad.rl.rewards import Rewarded, rewards_of
from text2grad.rl.rollouts import EarlyCritiques, chosen_examples, critiques_of, sample_rollouts
from text2grad.rl.step import Step, observed, phase
from text2grad.rl.update import PPOBatch, ppo_epochs
from text2grad.types import Critique, Rollout


class Text2GradTrainer(TrainingLoop):
    """Trains a policy on a critic's words about its responses; a resumed run had the same settings in `sections`."""

    @observed
    def train_step(self) -> Step:
        """Make one step of Algorithm 4."""
        with self.early_critiques() as early:
            rollouts = self.sample(early)  # lines 10-11: y ~ π_old(· | x)
            batch = self.collate(rollouts)
            critiques = self.criticize(rollouts) if early is None else []  # line 12: critique c, spans A(y)
            with self.gradient.sharing_first_pass():
                scores = self.score(batch, kl=self.recipe.ppo.kl)  # log π_old, KL_t and V, all [B, T]
            critiques = critiques or self.criticize(rollouts, early)
        rewarded = deltas, offsets, _, span_rewards = self.rewards(rollouts, critiques, batch)  # line 13: A(y) → δ_t
        rest, taught, of_credit = credit_of(self, rollouts, critiques, rewarded, scores.logp)
        rewards = total_rewards(rest, scores.kl, batch.response_mask, beta=self.beta_in_reward)  # line 14
        advantages, returns = self.advantages(rewards, scores, batch, taught)  # lines 15-16
        step = Step(self.step, rollouts, batch, scores, critiques, deltas, offsets, span_rewards, advantages, returns)
        step.metrics |= of_credit
        self.update(step)  # lines 19-31: epochs of clipped PPO
        self.follow(step)  # β and a learned critic follow the policy
        return step

    def early_critiques(self) -> AbstractContextManager[EarlyCritiques | None]:
        """Return the context in which a critic that allows it is asked while the policy still samples."""
        kept = self.log.keeps_critiques(self.step)  # a killed run left critiques: nothing is asked again
        parts = 0 if kept else int(getattr(self.critic, "overlap", 0))
        return EarlyCritiques(self.critic, self.asking, parts) if parts else nullcontext()

    @phase("rollout")
    def sample(self, early: EarlyCritiques | None = None) -> list[Rollout]:
        """Return this process's responses of the step; each batch of them goes to `early` as soon as it is sampled."""
        return sample_rollouts(self, self.step, early)

    @phase("critic")
    def criticize(self, rollouts: Sequence[Rollout], early: EarlyCritiques | None = None) -> list[Critique]:
        """Return the critiques of the step, which are on disk before anything uses them."""
        return critiques_of(self, self.step, rollouts, early)

    @phase("score")
    def rewards(self, rollouts: Sequence[Rollout], critiques: Sequence[Critique], batch: TokenBatch) -> Rewarded:
        """Return δ of each sampled token, and its reward before the KL term, [B, T], as [reward] says."""
        return rewards_of(self.recipe.reward, self.tokenizer, rollouts, critiques, batch)

    @phase("score")
    def advantages(self, rewards: Tensor, scores: Scores, batch: TokenBatch, taught: Tensor | None) -> Advantages:
        """Return advantages over value function (GAE) or group, with those of a self-teacher, whitened; and returns."""
        ppo, mask = self.recipe.ppo, batch.response_mask
        advantages, returns = advantages_over_baseline(
            ppo,
            rewards,
            scores.values,
            batch,
            group_size=self.recipe.rollout.group_size,
            bootstrap=scores.bootstrap,  # a truncated response goes on with V of its last state
        )
        advantages = advantages if taught is None else advantages + taught
        if ppo.whiten in ("scale", "full"):
            advantages = whiten(advantages, mask, center=ppo.whiten == "full", add_up=self.accelerator.reduce)
        return Advantages(advantages, returns)

    def update(self, step: Step) -> None:
        """Move the policy and the value function."""
        logp, mask, how = step.scores.logp, step.batch.response_mask, self.recipe.rollout.correction
        weights, of_engine = engine_weights(step.rollouts, logp, mask, how, accelerator=self.accelerator)
        step.metrics |= of_engine
        if self.vllm is not None:  # vLLM's log-probs are not quite the policy's
            step.advantages = step.advantages * weights
        self._tell("before_update", step)
        self._epochs(step)
        self.move_teacher()
        self._tell("after_update", step)

    @phase("update")
    def _epochs(self, step: Step) -> None:
        step.metrics |= self.optimizers.begin(step.number)
        seed = self.recipe.run.seed + step.number
        step.metrics |= ppo_epochs(self.gradient, self.optimizers, self.ppo_batch(step), seed=seed)

    def ppo_batch(self, step: Step) -> PPOBatch:
        """Return what the update of a step learns from."""
        return PPOBatch(step.batch, step.scores, step.advantages, step.returns, self.kl.beta - self.beta_in_reward)

    @phase("refresh")
    def follow(self, step: Step) -> None:
        """Let the learned critic and β follow the policy."""
        examples = [self.examples[index] for index in chosen_examples(self, step.number)]
        self.refresher.observe(examples, self.as_seen(step.records))
        step.metrics |= self.refresher.refresh_if_due(step.number + 1)
        step.metrics["kl/beta"] = self.kl.beta
        self.kl.update(step.metrics["kl/per_sequence"], responses=len(step.records))

    @property
    def beta_in_reward(self) -> float:
        """β of the KL term in the reward of each token: β now, or 0 with the KL term in the loss."""
        return self.kl.beta if self.recipe.ppo.kl_in == "reward" else 0.0
