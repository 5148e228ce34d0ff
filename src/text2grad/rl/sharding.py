"""FSDP 2: weights, gradients and optimizer states in shards, one per process (torch's `fully_shard`).

accelerate's configuration decides (`recipes/accelerate/fsdp2.yaml`); settings that would have no effect are refused:

    policy and value function   each layer gathers its weights for its own passes, the rest for the whole pass
    reference                   the same, without gradients
    sampling                    whole weights of the policy on every device, gathered once per rollout
    checkpoints                 whole tensors, written by the first process; they load in any number of processes

A collective operation waits for all processes, so every process makes equally many passes (`PieceSizes.pieces`).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from text2grad.errors import ConfigError, ModelError
from text2grad.models import (
    CRITIC_ADAPTER,
    PLAIN,
    PolicyWithValue,
    Reference,
    asks_for_fsdp,
    base_of,
    collate,
    half_precision,
)
from text2grad.progress import note
from text2grad.types import Example, Rollout

FSDP_RECIPE = "recipes/accelerate/fsdp2.yaml"
ENGINES = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}
"""accelerate's variable of each engine → its name."""

OFF = ("false", "no", "0", "none", "")
APPLIED = {
    "FSDP_VERSION": ("2",),
    "FSDP_AUTO_WRAP_POLICY": ("transformer_based_wrap",),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": OFF,
    "FSDP_ACTIVATION_CHECKPOINTING": OFF,
    "FSDP_OFFLOAD_PARAMS": OFF,
    "FSDP_IGNORED_MODULES": ("",),
    "ACCELERATE_MIXED_PRECISION": ("no", "bf16", ""),
    "ACCELERATE_DYNAMO_BACKEND": ("no", ""),
}
"""accelerate's variables of FSDP 2 → the values that are applied here, in lower case."""

COMPARED = 256  # entries of each parameter that the processes compare


def check_launch() -> None:
    """Refuse launchers of other engines, before accelerate starts the engine or, on a CPU, ignores it.

    Raises:
        ConfigError: naming FSDP 2, which does the same.
    """
    for variable, engine in ENGINES.items():
        if os.environ.get(variable, "false").lower() == "true":
            raise ConfigError(
                f"accelerate was launched with {engine}, which this loop does not run; `accelerate launch "
                f"--config_file {FSDP_RECIPE}` shards weights, gradients and optimizer states as DeepSpeed's ZeRO 3 "
                "does, and with fsdp_reshard_after_forward: false as its ZeRO 2"
            )


def sharding_of(accelerator: Accelerator) -> "Sharding | None":
    """Return how accelerate's configuration asks to shard a run; None for one process and for plain data parallelism.

    On a CPU accelerate itself ignores FSDP and runs plain data parallelism; this function returns FSDP there, too.

    Raises:
        ConfigError: if a setting of the configuration would have no effect.
    """
    kind, precision = accelerator.distributed_type, os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if kind not in (*PLAIN, DistributedType.FSDP):
        raise ConfigError(
            f"accelerate runs {kind.value}, which this loop does not; start it with torchrun, or for FSDP"
        )
    if not asks_for_fsdp() and kind != DistributedType.FSDP:
        if precision not in ("no", ""):
            raise ConfigError(
                f"accelerate's configuration has mixed_precision: {precision}, which is for FSDP here; without it the "
                'type of the weights decides: set mixed_precision: "no" and model.dtype = "bfloat16"'
            )
        return None
    if not torch.distributed.is_initialized():
        raise ConfigError(
            "accelerate's configuration asks for FSDP (ACCELERATE_USE_FSDP), and no launcher started this process, so "
            f"nothing would be sharded; start it with `accelerate launch --config_file {FSDP_RECIPE}`, or unset the "
            "variable"
        )
    for name, applied in APPLIED.items():
        if (value := os.environ.get(name, "")).lower() not in applied:
            raise ConfigError(
                f'accelerate\'s configuration has {name} = "{value}", which would not be applied here; write '
                f'"{applied[0].upper()}" as in {FSDP_RECIPE}. Lower the memory with model.gradient_checkpointing, '
                "model.lora_r and ppo.micro_batch_tokens of the recipe"
            )
    plugin = getattr(accelerator.state, "fsdp_plugin", None) or FullyShardedDataParallelPlugin()
    return Sharding(plugin, accelerator, torch.bfloat16 if precision == "bf16" else None)


