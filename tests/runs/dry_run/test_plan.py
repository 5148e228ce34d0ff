"""A plan: figures by arithmetic, and a measured run beside it (slow)."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from places import ROOT
from planned import CONFIG, CPU, PARAMETERS, recipe
from text2grad.config.recipe import make_recipe
from text2grad.errors import ConfigError, ModelError
from text2grad.models import policy_config
from text2grad.models.adapters import enable_checkpointing
from text2grad.models.policy import PolicyWithValue
from text2grad.rl.start import prepare_policy
from text2grad.runs.dry_run.plan import Planner
from text2grad.runs.dry_run.trace import TracedModel
from tiny_models import batch_of, tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that holds a config and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_weights_states_and_cache_are_what_arithmetic_says(folder: Path) -> None:
    plan = Planner(recipe(folder), CPU, prompt_tokens=8).plan()
    assert plan.parameters == (PARAMETERS, PARAMETERS + 65)
    update = plan.phases["update"]
    assert update["policy"] == update["reference"] == 4 * PARAMETERS
    assert update["optimizer states"] == 2 * 4 * (PARAMETERS + 65)
    assert update["gradients"] == 4 * (PARAMETERS + 65)  # 4 rows of 32 tokens at once: the second follows the first
    # 8 rows · 32 tokens · keys and values of 2 heads of 16, fp32; the prompt's pass holds 8 of 32 tokens
    assert plan.phases["rollout"]["KV cache"] in (8 * 32 * 2 * 32 * 4, 8 * 8 * 2 * 32 * 4)
    assert plan.peak == sum(plan.phases[plan.peak_phase].values())


def test_vllm_takes_its_share_of_the_device_while_it_is_awake(folder: Path) -> None:
    def plan(**engine: Any) -> dict[str, dict[str, int]]:
        rollout = {"batch_size": 8, "max_new_tokens": 24, "engine": "vllm"}
        return Planner(recipe(folder, rollout=rollout, engine=engine), CPU, prompt_tokens=8).plan().phases

    share = int(0.25 * CPU.memory)
    awake, asleep = plan(gpu_memory_utilization=0.25), plan(gpu_memory_utilization=0.25, sleep=True)
    assert {phase: roles.get("vLLM of rollouts") for phase, roles in awake.items()} == dict.fromkeys(awake, share)
    assert {phase for phase, roles in asleep.items() if roles.get("vLLM of rollouts") == share} == {"rollout"}
    for phases in (awake, asleep):
        assert "KV cache" not in phases["rollout"]


@pytest.mark.parametrize(("rate", "copies"), [(0.05, 1), (1.0, 0)])
def test_a_self_teacher_with_weights_of_its_own_is_a_copy_of_what_is_trained(
    folder: Path, rate: float, copies: int
) -> None:
    ppo = {"credit": "gated", "teacher_update_rate": rate, "whiten": "none"}
    settings = recipe(folder, model={"path": str(folder), "value": "none"}, ppo=ppo)
    plan = Planner(settings, CPU, prompt_tokens=8).plan()
    assert plan.phases["update"].get("self-teacher", 0) == copies * 4 * PARAMETERS


def test_lora_bfloat16_and_a_value_model_change_the_roles_they_should(folder: Path) -> None:
    settings = recipe(folder, model={"path": str(folder), "lora_r": 4, "dtype": "bfloat16", "value": "adapter"})
    plan = Planner(settings, CPU, prompt_tokens=8).plan()
    # r (in + out) for q, o 64 + 64; k, v 64 + 32; gate, up, down 64 + 128; fp32, as peft keeps adapters
    adapter = 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert plan.phases["score"]["policy"] == 2 * PARAMETERS + 4 * adapter
    assert plan.phases["score"]["value function"] == 4 * (adapter + 65)
    assert "reference" not in plan.phases["score"]
    assert plan.phases["score"]["optimizer states"] == 2 * 4 * (2 * adapter + 65)
    own = Planner(recipe(folder, model={"path": str(folder), "value": "model"}), CPU, prompt_tokens=8).plan()
    assert own.phases["score"]["value function"] == 4 * (PARAMETERS - 64_000 + 65)  # without the output layer


def test_less_memory_by_smaller_micro_batches_checkpointing_and_processes(folder: Path) -> None:
    def activations(**changes: Any) -> int:
        settings = {"ppo": {"micro_batch_tokens": changes.pop("tokens")}, "model": {"path": str(folder), **changes}}
        return Planner(recipe(folder, **settings), CPU, prompt_tokens=8).plan().phases["update"]["activations"]

    whole = activations(tokens=256)
    assert activations(tokens=128) == pytest.approx(whole / 2, rel=0.02)
    assert activations(tokens=256, gradient_checkpointing=True) < whole / 2
    eight = Planner(recipe(folder), CPU, processes=8, prompt_tokens=8).plan()
    assert eight.phases["update"]["gradient buckets"] == 4 * (PARAMETERS + 65)
    one = Planner(recipe(folder), CPU, prompt_tokens=8).plan()
    assert eight.phases["update"]["activations"] == pytest.approx(one.phases["update"]["activations"] / 4, rel=0.02)


def test_gradients_of_an_earlier_micro_batch_are_in_the_peak_of_an_update(folder: Path) -> None:
    settings = recipe(folder)  # micro-batches of 4 rows of 32 tokens
    update = Planner(settings, CPU, prompt_tokens=8).plan().phases["update"]
    own = sum(update[name] for name in ("activations", "gradients", "working"))
    model = TracedModel(policy_config(str(folder)), settings.model)
    assert own == sum(model.update(4, 8, 24, entropy=False, accumulated=True).values())
    assert own > sum(model.update(4, 8, 24, entropy=False).values())


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"lora_r": 2, "value": "adapter"}])
def test_traced_activations_are_those_that_torch_saves(settings: dict[str, Any]) -> None:
    """The oracle runs the same pass with data and counts the storages that autograd keeps."""
    model = tiny("llama")
    traced = TracedModel(model.config, make_recipe({"model": settings}).model)
    found = traced.update(3, 5, 7, entropy=False)
    policy = PolicyWithValue(
        prepare_policy(model, make_recipe({"model": settings}).model), value=settings.get("value", "trunk")
    )
    if "gradient_checkpointing" in settings:
        enable_checkpointing(policy.policy)
    policy.train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        passes = policy(batch_of([(5, 7)] * 3))
    if "gradient_checkpointing" in settings:  # its own hooks hide what it keeps: at least the input of each layer
        assert found["activations"] >= sum(kept.values())
    else:
        assert found["activations"] == pytest.approx(sum(kept.values()), rel=0.1)
    assert passes.logp.requires_grad


def test_a_trace_does_not_depend_on_when_python_collects_garbage(folder: Path) -> None:
    """Circles of objects keep tensors; how often they are collected depends on what a process made before."""
    model = make_recipe({"model": {"path": str(folder), "value": "model"}}).model
    before, traced = gc.get_threshold(), []
    try:
        for threshold in (5, 100_000):
            gc.set_threshold(threshold, 2, 2)
            traced.append(TracedModel(policy_config(str(folder)), model).update(4, 8, 24, entropy=False))
            assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
    assert traced[0] == traced[1]


def test_a_batch_that_cannot_be_shared_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="choose a multiple of 3"):
        Planner(recipe(folder), CPU, processes=3, prompt_tokens=8)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", ["15m-full", "15m-lora", "15m-value-model", "15m-checkpointing", "60m-lora"])
def test_the_plan_is_within_15_percent_of_a_measured_run(case: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "plan.py"), "--cases", case]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ratio"] == pytest.approx(1.0, abs=0.15)


def test_a_reward_model_that_is_not_made_yet_is_planned_like_the_policy(folder: Path) -> None:
    none = {"model": str(folder / "none" / "yet")}
    plans = [
        Planner(recipe(folder, critic=none, reward_model={"max_new_tokens": tokens}), CPU, prompt_tokens=8).plan()
        for tokens in (200, 400)
    ]
    assert plans[0].phases["update"]["reward model"] == 4 * PARAMETERS
    # 8 rows; prompt, response and critique; keys and values of 2 heads of 16, fp32
    assert plans[1].phases["critic"]["KV cache"] == 8 * (8 + 24 + 400) * 2 * 32 * 4
    assert sum(plans[0].phases["critic"].values()) < sum(plans[1].phases["critic"].values())


def test_a_reward_model_decodes_in_the_type_of_its_weights(folder: Path) -> None:
    none = {"model": str(folder / "none" / "yet")}
    half = {"path": str(folder), "dtype": "bfloat16", "lora_r": 4}
    critic = Planner(recipe(folder, model=half, critic=none), CPU, prompt_tokens=8).plan().phases["critic"]
    # 8 rows; prompt, response and 512 tokens of a critique; keys and values of 2 heads of 16, 2 bytes each
    assert critic["KV cache"] == 8 * (8 + 24 + 512) * 2 * 32 * 2
    made = folder / "made"
    made.mkdir()
    (made / "config.json").write_text(json.dumps({**CONFIG, "dtype": "bfloat16"}))
    save_file({"one": torch.zeros(10)}, made / "model.safetensors")
    critic = Planner(recipe(folder, critic={"model": str(made)}), CPU, prompt_tokens=8).plan().phases["critic"]
    assert critic["KV cache"] == 8 * (8 + 24 + 512) * 2 * 32 * 2


def test_a_reward_model_decodes_the_rows_of_a_rollout_at_once_and_votes_are_rows(folder: Path) -> None:
    def cache(rows_at_once: int, **critic: Any) -> int:
        rollout = {"batch_size": 8, "max_new_tokens": 24, "rows_at_once": rows_at_once}
        critic = {"model": str(folder / "none" / "yet"), **critic}
        return (
            Planner(recipe(folder, critic=critic, rollout=rollout), CPU, prompt_tokens=8)
            .plan()
            .phases["critic"]["KV cache"]
        )

    row = (8 + 24 + 512) * 2 * 32 * 4
    assert cache(2) == 2 * row
    assert cache(64) == 8 * row
    assert cache(64, votes=3) == 24 * row
    assert cache(10, votes=3) == 10 * row


def test_a_policy_that_is_an_adapter_is_planned_as_its_base(folder: Path) -> None:
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    save_file({"one": torch.zeros(10)}, adapter / "adapter_model.safetensors")
    plan = Planner(recipe(folder, model={"path": str(adapter)}), CPU, prompt_tokens=8).plan()
    assert plan == Planner(recipe(folder), CPU, prompt_tokens=8).plan()


def test_a_refresh_holds_gradients_states_and_activations_of_the_reward_model(folder: Path) -> None:
    none = {"model": str(folder / "none" / "yet")}

    def refresh(
        processes: int = 1, *, prompt: int = 8, checkpointing: bool = False, lora_r: int = 0, **settings: Any
    ) -> dict[str, int]:
        again = {"steps": [3], "batch_size": 8, **settings}
        model = {"path": str(folder), "gradient_checkpointing": checkpointing, "lora_r": lora_r}
        planned = recipe(folder, model=model, critic=none, refresh=again, reward_model={"max_new_tokens": 40})
        return Planner(planned, CPU, prompt_tokens=prompt, processes=processes).plan().phases["refresh"]

    whole = refresh()
    assert whole["optimizer states of the refresh"] == 2 * 4 * PARAMETERS
    assert whole["reward model"] == 4 * PARAMETERS
    assert whole["gradients"] == pytest.approx(4 * PARAMETERS, rel=0.5)  # some grow while activations go
    assert "gradient buckets of the refresh" not in whole
    # 8 rows of 8 + 24 + 40 tokens, 2 in each of four micro-batches, 4 in each of two processes
    parts = refresh(accumulate=4)
    assert parts["activations"] == pytest.approx(whole["activations"] / 4, rel=0.05)
    assert parts["gradients"] == 4 * PARAMETERS
    assert parts["working"] > whole["working"] / 4  # earlier gradients are there, while the next ones are made
    longer = refresh(prompt=80)  # rows twice as long; logits of as many labels
    assert longer["activations"] > 1.4 * whole["activations"]
    both = refresh(2)
    assert both["activations"] == pytest.approx(whole["activations"] / 2, rel=0.05)
    assert both["gradient buckets of the refresh"] == 4 * PARAMETERS
    assert refresh(checkpointing=True)["activations"] < whole["activations"] / 2
    # rank 4 of q, o 64 → 64; k, v 64 → 32; gate, up 64 → 128; down 128 → 64: r · (in + out)
    assert refresh(lora_r=4)["optimizer states of the refresh"] == 2 * 4 * 4 * (2 * 128 + 2 * 96 + 3 * 192)


def test_the_rank_of_a_saved_adapter_is_that_of_its_refresh(folder: Path) -> None:
    saved = folder / "critic"
    saved.mkdir()
    (saved / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder), "r": 2}))
    save_file({"one": torch.zeros(10)}, saved / "adapter_model.safetensors")
    planned = recipe(folder, critic={"model": str(saved)}, refresh={"steps": [3], "batch_size": 8})
    states = Planner(planned, CPU, prompt_tokens=8).plan().phases["refresh"]["optimizer states of the refresh"]
    assert states == 2 * 4 * 2 * (2 * 128 + 2 * 96 + 3 * 192)
    (saved / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    with pytest.raises(ModelError, match=r"adapter_config\.json: it holds no 'r'\. Copy the adapter again$"):
        Planner(planned, CPU, prompt_tokens=8).plan()


def test_micro_batches_of_a_refresh_lower_its_peak(folder: Path) -> None:
    none = {"model": str(folder / "none" / "yet")}
    again = {"steps": [3], "batch_size": 64}
    planner = Planner(recipe(folder, critic=none, refresh=again), CPU, prompt_tokens=8)
    whole = planner.plan()
    assert whole.peak_phase == "refresh"
    least = Planner(recipe(folder, critic=none, refresh={**again, "accumulate": 8}), CPU, prompt_tokens=8)
    assert least.plan().peak < whole.peak
    with pytest.raises(ConfigError, match=r"refresh.accumulate = 3; choose a multiple of 3"):
        Planner(recipe(folder, critic=none, refresh={**again, "accumulate": 3}), CPU, prompt_tokens=8)
