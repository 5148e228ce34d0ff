"""A recipe → the memory of a run by role and phase, and settings that make it fit.

Memory is traced (`trace`) for the longest prompt and the longest response, on one process of `processes`. The optimizer
has its state from the second step on, so it counts in every phase. A reward model in the run's processes counts, too
(`critic`), and what a process needs beyond its tensors (`devices`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from text2grad.config import ModelConfig, Recipe
from text2grad.errors import ConfigError
from text2grad.models import context_of, encode_prompts, load_tokenizer, policy_config
from text2grad.runs.dry_run.critic import CriticPlanner
from text2grad.runs.dry_run.devices import Device
from text2grad.runs.dry_run.trace import Pass, TracedModel, Traces, update_roles
from text2grad.runs.run_examples import run_examples

SMALLEST_LORA = 16


class Lengths(NamedTuple):
    """Tokens of the prompts: number of prompts, mean and longest."""

    prompts: int
    mean: float
    longest: int


class Plan(NamedTuple):
    """What a process needs: bytes by phase and role, and the numbers of all and of trained parameters."""

    phases: dict[str, dict[str, int]]
    parameters: tuple[int, int]

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> int:
        """Bytes of the peak phase."""
        return sum(self.phases[self.peak_phase].values())


class Advice(NamedTuple):
    """Settings that make a run fit, and its peak in bytes then."""

    settings: dict[str, Any]
    peak: int


class Planner:
    """Plans one recipe and its variants; traces are kept, so that variants share them."""

    def __init__(self, recipe: Recipe, device: Device, *, processes: int = 1, prompt_tokens: int | None = None) -> None:
        """Read the config of the policy, and measure the prompts unless all have `prompt_tokens` tokens.

        Raises:
            ConfigError: if the batch cannot be shared by the processes, or no prompt leaves room for a response.
            ModelError: if config or tokenizer cannot be read.
            DataError: if the prompts cannot be used.
        """
        recipe.refresh.check_processes(processes)
        shares = processes * recipe.ppo.minibatches
        if recipe.rollout.batch_size % shares:
            raise ConfigError(
                f"rollout.batch_size = {recipe.rollout.batch_size} cannot be shared evenly by {processes} processes × "
                f"ppo.minibatches = {recipe.ppo.minibatches}; choose a multiple of {shares}"
            )
        self.recipe, self.device, self.processes = recipe, device, processes
        self.config = policy_config(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
        context = context_of(self.config)
        limit = context - recipe.rollout.max_new_tokens
        self.lengths = Lengths(0, prompt_tokens, prompt_tokens) if prompt_tokens else self._measured_lengths(limit)
        if self.lengths.longest > limit:
            raise ConfigError(
                f"prompts of {self.lengths.longest} tokens and rollout.max_new_tokens = "
                f"{recipe.rollout.max_new_tokens} exceed the model's context of {context}; lower the latter, or set "
                'data.too_long = "skip"'
            )
        self.traces = Traces()
        self.critic = CriticPlanner(self.config, device, processes, self.lengths.longest, self.traces)

    def plan(self, recipe: Recipe | None = None) -> Plan:
        """Return the plan of the recipe, or of a variant of it."""
        recipe = recipe or self.recipe
        weights, row = self._model(recipe).weights, self.lengths.longest + recipe.rollout.max_new_tokens
        share = recipe.rollout.batch_size // self.processes
        minibatch, fitting = share // recipe.ppo.minibatches, max(recipe.ppo.micro_batch_tokens // row, 1)
        score: Pass = self._traced(recipe, "score", min(fitting, share), kl=recipe.ppo.kl)
        how = {"entropy": recipe.ppo.entropy_coef > 0, "accumulated": minibatch > fitting}
        update = self._traced(recipe, "update", min(fitting, minibatch), **how)
        grads, resident = weights.trainable, self._resident(recipe)
        sampling = _decoding_roles(self._traced(recipe, "rollout", self._sampled_rows(recipe)))
        if recipe.rollout.engine == "vllm":
            engine = int(recipe.engine.gpu_memory_utilization * self.device.memory)
            sampling = {"vLLM of rollouts": 0 if recipe.engine.base_url else engine}
            resident = resident if recipe.engine.sleep else {**resident, **sampling}
        changed = grads if self.device.kind == "cuda" else 2 * weights.largest
        phases = {
            "rollout": sampling,
            "critic": _decoding_roles(self.critic.passes(recipe)),
            "score": {"working": score.peak},
            "update": update_roles(update, grads),
            "optimizer": {"gradients": grads, "working": changed},
            "refresh": self.critic.refresh(recipe),
        }
        whole = {name: self.device.with_overhead({**resident, **own}) for name, own in phases.items() if own}
        return Plan(whole, (weights.parameters, weights.trained_parameters))

    def advice(self, memory: int) -> list[Advice]:
        """Return settings with which the peak fits into `memory` bytes: first those that change no result."""
        fitting: list[Advice] = []
        for settings in stronger(self.recipe.model):
            if len(fitting) < 2 and (advice := self._fitting(settings, memory)):
                fitting.append(advice)
        return fitting

    def _fitting(self, settings: dict[str, Any], memory: int) -> Advice | None:
        """Halve the sizes of pieces of the phases that do not fit; None if single rows do not fit."""
        recipe = with_settings(self.recipe, settings)
        if sum(self.device.with_overhead(self._resident(recipe)).values()) > memory:
            return None  # smaller pieces do not help; nothing is traced
        while (plan := self.plan(recipe)).peak > memory:
            smaller = self._smaller_pieces(recipe, plan.peak_phase)
            if smaller is None:
                return None
            settings = {**settings, **smaller}
            recipe = with_settings(self.recipe, settings)
        return Advice(settings, plan.peak)

    def _smaller_pieces(self, recipe: Recipe, phase: str) -> dict[str, int] | None:
        """Return the setting that halves the pieces of a phase; None for a phase of single rows or without pieces."""
        if phase in ("rollout", "critic"):
            rows = self.critic.rows(recipe) if phase == "critic" else self._sampled_rows(recipe)
            return {"rollout.rows_at_once": rows // 2} if rows > 1 else None
        if phase in ("score", "update"):
            row = self.lengths.longest + recipe.rollout.max_new_tokens
            rows = min(recipe.ppo.micro_batch_tokens // row, recipe.rollout.batch_size // self.processes)
            return {"ppo.micro_batch_tokens": rows // 2 * row} if rows > 1 else None
        parts = 2 * recipe.refresh.accumulate
        whole = phase == "refresh" and recipe.refresh.batch_size % (self.processes * parts) == 0
        return {"refresh.accumulate": parts} if whole else None

    def _resident(self, recipe: Recipe) -> dict[str, int]:
        """Return what occupies memory in every phase, in bytes by role."""
        weights = self._model(recipe).weights
        own = {"policy": weights.policy, "reference": weights.reference, "value function": weights.value}
        own["optimizer states"] = 2 * weights.trainable
        buckets = {"gradient buckets": weights.trainable} if self.processes > 1 else {}
        return {**own, **self.critic.weights(recipe), **buckets}

    def _measured_lengths(self, limit: float) -> Lengths:
        """Return the lengths of the prompts that are trained on: `limit` is the most that leaves room."""
        model, rollout, data = self.recipe.model, self.recipe.rollout, self.recipe.data
        tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
        prompts = encode_prompts(tokenizer, run_examples(self.recipe).train, prompt_format=model.prompt_format)
        lengths = [len(prompt) for prompt in prompts]
        kept = [length for length in lengths if data.too_long == "refuse" or length <= limit]
        if not kept:
            raise ConfigError(
                f"no prompt leaves room for rollout.max_new_tokens = {rollout.max_new_tokens}: the shortest has "
                f"{min(lengths)} tokens, and {max(limit, 0)} fit; lower it, or shorten the prompts"
            )
        return Lengths(len(kept), sum(kept) / len(kept), max(kept))

    def _model(self, recipe: Recipe) -> TracedModel:
        key = recipe.model.model_dump_json()
        return self.traces.once(key, lambda: TracedModel(self.config, recipe.model, device=self.device.kind))

    def _traced(self, recipe: Recipe, phase: str, rows: int, **how: Any) -> Any:
        """Return the pass of a phase, or for a rollout both; `how`: see the method of `TracedModel` of this name."""
        sizes = (rows, self.lengths.longest, recipe.rollout.max_new_tokens)
        key = (recipe.model.model_dump_json(), phase, sizes, *how.values())
        trace = getattr(self._model(recipe), phase)
        return self.traces.once(key, lambda: trace(*sizes, **how), f"tracing the {phase} of {rows} rows")

    def _sampled_rows(self, recipe: Recipe) -> int:
        """Return the rows of one generate call of the rollout."""
        return min(recipe.rollout.rows_at_once, recipe.rollout.batch_size // self.processes)


def _decoding_roles(passes: tuple[Pass, ...]) -> dict[str, int]:
    """Return bytes by role of the pass with the largest peak, without gradients; empty without passes."""
    if not passes:
        return {}
    largest = max(passes)  # by its peak
    return {"KV cache": largest.kept, "working": largest.peak - largest.kept}


def stronger(model: ModelConfig) -> Iterator[dict[str, Any]]:
    """Yield sets of settings that save more and more memory beside those of [model]."""
    settings: dict[str, Any] = {}
    yield dict(settings)
    for helps, name, value in (
        (not model.gradient_checkpointing, "gradient_checkpointing", True),
        (model.value == "model", "value", "trunk"),
        (not model.lora_r, "lora_r", SMALLEST_LORA),
        (model.dtype in ("auto", "float32"), "dtype", "bfloat16"),
    ):
        if helps:
            settings[f"model.{name}"] = value
            yield dict(settings)


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe with settings changed, named as for `--set`."""
    for name, value in settings.items():
        section, key = name.split(".")
        changed = getattr(recipe, section).model_copy(update={key: value})
        recipe = recipe.model_copy(update={section: changed})
    return recipe
