"""The plan of `sft` and `reward`: figures by arithmetic, a real step beside its trace, advice that fits when taken."""

import json
from pathlib import Path
from typing import Any

import pytest
from trl.trainer.sft_trainer import SFTTrainer

from evidence.plan.fine_tuning import FineTuningPlanner, with_settings
from planned import CONFIG, CPU, PARAMETERS, recipe
from text2grad.errors import ConfigError
from text2grad.runs.dry_run.devices import Device, device_named
from text2grad.runs.dry_run.plan import Plan
from text2grad.runs.dry_run.trace import Allocations
from text2grad.runs.sft_run import SFTRun
from text2grad.tasks.tiny import tiny_llama, word_tokenizer

# rank 2 of q, o 64 → 64; k, v 64 → 32; gate, up 64 → 128; down 128 → 64: r · (in + out), in 32 bits
ADAPTER = 4 * 2 * (2 * 128 + 2 * 96 + 3 * 192)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that holds a config and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def sft_planner(folder: Path, device: Device = CPU, *, processes: int = 1, **sections: Any) -> FineTuningPlanner:
    """Return the planner of a fine-tuning of 8 rows of 64 tokens."""
    settings = {"batch_size": 8, "max_tokens": 64, "steps": 5, **sections.pop("sft", {})}
    return FineTuningPlanner(recipe(folder, sft=settings, **sections), "sft", device, processes=processes)


def sft(folder: Path, device: Device = CPU, *, processes: int = 1, **sections: Any) -> Plan:
    """Return its plan."""
    return sft_planner(folder, device, processes=processes, **sections).plan()


def reward(folder: Path, *, processes: int = 1, **settings: Any) -> Plan:
    """Return the plan of a reward model that learns from 8 rows of 64 tokens, 24 of a critique."""
    settings = {"batch_size": 8, "max_tokens": 64, "max_new_tokens": 24, "eval_limit": 6, **settings}
    rollout = {"batch_size": 8, "max_new_tokens": 24, "rows_at_once": settings.pop("rows_at_once", 64)}
    made = recipe(folder, rollout=rollout, reward_model=settings)
    return FineTuningPlanner(made, "reward", CPU, processes=processes).plan()


def test_one_model_is_trained_without_reference_and_value_function(folder: Path) -> None:
    plan = sft(folder)
    assert plan.parameters == (PARAMETERS, PARAMETERS)
    assert plan.phases["update"]["model"] == 4 * PARAMETERS
    assert plan.phases["update"]["optimizer states"] == 2 * 4 * PARAMETERS
    assert plan.phases["optimizer"]["gradients"] == 4 * PARAMETERS
    assert set(plan.phases["optimizer"]) == {"model", "optimizer states", "gradients", "working", "other"}
    planner = sft_planner(folder)
    assert (planner.rows(planner.recipe), planner.row_tokens) == (8, 64)
    assert plan.peak == sum(plan.phases[plan.peak_phase].values())
    half = sft(folder, model={"path": str(folder), "dtype": "bfloat16", "lora_r": 2})
    assert half.phases["update"]["model"] == 2 * PARAMETERS + ADAPTER
    assert half.phases["optimizer"]["optimizer states"] == 2 * ADAPTER
    assert half.phases["optimizer"]["gradients"] == ADAPTER


def test_rows_are_as_long_as_the_context_and_the_model_of_the_section_is_taken(folder: Path) -> None:
    assert sft_planner(folder, sft={"max_tokens": 4096}).row_tokens == 512
    larger = folder / "larger"
    larger.mkdir()
    (larger / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 2}))
    layer = PARAMETERS - 2 * 64_000 - 64
    for phase, section in (("sft", "sft"), ("reward", "reward_model")):
        made = recipe(folder, **{section: {"model": str(larger)}})
        assert FineTuningPlanner(made, phase, CPU).plan().parameters[0] == PARAMETERS + layer  # type: ignore[arg-type]


def test_micro_batches_processes_and_checkpointing_hold_fewer_activations(folder: Path) -> None:
    whole = sft(folder).phases["update"]
    parts = sft(folder, sft={"accumulate": 4})
    assert parts.phases["update"]["activations"] == pytest.approx(whole["activations"] / 4, rel=0.05)
    assert parts.phases["update"]["gradients"] == 4 * PARAMETERS
    assert parts.phases["update"]["working"] > whole["working"] / 4  # made beside the gradients of the parts before
    both = sft(folder, processes=2)
    assert both.phases["update"]["activations"] == pytest.approx(whole["activations"] / 2, rel=0.05)
    assert both.phases["update"]["gradient buckets"] == 4 * PARAMETERS
    checkpointing = sft(folder, model={"path": str(folder), "gradient_checkpointing": True})
    assert checkpointing.phases["update"]["activations"] < whole["activations"] / 2


