"""Return freed tensors to the system in runs of larger models on a CPU.

glibc raises the size above which a block has pages of its own (M_MMAP_THRESHOLD) up to 32 MiB as a program frees large
blocks. Activations then share a heap with small tensors that live longer, and the holes between them stay resident:
with LoRA adapters a run took twice the memory of its tensors (docs/plan.md). A fixed threshold ends that, for more time
in the kernel; small models have no such tensors, and keep glibc's behaviour.
"""

import ctypes
import platform

from torch import nn

M_MMAP_THRESHOLD = -3  # malloc.h
THRESHOLD_BYTES = 2**20
SMALL_MODEL_BYTES = 2**25


def return_freed_memory(model: nn.Module) -> bool:
    """Fix glibc's threshold if the model's weights are on a CPU and large; return whether that was done."""
    weights = list(model.parameters())
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    if not on_cpu or size < SMALL_MODEL_BYTES or platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES) == 1)
