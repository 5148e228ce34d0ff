"""How accelerate's launcher started this process."""

import os

PLAIN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""accelerate's types of one process and of plain data parallelism: every process holds whole weights."""


def asks_for_fsdp() -> bool:
    """Return whether accelerate's configuration asks for FSDP, also where accelerate makes something else of it."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
