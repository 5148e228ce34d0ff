"""The whole method, top to bottom: NL-Gradient policy optimization (section 3.5, Algorithm 4).

One step of `Text2GradTrainer.train`:

    1. sample responses y ~ π_old(· | x)                         rollout        lines 10-11
    2. ask the critic for critiques c and spans A(y)             critics        line 12
    3. spans become δ_t in the policy's own tokens               rewards        line 13
    4. r_t = δ_t − β KL_t                                        nl_gradient    line 14
    5. GAE advantages and returns                                advantages     lines 15-16
    6. epochs of clipped PPO on policy and value function        update         lines 19-31

Everything random in step n follows from (seed, n) alone, so a run that was killed and resumed ends with the same
weights, bit for bit (same machine, same number of threads and processes).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from tqdm.auto import tqdm

from text2grad.align import AlignSettings, resolve, response_deltas
from text2grad.config import Recipe, open_run
from text2grad.errors import CriticError
from text2grad.feedback import Critic, ask
from text2grad.models import (
    PolicyWithValue,
    Reference,
    batch_indices,
    check_model,
    collate,
    enable_checkpointing,
    fitting_prompts,
    half_precision,
    make_rollouts,
    padding_id,
    random_states,
    restore_random_states,
    sample,
    step_uniforms,
    stop_ids,
)
from text2grad.reward_models import Refresher
from text2grad.rl.checkpoint import checkpoint_critics, latest_checkpoint, load_checkpoint, save_checkpoint
from text2grad.rl.failures import FailureRate
from text2grad.rl.metrics import Clock, Record, response_records, step_metrics
from text2grad.rl.nl_gradient import total_rewards
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.ppo import KLController
from text2grad.rl.processes import make_accelerator, prepare_policy
from text2grad.rl.rewards import reward_tensor
from text2grad.rl.run_log import BEGINNING, RunLog
from text2grad.rl.scoring import estimate_advantages, score_batch
from text2grad.rl.update import Learning, Updater
from text2grad.types import Critique, Example, Rollout


class Text2GradTrainer:
    """Trains a policy on what a critic says in words about its responses."""

    def __init__(
        self,
        model: Any,
        critic: Critic,
        tokenizer: Any,
        train_examples: Sequence[Example],
        config: Recipe | None = None,
        *,
        annotator: Critic | None = None,
        resume: bool = False,
    ) -> None:
        """Check everything that can be checked before work starts.

        Args:
            model: a Hugging Face causal language model, with or without peft adapter, or a path to load one from.
            critic: anything that maps (examples, responses) to critiques.
            tokenizer: the policy's.
            train_examples: the prompts x.
            config: a recipe; None takes the defaults.
            annotator: the critic that audits and retrains a learned one, where `config.refresh` asks for it.
            resume: go on with the run in `config.run.out`.

        Raises:
            ConfigError: if settings do not fit together, or the directory holds another run.
            DataError: if there are no prompts, or one leaves no room for a response.
            ModelError: if the model or tokenizer cannot play its role.
        """
        self.recipe = config or Recipe()
        self.critic, self.tokenizer = critic, tokenizer
        resolve(self.recipe.reward.weighting)  # a missing tagger is missed before work starts
        if self.recipe.run.threads:
            torch.set_num_threads(self.recipe.run.threads)
        torch.manual_seed(self.recipe.run.seed)
        self.accelerator = make_accelerator(self.recipe)
        self.directory = Path(self.recipe.run.out)
        self.refresher = Refresher(
            self.recipe, critic, annotator, self.directory, processes=self.accelerator.num_processes
        )
        policy = prepare_policy(model, self.recipe)
        self.eos_ids = stop_ids(policy, tokenizer, self.recipe.rollout.eos_token_ids)
        self.pad_id = padding_id(tokenizer, self.eos_ids)
        self.examples, self.prompt_ids = fitting_prompts(
            policy,
            tokenizer,
            train_examples,
            prompt_format=self.recipe.rollout.prompt_format,
            max_new_tokens=self.recipe.rollout.max_new_tokens,
            too_long=self.recipe.data.too_long,
        )

        if self.accelerator.is_main_process:
            open_run(self.directory, self.recipe, resume=resume, processes=self.accelerator.num_processes)
        self.accelerator.wait_for_everyone()
        self.log = RunLog(self.directory)
        policy = policy.to(self.accelerator.device)
        check_model(policy)
        self.reference = Reference(policy)
        settings = self.recipe.model
        self.model = PolicyWithValue(policy, value=settings.value)
        self.model.to(self.accelerator.device)
        if settings.gradient_checkpointing:
            enable_checkpointing(policy)
        self.model.train(settings.gradient_checkpointing)
        self.trainable = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizers = Optimizers(
            self.model.policy_parameters(),
            self.model.value_parameters(),
            self.recipe.optim,
            total_steps=self.recipe.run.steps,
        )
        self.kl = KLController(self.recipe.ppo.beta, self.recipe.ppo.target_kl, self.recipe.ppo.kl_horizon)
        self.failures = FailureRate(self.recipe.critic.max_failure_rate, self.recipe.rollout.batch_size)
        self.step = 0
        self._restore()
        self.updater = Updater(
            self.accelerator.prepare_model(self.model),
            self.accelerator,
            self.recipe.ppo,
            temperature=self.recipe.rollout.temperature,
            optimizers=self.optimizers,
            half_precision=half_precision(policy),
        )

    def train(self, after_step: Callable[["Text2GradTrainer"], None] | None = None) -> Path:
        """Run until `run.steps` and return the directory of the trained policy, an ordinary Hugging Face directory.

        Args:
            after_step: called with the trainer after each finished step.

        Raises:
            CriticError: if the critic breaks its contract or fails too often; what was learned is saved first.
            TrainingError: if a loss is not finite.
            CheckpointError: if a checkpoint cannot be written.
        """
        self.accelerator.init_trackers("text2grad")
        total = self.recipe.run.steps
        with tqdm(total=total, initial=self.step, unit="step", disable=not self.accelerator.is_main_process) as bar:
            while self.step < total:
                metrics = self.train_step()
                bar.set_postfix_str(
                    f"reward {metrics['reward/per_response']:.2f}, KL {metrics['kl/per_token']:.3f}/token",
                    refresh=False,
                )
                bar.update()
                if self.step % self.recipe.run.save_every == 0 or self.step == total:
                    self.save()
                if after_step is not None:
                    after_step(self)
        self.accelerator.end_training()
        return latest_checkpoint(self.directory / "checkpoints") / "policy"  # type: ignore[operator]

    def train_step(self) -> dict[str, float]:
        """Make one step of Algorithm 4 and return its metrics."""
        clock = Clock()
        with clock("rollout"):
            rollouts = self._sample()
        with clock("critic"):
            critiques = self._criticise(rollouts)
        with clock("score"):
            batch = collate(rollouts, pad_id=self.pad_id, device=self.accelerator.device)
            mask = batch.response_mask
            scores = score_batch(self.model, self.reference, batch, self.recipe)
            reward = self.recipe.reward
            settings = AlignSettings(reward.mode, reward.weighting, reward.overlap, reward.span_mass)
            deltas, offsets = response_deltas(self.tokenizer, rollouts, critiques, settings)
            earned = reward_tensor(deltas, critiques, mask, batch.truncated, self.recipe.reward)
            rewards = total_rewards(earned, scores.kl, mask, beta=self.kl.beta)
            advantages, returns = estimate_advantages(rewards, scores, mask, self.recipe, self.accelerator)
        tokens = {"reward": earned, "kl": scores.kl, "value": scores.values, "advantage": advantages}
        records = gather_object(response_records(self.step, rollouts, critiques, deltas, offsets, tokens))
        metrics = step_metrics(records, scores, returns, mask)
        with clock("audit"):
            metrics |= self.refresher.audit(self.tokenizer, rollouts, deltas, critiques)
        with clock("update"):
            metrics |= self.optimizers.begin(self.step)
            metrics |= self.updater(Learning(batch, scores, advantages, returns), seed=self.recipe.run.seed + self.step)
        with clock("refresh"):
            asked = [self.examples[i] for i in self._chosen(self.step)]
            self.refresher.see(asked, [record["response"] for record in records])
            metrics |= self.refresher.refresh_if_due(self.step + 1, metrics["kl/per_token"])
        metrics |= {"kl/beta": self.kl.beta, **clock.seconds}
        self.kl.update(metrics["kl/per_sequence"], responses=len(records))
        self._write_down(records, metrics)
        self.step += 1
        self.failures.count(record["critique"]["status"] for record in records)
        if self.failures.too_many:
            error = self.failures.error(self.directory / "rollouts")
            self.failures.statuses.clear()  # a mended critic starts anew
            self.save()
            raise error
        return metrics

    def save(self) -> None:
        """Write a checkpoint of the last finished step."""
        if self.accelerator.is_main_process:
            save_checkpoint(
                self.directory / "checkpoints",
                policy=self.model.policy,
                tokenizer=self.tokenizer,
                trainable=self.trainable,
                optimizers=self.optimizers,
                state={
                    "step": self.step,
                    "beta": self.kl.beta,
                    "statuses": list(self.failures.statuses),
                    "log": self.log.position(),
                    "critic": self.refresher.state(),
                    "random": random_states(),
                },
                keep=self.recipe.run.keep_checkpoints,
            )
            self.log.forget_critiques(self.step)
            self.refresher.forget(checkpoint_critics(self.directory / "checkpoints"))
        self.accelerator.wait_for_everyone()

    def _sample(self) -> list[Rollout]:
        rollout, rank = self.recipe.rollout, self.accelerator.process_index
        share = rollout.batch_size // self.accelerator.num_processes
        mine = slice(rank * share, (rank + 1) * share)
        chosen = self._chosen(self.step)[mine]
        uniforms = step_uniforms(
            seed=self.recipe.run.seed, step=self.step, rows=rollout.batch_size, tokens=rollout.max_new_tokens
        )
        prompts = [self.prompt_ids[i] for i in chosen]
        responses = sample(
            self.model.policy,
            prompts,
            uniforms[mine],
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
            temperature=rollout.temperature,
            rows_at_once=rollout.rows_at_once,
        )
        return make_rollouts(self.tokenizer, [self.examples[i] for i in chosen], prompts, responses, self.eos_ids)

    def _criticise(self, rollouts: Sequence[Rollout]) -> list[Critique]:
        rank = self.accelerator.process_index
        kept = self.log.kept_critiques(self.step, rank, rollouts)
        if kept is not None:
            return kept
        examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
        try:
            critiques = ask(self.critic, examples, responses, match=self.recipe.critic.match)
        except CriticError:
            if self.accelerator.num_processes == 1:
                self.save()
            raise
        self.log.keep_critiques(self.step, rank, rollouts, critiques)
        return critiques

    def _write_down(self, records: Sequence[Record], metrics: dict[str, float]) -> None:
        if self.accelerator.is_main_process:
            self.log.write_rollouts(records)
            self.log.write_metrics({"step": self.step, **metrics})
        self.accelerator.log(metrics, step=self.step)

    def _restore(self) -> None:
        """Take up the newest checkpoint, or the beginning; what was written after it is cut off."""
        found = latest_checkpoint(self.directory / "checkpoints")
        written = BEGINNING
        if found is not None:
            state = load_checkpoint(found, trainable=self.trainable, optimizers=self.optimizers)
            self.step, self.kl.beta, written = state["step"], state["beta"], state["log"]
            self.failures.count(state["statuses"])
            self.refresher.restore(state["critic"])
            restore_random_states(state["random"])
        if self.accelerator.is_main_process:
            self.log.rewind(written)
        self.accelerator.wait_for_everyone()
        batches = -(-self.recipe.refresh.window // self.recipe.rollout.batch_size)
        for step, responses in self.log.responses(since=self.step - batches):
            self.refresher.see([self.examples[i] for i in self._chosen(step)], responses)

    def _chosen(self, step: int) -> list[int]:
        """Return which examples a step uses, over all processes."""
        count, seed = self.recipe.rollout.batch_size, self.recipe.run.seed
        return batch_indices(len(self.examples), count, step=step, seed=seed)
