"""Costs of phases: a run that is continued adds."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from text2grad import costs
from text2grad.costs import Cost, TokenCount, metered, read_cost, tokens_of


def test_a_phase_that_is_continued_adds_and_another_phase_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(float(second) for second in (0, 5, 100, 102))  # begin and end of each phase
    monkeypatch.setattr(costs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(costs, "peak_memory", iter((300, 200)).__next__)
    with metered(tmp_path, "annotate") as tokens:
        tokens.add(10, 3)
    assert read_cost(tmp_path) == Cost("annotate", 5.0, 10, 3, 300, 1)
    with pytest.raises(KeyError), metered(tmp_path, "annotate") as tokens:
        tokens.add(1, {}["ends in an error"] if tokens.add(1, 1) is None else 0)
    assert read_cost(tmp_path) == Cost("annotate", 7.0, 11, 4, 300, 2)
    monkeypatch.undo()
    with metered(tmp_path, "judge"):
        pass
    cost = read_cost(tmp_path)
    assert cost is not None
    assert (cost.phase, cost.prompt_tokens, cost.runs) == ("judge", 0, 1)
    assert cost.peak_memory_bytes > 10 * 2**20  # of this very process
    assert read_cost(tmp_path / "nowhere") is None


def test_tokens_of_a_critic_that_does_not_count_are_zero() -> None:
    counted = TokenCount(4, 2)
    before = tokens_of(SimpleNamespace(tokens=counted))
    counted.add(1, 1)
    assert (before.prompt, before.generated) == (4, 2)
    assert tokens_of(SimpleNamespace(tokens=3)).prompt == tokens_of(print).generated == 0


def test_the_peak_is_that_of_the_accelerator_where_one_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    used = SimpleNamespace(is_initialized=lambda: True, max_memory_allocated=lambda: 77)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=used))
    assert costs.peak_memory() == costs.accelerator_peak() == 77
    unused = SimpleNamespace(is_initialized=lambda: False)  # an accelerator that nobody uses has no statistics
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=unused))
    assert costs.accelerator_peak() == 0
    assert costs.peak_memory() > 10 * 2**20
