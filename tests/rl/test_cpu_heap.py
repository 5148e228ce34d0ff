"""glibc's heap for large models on a CPU: small where memory is short or asked for, kept where it is plenty."""

import platform
from pathlib import Path

import pytest
import torch

from text2grad.rl import cpu_heap

LARGE = torch.nn.Linear(4096, 2048)  # 32 MiB and its bias
BYTES = 4 * (4096 * 2048 + 2048)


@pytest.fixture
def set_to(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | str, int]]:
    calls: list[tuple[int | str, int]] = []

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            calls.append((name, value))
            return 1

        def malloc_trim(self, left: int) -> int:
            calls.append(("malloc_trim", left))
            return 1

    monkeypatch.setattr(cpu_heap.ctypes, "CDLL", lambda _: Library())
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    return calls


def test_only_large_models_on_a_cpu_change_the_heap(
    set_to: list[tuple[int | str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.device("meta"):
        meta = torch.nn.Linear(4096, 4096)
    for compact in (True, False):
        assert cpu_heap.settle_heap(torch.nn.Linear(8, 8), compact) == "as it is"
        assert cpu_heap.settle_heap(meta, compact) == "as it is"
    assert set_to == []
    assert cpu_heap.settle_heap(LARGE, compact=True) == "compact"
    assert set_to == [(-3, 1_048_576)]
    set_to.clear()
    assert cpu_heap.settle_heap(LARGE, compact=False) == "kept"
    assert set_to == [(-4, 0), (-1, 2**31 - 1)]
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert cpu_heap.settle_heap(LARGE, compact=True) == "as it is"


@pytest.mark.parametrize(("spare", "found"), [(0, "kept"), (-1, "compact")])
def test_auto_keeps_memory_where_it_is_plenty(
    set_to: list[tuple[int | str, int]], monkeypatch: pytest.MonkeyPatch, spare: int, found: str
) -> None:
    monkeypatch.setattr(cpu_heap, "free_memory_of_process", lambda: 4 * 10**9 + 20 * BYTES + spare)
    assert cpu_heap.settle_heap(LARGE, "auto") == found


@pytest.mark.parametrize(
    ("heap", "spare", "given"),
    [("kept", 0, False), ("kept", -1, True), ("compact", -1, False), ("as it is", -1, False)],
)
def test_a_kept_heap_gives_its_holes_back_when_half_of_plenty_is_left(
    set_to: list[tuple[int | str, int]], monkeypatch: pytest.MonkeyPatch, heap: cpu_heap.Heap, spare: int, given: bool
) -> None:
    # half of 4 GB and 20 times the weights
    monkeypatch.setattr(cpu_heap, "free_memory_of_process", lambda: 2 * 10**9 + 10 * BYTES + spare)
    assert cpu_heap.give_back_if_short(heap, LARGE) == given
    assert set_to == ([("malloc_trim", 0)] if given else [])


def test_free_memory_is_the_smaller_of_system_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo, limit, used = (tmp_path / name for name in ("meminfo", "limit", "used"))
    meminfo.write_text("MemTotal:       9000 kB\nMemAvailable:       8000 kB\n")
    monkeypatch.setattr(cpu_heap, "LIMITS", ((str(limit), str(used)),))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cpu_heap.free_memory_of_process(str(meminfo)) == 8_192_000
    limit.write_text("max\n")
    used.write_text("3000000\n")
    assert cpu_heap.free_memory_of_process(str(meminfo)) == 8_192_000
    limit.write_text("5000000\n")
    assert cpu_heap.free_memory_of_process(str(meminfo)) == 2_000_000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cpu_heap.free_memory_of_process(str(meminfo)) == 500_000
    assert cpu_heap.free_memory_of_process(str(tmp_path / "none")) == 0
