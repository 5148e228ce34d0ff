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

import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import Tensor

from text2grad.align import AlignSettings, resolve, response_deltas
from text2grad.config import (
    BEST,
    Interruption,
    ModelConfig,
    Recipe,
    check_directory,
    check_world_size,
    latest_checkpoint,
    open_run,
    read_best,
)
from text2grad.costs import TokenCount, peak_memory, tokens_of
from text2grad.errors import CheckpointError, ConfigError, CriticError, Interrupted, ModelError
from text2grad.feedback import Critic, ask, check_examples, digest_of_examples
from text2grad.files import to_json, write_atomically
from text2grad.models import (
    POLICY_ADAPTER,
    PolicyWithValue,
    Reference,
    Scores,
    TokenBatch,
    VLLMSampler,
    adapter_is_trained,
    batch_indices,
    can_share_prompts,
    check_engine,
    check_lora_targets,
    check_model,
    collate,
    dtype_to_train,
    empty_model,
    enable_checkpointing,
    fitting_prompts,
    give_back_if_short,
    half_precision,
    is_peft,
    load_policy,
    make_rollouts,
    on_cpu,
    padding_id,
    policy_config,
    random_states,
    refuse_second_adapter,
    restore_random_states,
    sample,
    settle_heap,
    step_uniforms,
    stop_ids,
    with_lora,
)
from text2grad.progress import Progress, note
from text2grad.rl.advantages import Advantages, Moments, advantages_over_baseline, is_certain, moments, whiten
from text2grad.rl.checkpoint import (
    checkpoint_critics,
    join_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)
from text2grad.rl.importance import engine_weights
from text2grad.rl.instruments import instruments_of
from text2grad.rl.judging import Judging, judging
from text2grad.rl.metrics import Clock, FailureRate, Record, Silence, response_records, step_metrics
from text2grad.rl.nl_gradient import total_rewards
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.ppo import KLController, TokenMean
from text2grad.rl.refreshing import CriticRefresher, FixedCritic
from text2grad.rl.rewards import token_rewards
from text2grad.rl.run_log import BEGINNING, RunLog
from text2grad.rl.scoring import score_batch
from text2grad.rl.sharding import check_launch, sharding_of
from text2grad.rl.trackers import RunTracker, check_tracker
from text2grad.rl.update import MinibatchGradient, PPOBatch, minibatch_rows
from text2grad.types import Critique, Example, Rollout

SECTIONS = tuple(name for name in Recipe.model_fields if name not in ("sft", "annotate", "reward_model"))
"""The sections of a recipe whose settings decide the result; the others belong to the commands before `train`."""

FIGURES = {"reward": "reward/per_response", "KL": "kl/per_token", "loss": "update/policy_loss"}
"""Name in the progress → metric."""

STOP_KL_FACTOR = 1.5  # epochs end early when the KL from π_old exceeds ppo.stop_kl by this factor


