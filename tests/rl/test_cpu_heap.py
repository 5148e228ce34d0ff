"""glibc's heap is told to give large blocks back for large models on a CPU, and left alone for small ones."""

import platform

import pytest
import torch

from text2grad.rl import cpu_heap


def test_only_large_models_on_a_cpu_change_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            set_to.append((name, value))
            return 1

    monkeypatch.setattr(cpu_heap.ctypes, "CDLL", lambda _: Library())
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    with torch.device("meta"):
        meta = torch.nn.Linear(4096, 4096)
    assert not cpu_heap.return_freed_memory(torch.nn.Linear(8, 8))
    assert not cpu_heap.return_freed_memory(meta)
    assert set_to == []
    assert cpu_heap.return_freed_memory(torch.nn.Linear(4096, 2048))  # 32 MiB and its bias
    assert set_to == [(-3, 1_048_576)]
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not cpu_heap.return_freed_memory(torch.nn.Linear(4096, 2048))
