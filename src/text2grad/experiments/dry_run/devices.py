"""Devices that a run can be planned for, and what a process needs beyond its tensors.

    CPU     OVERHEAD["cpu"] for tokenizer and Python objects
    GPU     OVERHEAD["cuda"] for CUDA's context and libraries, and 5 % that the caching allocator cannot use

(the figures for a GPU are assumptions).
"""

import os
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from text2grad.errors import ConfigError

GB = 10**9
OVERHEAD = {"cpu": 40 * 10**6, "cuda": GB}
FRAGMENTATION = {"cpu": 1.0, "cuda": 1.05}


class Device(NamedTuple):
    """A device to plan for: its name, its type and the bytes of its memory."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory: int

    def overhead(self, size: int) -> int:
        """Return the bytes that a process has beyond `size` bytes of tensors."""
        return OVERHEAD[self.kind] + int(size * (FRAGMENTATION[self.kind] - 1))

    def with_overhead(self, roles: Mapping[str, int]) -> dict[str, int]:
        """Return bytes by role with those beyond the tensors as "other", without roles of no bytes."""
        return {name: size for name, size in {**roles, "other": self.overhead(sum(roles.values()))}.items() if size}


GPUS = {"h100": 80, "h200": 141, "a100-80gb": 80, "a100-40gb": 40, "l40s": 48, "rtx-4090": 24, "l4": 24, "a10": 24}
"""Name → memory in GB."""


def device_named(name: str | None) -> Device:
    """Return a known GPU by name, a GPU of a size such as "16GB", or with None the first one of this machine.

    A machine without a GPU is its CPU, with all of its memory.

    Raises:
        ConfigError: if there is no such device.

    Example:
        >>> device_named("h100")
        Device(name='h100, 80 GB', kind='cuda', memory=80000000000)
    """
    if name is None:
        return _this_machine()
    size = re.fullmatch(r"([1-9][0-9]*)GB", name)
    if name not in GPUS and size is None:
        raise ConfigError(f"--device {name} is not known; give one of {', '.join(GPUS)}, or a size such as 16GB")
    memory = int(size[1]) if size else GPUS[name]
    return Device(f"{'a GPU' if size else name}, {memory} GB", "cuda", memory * GB)


def _this_machine() -> Device:
    import torch

    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        return Device(gpu.name, "cuda", int(gpu.total_memory))
    return Device("this machine's CPU", "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def gigabytes(size: float) -> str:
    """Return bytes as text in GB (10⁹ bytes).

    Example:
        >>> gigabytes(21_300_000_000), gigabytes(4_200_000)
        ('21.3 GB', '0.004 GB')
    """
    digits = 1 if size >= 10 * GB else 2 if size >= GB / 10 else 3
    return f"{size / GB:.{digits}f} GB"
