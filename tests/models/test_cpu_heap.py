"""glibc's heap for large models on a CPU: small where memory is short or asked for, kept where it is plenty."""

import platform
from pathlib import Path

import pytest
import torch

from text2grad.config import make_recipe
from text2grad.models import FineTuning, cpu_heap, fine_tune
from text2grad.rl import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example

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


def test_a_heap_gives_its_holes_back_when_half_of_plenty_is_left(
    set_to: list[tuple[int | str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 2 * 10**9 + 10 * BYTES  # half of 4 GB and 20 times the weights
    monkeypatch.setattr(cpu_heap, "free_memory_of_process", lambda: free)
    assert not cpu_heap.give_back_if_short(LARGE)
    monkeypatch.setattr(cpu_heap, "free_memory_of_process", lambda: free - 1)
    with torch.device("meta"):
        assert not cpu_heap.give_back_if_short(torch.nn.Linear(8, 8))
    assert set_to == []
    assert cpu_heap.give_back_if_short(LARGE)
    assert set_to == [("malloc_trim", 0)]
    monkeypatch.setattr(cpu_heap, "free_memory_of_process", lambda: 2 * free - 1)
    assert not cpu_heap.give_back_if_short(LARGE)
    assert cpu_heap.give_back_if_short(LARGE, share=1.0)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not cpu_heap.give_back_if_short(LARGE)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_every_training_asks_after_each_step(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.nn.Module] = []
    for module in ("models.fine_tuning", "rl.trainer"):
        monkeypatch.setattr(f"text2grad.{module}.give_back_if_short", asked.append)
    tokenizer = word_tokenizer(["a b c d"])
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    if command == "sft":
        fine_tune(model, tokenizer, [Example("a b")] * 4, ["c"] * 4, FineTuning(steps=3, batch_size=2))
    else:
        settings = {
            "rollout": {"batch_size": 2, "max_new_tokens": 3},
            "run": {"steps": 3, "out": str(tmp_path / "run")},
        }
        critic = lambda examples, responses: [Critique("", ()) for _ in responses]  # noqa: E731
        Text2GradTrainer(model, critic, [Example("a b")] * 4, make_recipe(settings), processing_class=tokenizer).train()
    assert len(asked) == 3


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
