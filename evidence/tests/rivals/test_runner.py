"""Rivals from the command line to `compare`; budget, resume and refusals."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from small_rival import trainer

from evidence.__main__ import main
from evidence.rivals.rounds import round_of
from evidence.rivals.trainer import RivalTrainer
from small_run import ColourCritic, assert_same_run, tokenizer_and_model, untimed
from text2grad.errors import TrainingError
from text2grad.types import Critique, Example

METHODS = ("dpo", "sft_best", "ilf", "sdpo")
RECIPE = """
[model]
path = "model"
[data]
train = "prompts.jsonl"
held_out = 0.1
eval_every = 2
[critic]
use = "colours_of_rivals:critic"
[rollout]
batch_size = 8
group_size = 4
max_new_tokens = 6
[rival]
rounds = 2
refine_prompt = "{prompt} {response} {critique}"
epochs = 1
batch_size = 4
[optim]
lr = 3e-3
[run]
steps = 4
threads = 1
tracker = "none"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, prompts, a critic that writes its calls down, and a recipe."""
    tokenizer, model = tokenizer_and_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    prompts = [{"prompt": f"red {word}"} for word in ("one", "two", "three", "cat", "dog", "bird", "runs", "eats") * 3]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    critic = (
        "from pathlib import Path\nfrom small_run import ColourCritic\ncritic = ColourCritic(Path('calls.jsonl'))\n"
    )
    (tmp_path / "colours_of_rivals.py").write_text(critic)
    (tmp_path / "mine.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@given(st.integers(1, 40).flatmap(lambda steps: st.tuples(st.just(steps), st.integers(1, steps))))
def test_rounds_divide_the_steps_evenly(sizes: tuple[int, int]) -> None:
    steps, rounds = sizes
    found = [round_of(step, steps=steps, rounds=rounds) for step in range(steps)]
    assert all(start <= step < end for step, (start, end) in enumerate(found))
    lengths = [end - start for start, end in dict.fromkeys(found)]
    assert (len(lengths), sum(lengths)) == (rounds, steps)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_rival_runs_from_the_command_line_to_compare_with_the_budget_of_train(
    place: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rival", method, "mine.toml", "--out", "rival", "-q"]) == 0
    calls = [len(json.loads(line)) for line in Path("calls.jsonl").read_text().splitlines()]
    lines = untimed(place / "rival" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["rival/rollouts"] == 32  # 4 steps of 8
    assert ["update/policy_loss" in line for line in lines] == [False, True, False, True]
    evaluations = [json.loads(path.read_text()) for path in sorted((place / "rival" / "evaluations").glob("*.json"))]
    assert [one["step"] for one in evaluations] == [0, 2, 4]
    assert evaluations[0]["metrics"]["kl_per_token"] == pytest.approx(0, abs=1e-6)
    assert evaluations[2]["metrics"]["kl_per_token"] != evaluations[1]["metrics"]["kl_per_token"]
    assert json.loads((place / "rival" / "run.json").read_text())["recipe"]["rival"]["method"] == method
    results = json.loads((place / "rival" / "results.json").read_text())["runs"]["rival"]
    assert (results["after"], results["steps"]) == (evaluations[2]["metrics"], 4)

    if method != "dpo":
        return
    Path("calls.jsonl").unlink()
    assert main(["train", "mine.toml", "--out", "train", "-q"]) == 0
    assert sorted(calls) == sorted(len(json.loads(line)) for line in Path("calls.jsonl").read_text().splitlines())
    assert lines[0]["reward/per_response"] == untimed(place / "train" / "metrics.jsonl")[0]["reward/per_response"]
    assert main(["compare", "train", "rival"]) == 0
    assert main(["generate", "rival", "--examples", "2"]) == 0
    assert "2 answers" in capsys.readouterr().out


class Interrupting(ColourCritic):
    """Ends the process at one call, as a kill does: nothing is saved."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().__call__(examples, responses)


@pytest.mark.parametrize(("method", "save_every"), [("dpo", 1), ("dpo", 10), ("sft_best", 1), ("ilf", 1), ("sdpo", 10)])
def test_a_run_that_ends_in_a_round_is_resumed_to_the_same_bits(tmp_path: Path, method: str, save_every: int) -> None:
    more: dict[str, Any] = {"run": {"save_every": save_every, "steps": 6}}
    trainer(tmp_path / "calm", method, **more).train()
    for calls in (2, 3) if save_every == 1 else (5,):  # the end of a step in the first round, and in the second
        stopped = trainer(tmp_path / "run", method, Interrupting(calls), resume=(tmp_path / "run").exists(), **more)
        with pytest.raises(KeyboardInterrupt):
            stopped.train()
    resumed = trainer(tmp_path / "run", method, resume=True, **more)
    assert (resumed.step, len(resumed.judged)) == ((5, 16) if save_every == 1 else (0, 0))
    resumed.train()
    assert_same_run(tmp_path / "calm", tmp_path / "run")


