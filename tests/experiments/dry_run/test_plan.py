"""A plan: figures by arithmetic, advice that fits when it is taken, and a measured run beside it (slow)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from places import ROOT
from planned import CONFIG, CPU, PARAMETERS, recipe
from text2grad.cli.__main__ import main
from text2grad.cli.plan import parse_memory
from text2grad.config.recipe import make_recipe
from text2grad.errors import ConfigError, ModelError
from text2grad.experiments.planning import DEVICES, Planner, annotation_cost
from text2grad.experiments.planning.devices import Device, measured, this_machine
from text2grad.experiments.planning.plan import Lengths, recipe_examples, with_settings
from text2grad.experiments.planning.trace import Allocations, TracedModel, read_config
from text2grad.models.adapters import enable_checkpointing
from text2grad.models.policy import PolicyWithValue
from text2grad.reward_models.probe import Row, features_of
from text2grad.reward_models.scalar import logits_of
from text2grad.reward_models.support import SupportRow
from text2grad.rl.trainer import prepare_policy
from text2grad.tasks.tiny import word_tokenizer
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
    assert plan.sampled_tokens == 8 * 24
    assert plan.peak == sum(plan.phases[plan.peak_phase].values())


def test_vllm_takes_its_share_of_the_device_while_it_is_awake(folder: Path) -> None:
    def plan(**engine: Any) -> dict[str, dict[str, int]]:
        rollout = {"batch_size": 8, "max_new_tokens": 24, "engine": "vllm"}
        return Planner(recipe(folder, rollout=rollout, engine=engine), CPU, prompt_tokens=8).plan().phases

    share = int(0.25 * CPU.memory)
    awake, asleep = plan(gpu_memory_utilization=0.25), plan(gpu_memory_utilization=0.25, sleep=True)
    assert {phase: roles.get("vLLM of rollouts") for phase, roles in awake.items()} == dict.fromkeys(awake, share)
    assert {phase for phase, roles in asleep.items() if roles.get("vLLM of rollouts") == share} == {"rollout"}
    for phases in (awake, asleep, plan(mode="server")):
        assert "KV cache" not in phases["rollout"]
    assert "vLLM of rollouts" not in str(plan(mode="server"))


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
        settings = with_settings(recipe(folder), {name.replace("__", "."): value for name, value in changes.items()})
        return Planner(settings, CPU, prompt_tokens=8).plan().phases["update"]["activations"]

    whole = activations(ppo__micro_batch_tokens=256)
    assert activations(ppo__micro_batch_tokens=128) == pytest.approx(whole / 2, rel=0.02)
    assert activations(ppo__micro_batch_tokens=256, model__gradient_checkpointing=True) < whole / 2
    eight = Planner(recipe(folder), CPU, processes=8, prompt_tokens=8).plan()
    assert eight.phases["update"]["gradient buckets"] == 4 * (PARAMETERS + 65)
    one = Planner(recipe(folder), CPU, prompt_tokens=8).plan()
    assert eight.phases["update"]["activations"] == pytest.approx(one.phases["update"]["activations"] / 4, rel=0.02)


def test_gradients_of_an_earlier_micro_batch_are_in_the_peak_of_an_update(folder: Path) -> None:
    planner = Planner(recipe(folder), CPU, prompt_tokens=8)  # micro-batches of 4 rows of 32 tokens
    update = planner.plan().phases["update"]
    own = sum(update[name] for name in ("activations", "gradients", "working"))
    model = planner._model(planner.recipe)
    assert own == model.update(4, 8, 24, entropy=False, accumulated=True).peak
    assert own > model.update(4, 8, 24, entropy=False).peak


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
        assert found.kept >= sum(kept.values())
    else:
        assert found.kept == pytest.approx(sum(kept.values()), rel=0.1)
    assert passes.logp.requires_grad


def test_weights_that_do_not_fit_are_not_traced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(recipe(folder), DEVICES["h100"], prompt_tokens=16)
    resident = sum(planner._resident(planner.recipe).values())
    monkeypatch.setattr(planner, "_traced", lambda *_: pytest.fail("traced"))
    assert planner.advice(resident) == []  # the overhead of the device comes on top
    with pytest.raises(pytest.fail.Exception):
        planner.advice(100 * resident + 10**10)


@pytest.mark.slow  # the test of the command takes one advice, too
def test_the_advice_fits_when_it_is_taken(folder: Path) -> None:
    planner = Planner(recipe(folder, ppo={"micro_batch_tokens": 4096}), CPU, prompt_tokens=8)
    whole = planner.plan().peak
    small = planner.plan(with_settings(planner.recipe, {"ppo.micro_batch_tokens": 32, "rollout.rows_at_once": 1})).peak
    memory = (whole + small) // 2
    advice = planner.advice(memory)
    assert list(advice[0].settings) == ["ppo.micro_batch_tokens"]
    assert len(advice) == 2
    for one in advice:
        taken = Planner(with_settings(planner.recipe, one.settings), CPU, prompt_tokens=8).plan()
        assert taken.peak == one.peak <= memory
    assert planner.advice(10**6) == []


def test_the_rollout_is_lowered_where_it_is_the_peak(folder: Path) -> None:
    settings = recipe(
        folder, model={"path": str(folder), "lora_r": 2}, rollout={"batch_size": 64, "max_new_tokens": 400}
    )
    settings = with_settings(settings, {"ppo.micro_batch_tokens": 408})
    planner = Planner(settings, CPU, prompt_tokens=100)
    assert planner.plan().peak_phase == "rollout"
    advice = planner.advice(planner.plan().peak - 5_000_000)
    assert advice[0].settings == {"rollout.rows_at_once": 32}


def test_time_follows_the_device(folder: Path) -> None:
    slow = Device("slow", "cuda", 10**12, flops=1e9, bandwidth=1e9, call_s=0.0, mfu=0.5)
    fast = Device("fast", "cuda", 10**12, flops=2e9, bandwidth=2e9, call_s=0.0, mfu=0.5)
    found = [Planner(recipe(folder), device, prompt_tokens=8).plan().seconds for device in (slow, fast)]
    for phase in ("rollout", "score", "update"):
        assert found[0][phase] == pytest.approx(2 * found[1][phase])
    # 4 epochs; forward and backward of a full update cost three times a forward pass, and scoring makes two of them
    assert found[0]["update"] / found[0]["score"] == pytest.approx(4 * 3 / 2, rel=0.25)
    assert Planner(recipe(folder), CPU, prompt_tokens=8).plan().seconds == {}
    called = Device("called", "cuda", 10**12, flops=1e18, bandwidth=1e18, call_s=1e-3)
    assert Planner(recipe(folder), called, prompt_tokens=8).plan().seconds["rollout"] > 24 * 0.05


def test_money_is_tokens_times_prices(folder: Path) -> None:
    settings = recipe(folder, annotate={"input_price": 2.0, "output_price": 10.0})
    money = annotation_cost(settings, Lengths(5, 100.0, 120), responses=10, answer_tokens=50)
    assert money.answer_tokens == 500
    assert money.prompt_tokens % 10 == 0
    assert money.prompt_tokens > 10 * (100 + 24)
    assert money.cost == pytest.approx((2.0 * money.prompt_tokens + 10.0 * 500) / 1e6)


def test_a_batch_that_cannot_be_shared_and_prompts_without_room_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="choose a multiple of 3"):
        Planner(recipe(folder), CPU, processes=3, prompt_tokens=8)
    with pytest.raises(ConfigError, match="exceed the model's context of 512"):
        Planner(recipe(folder), CPU, prompt_tokens=500)


def test_a_model_that_cannot_be_reached_is_one_clear_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot read the config of 'no/such-model'.*--model DIR"):
        read_config("no/such-model")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    settings = recipe(tmp_path, data={"train": str(tmp_path / "p.jsonl")})
    with pytest.raises(ModelError, match="--prompt-tokens N"):
        Planner(settings, CPU)


def test_the_command_prints_a_plan_and_its_exit_code_says_whether_it_fits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "my.toml"
    path.write_text(
        f'[model]\npath = "{folder}"\n[data]\ntrain = "x"\n[rollout]\nbatch_size = 8\nmax_new_tokens = 24\n'
    )
    asked = ["plan", str(path), "--prompt-tokens", "8"]
    assert main([*asked, "--device", "h100", "--set", "annotate.input_price=1"]) == 0
    said = capsys.readouterr().out
    assert "fits into 80.0 GB" in said
    assert "TFLOP/s" in said
    assert "money: text2grad annotate" in said
    assert main([*asked, "--memory", "44MB", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert found["advice"]
    settings = found["advice"][0]["settings"]
    changes = [part for name, value in settings.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    assert main([*asked, "--memory", "44MB", *changes]) == 0
    for wrong in (["--memory", "much"], ["--processes", "0"], ["--device", "h100", "--measure"]):
        assert main([*asked, *wrong]) == 2


def test_the_number_of_prompts_is_that_of_the_file_also_where_their_length_is_given(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """12 prompts, a quarter held out: the same number as of the prompts that `text2grad train` uses."""
    (folder / "p.jsonl").write_text("".join(f'{{"prompt": "p {number}"}}\n' for number in range(12)))
    data = {"train": str(folder / "p.jsonl"), "held_out": 0.25}
    used = len(recipe_examples(recipe(folder, data=data)))
    assert 0 < used < 12
    assert Planner(recipe(folder, data=data), CPU, prompt_tokens=8).lengths == Lengths(used, 8, 8)
    task = {"task": "qa", "examples": 70, "train": None}
    assert Planner(recipe(folder, data=task), CPU, prompt_tokens=8).lengths.prompts == 70
    assert caplog.messages == []
    unread = {"train": str(folder / "none.jsonl"), "examples": 50}
    assert Planner(recipe(folder, data=unread), CPU, prompt_tokens=8).lengths.prompts == 50
    assert caplog.messages == [
        f"cannot read {folder}/none.jsonl: No such file or directory; planned with data.examples = 50 prompts"
    ]


def test_sizes_are_read() -> None:
    assert parse_memory("80GiB") == 80 * 2**30
    for text in ("0GB", "GB", "-1GB", "nan"):
        with pytest.raises(ConfigError, match="a size such as 24GB"):
            parse_memory(text)


def test_this_machine_is_measured() -> None:
    found = measured(this_machine(), half=False, threads=1)
    assert found.memory > 10**9
    assert 1e8 < found.flops < 1e15
    assert 1e7 < found.bandwidth < 1e13
    assert 0 < found.call_s < 1e-2
    assert DEVICES["h100"].flops == 989e12


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


@pytest.mark.parametrize("made", [False, True])
def test_a_reward_model_is_planned_with_the_words_and_the_evidence_that_it_reads(folder: Path, made: bool) -> None:
    words = [f"w{n}" for n in range(60)]
    word_tokenizer([" ".join(words)]).save_pretrained(folder)
    lines = (json.dumps({"prompt": " ".join(words[:n])}) + "\n" for n in (60, 12))
    (folder / "p.jsonl").write_text("".join(lines))

    def cache(probe: str = "", **reads: Any) -> int:
        model, settings = folder / "made" / f"{len(reads)}{probe}", {"max_new_tokens": 20, **reads}
        if made:
            model.mkdir(parents=True)
            (model / "config.json").write_text(json.dumps(CONFIG))
            (model / "reward_model.json").write_text(json.dumps(settings))
            save_file({"one": torch.zeros(10)}, model / "model.safetensors")
            if probe:
                (model / "probe").mkdir()
                (model / "probe" / "probe.json").write_text("{}")
        given = recipe(
            folder,
            data={"train": str(folder / "p.jsonl")},
            critic={"model": str(model)},
            reward_model={} if made else {**settings, "probe": probe},
        )
        kept = Planner(given, CPU).plan().phases["critic"]["KV cache"]
        return kept // (8 * 2 * 32 * 4)  # 8 rows; keys and values of 2 heads of 16, fp32

    whole, cut, evident = cache(), cache(prompt_words=20), cache(prompt_words=20, evidence="absent_words")
    assert whole == 60 + 24  # prompt and response: the pass over both is the peak
    assert cut == 22 + 24  # 20 words, the sign that more follow, and a line break
    assert evident == cut + 24  # words of the response once more
    assert cache(prompt_words=20, probe="probe") == cut + 24  # so do its marks
    assert cache(prompt_words=20, evidence="absent_words", probe="probe") == cut + 48


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


def test_the_rows_of_the_critic_are_lowered_where_it_is_the_peak(folder: Path) -> None:
    critic = {"model": str(folder / "none" / "yet")}
    rollout = {"batch_size": 64, "max_new_tokens": 24, "rows_at_once": 64}
    planner = Planner(recipe(folder, critic=critic, rollout=rollout), CPU, prompt_tokens=8)
    assert planner.plan().peak_phase == "critic"
    least = Planner(recipe(folder, critic=critic, rollout={**rollout, "rows_at_once": 8}), CPU, prompt_tokens=8)
    memory = least.plan().peak
    first = planner.advice(memory)[0]
    assert list(first.settings) == ["rollout.rows_at_once"]
    assert planner.plan(with_settings(planner.recipe, first.settings)).peak == first.peak <= memory


def allocated(model: Any, work: Callable[[], object]) -> int:
    """Return the most bytes that a pass allocates beside the weights."""
    known = {one.untyped_storage()._cdata: one for one in (*model.parameters(), *model.buffers())}
    with Allocations(known) as counted:
        work()
    return counted.peak


@pytest.mark.parametrize("rows_at_once", [64, 3])
@pytest.mark.parametrize("kind", ["scalar", "process"])
def test_a_classifier_reads_in_the_memory_that_is_planned(folder: Path, kind: str, rows_at_once: int) -> None:
    cls = AutoModelForSequenceClassification if kind == "scalar" else AutoModelForTokenClassification
    config = AutoConfig.from_pretrained(folder)
    config.num_labels, config.pad_token_id = 1 if kind == "scalar" else 3, 0
    model = cls.from_config(config).eval()
    model.save_pretrained(folder / kind)
    settings = "reward_head.json" if kind == "scalar" else "process_reward_model.json"
    (folder / kind / settings).write_text(json.dumps({"rows_at_once": rows_at_once}))
    critic = {"model": str(folder / kind), "kind": kind}
    planned = Planner(recipe(folder, critic=critic), CPU, prompt_tokens=40).plan().phases["critic"]["working"]
    rows = [[1] * (40 + 24 - short) for short in range(min(rows_at_once, 8))]  # padded to 64 tokens
    assert planned == allocated(model, lambda: logits_of(model, word_tokenizer(["a"]), rows, rows_at_once))
    if rows_at_once == 64:  # the usual number, also of a critic that is not made yet
        none = {"model": str(folder / "none"), "kind": kind}
        unmade = Planner(recipe(folder, critic=none), CPU, prompt_tokens=40).plan().phases["critic"]
        assert (unmade["working"], unmade["reward model"]) == (planned, 4 * PARAMETERS)


@pytest.mark.parametrize("layer", [pytest.param(1, id="states"), pytest.param(None, id="support")])
def test_a_probe_reads_in_the_memory_that_is_planned(folder: Path, layer: int | None) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    model.save_pretrained(folder / "base")
    saved = {"base": str(folder / "base"), "layer": layer, "rows_at_once": 4}
    (folder / "probe.json").write_text(json.dumps(saved))
    save_file({"one": torch.zeros(10)}, folder / "probe.safetensors")
    critic = {"model": str(folder), "kind": "probe"}
    planned = Planner(recipe(folder, critic=critic), CPU, prompt_tokens=40).plan().phases["critic"]["working"]
    rows: list[Any] = (  # the response twice; or behind prompts that are not shared, of 40 tokens and fewer
        [Row([1] * (40 + 2 * 24 - short), [[3, 4]]) for short in range(8)]
        if layer
        else [
            SupportRow([short] * (40 - short + 24), [[0]], 40 - short, [1], [(0, 0)], [([0], [0])])
            for short in range(8)
        ]
    )
    layers = [layer] if layer else []
    assert planned == pytest.approx(
        allocated(model, lambda: list(features_of(model, rows, range(8), layers, 4))), rel=0.1
    )


@pytest.mark.parametrize("kind", ["scalar", "process"])
def test_rows_of_the_rollout_are_lowered_where_a_critic_that_reads_is_the_peak(folder: Path, kind: str) -> None:
    critic = {"model": str(folder / "none"), "kind": kind}
    rollout = {"batch_size": 64, "max_new_tokens": 24, "rows_at_once": 64}
    planner = Planner(recipe(folder, critic=critic, rollout=rollout), CPU, prompt_tokens=8)
    plan = planner.plan()
    assert plan.peak_phase == "critic"
    less = planner._fitting({}, plan.peak - 1)
    assert less is not None
    assert less.settings == {"rollout.rows_at_once": 32}
    assert planner.plan(with_settings(planner.recipe, less.settings)).peak == less.peak < plan.peak


def test_a_policy_that_is_an_adapter_is_planned_as_its_base(folder: Path) -> None:
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    (adapter / "adapter_model.safetensors").write_bytes(b"")
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


def test_micro_batches_of_a_refresh_are_advised_where_it_is_the_peak(folder: Path) -> None:
    none = {"model": str(folder / "none" / "yet")}
    again = {"steps": [3], "batch_size": 64}
    planner = Planner(recipe(folder, critic=none, refresh=again), CPU, prompt_tokens=8)
    assert planner.plan().peak_phase == "refresh"
    least = Planner(recipe(folder, critic=none, refresh={**again, "accumulate": 8}), CPU, prompt_tokens=8)
    first = planner.advice(least.plan().peak)[0]
    assert first.settings == {"refresh.accumulate": 8}
    with pytest.raises(ConfigError, match=r"refresh.accumulate = 3; choose a multiple of 3"):
        Planner(recipe(folder, critic=none, refresh={**again, "accumulate": 3}), CPU, prompt_tokens=8)


def test_a_variant_of_the_policy_is_one_of_a_reward_model_that_is_not_made_yet(folder: Path) -> None:
    none = {"model": str(folder / "none" / "yet")}
    planner = Planner(recipe(folder, critic=none, refresh={"steps": [3], "batch_size": 8}), CPU, prompt_tokens=8)
    planner.plan()
    changed = with_settings(planner.recipe, {"model.lora_r": 4, "model.dtype": "bfloat16"})
    assert planner.plan(changed).phases == Planner(changed, CPU, prompt_tokens=8).plan().phases


def test_a_refresh_that_cannot_be_planned_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    none = {"model": str(folder / "none" / "yet"), "kind": "scalar"}
    plan = Planner(recipe(folder, critic=none, refresh={"steps": [3]}), CPU, prompt_tokens=8).plan()
    assert "refresh" not in plan.phases
    assert 'critic.kind = "scalar": the memory of its refresh is not in this plan' in caplog.text


def seconds(folder: Path, device: Device, *, processes: int = 1, **sections: dict[str, Any]) -> dict[str, float]:
    """Return the time of a step with a reward model that is planned like the policy."""
    critic = {"model": str(folder / "none" / "yet"), **sections.pop("critic", {})}
    planned = recipe(folder, critic=critic, **sections)
    return Planner(planned, device, prompt_tokens=8, processes=processes).plan().seconds


def test_the_time_of_a_step_has_that_of_the_critiques(folder: Path) -> None:
    called = Device("called", "cuda", 10**12, flops=1e18, bandwidth=1e18, call_s=1e-3)

    def critic(tokens: int = 40, **critic: Any) -> float:
        return seconds(folder, called, critic=critic, reward_model={"max_new_tokens": tokens})["critic"]

    token = (critic(72) - critic(40)) / 32
    assert token > 0.02  # operations of one decoded token
    # one pass over prompts, then 24 tokens of responses, 40 of critiques, by the same model
    assert critic(40) - seconds(folder, called)["rollout"] == pytest.approx(16 * token, rel=0.01)
    rows = {"batch_size": 8, "max_new_tokens": 24, "rows_at_once": 8}
    assert seconds(folder, called, critic={"votes": 3}, rollout=rows)["critic"] == pytest.approx(
        3 * seconds(folder, called, rollout=rows)["critic"]
    )
    slow = Device("slow", "cuda", 10**12, flops=1e9, bandwidth=1e18, call_s=0.0, mfu=0.5)
    both = [seconds(folder, slow, processes=count)["critic"] for count in (1, 2)]
    assert both[0] == pytest.approx(2 * both[1], rel=0.05)
    # 8 rows of 32 tokens; 2 operations for each weight of the layer: q, o 64², k, v 64 · 32, MLP 3 · 64 · 128
    products = 8 * 32 * 2 * (2 * 64**2 + 2 * 64 * 32 + 3 * 64 * 128)
    assert seconds(folder, slow, critic={"kind": "scalar"})["critic"] == pytest.approx(products / 0.5e9, rel=0.02)
    assert "critic" not in Planner(recipe(folder), slow, prompt_tokens=8).plan().seconds


def test_the_time_of_refreshes_is_shared_by_all_steps(folder: Path) -> None:
    called = Device("called", "cuda", 10**12, flops=1e18, bandwidth=1e18, call_s=1e-3)

    def refresh(**settings: Any) -> float:
        again = {"steps": [3, 50, 101], "batch_size": 8, "train_steps": 10, **settings}
        return seconds(folder, called, refresh=again, run={"steps": 100})["refresh"]

    # two of three refreshes come, with 10 passes each; four micro-batches are four passes
    one = refresh()
    assert refresh(steps=[3], train_steps=30) == pytest.approx(3 * one / 2)
    assert refresh(accumulate=4) == pytest.approx(4 * one)
    again = {"steps": [3, 50, 101], "batch_size": 8, "train_steps": 10}
    assert seconds(folder, called, refresh=again, run={"steps": 50})["refresh"] == pytest.approx(2 * one)


def test_the_command_says_whether_critiques_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = folder / "my.toml"
    for kind, said in (("generative", "critiques at their longest"), ("server", "without the critic")):
        lines = [f'[model]\npath = "{folder}"', "[data]\ntrain = 'none.jsonl'", "[rollout]\nmax_new_tokens = 24"]
        written.write_text("\n".join([*lines, f'[critic]\nkind = "{kind}"\nmodel = "none/yet"\n']))
        assert main(["plan", str(written), "--device", "h100", "--prompt-tokens", "8"]) == 0
        assert f"steps, {said}; assumed" in " ".join(capsys.readouterr().out.split())
