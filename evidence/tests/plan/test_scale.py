"""Formulas for many GPUs: by hand, beside the trace and measured peaks; the page has the script's figures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evidence.plan.scale import (
    ENGINES,
    GPU,
    LLAMAS,
    Decoder,
    Work,
    activations,
    memory,
    one_process,
    seconds,
    sharded,
    tensor_parallel,
)
from places import script
from text2grad.config.recipe import make_recipe
from text2grad.models import policy_config
from text2grad.runs.dry_run.trace import TracedModel

# hidden 64, 4 heads of 16, 2 key heads, MLP 128, vocabulary 1,000
SMALL = Decoder("small", 2, 64, 128, 32, 1_000)
LAYER = 2 * 64**2 + 2 * 64 * 32 + 3 * 64 * 128 + 128
LORA, FULL, TRL, VERL = ENGINES


def config(folder: Path, **changes: Any) -> str:
    settings = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64},
        **{"intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"max_position_embeddings": 512, "tie_word_embeddings": False, "dtype": "float32", **changes},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def test_parameters_are_those_of_the_models() -> None:
    assert SMALL.parameters == 2 * 64_000 + 64 + 2 * LAYER
    published = [8_030_261_248, 70_553_706_496, 405_853_388_800]  # of the checkpoints on the hub
    assert [model.parameters for model in LLAMAS] == published
    # 2 layers, rank 4: q, o 64 + 64; k, v 64 + 32; gate, up, down 64 + 128
    assert SMALL.adapter(4) == 2 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert SMALL.cache(10) == 2 * 2 * 32 * 2 * 10


@pytest.mark.parametrize(
    ("dtype", "rank", "tolerance"), [("float32", 0, 0.06), ("bfloat16", 0, 0.06), ("float32", 8, 0.1)]
)
def test_activations_are_those_of_the_trace(tmp_path: Path, dtype: str, rank: int, tolerance: float) -> None:
    """The difference of two and one layers, so that embedding and output layer do not count."""
    kept = []
    for layers in (1, 2):
        path = config(tmp_path, dtype=dtype, hidden_size=256, intermediate_size=704, num_hidden_layers=layers)
        model = make_recipe({"model": {"path": path, "lora_r": rank, "dtype": dtype}}).model
        kept.append(TracedModel(policy_config(path), model).update(2, 8, 8, entropy=False)["activations"])
    one = Decoder("", 1, 256, 704, 128, 1_000)
    formula = activations(one, 32, dtype=dtype, adapters=bool(rank), checkpointing=False)
    assert kept[1] - kept[0] == pytest.approx(formula, rel=tolerance)


def test_memory_of_one_gpu_by_hand() -> None:
    work = Work(rows=16, prompt=8, response=8, micro_batch_tokens=32)
    parameters = SMALL.parameters
    full = memory(SMALL, FULL, 4, work)
    assert full["update"]["weights"] == full["update"]["reference"] == full["update"]["gradients"] == parameters
    assert full["update"]["optimizer states"] == 2 * parameters
    assert full["rollout"]["weights to sample"] == 2 * parameters
    assert full["rollout"]["KV cache"] == SMALL.cache(4 * 16)
    # two layers and the ends in bf16, and the gradients of one layer and the ends
    assert full["update"]["gathered weights"] == 2 * (3 * LAYER + 2 * SMALL.ends)
    assert full["update"]["activations"] == 2 * 32 * 2 * 64 + 32 * (24 * 64 + 8 * 128)
    assert full["update"]["logits"] == 12 * 16_384 * 16 + 4 * 1_000 * 64
    lora = memory(SMALL, LORA, 4, work)
    adapter = SMALL.adapter(16)
    assert lora["update"]["weights"] == (2 * parameters + 4 * adapter) // 4
    assert lora["update"]["reference"] == 0
    assert lora["update"]["optimizer states"] == 2 * adapter
    assert lora["update"]["gathered weights"] == 2 * (2 * LAYER + SMALL.ends)
    verl = memory(SMALL, VERL, 4, work)
    assert verl["update"]["weights"] == 2 * parameters
    assert verl["update"]["optimizer states"] == 4 * parameters
    assert verl["update"]["reference"] == parameters // 2
    assert verl["update"]["logits"] == 6 * 32 * 1_000
    assert memory(SMALL, TRL, 4, work)["update"]["logits"] == 6 * 16 * 1_000
    assert sharded(10, 4) == 3


def test_large_models_are_sampled_by_several_gpus() -> None:
    assert [tensor_parallel(model, 256) for model in LLAMAS] == [1, 4, 32]  # 16, 35 and 25 GB each
    assert tensor_parallel(LLAMAS[2], 8) == 8
    rollout = memory(LLAMAS[1], TRL, 64, Work())["rollout"]
    assert rollout["weights to sample"] == 2 * LLAMAS[1].parameters // 4
    assert rollout["KV cache"] == LLAMAS[1].cache(64 * 1_024) // 4  # 1,024 rows · 4 GPUs / 64


def test_seconds_by_hand() -> None:
    device = GPU(10**9, 1e9, 1e9, call_s=0.0, mfu=0.5)
    work = Work(rows=4, prompt=8, response=8, micro_batch_tokens=64)
    forward = 64 * 2 * (2 * LAYER + 2 * 16 * 64) + 2 * 32 * 64_000
    times = seconds(SMALL, FULL, 1, work, device)
    assert times["score"] == pytest.approx(2 * forward / 0.5e9)
    assert times["update"] == pytest.approx(4 * forward / 0.5e9)
    assert seconds(SMALL, LORA, 1, work, device)["update"] == pytest.approx(3 * forward / 0.5e9)
    everywhere = forward + 2 * 32 * 64_000  # logits of the prompts, too
    assert seconds(SMALL, VERL, 1, work, device)["update"] == pytest.approx(8 * everywhere / 0.5e9)
    prompts = 32 * 2 * (2 * LAYER + 2 * 8 * 64) / 0.5e9
    reading = (2 * SMALL.parameters + SMALL.cache(4 * 12)) / 1e9
    token = max(reading, 4 * 2 * SMALL.parameters / 0.5e9)
    assert times["rollout"] == pytest.approx(prompts + 8 * token)  # our sampler starts operations in no time here
    slow = replace(device, call_s=8e-6)
    assert seconds(SMALL, FULL, 1, work, slow)["rollout"] == pytest.approx(prompts + 8 * max(token, 129 * 2 * 8e-6))


def test_transfers_count_where_products_are_short() -> None:
    work = Work(rows=256, prompt=512, response=512, micro_batch_tokens=1_024)
    model = LLAMAS[1]
    times = seconds(model, FULL, 256, work)  # one row on each GPU: 1,024 tokens
    forward = (model.forward(256 * 1_024, 1_024) + model.head(256 * 512)) / (256 * 989e12 * 0.4)
    gather = 2 * model.parameters / 300e9
    assert times["score"] == pytest.approx(2 * max(forward, gather))
    assert times["update"] == pytest.approx(max(4 * forward, 3 * gather))
    assert gather > forward


def test_more_gpus_never_take_more_memory_or_time() -> None:
    for model in LLAMAS:
        for engine in ENGINES:
            found = [memory(model, engine, gpus, Work()) for gpus in (64, 128, 256)]
            for phase in ("rollout", "update"):
                sums = [sum(one[phase].values()) for one in found]
                assert sums == sorted(sums, reverse=True)
            steps = [sum(seconds(model, engine, gpus, Work()).values()) for gpus in (64, 128, 256)]
            assert steps == sorted(steps, reverse=True)


def test_the_formulas_are_within_8_percent_of_every_measured_peak() -> None:
    page = script("evidence/plan/make_scale.py")
    for found in json.loads(page.MEASURED.read_text("utf-8")):
        size, _, setting = found["case"].partition("-")
        formula = sum(one_process(page.SMALL[size], 1_024, **page.SETTINGS[setting]).values())
        assert found["measured"] == pytest.approx(formula + page.overhead("cpu", formula), rel=0.08), found["case"]


def test_the_page_has_the_figures_of_its_script() -> None:
    page = script("evidence/plan/make_scale.py")
    assert page.page() == page.PAGE.read_text("utf-8"), "run `python evidence/plan/make_scale.py`"
