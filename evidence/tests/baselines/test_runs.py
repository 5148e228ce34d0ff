"""Scalar and process reward models, and probes, are critics of a run: from the command line to both evaluations."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from evidence.__main__ import main
from evidence.baselines.probe import Linear, ProbeRewardModel, ProbeSettings
from evidence.baselines.process import ProcessRewardModel
from evidence.baselines.process_steps import STEP_LABELS
from evidence.baselines.scalar import ScalarRewardModel
from places import ROOT
from task_texts import untrained_policy
from text2grad.cli.train import NOTHING_LABELLED
from text2grad.reward_models.writing import SYMBOLS

RECIPE = str(ROOT / "recipes" / "quickstart.toml")
SMALL = (
    "rollout.batch_size=8",
    "rollout.max_new_tokens=12",
    "data.eval_examples=14",
    "data.eval_every=1",
    "quickstart.examples=50",
    "refresh.steps=[]",
    "refresh.audit=2",
    "critic.max_failure_rate=1.0",
    "run.steps=2",
    "run.tracker=none",
)


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, a reward model that gives a number, one that judges steps and one that labels words, all untrained."""
    path = tmp_path_factory.mktemp("phases")
    policy, tokenizer = untrained_policy(path / "start", "Fact:,.\n", symbols=SYMBOLS)
    linear = Linear(torch.randn(3, 32), torch.zeros(3), torch.zeros(32), torch.ones(32))
    settings = ProbeSettings(str(path / "start"), 1, (-1, 0, 1), "words", vote_threshold=0.4)
    ProbeRewardModel(policy, tokenizer, linear, settings).save(path / "probe")
    policy.config.num_labels = 1
    head = AutoModelForSequenceClassification.from_config(policy.config)
    ScalarRewardModel(head, tokenizer, mean=0.5, deviation=2.0).save(path / "scalar")
    policy.config.id2label = dict(enumerate(STEP_LABELS))
    ProcessRewardModel(AutoModelForTokenClassification.from_config(policy.config), tokenizer).save(path / "process")
    return path


@pytest.mark.parametrize("kind", ["scalar", "process", "probe"])
def test_it_judges_the_run_and_is_itself_judged_at_both_ends(phases: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "run"
    named = (f"critic.model='{phases / kind}'", f"critic.kind={kind}", f"model.path='{phases / 'start'}'")
    settings = [part for setting in (*SMALL, *named) for part in ("--set", setting)]
    code = NOTHING_LABELLED if kind == "probe" else 0  # it reads no words at random, which encode to other tokens
    assert main(["train", RECIPE, "--out", str(out), *settings]) == code
    judged = [json.loads(path.read_text())["critic"] for path in sorted((out / "evaluations").glob("*.json"))]
    assert [bool(measured) for measured in judged] == [True, False, True]
    records = [json.loads(line) for line in (out / "rollouts" / "00000.jsonl").read_text().splitlines()]
    signs = {"positive": 1.0, "negative": -1.0}
    for record in records:
        critique = record["critique"]
        if kind == "scalar":
            assert isinstance(critique["outcome"], float)
            assert not critique["spans"]
        else:  # a step's label is the δ of its tokens
            assert {signs[span["label"]] for span in critique["spans"]} == {delta for delta in record["delta"] if delta}
    assert "audit/gap" in json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
