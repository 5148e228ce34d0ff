"""A recipe → the memory of a run by role and phase.

Memory is traced (`trace`) for the longest prompt and the longest response, on one process of `processes`. The optimizer
has its state from the second step on, so it counts in every phase. So does the overhead of a process beyond its tensors
(`devices`).

A generative reward model in the run's processes reads the longest prompt and response, and decodes a critique of the
longest length. A reward model that only reads has rows of the longest prompt and response, up to its context, in the
policy's tokens. A reward model that is not made yet is planned like the policy.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.config import ModelConfig, Recipe
from text2grad.errors import ModelError
from text2grad.files import readable
from text2grad.models import (
    ADAPTER_CONFIG,
    check_batch_size,
    context_of,
    dtype_to_train,
    fitting_prompts,
    load_tokenizer,
    policy_config,
    with_chat_template,
)
from text2grad.progress import note
from text2grad.reward_models import reading_kind, saved_format, shares_base
from text2grad.rl import check_shares
from text2grad.runs.dry_run.devices import Device
from text2grad.runs.dry_run.trace import Roles, TracedModel, weights_type
from text2grad.runs.prompts import run_examples


class Lengths(NamedTuple):
    """Tokens of the prompts: number of prompts, mean and longest."""

    prompts: int
    mean: float
    longest: int


class Plan(NamedTuple):
    """What a process needs: bytes by phase and role, and the numbers of all and of trained parameters."""

    phases: dict[str, Roles]
    parameters: tuple[int, int]

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> int:
        """Bytes of the peak phase."""
        return sum(self.phases[self.peak_phase].values())


class Planner:
    """Plans the memory of one recipe.

    Attributes:
        lengths: of the prompts that are trained on.
    """

    def __init__(self, recipe: Recipe, device: Device, *, processes: int = 1, prompt_tokens: int | None = None) -> None:
        """Read the config of the policy, and measure the prompts unless all have `prompt_tokens` tokens.

        Raises:
            ConfigError: if the batch cannot be shared by the processes.
            ModelError: if config or tokenizer cannot be read.
            DataError: if the prompts cannot be used, or none leaves room for a response.
        """
        if recipe.refresh.active:
            check_batch_size("refresh", recipe.refresh.batch_size, recipe.refresh.accumulate, processes)
        check_shares(recipe, processes)
        self.recipe, self.device, self.processes = recipe, device, processes
        self.config = policy_config(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
        self.lengths = Lengths(0, prompt_tokens, prompt_tokens) if prompt_tokens else self._measured_lengths()
        self.critic_exists = Path(recipe.critic.model).exists()

    def plan(self) -> Plan:
        """Trace each phase of a step with the largest pieces that the settings allow."""
        recipe, ppo = self.recipe, self.recipe.ppo
        model = TracedModel(self.config, recipe.model, device=self.device.kind)
        critic = self._critic_model() if recipe.critic.learned and recipe.critic.kind != "server" else None
        sizes = self.lengths.longest, recipe.rollout.max_new_tokens
        share, fitting = recipe.rollout.batch_size // self.processes, max(ppo.micro_batch_tokens // sum(sizes), 1)
        minibatch, grads = share // ppo.minibatches, model.weights.trainable
        note(f"tracing scoring and update of {min(fitting, share)} rows")
        score = model.score(min(fitting, share), *sizes, kl=ppo.kl)
        how = {"entropy": ppo.entropy_coef > 0, "accumulated": minibatch > fitting}
        update = model.update(min(fitting, minibatch), *sizes, **how)
        sampled_rows = min(recipe.rollout.rows_at_once, share)
        note(f"tracing the rollout of {sampled_rows} rows")
        sampling = model.rollout(sampled_rows, *sizes)
        weights, buckets = model.weights, {"gradient buckets": grads} if self.processes > 1 else {}
        models = {"policy": weights.policy, "reference": weights.reference, "value function": weights.value}
        models |= {"self-teacher": grads} if ppo.has_own_teacher else {}
        resident = {**models, "optimizer states": 2 * grads, **buckets, **self._critic_weights(critic)}
        if recipe.rollout.engine != "hf":
            engine = int(recipe.engine.gpu_memory_utilization * self.device.memory)
            sampling = {"vLLM of rollouts": engine}
            resident = resident if recipe.engine.sleep else {**resident, **sampling}
        changed = grads if self.device.kind == "cuda" else 2 * model.weights.largest
        phases = {
            "rollout": sampling,
            "critic": self._critic_work(critic) if critic else {},
            "score": score,
            "update": update,
            "optimizer": {"gradients": grads, "working": changed},
            "refresh": self._refresh(),
        }
        whole = {name: self.device.with_overhead({**resident, **own}) for name, own in phases.items() if own}
        return Plan(whole, (model.weights.parameters, model.weights.trained_parameters))

    def _measured_lengths(self) -> Lengths:
        """Return the lengths of the prompts that are trained on."""
        model, data = self.recipe.model, self.recipe.data
        tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
        tokenizer = with_chat_template(tokenizer, self.recipe)
        limits: dict[str, Any] = {"max_new_tokens": self.recipe.rollout.max_new_tokens, "too_long": data.too_long}
        how: dict[str, Any] = {"prompt_format": model.prompt_format, **limits}
        _, prompts = fitting_prompts(self.config, tokenizer, run_examples(self.recipe).train, **how)
        lengths = [len(prompt) for prompt in prompts]
        return Lengths(len(lengths), sum(lengths) / len(lengths), max(lengths))

    def _critic_weights(self, model: TracedModel | None) -> Roles:
        """Return what a reward model in this process occupies in every phase."""
        if model is None:
            return {}
        if shares_base(self.recipe):
            return {"reward model": self._critic_model(lora_r=_rank_of(self.recipe.critic.model)).weights.trainable}
        return {"reward model": model.weights.policy}

    def _critic_work(self, model: TracedModel) -> Roles:
        """Trace a reward model that reads responses, or decodes critiques, as many at once as it may."""
        critic, rollout = self.recipe.critic, self.recipe.rollout
        share = rollout.batch_size // self.processes
        if critic.kind != "generative":
            reading_kind(critic.kind)  # refuses an unknown one
            rows = min(rollout.rows_at_once, share)
            note(f"tracing the critic on {rows} responses")
            tokens = min(self.lengths.longest + rollout.max_new_tokens, context_of(model.config))
            return model.states(rows, int(tokens))
        saved_votes = saved_format(critic.model).votes if self.critic_exists else 1
        rows = min(rollout.rows_at_once, share * (critic.votes or saved_votes))
        note(f"tracing the critic on {rows} critiques")
        return model.rollout(rows, *self._critique_lengths())

    def _refresh(self) -> Roles:
        """Trace the training of the reward model of this process; empty if the run never does it.

        The loss is taken as that of the policy's update; an adapter as one of the policy's kind, of its own rank.
        """
        refresh, critic, settings = self.recipe.refresh, self.recipe.critic, self.recipe.model
        if not refresh.active or not critic.learned or critic.kind != "generative":
            return {}
        rows = refresh.batch_size // (self.processes * refresh.accumulate)
        rank = _rank_of(self.recipe.critic.model) if self.critic_exists else settings.lora_r
        model = self._critic_model(lora_r=rank, gradient_checkpointing=settings.gradient_checkpointing)
        note(f"tracing the refresh of {rows} rows")
        update = model.update(rows, *self._critique_lengths(), entropy=False, accumulated=refresh.accumulate > 1)
        trained = model.weights.trainable
        buckets = {"gradient buckets of the refresh": trained} if self.processes > 1 else {}
        return {**update, "optimizer states of the refresh": 2 * trained, **buckets}

    def _critique_lengths(self) -> tuple[int, int]:
        """Return the longest tokens before a critique, and of the critique."""
        new = saved_format(self.recipe.critic.model).max_new_tokens if self.critic_exists else None
        before = self.lengths.longest + self.recipe.rollout.max_new_tokens
        return before, new or self.recipe.reward_model.max_new_tokens

    def _critic_model(self, **trained: Any) -> TracedModel:
        """Return the critic's model without weights; `trained`: settings of [model] for a training."""
        path, settings = self.recipe.critic.model, self.recipe.model
        config, saved_as = self.config, dtype_to_train(settings.dtype, settings.lora_r)
        if self.critic_exists:
            config, saved_as = policy_config(path, trust_remote_code=settings.trust_remote_code), "auto"
        elif not trained:
            note(f"critic.model = {path!r} does not exist yet: planned as a model like the policy", warning=True)
        dtype = str(weights_type(config, saved_as)).removeprefix("torch.")
        made = ModelConfig.model_validate({"value": "none", "dtype": dtype, **trained})
        return TracedModel(config, made, device=self.device.kind)


def _rank_of(directory: str) -> int:
    """Return the rank of a saved adapter; 0 for a whole model.

    Raises:
        ModelError: if the adapter's config names none, or cannot be read.
    """
    config = Path(directory) / ADAPTER_CONFIG
    with readable(config, "Copy the adapter again", ModelError):
        return int(json.loads(config.read_bytes())["r"]) if config.exists() else 0
