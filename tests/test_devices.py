"""All commands and trainings on a pretended accelerator, which refuses operations that mix its tensors with the CPU's.

`helpers/pretended_device.py` says what this can show. The worker of the studio is called in this process: its own
process would see no pretended device. vLLM and the CUDA kernels are not here.
"""

import copy
import io
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import small_reward
import small_run
import small_sft
from pretended_device import DEVICE, MixedDevices, pretended_device
from small_run import EXAMPLES, WORDS, ColourCritic, untimed
from small_trl import make_trainer
from text2grad.cli.__main__ import main
from text2grad.feedback import annotation_to_json, ask
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.models import measured_training
from text2grad.models.adapters import with_lora
from text2grad.models.pretrained import best_device, load_policy, load_tokenizer
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.training.run import RewardRun
from text2grad.runs.recipe_run import run_recipe
from text2grad.runs.sft_run import SFTRun
from text2grad_studio import worker as studio_worker
from text2grad_studio.worker import Worker

pytestmark = [
    pytest.mark.filterwarnings("ignore:.(is_)?gradient_checkpointing(_disable|_enable)?. is deprecated:FutureWarning"),
]
RESPONSES = [" red one cat", " two dog", " green bird red"]


@pytest.fixture
def device() -> Iterator[torch.device]:
    with pretended_device() as found:
        yield found


