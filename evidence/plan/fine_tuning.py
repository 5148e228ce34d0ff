"""A recipe → memory of `text2grad sft` or `text2grad reward`, which train before the policy learns.

A micro-batch has batch_size / (processes · accumulate) rows of the longest length. Of a demonstration all tokens have a
loss, of an annotation those of the longest critique. The pass is traced as that of the policy's update, with the
dropout and the mixed precision of the section; the loss is taken as that of the update, which holds one tile of the
logits at a time. Measurements between the steps count: held-out losses of `sft`, decoded critiques of `reward`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from text2grad.config import ModelConfig, Recipe, RewardModelConfig, SFTConfig
from text2grad.errors import ConfigError
from text2grad.models import context_of, policy_config, response_logprobs
from text2grad.progress import note
from text2grad.runs.dry_run.devices import Device
from text2grad.runs.dry_run.plan import Plan
from text2grad.runs.dry_run.trace import Roles, TracedModel

Phase = Literal["sft", "reward"]
SMALLEST_LORA = 16
SECTIONS: dict[Phase, str] = {"sft": "sft", "reward": "reward_model"}


class Advice(NamedTuple):
    """Settings that make a run fit, and its peak in bytes then."""

    settings: dict[str, Any]
    peak: int


class FusedDropout(nn.Module):
    """Dropout as a GPU computes it: the mask has a byte for each number, and on a CPU as many bytes as the number."""

    def __init__(self, p: float) -> None:
        """Take the rate."""
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with a share p of its numbers set to zero, scaled."""
        return torch.native_dropout(x, self.p, self.training)[0]


class FineTunedModel(TracedModel):
    """A model that `sft` or `reward` trains: without reference and value function, with dropout and mixed precision."""

    def __init__(self, config: Any, settings: ModelConfig, *, device: str, dropout: float, bf16: bool) -> None:
        """Make it as `TracedModel`; PPO has neither dropout before adapters nor mixed precision."""
        super().__init__(config, settings, device=device)
        for name, module in list(self.model.policy.named_modules()) if dropout else ():
            if name.endswith("lora_dropout") and isinstance(module, nn.ModuleDict):
                for adapter in module:
                    module[adapter] = FusedDropout(dropout) if device == "cuda" else nn.Dropout(dropout)
        self.training = self.training or dropout > 0
        self.model.train(self.training)
        if bf16:
            self.model.forward = torch.autocast("cpu", torch.bfloat16)(self.model.forward)  # type: ignore[method-assign]

    def held_out(self, rows: int, prompt: int, response: int) -> Roles:
        """Trace the log-probs of responses behind their prompts, without gradient."""
        with torch.no_grad(), self._counting() as counted:
            response_logprobs(self.model.policy, self._batch(rows, prompt, response))
            return {"working": counted.peak}


class FineTuningPlanner:
    """Plans `text2grad sft` or `text2grad reward` of one recipe, and of its variants."""

    def __init__(self, recipe: Recipe, phase: Phase, device: Device, *, processes: int = 1) -> None:
        """Read the config of the model.

        Args:
            recipe: the settings.
            phase: the command, "sft" or "reward".
            device: the device of one process.
            processes: number of processes, one GPU each, of which each holds the whole model.

        Raises:
            ConfigError: if the batch cannot be shared by the processes and micro-batches.
            ModelError: if the config cannot be read.
        """
        self.recipe, self.phase, self.device, self.processes = recipe, phase, device, processes
        settings = self._settings(recipe)
        parts = processes * settings.accumulate
        if settings.batch_size % parts:
            raise ConfigError(
                f"{SECTIONS[phase]}.batch_size = {settings.batch_size} cannot be shared evenly by {processes} "
                f"processes × {SECTIONS[phase]}.accumulate = {settings.accumulate}; choose a multiple of {parts}"
            )
        path = settings.model or recipe.model.path
        self.config = policy_config(path, trust_remote_code=recipe.model.trust_remote_code)
        self.row_tokens = int(min(settings.max_tokens, context_of(self.config)))

    def rows(self, recipe: Recipe) -> int:
        """Return the rows of one forward pass."""
        settings = self._settings(recipe)
        return settings.batch_size // (self.processes * settings.accumulate)

    def plan(self, recipe: Recipe | None = None) -> Plan:
        """Return the plan of the recipe, or of a variant of it: phases update, optimizer and measurement."""
        recipe = recipe or self.recipe
        settings, model, rows = self._settings(recipe), self._model(recipe), self.rows(recipe)
        note(f"tracing the update of {rows} rows of {self.row_tokens:,} tokens")
        update = model.update(rows, *self._lengths(settings), entropy=False, accumulated=settings.accumulate > 1)
        weights = model.weights
        grads, changed = weights.trainable, weights.trainable if self.device.kind == "cuda" else 2 * weights.largest
        buckets = {"gradient buckets": grads} if self.processes > 1 else {}
        resident = {"model": weights.policy, "optimizer states": 2 * grads, **buckets}
        phases = {
            "update": update,
            "optimizer": {"gradients": grads, "working": changed},
            "measurement": self._measured(recipe, model),
        }
        return Plan(
            {name: self.device.with_overhead({**resident, **own}) for name, own in phases.items()},
            (weights.parameters, weights.trained_parameters),
        )

    def advice(self, memory: int) -> list[Advice]:
        """Return settings with which the peak fits into `memory` bytes: first those that change no result."""
        fitting: list[Advice] = []
        for settings in stronger(self.recipe.model.model_copy(update={"value": "none"})):
            if len(fitting) < 2:
                fitting += self._in_smaller_parts(settings, memory)
        return fitting

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

    def _model(self, recipe: Recipe) -> FineTunedModel:
        kept = {"dtype", "lora_r", "lora_alpha", "lora_targets", "gradient_checkpointing", "trust_remote_code"}
        model = ModelConfig.model_validate({"value": "none", **recipe.model.model_dump(include=kept)})
        own = self._settings(recipe)
        how: dict[str, Any] = {"device": self.device.kind, "dropout": own.lora_dropout, "bf16": own.bf16}
        return FineTunedModel(self.config, model, **how)

    def _measured(self, recipe: Recipe, model: FineTunedModel) -> Roles:
        """Return the pass of a held-out loss; or the larger of those over prompts and a critique's last token."""
        settings = self._settings(recipe)
        lengths, most = self._lengths(settings), math.ceil(settings.eval_limit / self.processes)
        if isinstance(settings, RewardModelConfig):
            return model.rollout(min(recipe.rollout.rows_at_once, most), *lengths)
        return model.held_out(min(self.rows(recipe), most), *lengths)


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
