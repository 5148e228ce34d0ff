"""A recipe from the command line to the report, and what is refused before any model loads."""

import json
from pathlib import Path
from typing import Any

import pytest

from critics_by_name import Kind, Strict
from places import ROOT
from task_texts import untrained_policy
from text2grad.cli.__main__ import main
from text2grad.config.recipe import Recipe, make_recipe
from text2grad.errors import ConfigError
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.writing import SYMBOLS
from text2grad.rl.checkpoint import latest_checkpoint
from text2grad.runs.recipe_run import critic_of_run, run_recipe
from text2grad.tasks.summarization.task import SummarizationTask
from text2grad.tasks.tiny import tiny_llama

RECIPE = str(ROOT / "recipes" / "quickstart.toml")
SMALL = (
    "rollout.batch_size=8",
    "rollout.max_new_tokens=12",
    "data.eval_examples=14",
    "data.eval_every=1",
    "run.steps=2",
    "quickstart.examples=50",
    "refresh.steps=[]",
    "refresh.audit=0",
    "refresh.train_steps=2",
    "refresh.batch_size=4",
)


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy and a reward model, both untrained."""
    path = tmp_path_factory.mktemp("phases")
    _, tokenizer = untrained_policy(path / "start", "Fact:,.\n", symbols=SYMBOLS)
    GenerativeRewardModel(
        tiny_llama(tokenizer, seed=1, width=32, layers=1), tokenizer, CritiqueFormat(max_new_tokens=16)
    ).save(path / "reward_model")
    return path


@pytest.fixture(scope="module")
def start(phases: Path) -> Path:
    return phases / "start"


def train(start: Path, out: Path, *more: str) -> int:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    return main(["train", RECIPE, "--model", str(start), "--out", str(out), *settings, *more])


def test_a_recipe_decides_how_a_learned_critic_writes_and_else_what_it_was_saved_with(phases: Path) -> None:
    model = str(phases / "reward_model")
    for settings, constrain, limits in (
        ({}, True, QuoteLimits()),
        ({"constrain": False}, False, QuoteLimits()),
        ({"quote_limits": ["one_list", "whole_words"]}, True, QuoteLimits(one_list=True, whole_words=True)),
    ):
        critic = critic_from_recipe(make_recipe({"critic": {"model": model, **settings}}))
        assert isinstance(critic, GenerativeRewardModel)
        assert (critic.format.constrain, critic.format.limits) == (constrain, limits)


@pytest.mark.usefixtures("drawn_pictures")
def test_a_recipe_runs_from_the_command_line_to_the_report(start: Path, tmp_path: Path) -> None:
    assert train(start, tmp_path / "run") == 0
    evaluations = sorted((tmp_path / "run" / "evaluations").glob("*.json"))
    assert [path.stem for path in evaluations] == ["000000", "000001", "000002"]
    first = json.loads(evaluations[0].read_text())
    assert abs(first["metrics"]["kl_per_token"]) < 1e-6  # before training the policy is the reference
    assert {"fact_f1", "mean_tokens"} <= first["metrics"].keys()
    assert len(first["records"]) == 12
    assert first["critic"] == {}, "the task's own critic is not compared with itself"
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
        ([], "[model] path is not set; set it, or give --model PATH"),
        (
            ["--model", "x", "--set", "data.task=stores"],
            "data.task has no value 'stores'. ",
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


# Learned critics.


def evaluations(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((out / "evaluations").glob("*.json"))]


def settings(**sections: dict[str, Any]) -> Recipe:
    base: dict[str, dict[str, Any]] = {
        "data": {"task": "summarization", "eval_examples": 14, "eval_every": 1},
        "quickstart": {"examples": 50},
        "rollout": {"batch_size": 8, "max_new_tokens": 12},
        "refresh": {"train_steps": 2, "batch_size": 4},
        "run": {"steps": 3, "threads": 1, "tracker": "none"},
    }
    return make_recipe({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


def test_a_learned_critic_judges_the_run_and_is_itself_judged_at_both_ends(phases: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("--set", f"critic.model='{phases / 'reward_model'}'", "--set", "run.steps=3")
    assert train(phases / "start", out, *more, "--set", "refresh.audit=2") == 3  # nothing labelled: it is untrained
    found = evaluations(out)
    assert [one["step"] for one in found] == [0, 1, 2, 3]
    assert [bool(one["critic"]) for one in found] == [True, False, False, True]
    assert [len(one["records"]) for one in found] == [12, 12, 12, 12]
    assert found[0]["critic"].keys() >= {"failure_rate", "gap", "recall/negative"}
    records = [json.loads(line) for line in (out / "rollouts" / "00000.jsonl").read_text().splitlines()]
    assert {one["critique"]["outcome"] for one in records} == {None}
    assert "audit/gap" in json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    recipe = make_recipe(json.loads((out / "run.json").read_bytes())["recipe"])
    critic = critic_of_run(recipe, out, latest_checkpoint(out / "checkpoints"))  # type: ignore[arg-type]
    assert type(critic) is GenerativeRewardModel


def test_a_refreshed_critic_is_the_one_that_a_run_is_left_with(phases: Path, tmp_path: Path) -> None:
    recipe = settings(
        critic={"model": str(phases / "reward_model")},
        model={"path": str(phases / "start")},
        refresh={"steps": [1], "window": 8, "train_steps": 2, "batch_size": 4, "lr": 0.01},
        data={"task": "summarization", "eval_examples": 0},
        quickstart={"examples": 50},
        run={"steps": 2, "save_every": 1, "threads": 1, "tracker": "none", "out": str(tmp_path / "run")},
    )
    run_recipe(recipe)
    last = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert last is not None
    critic = critic_of_run(recipe, tmp_path / "run", last)
    assert isinstance(critic, GenerativeRewardModel)
    assert critic.model.name_or_path == str(tmp_path / "run" / "critic" / "step-000001")
    assert not (tmp_path / "run" / "evaluations").exists()


def test_a_named_annotator_audits_and_does_not_become_the_critic(phases: Path, tmp_path: Path) -> None:
    Strict.asked = 0
    named = ("--set", "refresh.annotator=critics_by_name:Strict", "--set", "refresh.audit=1")
    assert train(phases / "start", tmp_path / "run", *named) == 0
    # Both ends judge 14 held-out responses, and each of the two steps audits one.
    assert Strict.asked == 14 + 1 + 1 + 14
    records = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "00000.jsonl").read_text().splitlines()]
    own = SummarizationTask("train").critic()
    examples = {example.prompt_text: example for example in SummarizationTask("train").examples(50, 0)}
    for record in records:
        (critique,) = own([examples[record["prompt"]]], [record["response"]])
        assert record["critique"]["feedback"] == critique.feedback


def test_a_critic_by_name_comes_before_a_learned_one(phases: Path, tmp_path: Path) -> None:
    recipe = settings(
        critic={"use": "critics_by_name:Kind", "model": str(phases / "reward_model")},
        model={"path": str(phases / "start")},
        data={"task": "summarization", "eval_examples": 0},
        quickstart={"examples": 50},
        run={"steps": 1, "threads": 1, "tracker": "none", "out": str(tmp_path / "run")},
    )
    run_recipe(recipe)
    (line, *_) = (tmp_path / "run" / "rollouts" / "00000.jsonl").read_text().splitlines()
    assert json.loads(line)["critique"]["feedback"] == "Yes."
    last = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert last is not None
    assert isinstance(critic_of_run(recipe, tmp_path / "run", last), Kind)


def test_a_recipe_without_critic_is_refused(phases: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Ann sold a bike."}\n')
    for annotator in ("", "critics_by_name:Strict"):
        recipe = make_recipe({"data": {"train": str(prompts)}, "refresh": {"annotator": annotator}})
        with pytest.raises(ConfigError) as caught:
            run_recipe(recipe)
        assert str(caught.value) == "the recipe names no critic; set [critic] use or model"
