"""The memory of a reward model in the processes of a run: its weights, its work in a step, and its refreshes.

A generative reward model reads the longest prompt and response, and decodes a critique of the longest length. A reward
model that only reads has rows of the longest prompt and response, up to its context, in the policy's tokens. A reward
model that is not made yet is planned like the policy.
"""

import json
from pathlib import Path
from typing import Any

from text2grad.config import ModelConfig, Recipe
from text2grad.models import ADAPTER_CONFIG, context_of, dtype_to_train, policy_config
from text2grad.progress import note
from text2grad.reward_models import reading_kind, saved_format, shares_base
from text2grad.runs.dry_run.devices import Device
from text2grad.runs.dry_run.trace import Pass, TracedModel, update_roles, weights_type

SERVERS = ("vllm", "server")
"""Values of critic.kind with models outside torch: in vLLM or on a server."""


class CriticPlanner:
    """Plans the reward model of a recipe."""

    def __init__(self, recipe: Recipe, config: Any, device: Device, processes: int, longest_prompt: int) -> None:
        """Take the recipe, the config of the policy, the device, the processes, and the longest prompt in tokens."""
        self.recipe, self.config, self.device, self.processes = recipe, config, device, processes
        self.longest_prompt, self.exists = longest_prompt, Path(recipe.critic.model).exists()
        self.here = recipe.critic.learned and recipe.critic.kind not in SERVERS  # loaded by this process
        self.model = self._model() if self.here else None

    def weights(self) -> dict[str, int]:
        """Return the bytes by role that a reward model in this process occupies in every phase."""
        critic = self.recipe.critic
        if critic.learned and critic.kind == "vllm":
            return {"vLLM": int(self.recipe.vllm.gpu_memory_utilization * self.device.memory)}
        if self.model is None:
            return {}
        if shares_base(self.recipe):
            return {"reward model": self._model(lora_r=_rank_of(critic.model)).weights.trainable}
        return {"reward model": self.model.weights.policy}

    def passes(self) -> tuple[Pass, ...]:
        """Return the pass over responses, or those over prompts and of the last token of critiques, or none."""
        if self.model is None:
            return ()
        rows, kind = self._rows(), self.recipe.critic.kind
        note(f"tracing the critic on {rows} {'critiques' if kind == 'generative' else 'responses'}")
        if kind == "generative":
            return self.model.rollout(rows, *self._lengths())
        tokens = min(self.longest_prompt + self.recipe.rollout.max_new_tokens, context_of(self.model.config))
        return (self.model.states(rows, int(tokens)),)

    def refresh(self) -> dict[str, int]:
        """Return the bytes by role of training the reward model of this process again; empty if the run never does.

        The loss is taken as that of the policy's update; an adapter as one of the policy's kind, of its own rank.
        """
        refresh, critic, settings = self.recipe.refresh, self.recipe.critic, self.recipe.model
        if not refresh.active or not critic.learned or critic.kind != "generative":
            return {}
        rows = refresh.batch_size // (self.processes * refresh.accumulate)
        rank = _rank_of(critic.model) if self.exists else settings.lora_r
        model = self._model(lora_r=rank, gradient_checkpointing=settings.gradient_checkpointing)
        note(f"tracing the refresh of {rows} rows")
        update = model.update(rows, *self._lengths(), entropy=False, accumulated=refresh.accumulate > 1)
        trained = model.weights.trainable
        buckets = {"gradient buckets of the refresh": trained} if self.processes > 1 else {}
        return {**update_roles(update, trained), "optimizer states of the refresh": 2 * trained, **buckets}

    def _rows(self) -> int:
        """Return the responses that a reward model in this process reads, or the critiques that it decodes, at once."""
        critic, rollout = self.recipe.critic, self.recipe.rollout
        share = rollout.batch_size // self.processes
        if critic.kind != "generative":
            reading_kind(critic.kind)  # refuses an unknown one
            return min(rollout.rows_at_once, share)
        saved_votes = saved_format(critic.model).votes if self.exists else 1
        return min(rollout.rows_at_once, share * (critic.votes or saved_votes))

    def _lengths(self) -> tuple[int, int]:
        """Return the longest tokens before a critique, and of the critique."""
        new = saved_format(self.recipe.critic.model).max_new_tokens if self.exists else None
        before = self.longest_prompt + self.recipe.rollout.max_new_tokens
        return before, new or self.recipe.reward_model.max_new_tokens

    def _model(self, **trained: Any) -> TracedModel:
        """Return the critic's model without weights; `trained`: settings of [model] for a training."""
        path, settings = self.recipe.critic.model, self.recipe.model
        config, saved_as = self.config, dtype_to_train(settings.dtype, settings.lora_r)
        if self.exists:
            config, saved_as = policy_config(path, trust_remote_code=settings.trust_remote_code), "auto"
        elif not trained:
            note(f"critic.model = {path!r} does not exist yet: planned as a model like the policy", warning=True)
        dtype = str(weights_type(config, saved_as)).removeprefix("torch.")
        made = ModelConfig.model_validate({"value": "none", "dtype": dtype, **trained})
        return TracedModel(config, made, device=self.device.kind)


def _rank_of(directory: str) -> int:
    """Return the rank of a saved adapter; 0 for a whole model."""
    config = Path(directory) / ADAPTER_CONFIG
    return int(json.loads(config.read_bytes())["r"]) if config.exists() else 0