def test_a_run_that_stopped_within_a_round_is_not_evaluated_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["rival", "sft_best", "mine.toml", "--out", "rival", "-q", "--set", "rival.rounds=1"]
    command += ["--set", "run.save_every=1", "--set", "data.eval_every=1"]
    step = RivalTrainer.train_step

    def stopping(self: RivalTrainer) -> dict[str, float]:
        if self.step == 2:
            raise TrainingError("the machine stops")
        return step(self)

    with monkeypatch.context() as stopped:
        stopped.setattr(RivalTrainer, "train_step", stopping)
        assert main(command) != 0
    assert main([*command, "--resume"]) == 0
    assert sorted(path.stem for path in (place / "rival" / "evaluations").glob("*.json")) == ["000000", "000004"]


def test_learning_that_ends_in_the_middle_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(tmp_path / "calm", "sft_best").train()
    run = trainer(tmp_path / "run", "sft_best")
    learn = run._learn

    def die() -> dict[str, float]:
        learn()
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_learn", die)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    trainer(tmp_path / "run", "sft_best", resume=True).train()
    assert_same_run(tmp_path / "calm", tmp_path / "run")


def test_adapters_are_trained_and_saved_alone(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "dpo", model={"lora_r": 4, "value": "none"})
    base = {name: p.clone() for name, p in run.model.named_parameters() if not p.requires_grad}
    policy = run.train()
    assert all(torch.equal(p, base[name]) for name, p in run.model.named_parameters() if name in base)
    assert {path.name for path in policy.iterdir() if path.is_dir()} == set()  # of the adapter "ref", say
    assert (policy / "adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("method", "more", "message"),
    [
        ("dpo", ["rollout.group_size=1"], "set rollout.group_size to 2 or more"),
        ("dpo", ["rollout.group_size=3"], "rollout.batch_size = 8 is not a multiple of rollout.group_size = 3"),
        ("sft_best", ["rival.rounds=5"], "rival.rounds = 5 is more than run.steps = 4"),
        ("sft_best", ["rival.accumulate=3"], "rival.batch_size = 4 is not a multiple of rival.accumulate = 3"),
        ("sft_best", ["rival.keep=0.0"], "[rival] keep = 0.0"),
        ("ilf", ["rival.refiner='program'"], 'rival.refiner = "program" is a program of a built-in task'),
        ("ilf", ["rival.refiner='server'"], "[annotate] model is not set"),
        (
            "ilf",
            ["rival.refine_prompt='{prompt} {critique}'"],
            "rival.refine_prompt does not hold {response}; ilf needs",
        ),
        (
            "sdpo",
            ["rival.refine_prompt='{prompt}'"],
            "rival.refine_prompt does not hold {critique}; sdpo needs {prompt}",
        ),
        ("reflection", ["data.held_out=0.0"], "reflection answers held-out prompts"),
        ("sft_best", ["rival.kept=0.5"], 'Did you mean "keep"?'),
        ("sft_best", ["model.path=''"], "[model] path is not set"),
    ],
)
def test_a_wrong_recipe_is_refused_before_a_model_loads(
    place: Path, method: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "model" / "model.safetensors").unlink()
    settings = [part for one in more for part in ("--set", one)]
    assert main(["rival", method, "mine.toml", "--out", "rival", *settings]) == 2
    assert message in capsys.readouterr().err
    assert not (place / "rival").exists()


def test_reflection_trains_nothing_and_counts_its_critiques(place: Path) -> None:
    assert main(["rival", "reflection", "mine.toml", "--out", "rival", "-q"]) == 0
    [line] = untimed(place / "rival" / "metrics.jsonl")
    before, after = (json.loads(path.read_text()) for path in sorted((place / "rival" / "evaluations").glob("*.json")))
    count = len(before["responses"])
    assert (line["rival/rollouts"], line["rival/critiques_at_inference"]) == (0, count)
    assert line["reward/per_response"] == pytest.approx(before["metrics"]["reward"])
    assert [one["prompt"] for one in after["responses"]] == [one["prompt"] for one in before["responses"]]
    assert line["rival/refined"] == sum(
        old["response"] != new["response"] for old, new in zip(before["responses"], after["responses"], strict=True)
    )
    assert line["rival/refined"] > 0
    calls = [json.loads(text) for text in Path("calls.jsonl").read_text().splitlines()]
    assert sum(map(len, calls)) == 3 * count  # two evaluations, and the critiques that the policy reads
    assert weights_of(place / "rival") == weights_of(place)

    (place / "rival" / "evaluations" / "000001.json").unlink()  # as if killed before
    assert main(["rival", "reflection", "mine.toml", "--out", "rival", "-q", "--resume"]) == 0
    assert json.loads((place / "rival" / "evaluations" / "000001.json").read_text()) == after


def weights_of(directory: Path) -> dict[str, list[Any]]:
    """Return the weights of the policy of a run, or of the model in a folder."""
    from safetensors.torch import load_file

    policies = sorted(directory.glob("checkpoints/*/policy"))
    folder = policies[-1] if policies else directory / "model"
    return {name: tensor.tolist() for name, tensor in load_file(folder / "model.safetensors").items()}


def test_several_processes_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["rival", "sft_best", "mine.toml", "--out", "rival"]) == 2
    assert "a rival runs in one process" in capsys.readouterr().err


def test_a_run_is_not_resumed_with_another_method(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rival", "sft_best", "mine.toml", "--out", "rival", "-q"]) == 0
    assert main(["rival", "dpo", "mine.toml", "--out", "rival", "--resume"]) == 2
    assert "rival.method: 'sft_best' → 'dpo'" in capsys.readouterr().err
