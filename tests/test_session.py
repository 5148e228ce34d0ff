"""A recipe from the command line to the report, and what is refused before any model loads."""

import json
from pathlib import Path

import pytest

from text2grad.cli import main
from text2grad.commands.quickstart import make_start

ROOT = Path(__file__).parents[1]
RECIPE = str(ROOT / "recipes" / "quickstart.toml")
SMALL = ("rollout.batch_size=8", "data.eval_examples=6", "data.eval_every=1", "run.steps=2", "data.examples=50")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("start") / "sft"
    make_start(directory, seed=0, steps=2)
    return directory


def train(start: Path, out: Path, *more: str) -> int:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    return main(["train", RECIPE, "--model", str(start), "--out", str(out), *settings, *more])


def test_a_recipe_runs_from_the_command_line_to_the_report(start: Path, tmp_path: Path) -> None:
    assert train(start, tmp_path / "run") == 0
    evaluations = sorted((tmp_path / "run" / "evaluations").glob("*.json"))
    assert [path.stem for path in evaluations] == ["000000", "000001", "000002"]
    first = json.loads(evaluations[0].read_text())
    assert abs(first["metrics"]["kl_per_token"]) < 1e-6  # before training the policy is the reference
    assert {"fact_f1", "rouge_l", "mean_tokens"} <= first["metrics"].keys()
    assert len(first["records"]) == 6
    results = json.loads((tmp_path / "run" / "results.json").read_text())["runs"]["run"]
    assert results["before"] == first["metrics"]
    assert results["after"] == json.loads(evaluations[-1].read_text())["metrics"]
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_resumed_keeps_its_evaluations(start: Path, tmp_path: Path) -> None:
    train(start, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run" / "evaluations").glob("*")}
    assert train(start, tmp_path / "run", "--resume") == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "evaluations").glob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "[model] path is not set; give it by --model PATH"),
        (
            ["--model", "x", "--set", "data.task=stores"],
            "there is no built-in task 'stores'; tasks: stories, summarization",
        ),
        (["--model", "x", "--set", "ppo.gama=1"], 'Did you mean "gamma"?'),
        (["--model", "x", "--critic", "nowhere:critic"], "critic 'nowhere:critic' cannot be loaded"),
        (["--model", "no/such/model"], "cannot load a tokenizer from 'no/such/model'"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_told_with_exit_code_two(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["train", RECIPE, "--out", str(tmp_path / "run"), *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