class Text2GradTrainer:
    """Trains a policy on a critic's words about its responses; a resumed run had the same settings in `sections`."""

    sections: Sequence[str] = SECTIONS

    def __init__(
        self,
        model: Any,
        critic: Critic,
        tokenizer: Any,
        train_examples: Sequence[Example],
        config: Recipe | None = None,
        *,
        refresher: CriticRefresher | None = None,
        held_out: Sequence[Example] = (),
        resume: bool = False,
    ) -> None:
        """Check everything that can be checked before work starts.

        Args:
            model: a Hugging Face causal language model, with or without peft adapter, or the path of one.
            critic: maps (examples, responses) to critiques.
            tokenizer: the policy's.
            train_examples: the prompts x.
            config: a recipe; None takes the defaults.
            refresher: audits and retrains a learned critic, where `config.refresh` asks for it.
            held_out: the prompts of evaluations (`text2grad train` makes them), checked like the prompts x.
            resume: continue the run in `config.run.out`.

        Raises:
            ConfigError: if settings do not fit together, or the directory holds another run.
            DataError: if there are no prompts, or a prompt leaves no room for a response.
            ModelError: if the model or tokenizer cannot play its role.
        """
        self.recipe = recipe = config or Recipe()
        self.critic, self.tokenizer = critic, tokenizer
        self.delta_settings = AlignSettings.of(recipe.reward)
        resolve(recipe.reward.weighting)  # raises now if its tagger is not installed
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        set_seed(recipe.run.seed)  # also of `random` and NumPy, for critics that use them
        self.accelerator = make_accelerator(
            out=recipe.run.out,
            tracker=recipe.run.tracker,
            batch_size=recipe.rollout.batch_size,
            minibatches=recipe.ppo.minibatches,
            group_size=recipe.rollout.group_size,
        )
        self.sharding = sharding_of(self.accelerator)
        self._refuse_with_shards(recipe, held_out)
        self.tracker = RunTracker(self.accelerator, recipe)
        self.refresher = self._checked(refresher)
        self.directory = Path(recipe.run.out)
        check_directory(self.directory, resume=resume)
        code = recipe.model.trust_remote_code
        of_model = policy_config(str(model), trust_remote_code=code) if isinstance(model, str | Path) else model
        fitting: dict[str, Any] = {
            "prompt_format": recipe.rollout.prompt_format,
            "max_new_tokens": recipe.rollout.max_new_tokens,
            "too_long": recipe.data.too_long,
        }
        self.examples, self.prompt_ids = fitting_prompts(of_model, tokenizer, train_examples, **fitting)
        self.held_out: list[Example] = []
        self.held_out_ids: list[tuple[int, ...]] = []
        if held_out:
            self.held_out, self.held_out_ids = fitting_prompts(of_model, tokenizer, held_out, **fitting)
        check_examples(critic, [*self.examples, *self.held_out])
        self.longest_prompt = max(map(len, self.prompt_ids))
        if recipe.rollout.engine == "vllm":
            longest = self.longest_prompt + recipe.rollout.max_new_tokens
            check_engine(recipe.engine, self.accelerator, model=model, longest=longest)
        policy = prepare_policy(model, recipe.model)
        self.eos_ids = stop_ids(policy, tokenizer, recipe.rollout.eos_token_ids)
        self.pad_id = padding_id(policy, tokenizer, self.eos_ids)
        if self.accelerator.is_main_process:
            open_run(
                self.directory,
                recipe,
                resume=resume,
                processes=self.accelerator.num_processes,
                sections=self.sections,
                inputs={
                    "prompts": digest_of_examples(self.examples),
                    **({"held-out prompts": digest_of_examples(self.held_out)} if self.held_out else {}),
                },
                fixed_steps=recipe.optim.schedule != "constant",
            )
        self.accelerator.wait_for_everyone()
        self.log = RunLog(self.directory)
        self._build(policy if self.sharding else policy.to(self.accelerator.device))

    def _refuse_with_shards(self, recipe: Recipe, held_out: Sequence[Example]) -> None:
        """Refuse what needs whole weights or gradients, or a pass that one process alone would make."""
        if self.sharding is None:
            return
        if recipe.rollout.engine == "vllm":
            raise ConfigError(
                'rollout.engine = "vllm" takes whole weights at each step, and FSDP has them in shards; choose '
                'rollout.engine = "hf", or launch plain data parallelism'
            )
        processes = self.accelerator.num_processes
        if 0 < len(held_out) < processes:
            raise ConfigError(
                f"{len(held_out)} held-out prompts cannot be shared by {processes} processes; set data.eval_examples "
                f"to {processes} or more, or to 0"
            )

    def _checked(self, refresher: CriticRefresher | None) -> CriticRefresher:
        refresh = self.recipe.refresh
        if refresh.asks and refresher is None:
            raise ConfigError(
                "[refresh] asks to audit or retrain the critic, and the trainer has no refresher: pass "
                "Text2GradTrainer(..., refresher=text2grad.Refresher(...)), or leave refresh.steps and "
                "refresh.audit out"
            )
        refresh.check_processes(self.accelerator.num_processes)
        return refresher or FixedCritic()

    def _build(self, policy: Any) -> None:
        """Make reference, value function, optimizers and controllers, and restore the newest checkpoint."""
        recipe, ppo = self.recipe, self.recipe.ppo
        settle_heap(policy, recipe.run.compact_memory)
        if self.accelerator.is_main_process:
            for warning in _warnings_of(policy, recipe):
                note(warning, warning=True)
        self.reference = Reference(policy)
        self.model = PolicyWithValue(policy, value=recipe.model.value)
        if recipe.model.gradient_checkpointing:
            enable_checkpointing(policy)
            if self.model.value_trunk is not None:
                enable_checkpointing(self.model.value_trunk)
        if self.sharding is None:
            self.model.to(self.accelerator.device)
            if self.accelerator.num_processes > 1 and self.accelerator.is_main_process:
                note(f"{self.accelerator.num_processes} processes, each with whole models (plain data parallelism)")
        else:
            self.sharding.shard(self.model, self.reference)
        with self.whole_policy() as whole:
            check_model(whole)
        self.model.train(recipe.model.gradient_checkpointing)
        self.share_prompts = can_share_prompts(policy)
        if not self.model.policy_parameters():
            raise ModelError(
                f"no weight of the policy ({type(policy).__name__}) can be trained: requires_grad is False for all of "
                "them. Load a peft adapter with PeftModel.from_pretrained(..., is_trainable=True)"
            )
        self.trainable = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizers = Optimizers(
            self.model.policy_parameters(),
            self.model.value_parameters(),
            recipe.optim,
            total_steps=recipe.run.steps,
        )
        self.kl = KLController(ppo.beta, ppo.target_kl, ppo.kl_horizon)
        self.failures = FailureRate(recipe.critic.max_failure_rate, recipe.rollout.batch_size)
        self.silence = Silence()
        self.sizes = PieceSizes(
            micro_batch_tokens=ppo.micro_batch_tokens,
            rows_at_once=recipe.rollout.rows_at_once,
            may_halve=self.accelerator.num_processes == 1,
            largest=self.sharding.largest if self.sharding else None,
        )
        self.instruments = instruments_of(self)
        self.step, self.saved_step = 0, -1  # the last checkpoint's; none yet
        self._restore()
        self.gradient = MinibatchGradient(
            self.model if self.sharding else self.accelerator.prepare_model(self.model),
            self.accelerator,
            clip_range=ppo.clip_range,
            value_clip_range=ppo.value_clip_range,
            vf_coef=ppo.vf_coef,
            entropy_coef=ppo.entropy_coef,
            temperature=recipe.rollout.temperature,
            loss_mean=TokenMean(ppo.loss_mean, recipe.rollout.max_new_tokens),
            sizes=self.sizes,
            half_precision=self.sharding.half_precision if self.sharding else half_precision(policy),
        )
        self.engine = self._vllm(policy) if recipe.rollout.engine == "vllm" else None

    def _vllm(self, policy: Any) -> VLLMSampler:
        return VLLMSampler(
            policy,
            self.tokenizer,
            self.accelerator,
            self.recipe.engine,
            rollout=self.recipe.rollout,
            eos_ids=self.eos_ids,
            longest_prompt=self.longest_prompt,
            seed=self.recipe.run.seed,
            trust_remote_code=self.recipe.model.trust_remote_code,
        )

    def train(self, after_step: Callable[["Text2GradTrainer"], None] | None = None) -> Path:
        """Run until `run.steps` and return the directory of the trained policy, an ordinary Hugging Face directory.

        Args:
            after_step: called with the trainer after each finished step, but not after a signal.

        Raises:
            CriticError: if the critic breaks its contract or fails too often; finished steps are saved first.
            TrainingError: if a loss is not finite.
            OutOfMemory: if memory runs out where no smaller piece helps; finished steps are saved if possible.
            CheckpointError: if a checkpoint cannot be written.
            Interrupted: after SIGINT or SIGTERM, once the step under way is finished and saved.
        """
        total = self.recipe.run.steps
        if self.step < total:
            self.tracker.start(self.step)
        progress = Progress("train", total, done=self.step, enabled=self.accelerator.is_main_process)
        with Interruption() as interruption, progress:
            while self.step < total:
                metrics = self.train_step()
                give_back_if_short(self.model.policy)
                figures: dict[str, Any] = {name: metrics[key] for name, key in FIGURES.items() if key in metrics}
                progress.advance(**figures | ({"critic": "labels nothing"} if self.silence.whole else {}))
                if self.step % self.recipe.run.save_every == 0 or self.step == total or self.sizes.changed:
                    self.save()  # also new sizes of pieces, which a resumed run takes
                if self._interrupted(interruption) and self.step < total:
                    self.save()
                    self._end()
                    raise Interrupted(
                        interruption.received or signal.SIGTERM,
                        f"stopped after step {self.step} of {total}, which is saved",
                    )
                if after_step is not None:
                    after_step(self)
        self._end()
        return latest_checkpoint(self.directory / "checkpoints") / "policy"  # type: ignore[operator]

    @property
    def policy_is_new(self) -> bool:
        """Whether the last step changed the policy: False within a round of a rival."""
        return True

    def _end(self) -> None:
        """End the engine before the group of processes, which the tracker ends."""
        if self.engine is not None:
            self.accelerator.wait_for_everyone()
            self.engine.close()
        self.tracker.finish()

    @property
    def beta_in_reward(self) -> float:
        """β of the KL term in the reward of each token: β now, or 0 with the KL term in the loss."""
        return self.kl.beta if self.recipe.ppo.kl_in == "reward" else 0.0

    def train_step(self) -> dict[str, float]:
        """Make one step of Algorithm 4 and return its metrics."""
        ppo, clock, told = self.recipe.ppo, Clock(), tokens_of(self.critic)

        with self._judging() as judging:
            with self.within_memory("rollout"), clock("rollout"):  # lines 10-11: y ~ π_old(· | x)
                rollouts = self._sample(judging)
                batch = self.collate(rollouts)
                mask = batch.response_mask  # [B, T]

            with self.within_memory("score"), clock("score"):  # log π_old, KL_t and V, all [B, T]
                scores = self.score(batch, kl=ppo.kl)

            with self.within_memory("critic"), clock("critic"):  # line 12: critique c, spans A(y)
                critiques = self._criticize(rollouts, judging)

        with self.within_memory("score"), clock("score"):  # line 13: A(y) → δ_t
            deltas, offsets = response_deltas(self.tokenizer, rollouts, critiques, self.delta_settings)
            span_rewards = token_rewards(
                self.recipe, deltas, critiques, batch, responses=[r.response for r in rollouts], offsets=offsets
            )
            # line 14: r_t = δ_t − β KL_t
            rewards = total_rewards(span_rewards, scores.kl, mask, beta=self.beta_in_reward)
            advantages, returns = self._advantages(rewards, scores, mask)  # lines 15-16
            advantages, engine = self._corrected(advantages, rollouts, scores, mask)
            advantages, certain = self._uncertain(advantages, scores.logp, span_rewards, mask)

        tokens = {"reward": span_rewards, "kl": scores.kl, "value": scores.values, "advantage": advantages}
        records = gather_object(response_records(self.step, rollouts, critiques, deltas, offsets, tokens))
        metrics = step_metrics(records, scores, returns, mask, self._of_all) | engine | certain
        with clock("audit"), self._critic_at_work(can_save=True):
            metrics |= self.refresher.audit(self.tokenizer, rollouts, deltas, critiques)

        with self.within_memory("update"):
            for instrument in self.instruments:
                metrics |= instrument.before(self.step, batch, advantages, deltas)
        with self.within_memory("update"), clock("update"):  # lines 19-31: epochs of clipped PPO
            metrics |= self.optimizers.begin(self.step)
            metrics |= ppo_epochs(
                self.gradient,
                self.optimizers,
                PPOBatch(batch, scores, advantages, returns, kl_coef=self.kl.beta - self.beta_in_reward),
                epochs=ppo.epochs,
                minibatches=ppo.minibatches,
                max_ratio=ppo.max_ratio,
                stop_kl=ppo.stop_kl,
                seed=self.recipe.run.seed + self.step,
            )
        with self.within_memory("update"):
            for instrument in self.instruments:
                instrument.after(self.step, batch, scores.logp, records)

        with clock("refresh"), self._critic_at_work(can_save=False):  # the learned critic follows the policy
            self.refresher.observe(
                [self.examples[i] for i in self._chosen(self.step)], [record["response"] for record in records]
            )
            metrics |= self.refresher.refresh_if_due(self.step + 1)
        metrics |= {"kl/beta": self.kl.beta, **clock.seconds, **self.step_costs(rollouts, told, clock)}
        self.kl.update(metrics["kl/per_sequence"], responses=len(records))
        self._finish(records, metrics)
        return metrics

    def step_costs(self, rollouts: Sequence[Rollout], before: TokenCount, clock: Clock) -> dict[str, float]:
        """Return tokens of rollouts and critic of all processes, and peak memory of this process, for the log.

        Args:
            rollouts: of this process.
            before: the critic's tokens before it judged them.
            clock: of the step.
        """
        after = tokens_of(self.critic)
        mine = [
            sum(len(rollout.prompt_ids) for rollout in rollouts),
            sum(len(rollout.response_ids) for rollout in rollouts),
            after.prompt - before.prompt,
            after.generated - before.generated,
        ]
        counts = gather_object([mine]) if self.accelerator.num_processes > 1 else [mine]
        names = ("prompt", "generated", "critic_prompt", "critic_generated")
        totals = {
            f"tokens/{name}": float(sum(column)) for name, column in zip(names, zip(*counts, strict=True), strict=True)
        }
        return {**totals, **clock.memory, "memory/peak_bytes": max([float(peak_memory()), *clock.memory.values()])}

    def save(self) -> None:
        """Write a checkpoint of the last finished step, unless there is one."""
        if self.saved_step == self.step and not self.sizes.changed:
            return
        drawn, *of_others = gather_object([random_states()])  # a critic draws in each process on its own
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
                    "sizes": self.sizes.state(),
                    "critic": self.refresher.state(),
                    "random": drawn,
                    "random_of_others": of_others,
                },
                keep=self.recipe.run.keep_checkpoints,
                sharded=self.sharding is not None,
            )
            self.sizes.changed = False
            self.log.forget_critiques(self.step)
            self.refresher.prune(checkpoint_critics(self.directory / "checkpoints"))
        elif self.sharding is not None:
            join_checkpoint(self.model.policy, self.trainable, self.optimizers)
        self.saved_step = self.step
        self.accelerator.wait_for_everyone()

    def keep_if_best(self, value: float) -> None:
        """Keep the checkpoint of the last finished step in place of the best one so far if its evaluation is better.

        Args:
            value: of the main metric; in the first process.

        Raises:
            CheckpointError: if it cannot be written.
        """
        directory, sign = self.directory / "checkpoints", 1.0 if self.recipe.run.keep_best == "highest" else -1.0
        is_better = False
        if self.accelerator.is_main_process:
            best = read_best(directory)
            is_better = not best or sign * value > sign * best["value"]
        if not gather_object([is_better])[0]:
            return
        self.save()
        if self.accelerator.is_main_process:
            write_atomically(directory / BEST, to_json({"step": self.step, "value": value}) + b"\n")
            remove_old_checkpoints(directory, self.recipe.run.keep_checkpoints)
        self.accelerator.wait_for_everyone()

    @contextmanager
    def whole_policy(self) -> Iterator[Any]:
        """Yield the policy with whole weights, to sample from; where they are in shards, each device holds them now."""
        with nullcontext() if self.sharding is None else self.sharding.gathered(self.model):
            yield self.model.policy

    def _judging(self) -> AbstractContextManager[Judging | None]:
        """Return the context in which a critic is asked while the policy still samples, if it may be."""
        asked = self.recipe.critic.overlap
        parts = int(getattr(self.critic, "overlap", 0)) if asked is None else asked
        if self.log.keeps_critiques(self.step):
            parts = 0  # nothing is asked again
        return judging(self.critic, match=self.recipe.critic.match, parts=parts)

    def _sample(self, judging: Judging | None = None) -> list[Rollout]:
        """Return the responses of this process; each part of them goes to `judging` as soon as it is sampled."""
        rollout, rank = self.recipe.rollout, self.accelerator.process_index
        share = rollout.batch_size // self.accelerator.num_processes
        mine = slice(rank * share, (rank + 1) * share)
        chosen = self._chosen(self.step)[mine]
        uniforms = step_uniforms(
            seed=self.recipe.run.seed, step=self.step, rows=rollout.batch_size, tokens=rollout.max_new_tokens
        )
        prompts, rollouts = [self.prompt_ids[i] for i in chosen], list[Rollout]()

        def on_part(responses: list[tuple[int, ...]], logps: list[tuple[float, ...]] | None = None) -> None:
            here = slice(len(rollouts), len(rollouts) + len(responses))
            examples = [self.examples[i] for i in chosen[here]]
            part = make_rollouts(self.tokenizer, examples, prompts[here], responses, self.eos_ids, logps)
            rollouts.extend(part)
            if judging is not None:
                judging.add(part)

        def sample_all() -> None:
            rollouts.clear()
            if judging is not None:
                judging.restart()
            if self.engine is not None:
                if (kept := self._kept_samples(rank, len(prompts))) is None:
                    self.engine.sample(prompts, step=self.step, on_part=on_part)
                else:
                    on_part(*kept)
                return
            with self.whole_policy() as policy:
                sample(
                    policy,
                    prompts,
                    uniforms[mine],
                    eos_ids=self.eos_ids,
                    pad_id=self.pad_id,
                    temperature=rollout.temperature,
                    rows_at_once=self.sizes.rows_at_once,
                    on_part=on_part,
                )

        self.sizes.in_rows(len(prompts), sample_all)
        return rollouts

    def _kept_samples(self, rank: int, count: int) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]]] | None:
        """Return the responses of a step that a killed run had judged, if every process has its own."""
        kept = self.log.kept_samples(self.step, rank, count)
        having = torch.tensor([float(kept is not None)], device=self.accelerator.device)
        if bool(self.accelerator.reduce(having, reduction="sum") == self.accelerator.num_processes):
            return kept
        self.log.drop_critiques(self.step)
        return None

    def _criticize(self, rollouts: Sequence[Rollout], judging: Judging | None = None) -> list[Critique]:
        """Return the critiques, from disk where a killed run has them; they are on disk before anything uses them."""
        rank = self.accelerator.process_index
        kept = self.log.kept_critiques(self.step, rank, rollouts)
        if kept is not None:
            if (states := self.log.kept_random_states(self.step, rank)) is not None:
                restore_random_states(states)  # as after the critic's own draws
            return kept
        examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
        with self._critic_at_work(can_save=True):
            if judging is None:
                critiques = ask(self.critic, examples, responses, match=self.recipe.critic.match)
            else:
                critiques = judging.critiques()
        self.log.keep_critiques(self.step, rank, rollouts, critiques, random_states())
        return critiques

    @contextmanager
    def _critic_at_work(self, *, can_save: bool) -> Iterator[None]:
        """Explain an error of the critic or the annotator; save the last finished step if no update has begun."""
        try:
            yield
        except CriticError as error:
            log = self.log.write_critic_error(self.step, error)
            kept = "Steps after the last checkpoint are repeated with the critiques on disk"
            if can_save and self.accelerator.num_processes == 1:
                self.save()
                kept = "Every finished step is saved"
            reason = str(error).rstrip(".")
            raise CriticError(
                f"{reason}. The traceback is in {log}. {kept}; mend the critic and go on with --resume."
            ) from error

    def collate(self, rollouts: Sequence[Rollout]) -> TokenBatch:
        """Return rollouts as a batch on the run's device; responses to one prompt share it where the model can."""
        share, device = self.share_prompts, self.accelerator.device
        return collate(rollouts, pad_id=self.pad_id, device=device, share_prompts=share)

    def score(self, batch: TokenBatch, *, kl: Literal["k1", "full"]) -> Scores:
        """Return the scores of a batch at the temperature of the rollouts; see `score_batch`."""
        temperature = self.recipe.rollout.temperature
        found = score_batch(self.model, self.reference, batch, self.sizes, temperature=temperature, kl=kl)
        if self.sharding is not None:
            self.sharding.reshard()  # what the models' output layers gathered
        return found

    def _advantages(self, rewards: Tensor, scores: Scores, mask: Tensor) -> Advantages:
        """Return advantages over the value function (GAE) or over each prompt's group, whitened, and returns."""
        ppo = self.recipe.ppo
        # A truncated response is bootstrapped with V of its last state.
        found = advantages_over_baseline(self.recipe, rewards, scores.values, mask, bootstrap=scores.bootstrap)
        if ppo.whiten not in ("scale", "full"):
            return found
        over = self._global_moments(found.advantages, mask)
        return found._replace(advantages=whiten(found.advantages, mask, over, center=ppo.whiten == "full"))

    def _corrected(
        self, advantages: Tensor, rollouts: Sequence[Rollout], scores: Scores, mask: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Return advantages times π_old / π_engine where an engine sampled the responses, and its metrics."""
        if self.engine is None:
            return advantages, {}
        cap = self.recipe.engine.importance_cap
        weights, metrics = engine_weights(rollouts, scores.logp, mask, cap=cap, accelerator=self.accelerator)
        return advantages * weights, metrics

    def _uncertain(
        self, advantages: Tensor, logp: Tensor, rewards: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Return advantages without those of certain tokens (`ppo.certainty`), and the share of these tokens."""
        certainty = self.recipe.ppo.certainty
        if certainty == 1.0:
            return advantages, {}
        certain = is_certain(logp, rewards, mask, certainty=certainty)
        counts = torch.stack([certain.sum(), mask.sum()]).double()
        number, tokens = self.accelerator.reduce(counts, reduction="sum").tolist()
        return advantages.masked_fill(certain, 0.0), {"advantage/certain_share": number / max(tokens, 1.0)}

    def _global_moments(self, advantages: Tensor, mask: Tensor) -> Moments:
        """Return the moments of the advantages over the responses of all processes."""
        return Moments(*self.accelerator.reduce(torch.stack(moments(advantages, mask)), reduction="sum"))

    def _of_all(self, columns: Tensor) -> Tensor:
        """Return the columns of all processes, in the order of the processes."""
        if self.accelerator.num_processes == 1:
            return columns
        return torch.cat(gather_object([columns.cpu()]), 1)

    def _finish(self, records: Sequence[Record], metrics: dict[str, float]) -> None:
        """Log the step, count it, and stop the run if too many critiques failed."""
        if self.accelerator.is_main_process:
            self.log.write_rollouts(records)
            self.log.write_metrics({"step": self.step, **metrics})
        self.tracker.log(metrics, self.step)
        if self.step % max(self.recipe.run.table_every, 1) == 0:
            self.tracker.log_table("rollouts", records, self.step)
        self.step, self.optimizers.stepped = self.step + 1, 0
        self.silence.count(metrics)
        if self.accelerator.is_main_process and (warning := self.silence.warning()):
            note(f"step {self.step}: {warning}", warning=True)
        self.failures.count(record["critique"]["status"] for record in records)
        if self.failures.too_many:
            error = self.failures.error(self.directory / "rollouts")
            self.failures.statuses.clear()  # a mended critic starts anew
            self.save()
            raise error

    def within_memory(self, phase: str) -> AbstractContextManager[None]:
        """Return the context of a phase in which a lack of memory ends the run with the settings that help."""
        return self.sizes.explained(phase, self.step, saved=self._save_before_update)

    def _save_before_update(self) -> str:
        """Save the last finished step, unless this step has changed weights or other processes would have to join."""
        if self.accelerator.num_processes == 1 and not self.optimizers.stepped:
            self.save()
        found = latest_checkpoint(self.directory / "checkpoints")
        return f"{found} is kept: go on with --resume." if found else "No step was finished."

    def _interrupted(self, interruption: Interruption) -> bool:
        """Tell whether any process received a signal, so that all processes stop after the same step."""
        received = torch.tensor([float(interruption.received is not None)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(received, reduction="sum") > 0)

    def _restore(self) -> None:
        """Restore the newest checkpoint, or the beginning; cut off what was logged after it."""
        found = latest_checkpoint(self.directory / "checkpoints")
        written = BEGINNING
        if found is not None:
            state = load_checkpoint(found, trainable=self.trainable, optimizers=self.optimizers)
            self.step, self.kl.beta, written = state["step"], state["beta"], state["log"]
            self.saved_step = self.step
            self.failures.count(state["statuses"])
            self.sizes.restore(state["sizes"])
            self.refresher.restore(state["critic"])
            restore_random_states(self._own_random_states(state, found))
        lost = 0 if found else self.log.steps_written()
        # The first whole checkpoint removes the critiques of step 0: where they are, a kill came before it.
        if lost >= self.recipe.run.steps and not self.log.keeps_critiques(0):
            raise CheckpointError(
                f"{self.directory} has {lost} finished steps in metrics.jsonl, and their checkpoints are gone: restore "
                f"{self.directory / 'checkpoints'}, or begin again in another directory with --set run.out=DIR"
            )
        if lost >= min(self.recipe.run.save_every, self.recipe.run.steps) and self.accelerator.is_main_process:
            note(
                f"{self.directory} holds no checkpoint: its {lost} steps are made again, with the critiques on disk",
                warning=True,
            )
        self.accelerator.wait_for_everyone()  # they are read before they are cut
        if self.accelerator.is_main_process:
            self.log.rewind(written)
        self.accelerator.wait_for_everyone()
        for metrics in self.log.metrics():
            self.silence.count(metrics)
        batches = -(-self.recipe.refresh.window // self.recipe.rollout.batch_size)
        for step, responses in self.log.responses(since=self.step - batches):
            self.refresher.observe([self.examples[i] for i in self._chosen(step)], responses)

    def _own_random_states(self, state: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
        """Return this process's random states of a checkpoint; the first's where it has those of another number."""
        saved: list[Mapping[str, Any]] = [state["random"], *state.get("random_of_others", [])]  # older: the first alone
        processes = self.accelerator.num_processes
        if len(saved) == processes:
            return saved[int(self.accelerator.process_index)]
        if self.accelerator.is_main_process:
            note(
                f"{path} holds the random states of another number of processes ({len(saved)}, now {processes}): all "
                "go on with those of the first. A critic that draws random numbers draws others than in a run that was "
                "never stopped",
                warning=True,
            )
        return saved[0]

    def _chosen(self, step: int) -> list[int]:
        """Return the indices of a step's examples, over all processes; the responses to a prompt are neighbours."""
        rollout, seed = self.recipe.rollout, self.recipe.run.seed
        prompts = batch_indices(len(self.examples), rollout.batch_size // rollout.group_size, step=step, seed=seed)
        return [index for index in prompts for _ in range(rollout.group_size)]


def ppo_epochs(
    gradient: MinibatchGradient,
    optimizers: Optimizers,
    data: PPOBatch,
    *,
    epochs: int,
    minibatches: int,
    max_ratio: float,
    stop_kl: float | None,
    seed: int,
) -> dict[str, float]:
    """Run lines 19-31 of Algorithm 4 on one batch of rollouts and return the means of the minibatches' metrics.

    Args:
        gradient: accumulates the gradient of one minibatch.
        optimizers: of policy and value function.
        data: this process's rollouts.
        epochs: passes over them.
        minibatches: optimizer steps per pass.
        max_ratio: a minibatch with a larger mean ratio is skipped: no optimizer step is made, and it is counted.
        stop_kl: no further pass once the KL from π_old, nats per token, exceeds 1.5 times this; None never stops.
        seed: assigns rows to minibatches, anew in each pass.

    Raises:
        TrainingError: if a loss or a gradient is not finite, or the first ratio is not 1.
    """
    accelerator, found = gradient.accelerator, defaultdict[str, list[float]](list)
    rank, processes = accelerator.process_index, accelerator.num_processes
    for epoch in range(epochs):
        rows = minibatch_rows(len(data.batch.ids), minibatches, seed=seed + epoch, rank=rank, processes=processes)
        for number, index in enumerate(rows):
            metrics = gradient(data.rows(index), first=epoch == number == 0)
            skipped = metrics["update/ratio_mean"] > max_ratio
            if skipped:
                optimizers.zero_grad()
            else:
                metrics |= optimizers.step()
            for name, value in {**metrics, "update/skipped": float(skipped)}.items():
                found[name].append(value)
        if stop_kl is not None and found["update/approx_kl_per_token"][-1] > STOP_KL_FACTOR * stop_kl:
            break
    skips = sum(found.pop("update/skipped"))
    means = {name: sum(values) / len(values) for name, values in found.items()}
    return {**means, "update/skipped": skips, "update/epochs": float(epoch + 1)}


def _warnings_of(policy: Any, recipe: Recipe) -> Iterator[str]:
    """Yield the warnings about settings under which a run does not train its policy as most people mean it."""
    if not is_peft(policy) and half_precision(policy):
        yield (
            "all weights are trained in 16 bits: most of an AdamW update is rounded away (bfloat16), or the update "
            'is far too large (float16); set model.dtype = "float32", or model.lora_r to train an adapter'
        )
    if is_peft(policy) and adapter_is_trained(policy):
        yield (
            "the policy's adapter is trained already, and the reference is the base without it: the KL term pulls "
            "the policy back to this base from the first step on. To begin at the adapter, give the trainer "
            "model.merge_and_unload(), or name the adapter's directory in [model] path"
        )
    warmup = recipe.optim.value_warmup_steps
    if recipe.model.value != "none" and warmup >= recipe.run.steps:
        yield (
            f"optim.value_warmup_steps = {warmup} leaves none of the {recipe.run.steps} steps to the policy, which "
            "stays as it is; lower it, or raise run.steps"
        )


def prepare_policy(model: Any, settings: ModelConfig) -> Any:
    """Return the policy, loaded where a path was given, with a fresh LoRA adapter where the settings ask for one.

    Raises:
        ConfigError: if `lora_targets` names a module that the model lacks; before its weights are loaded from a path.
        ModelError: if the path holds no model that can be loaded.
    """
    if isinstance(model, str | Path):
        refuse_second_adapter(str(model), settings.lora_r)
        if settings.lora_r and settings.lora_targets != "all-linear":
            empty = empty_model(str(model), trust_remote_code=settings.trust_remote_code)
            check_lora_targets(empty, settings.lora_targets)
        dtype = dtype_to_train(settings.dtype, settings.lora_r)
        model = load_policy(str(model), dtype=dtype, trust_remote_code=settings.trust_remote_code)
    if is_peft(model) and POLICY_ADAPTER not in model.peft_config:
        raise ConfigError(
            f"the policy's adapters are named {', '.join(map(repr, model.peft_config))}, but text2grad trains and "
            f"saves the one named {POLICY_ADAPTER!r}; load it with adapter_name={POLICY_ADAPTER!r}"
        )
    if settings.lora_r and not is_peft(model):
        model = with_lora(
            model,
            r=settings.lora_r,
            alpha=settings.lora_alpha,
            targets=settings.lora_targets,
            value_adapter=settings.value == "adapter",
        )
    return model


def make_accelerator(*, out: str, tracker: str, batch_size: int, minibatches: int, group_size: int = 1) -> Accelerator:
    """Return accelerate's view of the processes and trackers of a run.

    Args:
        out: the run's directory, for trackers.
        tracker: "tensorboard", "wandb", "trackio" or "none".
        batch_size: responses per step, over all processes.
        minibatches: optimizer steps per epoch.
        group_size: responses per prompt, which stay in one process.

    Raises:
        ConfigError: if the tracker is not installed, the launcher started more processes than accelerate sees, or the
            batch cannot be shared evenly.
    """
    check_tracker(tracker)
    check_launch()
    # No autocast: the type of the weights alone decides, so that old and new passes of a batch compute the same.
    accelerator = Accelerator(
        mixed_precision="no",
        log_with=None if tracker == "none" else tracker,
        project_dir=out,
        cpu=on_cpu(),
    )
    check_world_size(accelerator.num_processes)
    shares = accelerator.num_processes * minibatches
    if batch_size % shares:
        raise ConfigError(
            f"rollout.batch_size = {batch_size} cannot be shared evenly by {accelerator.num_processes} "
            f"processes × ppo.minibatches = {minibatches}; choose a multiple of {shares}"
        )
    if batch_size % (accelerator.num_processes * group_size):
        raise ConfigError(
            f"rollout.batch_size = {batch_size} cannot be shared by {accelerator.num_processes} processes in whole "
            f"groups of rollout.group_size = {group_size}; choose a multiple of "
            f"{accelerator.num_processes * group_size}"
        )
    return accelerator
