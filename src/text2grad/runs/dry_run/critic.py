"""The memory of a reward model in the processes of a run: its weights, its work in a step, and its refreshes.

A reward model that writes decodes critiques of the longest length, behind what it reads of prompt and response. One
that only reads has rows of the longest prompt and the longest response, up to its context, in the policy's tokens; a
probe of hidden states reads the response twice. A reward model that is not made yet is planned like the policy.
"""

import json
from pathlib import Path
from typing import Any

from text2grad.config import ModelConfig, Recipe
from text2grad.models import ADAPTER_CONFIG, context_of, dtype_to_train, policy_config
from text2grad.progress import note
from text2grad.reward_models import rows_read_at_once, saved_format, saved_probe, shares_base
from text2grad.runs.dry_run.devices import Device
from text2grad.runs.dry_run.trace import Pass, TracedModel, Traces, update_roles, weights_type

SERVERS = ("vllm", "server")
"""Values of critic.kind whose models decode in vLLM or elsewhere; all but "generative" and these only read."""


class CriticPlanner:
    """Plans the reward model of a recipe and of its variants."""

    def __init__(self, config: Any, device: Device, processes: int, longest_prompt: int, traces: Traces) -> None:
        """Take what does not differ between variants: the config of the policy, and traces shared with its planner."""
        self.config, self.device, self.processes = config, device, processes
        self.longest_prompt, self.traces = longest_prompt, traces

    def weights(self, recipe: Recipe) -> dict[str, int]:
        """Return what a reward model in this process occupies in every phase, in bytes by role."""
        critic = recipe.critic
        if critic.learned and critic.kind == "vllm":
            return {"vLLM": int(recipe.vllm.gpu_memory_utilization * self.device.memory)}
        if not critic.learned or critic.kind in SERVERS:
            return {}
        if shares_base(recipe):
            return {"reward model": self._model(recipe, lora_r=_rank_of(critic.model)).weights.trainable}
        return {"reward model": self._model(recipe).weights.policy}

    def passes(self, recipe: Recipe) -> tuple[Pass, ...]:
        """Return the pass over responses, or those over prompts and of the last token of critiques, or none."""
        critic, rows, response = recipe.critic, self.rows(recipe), recipe.rollout.max_new_tokens
        if not critic.learned or critic.kind in SERVERS:
            return ()
        model = self._model(recipe)
        if critic.kind == "generative":
            sizes = (rows, *self._lengths(recipe))
            said = f"tracing the critic on {rows} critiques"
            return self.traces.once((id(model), sizes), lambda: model.rollout(*sizes), said)
        all_layers = critic.kind == "probe"
        tokens = int(min(self.longest_prompt + response * (1 + all_layers), context_of(model.config)))
        said = f"tracing the critic on {rows} responses"
        trace = (id(model), rows, tokens, all_layers)
        return self.traces.once(trace, lambda: (model.states(rows, tokens, all_layers=all_layers),), said)

    def refresh(self, recipe: Recipe) -> dict[str, int]:
        """Return the bytes by role of training the reward model of this process again; empty if that never happens.

        The loss is taken as that of the policy's update; an adapter as one of the policy's kind, of its own rank.
        """
        refresh, critic = recipe.refresh, recipe.critic
        if not refresh.active or not critic.learned or critic.kind != "generative":
            return {}
        sizes = (refresh.batch_size // (self.processes * refresh.accumulate), *self._lengths(recipe))
        rank = _rank_of(critic.model) if Path(critic.model).exists() else recipe.model.lora_r
        model = self._model(recipe, lora_r=rank, gradient_checkpointing=recipe.model.gradient_checkpointing)
        how = {"entropy": False, "accumulated": refresh.accumulate > 1}
        said = f"tracing the refresh of {sizes[0]} rows"
        update = self.traces.once((id(model), sizes, *how.values()), lambda: model.update(*sizes, **how), said)
        trained = model.weights.trainable
        buckets = {"gradient buckets of the refresh": trained} if self.processes > 1 else {}
        return {**update_roles(update, trained), "optimizer states of the refresh": 2 * trained, **buckets}

    def rows(self, recipe: Recipe) -> int:
        """Return the responses that a reward model in this process reads, or the critiques that it decodes, at once."""
        critic, share = recipe.critic, recipe.rollout.batch_size // self.processes
        if critic.kind not in ("generative", *SERVERS):
            return min(rows_read_at_once(critic.model, critic.kind), recipe.rollout.rows_at_once, share)
        saved_votes = saved_format(critic.model).votes if Path(critic.model).exists() else 1
        return min(recipe.rollout.rows_at_once, share * (critic.votes or saved_votes))

    def _lengths(self, recipe: Recipe) -> tuple[int, int]:
        """Return the longest tokens before a critique, and of the critique."""
        path = recipe.critic.model
        longest = saved_format(path).max_new_tokens if Path(path).exists() else recipe.reward_model.max_new_tokens
        return self.longest_prompt + recipe.rollout.max_new_tokens, longest

    def _model(self, recipe: Recipe, **trained: Any) -> TracedModel:
        """Return the critic's model without weights; `trained`: settings of [model] for a training."""
        path, settings = recipe.critic.model, recipe.model

        def make() -> TracedModel:
            config, saved_as = self.config, dtype_to_train(settings.dtype, settings.lora_r)
            if Path(path).exists():
                base = saved_probe(path).base if recipe.critic.kind == "probe" else path
                config, saved_as = policy_config(base, trust_remote_code=settings.trust_remote_code), "auto"
            else:
                note(f"critic.model = {path!r} does not exist yet: planned as a model like the policy", warning=True)
            dtype = str(weights_type(config, saved_as)).removeprefix("torch.")
            made = ModelConfig.model_validate({"value": "none", "dtype": dtype, **trained})
            return TracedModel(config, made, device=self.device.kind)

        like = path if Path(path).exists() else settings.model_dump_json()
        return self.traces.once(("critic", like, *trained.items()), make)


def _rank_of(directory: str) -> int:
    """Return the rank of a saved adapter; 0 for a whole model."""
    config = Path(directory) / ADAPTER_CONFIG
    return int(json.loads(config.read_bytes())["r"]) if config.exists() else 0
