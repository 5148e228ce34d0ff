"""`python -m evidence analyse` on tiny runs: numbers, page, cases, refusals."""

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_run
from evidence.__main__ import main
from evidence.analysis.cases import case_groups
from evidence.analysis.noise import Parts
from evidence.analysis.report import _interval, analyse_runs, notes, tables
from evidence.analysis.run_analysis import _linear, _ratio_interval, _span_tokens, analyse_run
from evidence.analysis.verdict import verdict
from text2grad.config import make_recipe
from text2grad.errors import DataError
from text2grad.runs.reports.run_report import read_run


def evaluate(run: Path, steps: tuple[int, ...]) -> None:
    """Write evaluations of a run: the responses of its first step, with a mark for the step and the run."""
    (run / "evaluations").mkdir()
    shown = [record for record in lines(run) if record["step"] == 0]
    for step in steps:
        records = [
            {**record, "step": step, "response": f"{record['response']} <{run.name} {step}>"} for record in shown
        ]
        found = {"step": step, "metric": "f1", "metrics": {"f1": 0.5}, "responses": [], "records": records}
        (run / "evaluations" / f"{step:06d}.json").write_text(json.dumps(found))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rollouts" / "00000.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Six steps of spans, and six of one number, with the update of every second step logged."""
    folder = tmp_path_factory.mktemp("runs")
    more = {
        "run": {"steps": 6, "save_every": 6},
        "analysis": {"track_update": 2},
        "rollout": {"batch_size": 16, "group_size": 1},
    }
    small_run.trainer(folder / "spans", **more).train()
    number = {"reward": {"placement": "last_token"}, "ppo": {"gamma": 1.0, "lam": 1.0}}
    small_run.trainer(folder / "number", **more, **number).train()
    for run in (folder / "spans", folder / "number"):
        evaluate(run, (0, 3, 6))
    return folder / "spans", folder / "number"


@pytest.mark.usefixtures("drawn_pictures")
def test_the_command_writes_numbers_and_a_page_and_ends_with_the_verdict(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["analyse", "-q", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "analysis.json").read_bytes())
    assert list(found["runs"]) == ["spans", "number"]
    one = found["runs"]["spans"]
    assert (one["steps"], one["responses"], one["settings"]["gamma"]) == (6, 96, 0.5)
    assert one["tokens"] == sum(len(record["ids"]) for record in lines(runs[0]))
    assert one["ratio"]["low"] <= one["ratio"]["value"] <= one["ratio"]["high"]
    assert len(one["by_step"]) == 6
    assert list(one["update"]["steps"]) == ["0", "2", "4"]
    assert one["update"]["gradient"]["steps"] == 3
    assert found["runs"]["number"]["settings"] == {
        **{"gamma": 1.0, "lam": 1.0, "placement": "last_token", "baseline": "value", "group": 1}
    }
    order = [
        said.index(words) for words in ("Rollouts", "Signal-to-noise", "Log-probs", "spans: ", "number: ", "numbers ")
    ]
    assert order == sorted(order)
    assert found["runs"]["number"]["verdict"] in said
    page = (tmp_path / "out" / "analysis.html").read_text("utf-8")
    assert page.count("<img alt=") == 6
    assert "://" not in page
    assert main(["analyse", "-q", str(runs[0]), "--out", str(tmp_path / "out")]) == 0  # its own files are replaced


def test_shares_are_those_of_a_plain_count(runs: tuple[Path, Path]) -> None:
    _, found = analyse_run(runs[0])
    moved = [
        (after - before, advantage, delta)
        for record in lines(runs[0])
        if "logp_after" in record
        for before, after, advantage, delta in zip(
            record["logp"], record["logp_after"], record["advantage"], record["delta"], strict=True
        )
    ]
    assert found["update"]["all"]["tokens"] == len(moved)
    right = [change * advantage > 0 for change, advantage, _ in moved if advantage]
    assert found["update"]["all"]["right"] == pytest.approx(sum(right) / len(right))
    poor = [change for change, _, delta in moved if delta < 0]
    assert found["update"]["labels"]["negative"]["mean_change"] == pytest.approx(sum(poor) / len(poor))
    spans = [span for record in lines(runs[0]) for span in record["critique"]["spans"]]
    assert found["spans_per_response"] == len(spans) / 96
    assert found["faults_per_response"] == sum(span["label"] == "negative" for span in spans) / 96
    assert found["span_tokens"] == 1.0  # words of the colour critic are single tokens
    labelled = [delta != 0 for record in lines(runs[0]) for delta in record["delta"]]
    assert found["labelled_share"] == pytest.approx(sum(labelled) / len(labelled))


def test_spans_weigh_by_their_reward_and_the_signal_of_the_own_reward_is_a_squared_correlation() -> None:
    recipe = make_recipe({"reward": {"positive": 0.5, "negative": -1.0}})
    # positive spans of 4 tokens, a negative one of 2: (0.25·16 + 0.25·16 + 4) / (0.25·4 + 0.25·4 + 2) = 3
    assert _span_tokens([(4, 1), (4, 1), (2, -1)], recipe) == 3.0
    assert _span_tokens([], recipe) == 1.0
    rng = np.random.default_rng(0)
    x = rng.normal(size=500)
    y = 2 * x + rng.normal(size=500)
    signal, noise = _linear(y, x)
    assert signal / (signal + noise) == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    assert signal + noise == pytest.approx(y.var())


def test_a_resample_in_which_one_number_tells_nothing_makes_the_ratio_infinite() -> None:
    """One step of six has all of the number's signal: (5/6)^6 = 33 % of the resamples lack it."""
    spans, number = [Parts(1.0, 1.0)] * 6, [Parts(0.6, 1.0), *[Parts(-0.01, 1.0)] * 5]
    found = _ratio_interval(spans, number)
    assert found["value"] == pytest.approx(1 / ((0.6 - 0.05) / 6))
    drawn = np.random.default_rng(1).binomial(6, 1 / 6, size=100_000)  # how often this step is drawn
    ratios = np.where(drawn > 0, 6 / np.where(drawn > 0, 0.6 * drawn - 0.01 * (6 - drawn), 1.0), np.inf)
    assert found["low"] == pytest.approx(np.quantile(ratios, 0.025, method="inverted_cdf"))
    assert found["high"] is None
    assert _interval(found) == "10.9 [3.39, ∞]"  # three draws of the step: 6 / (3 · 0.6 − 3 · 0.01)
    assert _ratio_interval(spans, [Parts(0.5, 1.0)] * 6) == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_the_same_rollouts_give_the_same_signals_whatever_the_run_was_trained_on(runs: tuple[Path, Path]) -> None:
    """The first step of both runs has the same responses; only what was logged differs."""
    first, second = (analyse_run(run, gamma=0.5, lam=0.95)[1] for run in runs)
    for name in ("spans", "number", "number_at_end"):
        assert first["by_step"][0][name] == pytest.approx(second["by_step"][0][name])
    assert first["by_step"][0]["logged"] != second["by_step"][0]["logged"]


