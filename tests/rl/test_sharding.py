"""FSDP 2 and plain data parallelism in gloo processes on a CPU, beside one process: same losses, same weights."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from tests.helpers import sharded_runs, small_run
from text2grad.config import Recipe, latest_checkpoint
from text2grad.errors import ConfigError, ModelError
from text2grad.models import CRITIC_ADAPTER, TokenBatch, collate
from text2grad.models.adapters import load_lora
from text2grad.rl import sharding
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.sharding import Sharding, sharding_of
from text2grad.rl.start import make_accelerator
from text2grad.types import Example, Rollout
from warm_commands import Warm

ROOT = Path(__file__).parents[2]
WHOLE = ("ddp", "refresh", "refresh_role")  # weights in each process
REFRESHED = (*WHOLE[1:], "refresh_sharded")
EXACT = ("full", "model", "groups", "lora", "taught", *WHOLE, "refresh_sharded")  # "half_base" and "halves" round
RESUMED = ("full", "lora", "refresh", "refresh_sharded")  # after step 2
QUICK = ("full", "groups", "lora", "ddp", "refresh_sharded", "draws")
"""Runs of the tests that are not slow."""


def every(names: Iterable[str]) -> Any:
    """Return the parameter of a test of each run."""
    of_runs = (name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names)
    return pytest.mark.parametrize("name", list(of_runs))


def launch(warm: Warm, processes: int, directory: Path, *names: str) -> None:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    warm.together(processes, "python", sharded_runs.__file__, directory, *names, PYTHONPATH=paths)


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process in `one`, of two in `two`, and those that changed their number in `from_one`, `from_two`.

    Without slow tests of this file only those of `QUICK`.
    """
    home = tmp_path_factory.mktemp("sharded")
    own = [item for item in request.session.items if item.path == request.path]
    slow = any(item.get_closest_marker("slow") for item in own)
    exact, resumed, of_two = (
        [name for name in names if slow or name in QUICK] for names in (EXACT, RESUMED, sharded_runs.RUNS)
    )
    for name in exact:
        sharded_runs.run(home / "one", name)
    for name in resumed:
        shutil.copytree(home / "one" / name, home / "two" / "from_one" / name)
        sharded_runs.run(home / "one", name, steps=4)
    further = (*(f"from_one/{name}:4" for name in resumed), "draws:4", "straight/draws:4")
    launch(warm, 2, home / "two", *of_two, *further)
    for name in resumed:
        shutil.copytree(home / "two" / name, home / "from_two" / name)
        sharded_runs.run(home / "from_two", name, steps=4)
    return home


def metrics(run: Path) -> list[dict[str, float]]:
    return small_run.untimed(run / "metrics.jsonl")


def responses(run: Path) -> list[str]:
    files = sorted((run / "rollouts").glob("*.jsonl"))
    return [json.loads(line)["response"] for file in files for line in file.read_text().splitlines()]


def assert_same_curve(ours: Path, theirs: Path, *, steps: int) -> None:
    mine, other = metrics(ours), metrics(theirs)
    assert len(mine) == steps
    for one, two in zip(mine, other, strict=False):
        assert one == pytest.approx(two, abs=1e-5, rel=0)
    assert responses(ours)[: len(responses(theirs))] == responses(theirs)[: len(responses(ours))]


def moments(run: Path) -> Any:
    return load_file(latest_checkpoint(run / "checkpoints") / "optimizer.safetensors")  # type: ignore[operator]


@every(EXACT)
def test_two_processes_learn_as_one_does(home: Path, name: str) -> None:
    assert_same_curve(home / "two" / name, home / "one" / name, steps=2)
    if name not in RESUMED:  # which went on to step 4 in one process
        ours, theirs = (small_run.weights(home / place / name) for place in ("two", "one"))
        assert ours.keys() == theirs.keys()
        for key, weight in theirs.items():
            torch.testing.assert_close(ours[key], weight, rtol=0, atol=2e-5, msg=key)
        ours, theirs = (moments(home / place / name) for place in ("two", "one"))
        assert ours.keys() == theirs.keys()
        for key, moment in theirs.items():
            torch.testing.assert_close(ours[key], moment, rtol=0, atol=1e-5, msg=key)


@every(EXACT)
def test_the_evaluations_of_two_processes_are_those_of_one(home: Path, name: str) -> None:
    ours, theirs = (
        json.loads((home / place / name / "evaluations" / "000002.json").read_bytes()) for place in ("two", "one")
    )
    assert ours["metrics"] == pytest.approx(theirs["metrics"], abs=1e-5, rel=1e-5)
    assert [row["response"] for row in ours["responses"]] == [row["response"] for row in theirs["responses"]]
    assert len(ours["responses"]) == 5


