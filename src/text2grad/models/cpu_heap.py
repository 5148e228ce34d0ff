"""Freed tensors of larger models on a CPU: given back to the system at once, or kept for the next ones.

glibc raises the size above which a block has pages of its own (M_MMAP_THRESHOLD) up to 32 MiB as a program frees large
blocks. Activations then share a heap with small tensors that live longer, and the holes between them stay resident:
with LoRA adapters a run took twice the memory of its tensors (docs/training.md). A fixed threshold ends that, for more
time in the kernel: a third of a run's time with 15 million parameters, a fifth with 135 million. Where memory is
plenty, the heap keeps its pages instead, and the kernel has nothing to do, until memory runs short: rounds of TRL's
trainers, whose batches have ever new shapes, would fill 19 GB with the holes of a model of 135 million parameters.
Small models keep glibc's behaviour.
"""

import ctypes
import os
import platform
from pathlib import Path
from typing import Literal

from torch import nn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h
THRESHOLD_BYTES = 2**20
SMALL_MODEL_BYTES = 2**25
NEVER = 2**31 - 1
PLENTY_BYTES, PLENTY_OF_WEIGHTS = 4 * 10**9, 20
"""Memory is plenty if so many bytes and so many times the weights are free for each process of this machine."""

LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of a container's limit and of what it uses."""


def settle_heap(model: nn.Module, compact: bool | Literal["auto"]) -> Literal["compact", "kept", "as it is"]:
    """Make glibc's heap small or fast if the model's weights are on a CPU and large; return what was done.

    Args:
        model: the policy, loaded.
        compact: True gives freed tensors back at once, False keeps their memory, "auto" keeps it where it is plenty.
    """
    if not fills_heap(model):
        return "as it is"
    if compact == "auto":
        compact = free_memory_of_process() < plenty(model)
    wanted = [(M_MMAP_THRESHOLD, THRESHOLD_BYTES)] if compact else [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER)]
    library = ctypes.CDLL(None)
    done = [library.mallopt(name, value) == 1 for name, value in wanted]
    return ("compact" if compact else "kept") if all(done) else "as it is"


def give_back_if_short(model: nn.Module, *, share: float = 0.5) -> bool:
    """Give the unused pages of the heap to the system if less than a share of plenty is free; return whether it did.

    Args:
        model: the model under training.
        share: a larger one gives back earlier.
    """
    if not fills_heap(model) or free_memory_of_process() >= share * plenty(model):
        return False
    given: bool = ctypes.CDLL(None).malloc_trim(0) == 1
    return given


def fills_heap(model: nn.Module) -> bool:
    """Whether a model is large, on a CPU, and in a heap of glibc."""
    on_cpu = all(weight.device.type == "cpu" for weight in model.parameters())
    return on_cpu and bytes_of(model) >= SMALL_MODEL_BYTES and platform.libc_ver()[0] == "glibc"


def plenty(model: nn.Module) -> int:
    """Return the bytes that must be free for the heap of a model to be kept."""
    return PLENTY_BYTES + PLENTY_OF_WEIGHTS * bytes_of(model)


def bytes_of(model: nn.Module) -> int:
    """Return the bytes of a model's weights."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def free_memory_of_process(meminfo: str = "/proc/meminfo") -> int:
    """Return the bytes that system and container can still give to this process of its launcher; 0 if unknown."""
    try:
        lines = Path(meminfo).read_text("utf-8").splitlines()
    except OSError:
        return 0
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
    for limit, used in LIMITS:
        try:
            free = min(free, int(Path(limit).read_text("utf-8")) - int(Path(used).read_text("utf-8")))
        except (OSError, ValueError):  # there is no such file, or no limit ("max")
            continue
    return max(free, 0) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