def test_mixed_precision_and_dropout_change_the_activations(folder: Path) -> None:
    model = {"path": str(folder), "lora_r": 2}

    def activations(device: Device = CPU, **settings: Any) -> int:
        return int(sft(folder, device, model=model, sft=settings).phases["update"]["activations"])

    assert activations(bf16=True) < 0.9 * activations()
    more = activations(lora_dropout=0.05) - activations()
    # Of each of 8 · 64 tokens a layer drops the inputs of q, k, v, gate, up (64 each), o (64) and down (128), 512
    # numbers: the results are kept, and where the input has a gradient the mask. Without dropout the 320 numbers of
    # four inputs (q, k and v share one, as gate and up do) are kept in their place.
    assert 4 * 8 * 64 * (512 - 320) < more < 4 * 8 * 64 * 2 * 512
    on_gpu = activations(device_named("h100"), lora_dropout=0.05) - activations(device_named("h100"))
    assert on_gpu < more  # a byte for each number of the mask in place of four


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_a_step_of_the_trainer_allocates_what_is_planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    words = [f"w{number}" for number in range(900)]
    tokenizer = word_tokenizer([" ".join(words)])
    tiny_llama(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    lines = [
        json.dumps({"prompt": words[n], "reference": " ".join(words[n : n + 62])}) + "\n"  # 64 tokens with the end
        for n in range(0, 800, 10)
    ]
    (folder / "p.jsonl").write_text("".join(lines))
    settings = {
        "out": str(folder / "out"),
        **{"batch_size": 16, "accumulate": 2, "max_tokens": 64, "steps": 1, "lora_dropout": dropout},
    }
    made = recipe(
        folder,
        model={"path": str(folder), "lora_r": 2},
        data={"train": str(folder / "p.jsonl")},
        sft=settings,
        run={"tracker": "none"},
    )
    planned = FineTuningPlanner(made, "sft", CPU).plan().phases["update"]
    peaks = []
    step = SFTTrainer.training_step

    def counted(self: Any, model: Any, *args: Any, **named: Any) -> Any:
        known = {one.untyped_storage()._cdata: one for one in (*model.parameters(), *model.buffers())}
        with Allocations(known) as counter:
            out = step(self, model, *args, **named)  # type: ignore[no-untyped-call]
        peaks.append(counter.peak)
        return out

    monkeypatch.setattr(SFTTrainer, "training_step", counted)
    monkeypatch.setattr("trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE", 128)  # a tile of about our bytes
    SFTRun(made).run()
    assert len(peaks) == 2
    own = sum(planned[role] for role in ("activations", "gradients", "working"))
    assert own == pytest.approx(max(peaks), rel=0.1)


def test_held_out_critiques_are_decoded_with_a_cache(folder: Path) -> None:
    # 6 rows of 64 tokens, 60 of them of a critique; keys and values of 2 heads of 16, in 32 bits
    row = 64 * 2 * 32 * 4
    assert reward(folder, max_new_tokens=60).phases["measurement"]["KV cache"] == 6 * row
    assert reward(folder, max_new_tokens=60, rows_at_once=2).phases["measurement"]["KV cache"] == 2 * row
    assert reward(folder, max_new_tokens=60, processes=2).phases["measurement"]["KV cache"] == 3 * row
    assert "KV cache" not in sft(folder).phases["measurement"]


@pytest.mark.slow
def test_the_advice_fits_when_it_is_taken(folder: Path) -> None:
    made = recipe(folder, sft={"batch_size": 64, "max_tokens": 256})
    planner = FineTuningPlanner(made, "sft", CPU)
    parts = planner.plan(with_settings(made, {"sft.accumulate": 8})).peak
    first, second = planner.advice(parts)
    assert first.settings == {"sft.accumulate": 8}
    assert second.settings["model.gradient_checkpointing"] is True
    for one in (first, second):
        taken = FineTuningPlanner(with_settings(made, one.settings), "sft", CPU).plan()
        assert taken.peak == one.peak <= parts
    smallest = planner.plan(with_settings(made, {"sft.accumulate": 64, "model.gradient_checkpointing": True})).peak
    lora, half = planner.advice(smallest - 1)
    assert lora.settings["model.lora_r"] == half.settings["model.lora_r"] == 16
    assert half.settings["model.dtype"] == "bfloat16"
    assert planner.advice(10**6) == []
    with pytest.raises(ConfigError, match=r"sft.batch_size = 64 .* 3 processes × sft.accumulate = 1; .* multiple of 3"):
        FineTuningPlanner(made, "sft", CPU, processes=3)
