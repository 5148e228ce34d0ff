"""Costs of phases: a run that is continued adds, and `text2grad results costs` reads every kind of run."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evidence.pages.costs import read_costs
from text2grad import costs
from text2grad.cli.__main__ import main
from text2grad.costs import Cost, TokenCount, checkpoint_cost, keep_checkpoint_cost, metered, read_cost, tokens_of


def test_a_phase_that_is_continued_adds_and_another_phase_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(float(second) for second in (0, 5, 5, 100, 102, 102))  # begin; write: now and the cost
    monkeypatch.setattr(costs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(costs, "peak_memory", iter((300, 200)).__next__)
    with metered(tmp_path, "annotate") as meter:
        meter._tokens.add(10, 3)
    assert read_cost(tmp_path) == Cost("annotate", 5.0, 10, 3, 300, 1)
    with pytest.raises(KeyError), metered(tmp_path, "annotate") as meter:
        meter._tokens.add(1, {}["ends in an error"] if meter._tokens.add(1, 1) is None else 0)
    assert read_cost(tmp_path) == Cost("annotate", 7.0, 11, 4, 300, 2)
    monkeypatch.undo()
    with metered(tmp_path, "judge"):
        pass
    found = read_cost(tmp_path)
    assert found is not None
    assert (found.phase, found.prompt_tokens, found.runs) == ("judge", 0, 1)
    assert found.peak_memory_bytes > 10 * 2**20  # of this very process
    assert read_cost(tmp_path / "nowhere") is None


def test_costs_are_on_disk_before_a_phase_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_BETWEEN_WRITES_S", -1.0)
    with metered(tmp_path, "annotate") as meter:
        meter.add(7, 2)
        found = read_cost(tmp_path)
        assert found is not None
        assert (found.prompt_tokens, found.generated_tokens) == (7, 2)


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
    costs.reset_accelerator_peak()
    assert costs.accelerator_peak() == 0
    assert costs.peak_memory() > 10 * 2**20


LINES = [
    {"step": 0, "seconds/rollout": 30.0, "seconds/critic": 60.0, "seconds/audit": 0.001, "tokens/prompt": 100}
    | {"tokens/generated": 50, "memory/rollout": 2**29, "memory/critic": 2**28},
    {
        "step": 1,
        "seconds/rollout": 30.0,
        "seconds/critic": 0.0,
        "tokens/critic_prompt": 400,
        "memory/peak_bytes": 2**30,
    },
]


def run_of(path: Path, lines: list[dict[str, float]]) -> Path:
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_table_of_all_phases_with_minutes_per_step_and_the_share_of_the_critic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = run_of(tmp_path / "all" / "spans", LINES)
    other = run_of(tmp_path / "all" / "scalar", [{"step": 0, "seconds/rollout": 30.0, "rival/rollouts": 4.0}])
    for step, seconds in ((2, 60.0), (10, 120.0)):  # the later checkpoint counts
        mark = {"section": "sft", "seconds": seconds, "tokens": 77, "peak_memory_bytes": 2**31, "metrics_bytes": 0}
        place = tmp_path / "all" / "sft" / "checkpoints" / f"checkpoint-{step}"
        place.mkdir(parents=True)
        (place / "text2grad.json").write_text(json.dumps(mark))
    (tmp_path / "all" / "sft" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert checkpoint_cost(tmp_path) is None
    keep_checkpoint_cost(tmp_path, tmp_path)
    assert not (tmp_path / "costs.json").exists()
    assert checkpoint_cost(tmp_path / "all" / "sft") == Cost("sft", 120.0, 77, 0, 2**31, 1)
    with metered(tmp_path / "nowhere", "annotate"):
        pass
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "all" / "annotations").mkdir()
    with metered(tmp_path / "all" / "annotations", "annotate") as meter:
        meter.add(5_000, 600)
    quickstart = tmp_path / "all" / "qa" / "seed-0"
    (quickstart / "sft").mkdir(parents=True)
    (quickstart / "phases.json").write_text('{"sft": 12.0, "left_out": 3}')
    assert main(["results", "costs", str(spans), str(tmp_path / "all"), "--to", str(tmp_path / "to")]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [str(spans), "train", "2.00", "500", "50", "1.00"] in said  # 120 s; 100 + 400 read
    assert ["·", "critic", "1.00", "400", "–", "0.25", "50.0%"] in said
    assert ["·", "rollout", "1.00", "100", "50", "0.50", "50.0%"] in said
    assert not any("audit" in line for line in said)
    assert [str(quickstart), "sft", "0.20", "–", "–", "–"] in said
    assert not any("left" in word for line in said for word in line)
    # 2 min / 2 steps against 0.5 min / 1 step
    assert [str(spans), "2", "1.0000", "50.0%"] in said
    assert [str(other), "1", "0.5000", "-50.0%", "–"] in said
    found = json.loads((tmp_path / "to" / "cost_tables.json").read_text())
    keep_checkpoint_cost(tmp_path / "all" / "sft", tmp_path / "all" / "sft")
    assert [one.cost for one in read_costs([tmp_path / "all" / "sft"])] == [Cost("sft", 120.0, 77, 0, 2**31, 1)]
    assert {one["phase"] for one in found} == {"train", "rival", "sft", "annotate"}
    assert "| · critic | 1.00 |" in (tmp_path / "to" / "cost_tables.md").read_text()
    assert main(["results", "costs", str(spans), "--to", str(tmp_path / "to")]) == 2
    assert "would be overwritten" in capsys.readouterr().err


def test_a_run_in_a_folder_that_is_named_checkpoints_has_costs(tmp_path: Path) -> None:
    run = run_of(tmp_path / "checkpoints" / "run", LINES)
    run_of(run / "checkpoints" / "step-2", LINES)  # a copy of its log is no further run
    assert [one.run for one in read_costs([run])] == [str(run)]


def test_directories_without_costs_and_damaged_logs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["results", "costs", str(tmp_path / "absent")]) == 2
    assert "absent is no directory" in " ".join(capsys.readouterr().err.split())
    assert main(["results", "costs", str(tmp_path)]) == 2
    assert "hold no costs" in " ".join(capsys.readouterr().err.split())
    path = run_of(tmp_path / "run", LINES)
    (path / "metrics.jsonl").write_text("{\n")
    assert main(["results", "costs", str(path)]) == 2
    assert "metrics.jsonl is damaged" in " ".join(capsys.readouterr().err.split())
