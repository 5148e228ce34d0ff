"""Devices: memory, rate of bf16 products, memory bandwidth, and the time to start one operation.

The table has the makers' figures for dense bf16 products with fp32 sums (data sheets of NVIDIA: H100 SXM, H200 SXM,
A100 SXM, L40S, L4, A10, and the Ada GPU architecture paper for the RTX 4090). `measured` measures this machine.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from text2grad.runs.planning.trace import Pass

GB = 10**9
CALL_S = 8e-6
"""Assumed seconds for PyTorch to start one operation on a GPU; decoding is often limited by it."""


@dataclass(frozen=True)
class Device:
    """A device to plan for.

    Attributes:
        name: for the output.
        kind: "cpu" or "cuda".
        memory: bytes.
        flops: operations per second; 0 if unknown, then no time is estimated.
        bandwidth: bytes per second of its memory.
        call_s: seconds to start one operation.
        mfu: share of `flops` that training reaches, assumed.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    memory: int
    flops: float = 0.0
    bandwidth: float = 0.0
    call_s: float = CALL_S
    mfu: float = 0.4

    def seconds_of(self, one: "Pass", rows: int, scale: float = 1.0) -> float:
        """Return the time of a traced pass over `rows` rows of `scale` times its length, in pieces of its own rows."""
        return max(one.flops * scale / (self.flops * self.mfu), one.calls * self.call_s) * math.ceil(rows / one.rows)

    def seconds_of_decoding(self, weights: int, prompts: "Pass", token: "Pass", rows: int, tokens: int) -> float:
        """Return the time in which `rows` rows decode `tokens` tokens each.

        Args:
            weights: bytes of the model, which each token reads.
            prompts: the pass over the prompts.
            token: the pass of the last token, with the whole KV cache; half of it is read on average.
            rows: number of rows, decoded in pieces of the passes' rows.
            tokens: of each row.
        """
        read = (weights + token.kept / 2) / self.bandwidth
        one = max(read, token.flops / (self.flops * self.mfu), token.calls * self.call_s)
        return self.seconds_of(prompts, rows) + math.ceil(rows / token.rows) * tokens * one


def _gpu(name: str, memory_gb: float, tflops: float, bandwidth_gb: float) -> Device:
    return Device(name, "cuda", int(memory_gb * GB), tflops * 1e12, bandwidth_gb * 1e9)


DEVICES = {
    "h100": _gpu("H100 SXM, 80 GB", 80, 989, 3_350),
    "h200": _gpu("H200 SXM, 141 GB", 141, 989, 4_800),
    "a100-80gb": _gpu("A100 SXM, 80 GB", 80, 312, 2_039),
    "a100-40gb": _gpu("A100 SXM, 40 GB", 40, 312, 1_555),
    "l40s": _gpu("L40S, 48 GB", 48, 362, 864),
    "rtx-4090": _gpu("RTX 4090, 24 GB", 24, 165, 1_008),
    "l4": _gpu("L4, 24 GB", 24, 121, 300),
    "a10": _gpu("A10, 24 GB", 24, 125, 600),
}


def this_machine() -> Device:
    """Return the first GPU of this machine, or its CPU with all of its memory; rates are unknown."""
    import torch

    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        return Device(found.name, "cuda", int(found.total_memory))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("this machine's CPU", "cpu", memory)


def measured(device: Device, *, half: bool, threads: int = 0) -> Device:
    """Measure the rate of products, the bandwidth and the time of a small operation on this machine, in seconds.

    Args:
        device: from `this_machine`.
        half: measure products in bf16 instead of fp32.
        threads: CPU threads of the run; 0 for torch's default.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    where, dtype = torch.device(device.kind), torch.bfloat16 if half else torch.float32
    size = 8192 if device.kind == "cuda" else 1024
    a, b = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
    product = _seconds(lambda: a @ b, where)
    block = torch.randn(2**28 // 4 if device.kind == "cuda" else 2**26 // 4, device=where)
    reading = _seconds(lambda: block.sum(), where)
    small = torch.randn(8, 8, device=where)
    hundred = _seconds(lambda: [small.add(1.0) for _ in range(100)], where)
    rate = 2 * size**3 / product
    mfu = 0.4 if device.kind == "cuda" else 0.7  # a CPU's products in a model are as large as the measured one
    return Device(device.name, device.kind, device.memory, rate, 4 * block.numel() / reading, hundred / 100, mfu)


def _seconds(work: Callable[[], object], where: object, repeats: int = 5) -> float:
    """Return the shortest time of some repetitions, after one to warm up."""
    import torch

    times = []
    for _ in range(repeats + 1):
        if getattr(where, "type", "") == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if getattr(where, "type", "") == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
