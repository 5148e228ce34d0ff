"""How accelerate's launcher started this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

USE_FSDP = "ACCELERATE_USE_FSDP"
PLAIN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""accelerate's types of one process and of plain data parallelism: every process holds whole weights."""


def asks_for_fsdp() -> bool:
    """Return whether accelerate's configuration asks for FSDP, also where accelerate makes something else of it."""
    return os.environ.get(USE_FSDP, "false").lower() == "true"


@contextmanager
def plain_data_parallelism() -> Iterator[None]:
    """Let a trainer of transformers hold whole weights in each process, also where the launcher asked for FSDP.

    In the block no variable of the launcher asks for FSDP or for mixed precision. The trainer makes the state of
    accelerate anew; after the block the old state is back.
    """
    if not asks_for_fsdp():
        yield
        return
    from accelerate.state import AcceleratorState
    from accelerate.utils import patch_environment

    state = dict(AcceleratorState._shared_state)
    AcceleratorState._reset_state()
    try:
        with patch_environment(**{USE_FSDP: "false", "ACCELERATE_MIXED_PRECISION": "no"}):
            yield
    finally:
        AcceleratorState._reset_state()
        AcceleratorState._shared_state.update(state)
