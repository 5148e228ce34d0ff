"""How accelerate's launcher started this process, and work that several processes of one machine share.

A tiny model gains little from a second thread: its tensors are too small. Two processes, each with half of a batch,
keep two cores busy. They are forked from a process that has made the imports, and meet in torch's group of
processes (gloo), whose members a training asks for (`place`).
"""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from text2grad.progress import LOG

Item = TypeVar("Item")

MOST_WAITING = timedelta(minutes=10)  # for another process
USE_FSDP = "ACCELERATE_USE_FSDP"
PLAIN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""accelerate's types of one process and of plain data parallelism: every process holds whole weights."""


def asks_for_fsdp() -> bool:
    """Return whether accelerate's configuration asks for FSDP, also where accelerate makes something else of it."""
    return os.environ.get(USE_FSDP, "false").lower() == "true"


def place() -> tuple[int, int]:
    """Return the number of this process, and how many share its work: (0, 1) for a process alone.

    They are those of torch's default group, which accelerate's launcher makes, too.
    """
    from torch import distributed

    joined = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if joined else (0, 1)


def shared(items: Sequence[Item], *, may_be_none: bool = False) -> Sequence[Item]:
    """Return this process's part of items that processes share; of too few for each all, unless it `may_be_none`."""
    rank, processes = place()
    part = items[rank::processes]
    return part if part or may_be_none else items


def gathered(items: Sequence[Item]) -> list[Item]:
    """Return the items of all processes that share work, in all of them.

    A process goes on once each has called this, so files that the first one wrote before are there.
    """
    count = place()[1]
    parts: list[Sequence[Item]] = [items] * count
    if count > 1:
        from torch import distributed

        distributed.all_gather_object(parts, items)
    return [item for part in parts for item in part]


def prepare_processes() -> None:
    """Begin to import, in a process from which others fork, what `in_processes` needs; return at once."""
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(["text2grad.models.fine_tuning"])
    forkserver.ensure_running()


def in_processes(count: int, work: Callable[[], None]) -> None:
    """Do work in several processes on the CPU, this one the first; trainings in it share each batch.

    The processes hold equal weights at each step: a training adds up their gradients. A process that fails ends the
    others' work with an error.

    Args:
        count: how many processes.
        work: is pickled, and waits for the others at each step of a training and at `gathered`.
    """
    if count == 1:
        work()
        return
    import torch

    with TemporaryDirectory() as directory:
        how = (Path(directory, "meeting").as_uri(), count, torch.get_num_threads(), work)
        context = multiprocessing.get_context("forkserver")
        others = [context.Process(target=_take_part, args=(rank, *how), daemon=True) for rank in range(1, count)]
        for other in others:
            other.start()
        try:
            _take_part(0, *how)
        finally:
            for other in others:
                other.terminate()
                other.join()


def _take_part(rank: int, meeting: str, count: int, threads: int, work: Callable[[], None]) -> None:
    """Do the work as one of several processes, which find each other in a file."""
    import torch
    from torch import distributed
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    if rank:  # the first process alone speaks, and ends the others
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        LOG.setLevel(logging.WARNING)
        torch.set_num_threads(threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        set_verbosity_error()  # type: ignore[no-untyped-call]
    distributed.init_process_group("gloo", meeting, MOST_WAITING, count, rank)
    try:
        work()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