def test_gamma_and_lambda_may_be_others_than_the_runs(runs: tuple[Path, Path]) -> None:
    plain, shorter = analyse_run(runs[1])[1], analyse_run(runs[1], gamma=0.2, lam=0.5)[1]
    assert (shorter["settings"]["gamma"], shorter["settings"]["lam"]) == (0.2, 0.5)
    assert shorter["signals"]["spans"]["signal_to_noise"] > 5 * plain["signals"]["spans"]["signal_to_noise"]
    assert shorter["signals"]["number"] == plain["signals"]["number"]
    assert shorter["predicted"] > plain["predicted"]


def test_a_run_under_way_is_read_up_to_its_last_finished_step(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    metrics = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(metrics[:4]))
    rollouts = (run / "rollouts" / "00000.jsonl").read_bytes()
    (run / "rollouts" / "00000.jsonl").write_bytes(rollouts[:-200])
    assert analyse_run(run)[1]["steps"] == 4


def test_a_run_without_the_log_says_what_to_set(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "plain"
    shutil.copytree(runs[0], run)
    records = [{k: v for k, v in record.items() if not k.startswith("logp")} for record in lines(run)]
    (run / "rollouts" / "00000.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    _, results = analyse_runs([run])
    assert results["runs"]["plain"]["update"] is None
    assert "set analysis.track_update = 10" in notes(results)[0]
    assert len(tables(results)) == 3
    _, both = analyse_runs([runs[0], run])
    assert notes(both)[0].startswith("plain: No update of the policy was logged")


def test_a_case_shows_both_runs_on_the_same_prompt_with_what_the_update_did(runs: tuple[Path, Path]) -> None:
    named = {run.name: read_run(run) for run in runs}
    training, *_, held_out = case_groups(named, 1)
    poor = [record for record in lines(runs[0]) if record["step"] == 0 and min(record["delta"]) < 0]
    card, by_advantage, by_change = training[1]
    assert (card["prompt"], card["response"], card["by"]) == (poor[1]["prompt"], poor[1]["response"], "spans")
    before, after = poor[1]["logp"], poor[1]["logp_after"]
    assert card["change"] == pytest.approx([b - a for a, b in zip(before, after, strict=True)])
    [beside] = card["beside"]
    assert (beside["prompt"], beside["response"], beside["by"]) == (card["prompt"], card["response"], "number")
    assert beside["change"] != card["change"]
    assert beside["delta"] == card["delta"]
    assert by_advantage["by"] == "spans, coloured by advantage"
    for column, shaded in (("advantage", by_advantage), ("change", by_change)):  # one scale for both runs
        both = [*card[column], *beside[column]]
        largest = max(map(abs, both))
        shades = [*shaded["shade"], *shaded["beside"][0]["shade"]]
        assert shades == pytest.approx([x / largest if abs(x) > 0.1 * largest else 0 for x in both])
    assert [card["step"] for card in held_out[1]] == [0, 3, 6]
    assert [card["response"].rpartition(" <")[2] for card in held_out[1]] == ["spans 0>", "spans 3>", "spans 6>"]
    assert held_out[1][2]["beside"][0]["response"].endswith("<number 6>")


def test_the_same_prompt_later_in_training_is_shown(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "again"
    shutil.copytree(runs[0], run)
    records = lines(run)
    first = next(record for record in records if min(record["delta"]) < 0)
    for record in records:
        if record["step"] in (2, 4):
            record["prompt"] = first["prompt"]
    (run / "rollouts" / "00000.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    groups = case_groups({"again": read_run(run)}, 0)
    assert groups[1][0] == "The same prompt, the last time it was sampled in training"
    assert groups[1][1][0]["by"] == "again, step 4"


def test_text_of_models_and_critics_is_escaped(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "<b>run"
    shutil.copytree(runs[0], run)
    records = lines(run)
    for record in records:
        record["prompt"] += "<script>alert(1)</script>"
        record["critique"]["feedback"] = "<img src=x onerror=alert(2)>"
    (run / "rollouts" / "00000.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["analyse", "-q", str(run), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "analysis.html").read_text("utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<b>run" not in page


def test_what_cannot_be_analysed_is_refused_with_the_way_out(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert main(["analyse", "-q", *arguments]) == 2
        return capsys.readouterr().err

    out = ["--out", str(tmp_path / "out")]
    run = str(runs[0])
    assert "is no run: it is no directory" in refused(str(tmp_path / "nowhere"), *out)
    assert "is given twice" in refused(run, run, *out)
    assert "there is no case 99: step 0 of spans has cases 0 to" in refused(run, "--case", "99", *out)
    assert "--gamma must be between 0 and 1, got 2" in refused(run, "--gamma", "2", *out)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "analysis.json").write_text("{}")
    assert "was not written by `python -m evidence analyse`" in refused(run, *out)
    bare = tmp_path / "bare"
    shutil.copytree(runs[0], bare)
    (bare / "rollouts" / "00000.jsonl").write_text('{"step": 0, "prompt": "", "response": ""}\n')
    assert "00000.jsonl:1 has no critique, ids, delta, reward, kl, advantage" in refused(str(bare), *out)
    (bare / "rollouts" / "00000.jsonl").write_text('{"step": 0,\n')
    assert "00000.jsonl:1 is damaged" in refused(str(bare), *out)
    shutil.rmtree(bare / "rollouts")
    assert "is missing or empty" in refused(str(bare), *out)


def test_runs_of_one_name_are_told_apart(runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "b" / "spans")
    named, _ = analyse_runs([runs[0], tmp_path / "b" / "spans"])
    assert list(named) == [f"{runs[0].parent.name}/spans", "b/spans"]


def analysed(ratio: float | None, **more: Any) -> dict[str, Any]:
    return {
        "ratio": {"value": ratio, "low": None, "high": None},
        "length": {"mean": 16.2},
        "labelled_share": 0.25,
        "spans_per_response": 2.04,
        "faults_per_response": 0.5,
        "settings": {"gamma": 0.5, "lam": 1.0},
        "signals": {"number": {"signal_to_noise": 0.25}},
        "predicted": ratio,
        "number_variance": {"measured": 1.0, "predicted": 1.0},
        "position_share": 0.0,
        "ratio_by_reward": ratio,
        **more,
    }


def test_the_verdict_gives_the_reasons() -> None:
    facts = "a response has 16 tokens, 2.0 spans and 0.5 faults, and 25% of the tokens are labelled"
    assert verdict(analysed(20.0)) == (
        "Words should help much: an advantage from spans tells its token's label 20 times as clearly as one number per "
        f"response, because {facts}; with one number, labels explain 20% of the variance of the advantages."
    )
    assert verdict(analysed(2.0)).startswith("Words may help a little: ")
    assert verdict(analysed(4.0)).startswith("Words should help: ")
    assert verdict(analysed(1.2)) == (
        f"Words will hardly help: spans tell a token's label 1.2 times as clearly as one number; {facts}."
    )
    assert "--gamma 0.5" in verdict(analysed(0.6, settings={"gamma": 1.0, "lam": 0.95}))
    assert verdict(analysed(None, labelled_share=0)) == "Nothing can be said: the critic labelled no token."
    assert "does not tell labels apart" in verdict(analysed(None))


def test_the_verdict_says_why_the_formula_fails() -> None:
    near = analysed(4.0, predicted=5.0, number_variance={"measured": 9.0, "predicted": 1.0})
    assert "formula" not in verdict(near)
    more = deepcopy(near) | {"predicted": 2.0}
    assert "The formula predicts 2.0, which is far off: the number varies 9.0 times as much" in verdict(more)
    less = more | {"number_variance": {"measured": 1.0, "predicted": 2.0}, "position_share": 0.6}
    assert "only 0.50 times as much" in verdict(less)
    assert "the place in the response explains 60%" in verdict(less)
    other = verdict(analysed(4.0, predicted=12.0, ratio_by_reward=11.0))
    assert "by the token's own reward alone the ratio is 11." in other
    assert "labels are rare" in verdict(analysed(4.0, predicted=1.0))


def test_an_unreadable_place_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("x")
    with pytest.raises(DataError, match="is no directory"):
        analyse_run(tmp_path / "run.json")