def close(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    """Compare lines of metrics: attention and the products of the vocabulary round differently on a device."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)


# The pretended device itself.


def test_operations_of_tensors_of_two_devices_are_refused(device: torch.device) -> None:
    on, off = torch.ones(3, device=device), torch.ones(3)
    ids = torch.tensor([0, 1])
    table = torch.ones(4, 2, device=device)
    mixes = {
        "a sum": lambda: on + off,
        "a sum in place": lambda: torch.zeros(3).add_(on),
        "a number of the CPU changed in place": lambda: torch.tensor(1.0).add_(on.sum()),
        "a product": lambda: table @ torch.ones(2),
        "a list": lambda: torch.cat([on, off]),
        "a list of numbers": lambda: torch.stack([on.sum(), off.sum()]),
        "a mask of the CPU": lambda: on.masked_fill(torch.zeros(3, dtype=torch.bool), 0.0),
        "values of the CPU": lambda: on.__setitem__(ids, torch.ones(2)),
        "a CPU tensor at places of the device": lambda: off[ids.to(device)],
        "places of the CPU to gather": lambda: on.gather(0, ids),
        "an embedding of CPU ids": lambda: torch.nn.functional.embedding(ids, table),
        "a choice": lambda: torch.where(on > 0, on, off),
        "a comparison": lambda: torch.equal(on, off),
        "a generator of the CPU": lambda: torch.rand(2, device=device, generator=torch.Generator()),
        "a generator of the CPU, in place": lambda: on.uniform_(generator=torch.Generator()),
    }
    for name, mix in mixes.items():
        with pytest.raises(MixedDevices):
            pytest.fail(f"{name} is not refused: {mix()}")
    for read in (on.numpy, lambda: np.asarray(on)):
        with pytest.raises(TypeError, match="to numpy"):
            read()


def test_operations_that_cuda_allows_are_allowed(device: torch.device) -> None:
    on, off, number = torch.arange(3.0, device=device), torch.arange(3.0), torch.tensor(2.0)
    assert best_device().type == device.type == on.device.type
    assert on.device == torch.device(device.type, 0) != best_device()  # as cuda:0 and cuda
    assert (on * number).device == (number - on).device == on.device
    assert on[torch.tensor([True, False, True])].tolist() == [0.0, 2.0]
    on[torch.tensor([1])] = number
    assert on.tolist() == [0.0, 2.0, 2.0]
    assert torch.equal(off.copy_(on), on.cpu())
    assert on.copy_(torch.ones(3)).sum().item() == 3.0
    assert on.to("cpu", torch.int64).numpy().tolist() == [1, 1, 1]
    assert torch.tensor([1, 2], device=device).device == on.new_tensor([1]).device == on.device
    assert torch.eye(2, device=device).shape == (2, 2)
    assert torch.rand(2, device=device, generator=torch.Generator(device).manual_seed(0)).device == on.device
    seen = copy.deepcopy(torch.nn.Linear(2, 2).to(device))
    assert seen.weight.device == on.device
    kept = io.BytesIO()
    torch.save({"on": on}, kept)
    for place in (None, "cpu"):
        kept.seek(0)
        loaded = torch.load(kept, map_location=place, weights_only=True)["on"]
        assert loaded.device == (on.device if place is None else torch.device("cpu"))
        assert loaded.tolist() == on.tolist()


def test_a_model_has_the_gradients_that_it_has_on_the_cpu_and_moves_whole(device: torch.device) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    ids = torch.tensor([tokenizer("red blue one two")["input_ids"]])
    found = []
    for place in ("cpu", device):
        model.to(place).zero_grad(set_to_none=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        model(input_ids=ids.to(place), labels=ids.to(place)).loss.backward()
        optimizer.step()
        assert {parameter.device for parameter in model.parameters()} == {torch.device(place)}
        found.append([parameter.grad.cpu().clone() for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_device_is_gone_when_the_context_ends() -> None:
    before = torch.accelerator.current_accelerator, torch.Generator, torch.autocast.__init__
    with pretended_device():
        assert best_device().type == DEVICE.type
    assert before == (torch.accelerator.current_accelerator, torch.Generator, torch.autocast.__init__)
    assert best_device().type == "cpu"
    assert not hasattr(torch, DEVICE.type)
    with pytest.raises(NotImplementedError):
        torch.zeros(1, device=DEVICE)


# Training of a policy.

RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "value head": {"ppo": {"entropy_coef": 0.01, "kl": "full", "target_kl": 1.0}},
    "value model": {
        "model": {"value": "model", "gradient_checkpointing": True},
        "reward": {"placement": "last_token"},
        "run": {"steps": 1},
    },
    "group": {
        "model": {"value": "none"},
        "rollout": {"group_size": 4},
        "ppo": {"baseline": "group", "whiten": "group", "kl_in": "loss", "loss_mean": "response"},
    },
    "adapters": {
        "model": {"value": "adapter", "lora_r": 2},
        "ppo": {"minibatches": 1, "micro_batch_tokens": 64},
        "reward": {"weighting": "linear_decay", "span_mass": "span"},
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_a_policy_trains_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    found = []
    for place in ("cpu", "device"):
        sections = {key: {"steps": 2, **value} if key == "run" else value for key, value in RUNS[name].items()}
        sections.setdefault("run", {"steps": 2})
        with pretended_device() if place == "device" else nullcontext():
            trainer = small_run.trainer(tmp_path / place, **sections)
            trainer.train()
            devices = {parameter.device.type for parameter in trainer.model.parameters()}
        assert devices == {DEVICE.type if place == "device" else "cpu"}
        found.append(untimed(tmp_path / place / "metrics.jsonl"))
    close(*reversed(found))


def test_a_run_goes_on_exactly_from_a_checkpoint(device: torch.device, tmp_path: Path) -> None:
    for name, steps in (("calm", (2,)), ("stopped", (1, 2))):
        for number in steps:
            sections = {"run": {"steps": number, "save_every": 1}, "optim": {"schedule": "constant"}}
            small_run.trainer(tmp_path / name, resume=number != steps[0], **sections).train()
    small_run.assert_same_run(tmp_path / "calm", tmp_path / "stopped")


# Reward models.


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, an adapter on it that writes critiques of random words, and annotations."""
    path = tmp_path_factory.mktemp("phases")
    tokenizer = small_run.save_base(path / "base")
    writer = with_lora(load_policy(str(path / "base")), r=2, alpha=4, targets=["q_proj", "v_proj"])
    for parameter in writer.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    GenerativeRewardModel(writer, tokenizer, CritiqueFormat(max_new_tokens=16)).save(path / "critic")
    responses = [f"{row.prompt_text} {response.strip()}" for row in EXAMPLES[:12] for response in RESPONSES]
    annotations = [
        Annotation(f"cat {number % 9}", one, ColourCritic().judge(one)) for number, one in enumerate(responses)
    ]
    write_annotations(path / "annotations.jsonl", annotations)
    pairs = [{"prompt": f"cat {number}", "chosen": " red", "rejected": " one cat"} for number in range(12)]
    (path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": one.prompt}) + "\n" for one in EXAMPLES))
    return path


def test_critiques_are_those_of_the_cpu(phases: Path) -> None:
    found = []
    for place in (nullcontext(), pretended_device()):
        with place:
            for settings in ({}, {"votes": 2}, {"constrain": False}):
                critic = GenerativeRewardModel.load(phases / "critic", **settings)
                critic.model.to(best_device())
                examples = [EXAMPLES[0]] * len(RESPONSES)  # their common prompt is read once
                found.append([one.spans for one in ask(critic, examples, RESPONSES, match="exact")])
    assert found[:3] == found[3:]
    assert any(found)


@pytest.mark.thorough
def test_a_critic_on_the_policys_base_is_refreshed_and_audited(
    phases: Path, device: torch.device, tmp_path: Path
) -> None:
    recipe = small_run.recipe(
        tmp_path / "run",
        model={"path": str(phases / "base"), "lora_r": 2, "lora_targets": ["q_proj"], "value": "adapter"},
        data={"train": str(phases / "prompts.jsonl"), "held_out": 0.1, "eval_every": 1, "eval_examples": 4},
        critic={"model": str(phases / "critic"), "max_failure_rate": 1.0},
        refresh={"steps": [1], "train_steps": 1, "batch_size": 4, "window": 8, "audit": 2}
        | {"annotator": "small_run:ColourCritic", "replay_from": str(phases / "annotations.jsonl")},
        run={"steps": 2, "save_every": 1},
    )
    run_recipe(recipe)
    lines = untimed(tmp_path / "run" / "metrics.jsonl")
    assert len(lines) == 2
    assert any(name.startswith("audit/") for name in lines[0])
    generate = ["generate", str(tmp_path / "run")]
    assert main([*generate, "--examples", "2"]) == 0


@pytest.mark.parametrize(
    "more", [{}, {"reward_model": {"optimizer": "muon"}, "model": {"lora_r": 2}}], ids=["whole", "adapter by muon"]
)
def test_a_generative_reward_model_trains_as_on_the_cpu(more: dict[str, Any], tmp_path: Path) -> None:
    small_reward.prepare(tmp_path)
    short = {"steps": 2, "eval_every": 2, "max_new_tokens": 12, "eval_limit": 4, **more.get("reward_model", {})}
    found = []
    for place in ("cpu", "device"):
        with pretended_device() if place == "device" else nullcontext():
            RewardRun(small_reward.recipe(tmp_path, place, **{**more, "reward_model": short})).run()
        found.append(untimed(tmp_path / place / "metrics.jsonl"))
    close(*reversed([lines[:1] for lines in found] if "muon" in str(more) else found))  # Muon takes bfloat16 there


def test_a_generative_reward_model_is_measured(phases: Path, device: torch.device, tmp_path: Path) -> None:
    measure = [
        "evaluate",
        "critic",
        str(phases / "annotations.jsonl"),
        "--model",
        str(phases / "critic"),
        "--limit",
        "3",
    ]
    more = ["--perplexity", str(phases / "base"), "--set", "critic.votes=2"]
    assert main([*measure, *more, "--out", str(tmp_path / "measured")]) == 0


# Other trainings.


@pytest.mark.parametrize("more", [{}, {"sft": {"optimizer": "muon"}}], ids=["adamw", "muon"])
def test_supervised_fine_tuning_is_that_of_the_cpu(more: dict[str, Any], tmp_path: Path) -> None:
    small_sft.prepare(tmp_path)
    found = []
    for place in ("cpu", "device"):
        with pretended_device() if place == "device" else nullcontext():
            SFTRun(small_sft.recipe(tmp_path, place, sft={"steps": 2, **more.get("sft", {})})).run()
        found.append(untimed(tmp_path / place / "metrics.jsonl"))
    close(*reversed([lines[:1] for lines in found] if more else found))  # Muon takes bfloat16 there


def test_supervised_fine_tuning_goes_on_exactly_from_a_checkpoint(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_sft.prepare(tmp_path)
    append = measured_training._append

    class Killed(BaseException):
        """As sudden as SIGKILL."""

    def kill(*given: Any) -> Any:
        if 2 in [one for one in given if isinstance(one, int)]:
            raise Killed
        return append(*given)

    def train(out: str, *, resume: bool = False) -> dict[str, torch.Tensor]:
        SFTRun(small_sft.recipe(tmp_path, out, sft={"steps": 2, "eval_every": 1}), resume=resume).run()
        return load_file(tmp_path / out / "model" / "model.safetensors")

    calm = train("calm")
    with monkeypatch.context() as patch:
        patch.setattr(measured_training, "_append", kill)
        with pytest.raises(Killed):
            train("killed")
    again = train("killed", resume=True)
    assert all(torch.equal(calm[name], again[name]) for name in {*calm, *again})


@pytest.mark.filterwarnings("ignore")  # TRL's own
def test_trls_trainer_takes_token_rewards(device: torch.device, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", use_cpu=False, max_steps=1, scale_rewards="batch")
    assert trainer.accelerator.device.type == device.type
    trainer.train()
    assert trainer.token_rewards.device.type == device.type


# Commands on a policy.


@pytest.mark.thorough
def test_a_run_is_looked_at(
    phases: Path, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(
        f'[data]\ntrain = "{phases}/prompts.jsonl"\n[model]\npath = "{phases}/base"\n[critic]\nmax_failure_rate = 1.0\n'
        '[rollout]\nbatch_size = 8\nmax_new_tokens = 6\n[run]\nout = "run"\nsteps = 2\nthreads = 1\ntracker = "none"\n'
    )
    critic = ["--set", f"critic.model={phases / 'critic'}"]
    assert main(["train", "my.toml", "--dry-run", "--judge", *critic]) == 0


@pytest.mark.thorough
def test_policies_are_evaluated(phases: Path, device: torch.device, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("red blue one two\n\ncat dog\n")
    data = [{"prompt": f"cat {word}", "reference": f" {word}", "source": f"{word} red " * 4} for word in WORDS[:3]]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in data))
    suites = ["--suite", f"summarization={tmp_path / 'data.jsonl'}"]
    suites += ["--suite", f"reading_suite:reading={tmp_path / 'text.txt'}"]
    named = [str(phases / "base"), str(phases / "critic")]
    more = ["--max-new-tokens", "6", "--out", str(tmp_path / "measured")]
    assert main(["evaluate", "policy", *named, *suites, *more]) == 0
    assert set(json.loads((tmp_path / "measured" / "evaluation.json").read_bytes())["suites"]) == {
        "summarization",
        "reading",
    }


# The studio's worker, in this process.


@pytest.mark.thorough
def test_the_studio_teaches_retrains_asks_and_suggests(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe_of = studio_worker._recipe_of

    def in_float32(*which: Any, **how: Any) -> Any:  # the pretended device changes no type in place, as peft does
        recipe = recipe_of(*which, **how)
        return recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "float32"})})

    monkeypatch.setattr(studio_worker, "_recipe_of", in_float32)
    small_reward.prepare(tmp_path)
    base, marked = str(tmp_path / "base"), small_reward.ANNOTATIONS[:2]
    GenerativeRewardModel(load_policy(base), load_tokenizer(base), CritiqueFormat(max_new_tokens=12)).save(
        tmp_path / "critic"
    )
    sampling = {"max_new_tokens": 4, "temperature": 1.0, "eos_token_ids": [], "prompt_format": "plain"}
    request: dict[str, Any] = {
        "policy": {"path": base, "sampling": sampling},
        "versions": str(tmp_path / "versions"),
        "annotations": [annotation_to_json(one) for one in marked],
    }
    worker = Worker()

    def answer(kind: str, **more: Any) -> dict[str, Any]:
        return worker.answer({**request, "kind": kind, **more}, lambda **message: None)

    assert answer("teach", parent=0)["version"] == 1
    assert answer("retrain", parent=1, retraining={"reward_steps": 1, "steps": 1})["version"] == 2
    asked = answer("ask", prompt="a:", versions_asked=[0, 1, 2], seed=0)
    assert [one["version"] for one in asked["answers"]] == [0, 1, 2]
    critic = {"critic": str(tmp_path / "critic"), "store": str(tmp_path / "store")}
    assert "feedback" in answer("suggest", critic=critic, prompt="a:", response=" cat one")
