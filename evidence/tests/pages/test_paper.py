"""`python -m evidence results paper`: figures of evaluations stand beside the paper's, in its units, and stay."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from evidence.__main__ import main
from evidence.pages.paper import NUMBERS, OURS, PAGE, converged
from places import ROOT
from text2grad.cli.__main__ import parser
from text2grad.errors import Text2GradError
from text2grad.evaluation.registry import make_suites
from text2grad.evaluation.suite import SuiteOptions

RESULTS = ROOT / "evidence" / "results"


def value(at: float) -> dict[str, float]:
    return {"value": at, "low": at - 0.01, "high": at + 0.01}


EVALUATION: dict[str, Any] = {
    "models": {"base": {"path": "models/base"}, "tuned": {"path": "runs/tuned"}},
    "sampling": {"temperature": 0.0},
    "suites": {
        "humaneval": {"questions": 164, "models": {"base": {"pass@1": value(0.1)}, "tuned": {"pass@1": value(0.25)}}},
        "mbpp": {"questions": 427, "models": {"tuned": {"pass@1": {"value": 0.5}}}},
        "summarization": {"questions": 9, "models": {"base": {"rouge1": value(0.3), "bleu": {"value": 12.5}}}},
    },
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "results"
    out.mkdir()
    shutil.copy(RESULTS / NUMBERS, out)
    return out


def evaluated(path: Path, content: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "evaluation.json").write_text(json.dumps(content))
    return path


def lines_of(out: Path) -> list[str]:
    return (out / PAGE).read_text().splitlines()


def test_the_commands_for_missing_figures_evaluate_every_suite_of_their_table() -> None:
    tables = json.loads((RESULTS / NUMBERS).read_text("utf-8"))["tables"].values()
    found = [one for one in tables if "text2grad evaluate policy RUN" in one.get("command", "")]
    assert len(found) == 3
    for one in found:
        args = parser().parse_args(shlex.split(one["command"])[1:])
        named = {suite.partition("=")[0] for suite in args.suites}
        assert named == {column["suite"] for column in one["columns"]}
        assert bool(args.bertscore) == any(column["name"] == "BERTScore" for column in one["columns"])
        with pytest.raises(Text2GradError, match=r"there is no file|needs a judge"):  # the names of suites are accepted
            make_suites(args.suites, SuiteOptions())


def test_our_figures_have_the_papers_units_and_missing_ones_their_command(out: Path, tmp_path: Path) -> None:
    runs = evaluated(tmp_path / "code", EVALUATION)
    assert main(["results", "paper", "--to", str(out), "--ours", f"code={runs}", "--ours", f"slf5k={runs}"]) == 0
    lines = lines_of(out)
    assert "| paper: Text2Grad | 67.7 | 61.6 | 73.3 | 61.6 | 66.1 |" in lines
    assert "| **base** | **10.0** (9.0 to 11.0) | – | – | – | – |" in lines
    assert "| **tuned** | **25.0** (24.0 to 26.0) | – | **50.0** | – | – |" in lines  # no mean of two of four
    assert "| **base** | **0.300** (0.290 to 0.310) | – | – | **0.125** | – |" in lines  # BLEU of 100 is 1 there
    assert "- tuned: model runs/tuned; 164 questions of humaneval, 427 questions of mbpp; temperature 0." in lines
    [missing] = [line for line in lines if line.startswith("Ours is missing for HumanEval+, MBPP+, mean")]
    assert "`text2grad evaluate policy RUN --suite humaneval=" in missing
    assert "recipes/paper/kodcode.toml" in missing

    whole = {"models": {"tuned": {"path": "p"}}, "suites": {}}
    for at, suite in enumerate(("humaneval", "humaneval+", "mbpp", "mbpp+")):
        whole["suites"][suite] = {"questions": 1, "models": {"tuned": {"pass@1": {"value": at / 10}}}}
    shutil.rmtree(runs)
    again = evaluated(tmp_path / "again", whole)
    assert main(["results", "paper", "--to", str(out), "--ours", f"code={again}"]) == 0
    assert "| **tuned** | **0.0** | **10.0** | **20.0** | **30.0** | **15.0** |" in lines_of(out)  # replaced
    assert any(line.startswith("| **base** | **10.0**") for line in lines_of(out))  # kept, without its directory
    assert main(["results", "paper", "--to", str(out)]) == 0
    assert "| **tuned** | **0.0** | **10.0** | **20.0** | **30.0** | **15.0** |" in lines_of(out)
    assert set(json.loads((out / OURS).read_text())) == {"code", "slf5k"}


def test_an_evaluation_of_a_critic_fills_the_table_of_reward_models(out: Path, tmp_path: Path) -> None:
    found = {
        **{"critic": "runs/reward/model", "annotations": "a/held_out.jsonl", "unit": "tokens of x"},
        "metrics": {"recall/negative": value(0.43), "unmatched_rate": value(0.02), "gap": value(1.0)},
    }
    runs = evaluated(tmp_path / "reward", found)
    assert main(["results", "paper", "--to", str(out), "--ours", f"reward={runs}"]) == 0
    assert "| **model** | – | – | – | **43** (42 to 44) | **2.0** (1.0 to 3.0) |" in lines_of(out)
    assert "- model: critic runs/reward/model; annotations held_out.jsonl; unit tokens of x." in lines_of(out)


def test_wrong_directories_are_refused(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(ours: str) -> str:
        assert main(["results", "paper", "--to", str(out), "--ours", ours]) == 2
        return " ".join(capsys.readouterr().err.split())

    runs = evaluated(tmp_path / "runs", {**EVALUATION, "suites": {"mbpp": EVALUATION["suites"]["mbpp"]}})
    assert "there is no such directory" in error(f"code={tmp_path}/absent")
    assert "has no evaluation.json; give the directory in --out of: text2grad evaluate" in error(f"code={out}")
    assert "has no figure of the table slf5k, which needs: summarization" in error(f"slf5k={runs}")
    assert "--ours" in error(f"cod={runs}")
    assert "--ours is given as TABLE=DIR, got 'code'" in error("code")
    (runs / "evaluation.json").write_text('{"models": []}')
    assert "has another form than an evaluation" in error(f"code={runs}")
    (runs / "evaluation.json").write_text("{")
    assert "evaluation.json is damaged" in error(f"code={runs}")
    assert not (out / PAGE).exists()


def test_a_curve_has_converged_where_it_first_has_95_percent_of_its_gain() -> None:
    # gain 0.5 - 0.1 = 0.4, so 0.48 is enough
    assert converged([(0, 0.1), (5, 0.47), (10, 0.48), (20, 0.2), (40, 0.5)]) == 0.25
