"""The memory of a reward model in the processes of a run: its weights, its work in a step, and its refreshes.

A reward model that writes decodes critiques of the longest length, behind what it reads of prompt and response. One
that only reads has rows of the longest prompt and the longest response, up to its context, in the policy's tokens; a
probe of hidden states reads the response twice. A reward model that is not made yet is planned like the policy.
"""

import json
from pathlib import Path
from typing import Any

from text2grad.config import ModelConfig, Recipe
from text2grad.errors import ModelError
from text2grad.experiments.dry_run.devices import Device
from text2grad.experiments.dry_run.trace import Pass, TracedModel, Traces, update_roles, weights_type
from text2grad.models import ADAPTER_CONFIG, base_named_by, context_of, dtype_to_train, policy_config
from text2grad.progress import note
from text2grad.reward_models import probe_of, rows_read_at_once, saved_probe, saved_settings, shares_base

WRITERS = ("generative", "vllm", "server")
"""Values of critic.kind whose critics write; those of all others read responses and write nothing."""
CRITIQUE_TOKENS = 512  # of a reward model without saved settings


class CriticPlanner:
    """Plans the reward model of a recipe and of its variants."""

    def __init__(self, config: Any, device: Device, processes: int, longest_prompt: int, traces: Traces) -> None:
        """Take what does not differ between variants: the config of the policy, and traces shared with its planner."""
        self.config, self.device, self.processes = config, device, processes
        self.longest_prompt, self.traces = longest_prompt, traces

    def weights(self, recipe: Recipe, policy: TracedModel) -> dict[str, int]:
        """Return what a reward model in this process occupies in every phase, in bytes by role."""
        critic = recipe.critic
        if not critic.learned or critic.kind == "server":
            return {}
        if critic.kind == "vllm":
            return {"vLLM": int(recipe.vllm.gpu_memory_utilization * self.device.memory)}
        named = f"critic.model = {critic.model!r}"
        if not Path(critic.model).exists():
            writes = f", which writes reward_model.max_new_tokens = {recipe.reward_model.max_new_tokens}"
            more = writes if critic.kind in WRITERS else ""
            note(f"{named} does not exist yet: planned as a model like the policy{more}", warning=True)
            return {"reward model": policy.weights.policy}
        files = list(Path(critic.model).glob("*.safetensors"))
        if not files:
            raise ModelError(f"{named} holds no *.safetensors, whose size a plan needs; train the reward model again")
        base = saved_probe(critic.model)["base"] if critic.kind == "probe" else base_named_by(critic.model)
        if base and not shares_base(recipe):
            base = base_named_by(base) or base  # an adapter is merged into its own base
            of_base = list(Path(base).glob("*.safetensors"))
            if not of_base:
                away = "which is no directory with *.safetensors here: its memory is not in this plan"
                note(f"{named} reads the base {base!r}, {away}", warning=True)
            files += of_base
        return {"reward model": sum(file.stat().st_size for file in files)}

    def passes(self, recipe: Recipe, policy: TracedModel) -> tuple[Pass, ...]:
        """Return the pass over responses, or those over prompts and of the last token of critiques, or none."""
        critic, rows = recipe.critic, self.rows(recipe)
        if critic.learned and critic.kind not in WRITERS:
            read = ("reading", critic.kind, critic.model, rows, recipe.rollout.max_new_tokens)
            return self.traces.once(read, lambda: self._read(recipe, rows), f"tracing the critic on {rows} responses")
        if not critic.learned or critic.kind != "generative":
            return ()
        sizes, made = (rows, *self._lengths(recipe)), Path(critic.model).exists()
        shared = made and shares_base(recipe)
        own = made and not shared  # else its weights are as [model] says
        written = ("writing", critic.model if own else recipe.model.model_dump_json(), sizes)
        return self.traces.once(
            written,
            lambda: (policy if shared else self._writer(recipe)).rollout(*sizes),
            f"tracing the critic on {rows} critiques",
        )

    def refresh(self, recipe: Recipe) -> dict[str, int]:
        """Return the bytes by role of training the reward model of this process again; none if that never happens.

        The loss is taken as that of the policy's update; an adapter as one of the policy's kind, of its own rank.
        """
        refresh, critic = recipe.refresh, recipe.critic
        if not refresh.active or not critic.learned:
            return {}
        if critic.kind != "generative":
            note(f'critic.kind = "{critic.kind}": the memory of its refresh is not in this plan', warning=True)
            return {}
        sizes = (refresh.batch_size // (self.processes * refresh.accumulate), *self._lengths(recipe))
        accumulated = refresh.accumulate > 1

        def train() -> tuple[int, Pass]:
            rank = _rank_of(critic.model) if Path(critic.model).exists() else recipe.model.lora_r
            model = self._writer(recipe, lora_r=rank, gradient_checkpointing=recipe.model.gradient_checkpointing)
            return model.weights.trainable, model.update(*sizes, entropy=False, accumulated=accumulated)

        key = ("refresh", recipe.model.model_dump_json(), sizes, accumulated)
        trained, update = self.traces.once(key, train, f"tracing the refresh of {sizes[0]} rows")
        buckets = {"gradient buckets of the refresh": trained} if self.processes > 1 else {}
        return {**update_roles(update, trained), "optimizer states of the refresh": 2 * trained, **buckets}

    def rows(self, recipe: Recipe) -> int:
        """Return the responses that a reward model in this process reads, or the critiques that it decodes, at once."""
        critic, share = recipe.critic, recipe.rollout.batch_size // self.processes
        if critic.kind not in WRITERS:
            return min(rows_read_at_once(critic.model, critic.kind), recipe.rollout.rows_at_once, share)
        saved = saved_settings(critic.model) if Path(critic.model).exists() else {}
        votes = saved.get("votes", 1) if critic.votes is None else critic.votes
        return min(recipe.rollout.rows_at_once, share * int(votes))

    def _lengths(self, recipe: Recipe) -> tuple[int, int]:
        """Return the longest tokens before a critique, and of the critique.

        Evidence repeats words of a response, and is taken to be as long as it, as the marks of a probe are.
        """
        path, made = recipe.critic.model, Path(recipe.critic.model).exists()
        saved = saved_settings(path) if made else recipe.reward_model.model_dump()
        has_probe = probe_of(path) is not None if made else bool(saved.get("probe"))
        texts = 1 + (saved.get("evidence", "none") != "none") + has_probe
        before = self.longest_prompt + texts * recipe.rollout.max_new_tokens
        return before, int(saved.get("max_new_tokens", CRITIQUE_TOKENS))

    def _writer(self, recipe: Recipe, **trained: Any) -> TracedModel:
        """Return the critic's model without weights. `trained`: settings of [model] for a training."""
        path, config, dtype = recipe.critic.model, self.config, dtype_to_train(recipe.model.dtype, recipe.model.lora_r)
        if Path(path).exists():
            config, dtype = self._config(recipe, path), "auto"
        return TracedModel(config, _frozen(config, dtype, **trained), device=self.device.kind)

    def _read(self, recipe: Recipe, rows: int) -> tuple[Pass, ...]:
        """Trace the pass of a critic that writes nothing over its rows; none where the base of a probe is not here."""
        critic, response, prompt = recipe.critic, recipe.rollout.max_new_tokens, self.longest_prompt
        made, is_probe = Path(critic.model).exists(), critic.kind == "probe"
        probe = saved_probe(critic.model) if made and is_probe else {}
        path = str(probe.get("base", critic.model))
        if made and not Path(base_named_by(path) or path).exists():
            return ()
        config = self._config(recipe, path) if made else self.config
        model, limit = TracedModel(config, _frozen(config, "auto"), device=self.device.kind), context_of(config)
        reads_states = is_probe and probe.get("layer", 0) is not None  # it reads the response twice
        tokens = int(min(prompt + response * (1 + reads_states), limit))
        return (model.states(rows, tokens, all_layers=reads_states),)

    def _config(self, recipe: Recipe, path: str) -> Any:
        return policy_config(path, trust_remote_code=recipe.model.trust_remote_code)


def _frozen(config: Any, dtype: str, **more: Any) -> ModelConfig:
    """Return settings of [model] for a model without a value function, in a type that a checkpoint may name."""
    name = str(weights_type(config, dtype)).removeprefix("torch.")
    return ModelConfig.model_validate({"value": "none", "dtype": name, **more})


def _rank_of(directory: str) -> int:
    """Return the rank of a saved adapter; 0 for a whole model."""
    config = Path(directory) / ADAPTER_CONFIG
    return int(json.loads(config.read_bytes())["r"]) if config.exists() else 0
