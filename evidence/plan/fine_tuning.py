"""A recipe → memory and time of `text2grad sft` or `text2grad reward`, which train before the policy learns.

A micro-batch has batch_size / (processes · accumulate) rows of the longest length. Of a demonstration all tokens have a
loss, of an annotation those of the longest critique. The pass is traced as that of the policy's update (`trace`), with
the dropout and the mixed precision of the section; the loss is taken as that of the update, which holds one tile of the
logits at a time. Measurements between the steps count: held-out losses of `sft`, decoded critiques of `reward`.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from text2grad.config import ModelConfig, Recipe, RewardModelConfig, SFTConfig
from text2grad.errors import ConfigError
from text2grad.experiments.planning.devices import Device
from text2grad.experiments.planning.plan import (
    Advice,
    PlannedMemory,
    stronger,
    update_roles,
    with_overhead,
    with_settings,
)
from text2grad.experiments.planning.scale import gathered, sharded
from text2grad.experiments.planning.trace import Pass, TracedModel, read_config
from text2grad.experiments.sft_run import read_demonstration_split
from text2grad.models import base_named_by, context_of
from text2grad.progress import note
from text2grad.reward_models.training import read_split

Phase = Literal["sft", "reward"]
SECTIONS: dict[Phase, str] = {"sft": "sft", "reward": "reward_model"}


@dataclass(frozen=True)
class FineTuningPlan(PlannedMemory):
    """What a fine-tuning needs, per process.

    Attributes:
        phases: bytes by phase and role.
        rows: of one forward pass.
        row_tokens: of the longest row.
        learned: rows to train on; None where they are not made yet.
        steps: of the optimizer; None where `learned` decides it and is not known.
        parameters: of the model, and the trained ones.
        seconds: of one step by phase with rows of the longest length, a measurement by its share of a step; empty if
            the device's rates are unknown.
    """

    phases: dict[str, dict[str, int]]
    rows: int
    row_tokens: int
    learned: int | None
    steps: int | None
    parameters: tuple[int, int]
    seconds: dict[str, float] = field(default_factory=dict)


class FineTuningPlanner:
    """Plans `text2grad sft` or `text2grad reward` of one recipe, and of its variants."""

    def __init__(
        self, recipe: Recipe, phase: Phase, device: Device, *, processes: int = 1, in_shards: bool = False
    ) -> None:
        """Read the config of the model, and count the rows to train on.

        Args:
            recipe: the settings.
            phase: the command, "sft" or "reward".
            device: the device of one process.
            processes: number of processes, one GPU each.
            in_shards: FSDP 2 shards weights, gradients and optimizer states over the processes; else each holds all.

        Raises:
            ConfigError: if the batch cannot be shared by the processes and micro-batches.
            ModelError: if the config cannot be read.
            DataError: if files of demonstrations or annotations are there and cannot be used.
        """
        self.recipe, self.phase, self.device, self.processes = recipe, phase, device, processes
        self.shards = processes if in_shards else 1
        settings = self._settings(recipe)
        parts = processes * settings.accumulate
        if settings.batch_size % parts:
            raise ConfigError(
                f"{SECTIONS[phase]}.batch_size = {settings.batch_size} cannot be shared evenly by {processes} "
                f"processes × {SECTIONS[phase]}.accumulate = {settings.accumulate}; choose a multiple of {parts}"
            )
        path = settings.model or recipe.model.path
        self.config = read_config(base_named_by(path) or path, trust_remote_code=recipe.model.trust_remote_code)
        self.row_tokens = int(min(settings.max_tokens, context_of(SimpleNamespace(config=self.config))))
        self.learned = rows_to_learn(recipe, phase)

    def plan(self, recipe: Recipe | None = None) -> FineTuningPlan:
        """Return the plan of the recipe, or of a variant of it."""
        recipe = recipe or self.recipe
        settings, model = self._settings(recipe), self._model(recipe)
        rows = settings.batch_size // (self.processes * settings.accumulate)
        checkpointing = " with gradient checkpointing" if recipe.model.gradient_checkpointing else ""
        note(f"tracing the update of {rows} rows of {self.row_tokens:,} tokens{checkpointing}")
        how = {"bf16": settings.bf16, "accumulated": settings.accumulate > 1}
        update = model.update(rows, *self._lengths(settings), entropy=False, **how)
        measured = self._measured(recipe, model)
        weights = model.weights
        grads, changed = weights.trainable, weights.trainable if self.device.kind == "cuda" else 2 * weights.largest
        resident = {
            "model": sharded(weights.policy, self.shards),
            "optimizer states": sharded(2 * grads, self.shards),
            **({"gradient buckets": grads} if self.processes > self.shards else {}),
        }
        decoding = max(measured, key=lambda one: one.peak)
        phases = {
            "update": update_roles(update, grads),
            "optimizer": {"gradients": grads, "working": changed},
            "measurement": {"KV cache": decoding.kept, "working": decoding.peak - decoding.kept},
        }
        if self.shards > 1:
            layers = gathered(weights.layer, weights.ends)
            whole = min(grads, weights.layer + weights.ends)  # gradients before they are summed over processes
            own = {"gradients": sharded(grads, self.shards), "working": sharded(changed, self.shards)}
            phases["update"] |= {"gathered weights": layers + whole, "gradients": own["gradients"]}
            phases["optimizer"] |= own
            phases["measurement"]["gathered weights"] = layers if self.phase == "sft" else weights.policy
        return FineTuningPlan(
            {name: with_overhead(self.device.kind, {**resident, **own}) for name, own in phases.items()},
            rows,
            self.row_tokens,
            self.learned,
            self._steps(settings),
            (weights.parameters, weights.trained_parameters),
            self._seconds(settings, weights.policy, update, measured) if self.device.flops else {},
        )

    def advice(self, memory: int) -> list[Advice]:
        """Return settings with which the peak fits into `memory` bytes: first those that change no result."""
        found: list[Advice] = []
        for settings in stronger(self.recipe.model.model_copy(update={"value": "none"})):
            if len(found) < 2:
                found += self._in_smaller_parts(settings, memory)
        return found

    def _in_smaller_parts(self, settings: dict[str, Any], memory: int) -> list[Advice]:
        """Return advice that also doubles `accumulate` until the plan fits; none if single rows do not fit."""
        name = f"{SECTIONS[self.phase]}.accumulate"
        while True:
            recipe = with_settings(self.recipe, settings)
            plan = self.plan(recipe)
            if plan.peak <= memory:
                return [Advice(settings, plan.peak)]
            own = self._settings(recipe)
            if plan.peak_phase != "update" or own.batch_size % (2 * self.processes * own.accumulate):
                return []
            settings[name] = 2 * own.accumulate

    def _settings(self, recipe: Recipe) -> SFTConfig | RewardModelConfig:
        return recipe.sft if self.phase == "sft" else recipe.reward_model

    def _lengths(self, settings: SFTConfig | RewardModelConfig) -> tuple[int, int]:
        """Return the tokens of the longest row without a loss, and with a loss."""
        written = settings.max_new_tokens if isinstance(settings, RewardModelConfig) else self.row_tokens
        written = max(min(written, self.row_tokens - 1), 1)
        return self.row_tokens - written, written

    def _model(self, recipe: Recipe) -> TracedModel:
        kept = {"dtype", "lora_r", "lora_alpha", "lora_targets", "gradient_checkpointing", "trust_remote_code"}
        settings = ModelConfig.model_validate({"value": "none", **recipe.model.model_dump(include=kept)})
        dropout = self._settings(recipe).lora_dropout
        return TracedModel(self.config, settings, device=self.device.kind, lora_dropout=dropout)

    def _measured(self, recipe: Recipe, model: TracedModel) -> tuple[Pass, ...]:
        """Return the pass of a held-out loss; or those over prompts and of the last token of held-out critiques."""
        settings = self._settings(recipe)
        lengths = self._lengths(settings)
        if isinstance(settings, RewardModelConfig):
            return model.rollout(min(recipe.rollout.rows_at_once, self._measured_rows(settings)), *lengths)
        rows = settings.batch_size // (self.processes * settings.accumulate)
        return (model.logprobs(min(rows, self._measured_rows(settings)), *lengths),)

    def _measured_rows(self, settings: SFTConfig | RewardModelConfig) -> int:
        """Return the most held-out rows of one process."""
        return math.ceil(settings.eval_limit / self.processes)

    def _steps(self, settings: SFTConfig | RewardModelConfig) -> int | None:
        if settings.epochs is None:
            return settings.steps
        return math.ceil(math.ceil(self.learned / settings.batch_size) * settings.epochs) if self.learned else None

    def _seconds(
        self, settings: SFTConfig | RewardModelConfig, weights: int, update: Pass, measured: tuple[Pass, ...]
    ) -> dict[str, float]:
        """Return the seconds of one step by phase."""
        rows = self._measured_rows(settings)
        first, last = measured[0], measured[-1]
        held_out = (
            self.device.seconds_of(first, rows)
            if self.phase == "sft"
            else self.device.seconds_of_decoding(weights, first, last, rows, self._lengths(settings)[1])
        )
        return {
            "update": self.device.seconds_of(update, settings.batch_size // self.processes),
            "measurement": held_out / settings.eval_every,
        }


def rows_to_learn(recipe: Recipe, phase: Phase) -> int | None:
    """Return the demonstrations or annotations to train on; None where they are not made yet, or decide no step.

    Raises:
        DataError: if they are there and cannot be used.
    """
    settings = recipe.sft if phase == "sft" else recipe.reward_model
    if settings.epochs is None:
        return None
    if isinstance(settings, SFTConfig):
        files = settings.data or tuple(filter(None, [recipe.data.train]))
    else:
        files = settings.annotations
    if not files or (missing := [path for path in files if not Path(path).exists()]):
        what = f"{missing[0]} is not there yet" if files else f"[{SECTIONS[phase]}] names no file to train on"
        note(f"{what}: planned without the number of steps", warning=True)
        return None
    if isinstance(settings, SFTConfig):
        return len(read_demonstration_split(recipe)[0])
    held_out = settings.held_out_file or settings.held_out
    return len(read_split(files, held_out=held_out, unseen=settings.unseen, seed=recipe.run.seed).train)
