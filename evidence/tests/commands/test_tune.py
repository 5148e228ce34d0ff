"""`python -m evidence tune`: the table of trials, further seeds, and the command that trains with the best settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from evidence.__main__ import main
from pretended_runs import pretend_runs

RECIPE = """
[model]
path = "models/base"
[data]
task = "summarization"
eval_examples = 4
[optim]
lr = 1e-4
[run]
steps = 3
out = "runs/one"
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretend_runs(monkeypatch, tmp_path, words=2)  # `python -m`
    Path("my.toml").write_text(RECIPE)


def told() -> Any:
    return json.loads(Path("runs/one-tune-text2grad/tuning.json").read_bytes())


def test_the_best_of_the_trials_is_named_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "my.toml", "--trials", "5"]) == 0
    out = capsys.readouterr().out
    best = told()["trials"][told()["best"]]
    assert f"--set optim.lr={best['settings']['optim.lr']} " in out.split("best    ")[1].replace("\n", " ")
    assert "seeds" not in out
    assert told()["confirmations"] == []


def test_further_seeds_choose_among_the_best_trials(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "my.toml", "--trials", "5"]) == 0
    first = told()["best"]
    Path("faults").write_text(json.dumps({f"trial-{first:03d}-seed-2": [0, "-50", False]}))
    capsys.readouterr()
    assert main(["tune", "my.toml", "--trials", "5", "--confirm-seeds", "1,2", "--confirm", "2"]) == 0
    out = capsys.readouterr().out
    second = told()["best"]
    assert second != first
    assert [(one["trial"], one["seed"]) for one in told()["confirmations"]] == sorted(
        (trial, seed) for trial in (first, second) for seed in (1, 2)
    )
    assert len(Path("journal").read_text().splitlines()) == 9
    rows = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if line.strip()[:1].isdigit()}
    value = next(trial["value"] for trial in told()["trials"] if trial["number"] == first)
    assert rows[str(first)] == [f"{value:.4f}", f"{(2 * value - 50) / 3:.4f}"]
    assert "3 seeds" in out
    assert f"optim.lr={told()['trials'][second]['settings']['optim.lr']}" in out.split("best    ")[1]


def test_a_seed_that_failed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("faults").write_text(json.dumps({"trial-000-seed-4": [2, "TrainingError: not finite", True]}))
    assert main(["tune", "my.toml", "--trials", "1", "--confirm-seeds", "4"]) == 0
    assert "0.0000 failed" in " ".join(capsys.readouterr().out.split())


def test_trials_are_compared_within_a_kl(capsys: pytest.CaptureFixture[str]) -> None:
    """The default trial has a KL of 0.003 and a value of 0, the other ones are worse or have more KL."""
    assert main(["tune", "my.toml", "--trials", "4", "--at-kl", "0.001", "--confirm-seeds", "5", "--confirm", "1"]) == 0
    out = capsys.readouterr().out
    assert "at KL 0.001" in out
    assert told()["at_kl"] == 0.001
    best = told()["trials"][told()["best"]]
    assert 0 < best["value"] < 0.1
    assert told()["confirmations"] == [{"trial": best["number"], "seed": 5, "value": best["value"], "error": ""}]
    for wrong in ("0", "-1", "nan", "a"):
        with pytest.raises(SystemExit):
            main(["tune", "my.toml", f"--at-kl={wrong}"])
        assert f"expected a finite number of at least 0.0001, got '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["1,1", "1,", "-1", "a"])
def test_seeds_are_whole_numbers_each_named_once(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "my.toml", f"--confirm-seeds={seeds}"])
    assert f"expected different whole numbers between commas, as 1,2,3, got '{seeds}'" in capsys.readouterr().err
