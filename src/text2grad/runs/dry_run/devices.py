"""Devices that a run can be planned for, and the memory of a process beyond its tensors.

A process on a CPU has its tokenizer and Python objects, one on a GPU CUDA's context and libraries (`OVERHEAD`), and the
share of memory that the caching allocator of a GPU cannot use (`LOST`); the figures for a GPU are assumptions.
"""

import os
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch

from text2grad.errors import ConfigError

GB = 10**9
OVERHEAD, LOST = {"cpu": 40 * 10**6, "cuda": GB}, {"cpu": 0.0, "cuda": 0.05}
GPUS = {"h100": 80, "h200": 141, "a100-80gb": 80, "a100-40gb": 40, "l40s": 48, "rtx-4090": 24, "l4": 24, "a10": 24}
"""Name → memory in GB."""


class Device(NamedTuple):
    """A device to plan for: its name, its type and the bytes of its memory."""

    name: str
    kind: Literal["cpu", "cuda"]
    memory: int

    def with_overhead(self, roles: Mapping[str, int]) -> dict[str, int]:
        """Return bytes by role with those beyond the tensors as "other", without roles of no bytes."""
        other = OVERHEAD[self.kind] + int(sum(roles.values()) * LOST[self.kind])
        return {name: size for name, size in {**roles, "other": other}.items() if size}


def device_named(name: str | None) -> Device:
    """Return a known GPU by name, or one of a size such as "16GB"; for None the first GPU of this machine, or its CPU.

    Raises:
        ConfigError: if there is no such device.
    """
    if name is None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        return Device(gpu.name, "cuda", int(gpu.total_memory))
    if name is None:
        return Device("this machine's CPU", "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    size = re.fullmatch(r"([1-9][0-9]*)GB", name)
    if name not in GPUS and size is None:
        raise ConfigError(f"--device {name} is not known; give one of {', '.join(GPUS)}, or a size such as 16GB")
    memory = int(size[1]) if size else GPUS[name]
    return Device("a GPU" if size else name, "cuda", memory * GB)


def gigabytes(size: float) -> str:
    """Return bytes as text in GB (10⁹ bytes).

    Example:
        >>> gigabytes(21_300_000_000), gigabytes(4_200_000)
        ('21.3 GB', '0.004 GB')
    """
    return f"{size / GB:.{1 if size >= 10 * GB else 2 if size >= GB / 10 else 3}f} GB"