class Sharding:
    """Shards the models of a run over all processes, and gathers them where whole weights are needed.

    Attributes:
        half_precision: True if forward passes compute in fewer than 32 bits.
    """

    def __init__(
        self, plugin: FullyShardedDataParallelPlugin, accelerator: Accelerator, computed_in: torch.dtype | None
    ) -> None:
        """Take accelerate's settings of FSDP 2, and the type of gathered weights; None leaves them their own type."""
        self.plugin, self.accelerator, self.computed_in = plugin, accelerator, computed_in
        self.half_precision = computed_in is not None
        self.roots: list[Any] = []
        self.layers: list[Any] = []
        self.policy_layers: list[Any] = []

    def shard(self, model: PolicyWithValue, reference: Reference) -> None:
        """Replace the parameters of policy, value function and reference by their shards; they move to the device.

        Raises:
            ConfigError: if no layer of the model has a class that accelerate's configuration names, or the critic is an
                adapter of the same model.
            ModelError: if the processes hold different weights.
        """
        if CRITIC_ADAPTER in getattr(model.policy, "peft_config", {}):
            raise ConfigError(
                "critic.model is an adapter on the policy's base, which FSDP has in shards; give the critic weights of "
                "its own (the directory `merged` beside the adapter), or launch plain data parallelism"
            )
        if reference.start:
            raise ConfigError(
                "the policy without its adapter is not the start of this run, and FSDP keeps no copy of the start: "
                "give model.merge_and_unload() to the trainer and set model.lora_r, or launch plain data parallelism"
            )
        _refuse_differing(model)
        self.half_precision = self.half_precision or half_precision(model.policy)
        names, count = self._layer_names(model.policy), self.accelerator.num_processes
        mesh = init_device_mesh(self.accelerator.device.type, (count,))
        if reference.trunk is not None:
            self._shard(reference.trunk, mesh, names)
        if model.value_head is not None:  # the head is fp32, and all weights of one group have one type
            fully_shard(model.value_head, mesh=mesh)
        self._shard(model, mesh, names, *([] if model.value_trunk is None else [model.value_trunk]))
        register_fsdp_forward_method(model, "score")  # a pass that does not go through `forward`
        sharded = set(self.layers)
        self.policy_layers = [module for module in model.policy.modules() if module in sharded]
        # FSDP takes the module of the first pass for its root.
        short = collate([Rollout(Example(""), (1,), (1,), "", False)], pad_id=0, device=self.accelerator.device)
        with torch.no_grad():
            model(short)
        self.reshard()
        if self.accelerator.is_main_process:
            note(f"{count} processes, each with a shard of each weight (FSDP 2)")

    def _layer_names(self, policy: Any) -> set[str]:
        base = base_of(policy)
        asked = self.plugin.transformer_cls_names_to_wrap
        names = set(asked or getattr(base, "_no_split_modules", None) or ())
        classes = {type(module).__name__ for module in base.modules()}
        if not names & classes or (asked and not names <= classes):
            raise ConfigError(
                f"{type(base).__name__} has no modules of the classes {sorted(names)}; name those of its layers in "
                "fsdp_transformer_layer_cls_to_wrap of accelerate's configuration, separated by commas. Its classes: "
                f"{', '.join(sorted(classes))}"
            )
        return names

    def _shard(self, root: Any, mesh: DeviceMesh, names: set[str], *parts: Any) -> None:
        """Shard the layers of a root, its parts whose weights may have another type, and the root."""
        policy = MixedPrecisionPolicy(param_dtype=self.computed_in, reduce_dtype=torch.float32)
        layers = [module for module in root.modules() if type(module).__name__ in names]
        for module in (*reversed(layers), *parts):  # inner modules first
            reshard = self.plugin.reshard_after_forward
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        fully_shard(root, mesh=mesh, mp_policy=policy)
        self.layers += [*layers, *parts]
        self.roots.append(root)

    @contextmanager
    def gathered(self, model: PolicyWithValue) -> Iterator[None]:
        """Hold whole weights of the policy on every device: within, passes of the policy wait for no other process."""
        modules = [model, *self.policy_layers]
        for layer in self.policy_layers:
            layer.set_reshard_after_forward(False, recurse=False)
        for module in modules:
            module.unshard()
        try:
            yield
        finally:
            for layer in self.policy_layers:
                layer.set_reshard_after_forward(self.plugin.reshard_after_forward, recurse=False)
            self.reshard()

    def reshard(self) -> None:
        """Free all gathered weights."""
        for module in (*self.roots, *self.layers):
            module.reshard()

    def largest(self, numbers: Iterable[int]) -> list[int]:
        """Return the largest of each number over all processes."""
        return [max(column) for column in zip(*gather_object([list(numbers)]), strict=True)]


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor whole; all processes must call this. Other tensors are returned as they are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_sharded(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor on the device of `like`, in shards if `like` is; each process cuts its own shard."""
    if not isinstance(like, DTensor):
        return value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _refuse_differing(model: nn.Module) -> None:
    """Refuse models whose weights differ between processes: their shards would be mixed."""
    hashed = sha256()
    for parameter in model.parameters():
        hashed.update(parameter.detach().flatten()[:COMPARED].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    digest = hashed.hexdigest()
    for rank, other in enumerate(gather_object([digest])):
        if other != digest:
            raise ModelError(
                f"process {rank} has other weights than this one, and shards of them would be mixed: load the model "
                "from one path, or make it with one seed in every process"
            )
