"""`python -m evidence results costs`: the costs of every kind of run."""

import json
from pathlib import Path

import pytest

from evidence.__main__ import main
from evidence.pages.costs import checkpoint_cost, keep_checkpoint_cost, read_costs
from text2grad.costs import Cost, metered

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