@every(sorted(sharded_runs.RUNS))
def test_every_parameter_is_in_shards_of_half_the_model(home: Path, name: str) -> None:
    both = [json.loads((home / "two" / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]
    for one in both:
        assert one["processes"] == 2
        assert one["sharded"] == (name not in WHOLE)
        assert one["own"] / one["all"] == pytest.approx(
            1.0 if name in WHOLE else 0.5, abs=0.005
        )  # an odd number of rows has no half
    if name not in WHOLE:
        assert both[0]["own"] + both[1]["own"] == both[0]["all"]


@every(REFRESHED)
def test_several_processes_train_a_critic_as_one_does_and_the_first_asks_the_annotator(home: Path, name: str) -> None:
    start = sharded_runs.with_learned_critic(name)[2].model.state_dict()
    first, second = (load_file(home / "two" / f"{name}-critic-{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == second.keys() == start.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    own = [key for key in start if name != "refresh_role" or CRITIC_ADAPTER in key]
    assert any(not torch.allclose(first[key], start[key], atol=1e-3) for key in own)
    [ours], [theirs] = (
        list((home / place / name / "critic/step-000001").glob("*.safetensors")) for place in ("two", "one")
    )
    alone = load_file(theirs)
    for key, weight in load_file(ours).items():
        torch.testing.assert_close(weight, alone[key], rtol=0, atol=2e-5, msg=key)
    assert [line["critic/refreshed"] for line in metrics(home / "two" / name)] == [1, 0]
    asked = home / "two" / f"{name}-asked-0.jsonl"
    calls = [json.loads(line) for line in asked.read_text().splitlines()]
    assert len(calls[0]) > 4  # the audit's six responses are of both processes
    assert asked.read_text() in (home / "one" / f"{name}-asked-0.jsonl").read_text()
    assert not (home / "two" / f"{name}-asked-1.jsonl").exists()


@every(RESUMED)
@pytest.mark.parametrize("place", ["two/from_one", "from_two"])
def test_a_run_goes_on_in_another_number_of_processes(home: Path, place: str, name: str) -> None:
    assert_same_curve(home / place / name, home / "one" / name, steps=4)
    ours, theirs = (small_run.weights(run) for run in (home / place / name, home / "one" / name))
    for key, weight in theirs.items():
        torch.testing.assert_close(ours[key], weight, rtol=0, atol=5e-5, msg=key)


def test_a_critic_that_draws_goes_on_with_the_draws_of_each_process(home: Path) -> None:
    resumed, straight = home / "two" / "draws", home / "two" / "straight" / "draws"
    small_run.assert_same_run(resumed, straight)
    found = latest_checkpoint(resumed / "checkpoints")
    assert found is not None
    state = json.loads((found / "state.json").read_bytes())
    assert [states.keys() for states in state["random_of_others"]] == [state["random"].keys()]
    assert all(state["random"][name] != state["random_of_others"][0][name] for name in state["random"])


def test_sharded_weights_are_exported_as_an_ordinary_model(home: Path) -> None:
    from transformers import AutoModelForCausalLM

    found = latest_checkpoint(home / "two" / "full" / "checkpoints")
    assert found is not None
    weights = load_file(found / "trainable.safetensors")
    loaded = AutoModelForCausalLM.from_pretrained(found / "policy")
    _, start = small_run.tokenizer_and_model()
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, weights[f"policy.{name}"]), name
        assert parameter.shape == start.get_parameter(name).shape
    assert sorted(path.name for path in (found / "policy").glob("*.safetensors")) == ["model.safetensors"]

    tied = latest_checkpoint(home / "two" / "groups" / "checkpoints")
    assert tied is not None
    assert "lm_head.weight" in load_file(found / "policy" / "model.safetensors")
    assert "lm_head.weight" not in load_file(tied / "policy" / "model.safetensors")

    found = latest_checkpoint(home / "two" / "lora" / "checkpoints")
    assert found is not None
    weights = load_file(found / "trainable.safetensors")
    adapted = load_lora(start, str(found / "policy"))
    names = [name for name, _ in adapted.named_parameters() if "lora_" in name]
    assert names
    for name in names:
        assert torch.equal(adapted.get_parameter(name), weights[f"policy.{name}"]), name


@pytest.mark.slow
def test_gathered_weights_may_be_bfloat16_while_shards_stay_as_they_are(home: Path) -> None:
    found = small_run.weights(home / "two" / "halves")
    assert {weight.dtype for weight in found.values()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in found.values())
    losses = [line["update/policy_loss"] for line in metrics(home / "two" / "halves")]
    assert losses[0] == pytest.approx(metrics(home / "one" / "model")[0]["update/policy_loss"], abs=0.05)


@pytest.mark.slow
def test_adapters_of_fp32_learn_on_sharded_weights_of_bfloat16(home: Path) -> None:
    found = small_run.weights(home / "two" / "half_base")
    assert {weight.dtype for weight in found.values()} == {torch.float32}
    assert any("lora_B" in name and weight.any() for name, weight in found.items())
    losses = [line["update/policy_loss"] for line in metrics(home / "two" / "half_base")]
    assert losses[0] == pytest.approx(metrics(home / "one" / "lora")[0]["update/policy_loss"], abs=0.05)


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_four_and_then_in_one(warm: Warm, home: Path, tmp_path: Path) -> None:
    for name in ("full", "lora"):
        shutil.copytree(home / "two" / name, tmp_path / name)
    launch(warm, 4, tmp_path, "full:4", "lora:4")
    for name in ("full", "lora"):
        facts = json.loads((tmp_path / f"{name}-3.json").read_text())
        assert facts["processes"] == 4
        assert facts["own"] / facts["all"] == pytest.approx(0.25, abs=0.002)
        assert_same_curve(tmp_path / name, home / "one" / name, steps=4)
        sharded_runs.run(tmp_path, name, steps=6)
        sharded_runs.run(home / "one", name, steps=6)
        assert_same_curve(tmp_path / name, home / "one" / name, steps=6)


# Pieces.


def batch_of(prompts: list[str], lengths: list[int], *, share: bool) -> TokenBatch:
    rollouts = [
        Rollout(Example(prompt), tuple(map(ord, prompt)), (1,) * length, "", False)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    return collate(rollouts, pad_id=0, share_prompts=share)


@pytest.mark.parametrize("others", [1, 2, 3, 4, 6])
def test_each_process_makes_as_many_passes_as_any(others: int) -> None:
    batch = batch_of(["a", "ab", "abc", "abcd"], [2, 2, 2, 2], share=False)
    alone = PieceSizes(micro_batch_tokens=12).pieces(batch)[1]
    assert [group.tolist() for group in alone] == [[0, 1], [2, 3]]  # 2 x 4 tokens, 2 x 6 tokens

    def largest(numbers: Any) -> list[int]:
        return [max(number, others) for number in numbers]

    same, groups = PieceSizes(micro_batch_tokens=12, largest=largest).pieces(batch)
    assert same is batch
    assert len(groups) == max(others, 2)
    rows = [row for group in groups for row in group.tolist()]
    assert sorted(set(rows)) == [0, 1, 2, 3]
    assert len(rows) == max(4, others)  # no row twice, as long as there are enough


@pytest.mark.parametrize("other_shares", [True, False])
def test_prompts_are_shared_by_all_processes_or_by_none(other_shares: bool) -> None:
    batch = batch_of(["a long prompt"] * 4, [1, 1, 1, 1], share=True)
    asked: list[list[int]] = []

    def largest(numbers: Any) -> list[int]:
        asked.append(list(numbers))
        return [max(asked[-1][0], int(not other_shares))] if asked[-1] in ([0], [1]) and len(asked) == 2 else asked[-1]

    found, groups = PieceSizes(micro_batch_tokens=100, largest=largest).pieces(batch)
    assert asked[1] == [0]  # here they are shared
    assert bool(found.prompts) == other_shares
    assert sorted(row for group in groups for row in group.tolist()) == [0, 1, 2, 3]


# Refusals.


def refused(monkeypatch: pytest.MonkeyPatch, kind: str = "MULTI_CPU", **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    accelerator: Any = SimpleNamespace(distributed_type=DistributedType(kind), state=SimpleNamespace())
    with pytest.raises(ConfigError) as caught:
        sharding_of(accelerator)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FSDP_VERSION", "1"),
        ("FSDP_AUTO_WRAP_POLICY", "NO_WRAP"),
        ("FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"),
        ("FSDP_CPU_RAM_EFFICIENT_LOADING", "true"),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true"),
        ("FSDP_OFFLOAD_PARAMS", "true"),
        ("FSDP_IGNORED_MODULES", "lm_head"),
        ("ACCELERATE_MIXED_PRECISION", "fp16"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"),
    ],
)
def test_a_configuration_that_would_not_be_applied_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    told = refused(monkeypatch, **{**sharded_runs.FSDP, name: value})
    assert told.startswith(f'accelerate\'s configuration has {name} = "{value}", which would not be applied here; ')


def test_shards_without_processes_and_other_engines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, engine in sharding.ENGINES.items():
        with monkeypatch.context() as launched:
            launched.setenv(variable, "true")
            with pytest.raises(ConfigError, match=f"accelerate was launched with {engine}, which this loop does not"):
                make_accelerator(Recipe())
    assert refused(monkeypatch, ACCELERATE_MIXED_PRECISION="bf16") == (
        "accelerate's configuration has mixed_precision: bf16, which is for FSDP here; without it the type of the "
        'weights decides: set mixed_precision: "no" and model.dtype = "bfloat16"'
    )
    assert refused(monkeypatch, "NO", **sharded_runs.FSDP).startswith(
        "accelerate's configuration asks for FSDP (ACCELERATE_USE_FSDP), and no launcher started this process"
    )


def test_the_ready_configurations_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that `accelerate launch` sets from each file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    accelerator: Any = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU, state=SimpleNamespace())
    found = {}
    for path in sorted((ROOT / "recipes" / "accelerate").glob("*.yaml")):
        args = launch_command_parser().parse_args(["--config_file", str(path), "--main_process_port", "0", "train.py"])
        args = _validate_launch_command(args)[0]
        with monkeypatch.context() as launched:
            for name, value in prepare_multi_gpu_env(args).items():
                launched.setenv(name, value)
            made = sharding_of(accelerator)
        found[path.stem] = made and (made.plugin.reshard_after_forward, made.computed_in)
    assert found == {
        "ddp": None,
        "fsdp2": (True, None),
        "fsdp2-bf16": (True, torch.bfloat16),
        "fsdp2-zero2": (False, None),
    }


def shard_one(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Begin to shard a small model with other names of layers, other weights elsewhere, or a critic on its base."""
    _, policy = small_run.tokenizer_and_model()
    policy.peft_config = changed.get("adapters", {})
    plugin: Any = SimpleNamespace(transformer_cls_names_to_wrap=changed.get("names"))
    monkeypatch.setattr(sharding, "gather_object", lambda mine: [*mine, *changed.get("others", mine)])
    model = torch.nn.Module()
    model.policy = policy
    Sharding(plugin, SimpleNamespace(), None).shard(model, SimpleNamespace(start=changed.get("start")))  # type: ignore[arg-type]


def test_models_that_cannot_be_sharded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"has no modules of the classes \['Layer', 'LlamaDecoderLayer'\]; name those"
    ):
        shard_one(monkeypatch, names=["LlamaDecoderLayer", "Layer"])
    with pytest.raises(ModelError, match="process 1 has other weights than this one"):
        shard_one(monkeypatch, others=["another digest"])
    with pytest.raises(ConfigError, match="the directory `merged` beside the adapter"):
        shard_one(monkeypatch, adapters={CRITIC_ADAPTER: None})
    with pytest.raises(ConfigError, match=r"and FSDP keeps no copy of the start: give model"):
        shard_one(monkeypatch, start={"a bias": 0.0})


@pytest.mark.parametrize(
    ("sections", "held_out", "told"),
    [
        ({"rollout": {"engine": "vllm"}}, 0, 'rollout.engine = "vllm" takes whole weights at each step'),
        (
            {"ppo": {"credit": "gated", "whiten": "none"}, "model": {"value": "none"}},
            0,
            r"ppo\.teacher_update_rate = 0\.05 needs whole weights of a teacher, and FSDP has shards: set it to 1\.0",
        ),
        ({}, 1, "1 held-out prompts cannot be shared by 2 processes"),
    ],
)
def test_what_shards_cannot_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], held_out: int, told: str
) -> None:
    from text2grad.rl import start, trainer

    monkeypatch.setattr(start, "make_accelerator", lambda recipe: SimpleNamespace(num_processes=2))
    monkeypatch.setattr(start, "sharding_of", lambda accelerator: object())
    tokenizer, model = small_run.tokenizer_and_model()
    with pytest.raises(ConfigError, match=told):
        trainer.Text2GradTrainer(
            model,
            small_run.ColourCritic(),
            small_run.EXAMPLES,
            small_run.recipe(tmp_path / "run", **sections),
            eval_dataset=small_run.EXAMPLES[:held_out],
            processing_class=tokenizer,
        )
    assert not (tmp_path / "run").exists()
