"""What stands ready before the first step: the processes, and the policy in its roles."""

from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.models import is_peft, load_policy, with_lora


def make_accelerator(recipe: Recipe) -> Accelerator:
    """Return accelerate's view of the processes and trackers of this run.

    Raises:
        ConfigError: if weights would be sharded, or the batch cannot be shared evenly.
    """
    tracker = None if recipe.run.tracker == "none" else recipe.run.tracker
    # No autocast: model.dtype alone decides, so that old and new passes of a batch compute the same.
    accelerator = Accelerator(mixed_precision="no", log_with=tracker, project_dir=recipe.run.out)
    if accelerator.distributed_type not in (
        DistributedType.NO,
        DistributedType.MULTI_CPU,
        DistributedType.MULTI_GPU,
        DistributedType.MULTI_XPU,
        DistributedType.MULTI_NPU,
    ):
        raise ConfigError(
            f"accelerate was launched with {accelerator.distributed_type}, which shards weights; checkpoints here are "
            "written whole. Launch plain data parallelism (torchrun), with model.lora_r > 0 for large models."
        )
    shares = accelerator.num_processes * recipe.ppo.minibatches
    if recipe.rollout.batch_size % shares:
        raise ConfigError(
            f"rollout.batch_size = {recipe.rollout.batch_size} cannot be shared evenly by {accelerator.num_processes} "
            f"processes × ppo.minibatches = {recipe.ppo.minibatches}; choose a multiple of {shares}"
        )
    return accelerator


def prepare_policy(model: Any, recipe: Recipe) -> Any:
    """Return the policy, loaded where a path was given, with a fresh LoRA adapter where one is asked for."""
    settings = recipe.model
    if isinstance(model, str | Path):
        model = load_policy(str(model), dtype=settings.dtype, trust_remote_code=settings.trust_remote_code)
    if settings.lora_r and not is_peft(model):
        model = with_lora(
            model,
            r=settings.lora_r,
            alpha=settings.lora_alpha,
            targets=settings.lora_targets if isinstance(settings.lora_targets, str) else list(settings.lora_targets),
            value_adapter=settings.value == "adapter",
        )
    return model
