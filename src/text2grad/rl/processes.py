"""The processes of a run, as accelerate sees them."""

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from text2grad.config import check_world_size
from text2grad.errors import ConfigError

DATA_PARALLEL = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
    DistributedType.MULTI_XPU,
    DistributedType.MULTI_NPU,
)


def make_accelerator(*, out: str, tracker: str, batch_size: int, minibatches: int) -> Accelerator:
    """Return accelerate's view of the processes and trackers of a run.

    Args:
        out: the run's directory, for trackers.
        tracker: "tensorboard", "wandb" or "none".
        batch_size: responses per step, over all processes.
        minibatches: optimizer steps per epoch.

    Raises:
        ConfigError: if weights would be sharded, the launcher started more processes than accelerate sees, or the batch
            cannot be shared evenly.
    """
    # No autocast: the type of the weights alone decides, so that old and new passes of a batch compute the same.
    accelerator = Accelerator(
        mixed_precision="no",
        log_with=None if tracker == "none" else tracker,
        project_dir=out,
        cpu=not torch.accelerator.is_available(),
    )
    if accelerator.distributed_type not in DATA_PARALLEL:
        raise ConfigError(
            f"accelerate was launched with {accelerator.distributed_type}, which shards weights; checkpoints here are "
            "written whole. Launch plain data parallelism (torchrun), with model.lora_r > 0 for large models."
        )
    check_world_size(accelerator.num_processes)
    shares = accelerator.num_processes * minibatches
    if batch_size % shares:
        raise ConfigError(
            f"rollout.batch_size = {batch_size} cannot be shared evenly by {accelerator.num_processes} "
            f"processes × ppo.minibatches = {minibatches}; choose a multiple of {shares}"
        )
    return accelerator
