"""Directories of models: what is damaged or of another kind is refused before weights are loaded."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from text2grad.config import ModelConfig
from text2grad.config.recipe import make_recipe
from text2grad.errors import ConfigError, ModelError
from text2grad.models.adapters import check_lora_targets, with_lora
from text2grad.models.policy import base_of
from text2grad.models.pretrained import (
    best_device,
    load_model,
    load_policy,
    load_to_train,
    load_tokenizer,
    on_cpu,
    policy_config,
    vocabulary_of,
)
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example
from tiny_models import VOCAB, tiny


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(ModelError) as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("found", "device"),
    [(None, "cpu"), ("mps", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("xpu", "xpu")],
)
def test_models_go_to_the_accelerator_unless_it_is_one_of_apple(
    monkeypatch: pytest.MonkeyPatch, found: str | None, device: str
) -> None:
    accelerator = None if found is None else torch.device(found)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: accelerator)
    assert best_device() == torch.device(device)
    assert on_cpu() == (device == "cpu")


def test_a_config_is_read_without_weights(saved: Path) -> None:
    config = policy_config(str(saved))
    assert (config.model_type, vocabulary_of(config)) == ("llama", VOCAB)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: data[:4], lambda data: b"garbage" * 100, lambda data: b""],
    ids=["half", "four bytes", "garbage", "empty"],
)
def test_damaged_weights_are_found_by_their_header(saved: Path, damage: Any) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    said = refusal(policy_config, str(saved))
    assert said.startswith(f"{weights} is damaged or incomplete (")
    assert said.endswith("; copy or download it again")
    assert refusal(load_policy, str(saved)).startswith(f"cannot load a causal language model from {str(saved)!r}: ")


def change(directory: Path, **changes: Any) -> None:
    """Remove a tensor from a model's file (None), add one, or replace one."""
    weights = load_file(directory / "model.safetensors")
    weights = {name: tensor for name, tensor in {**weights, **changes}.items() if tensor is not None}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("family", "name", "tensor", "said"),
    [
        ("llama", "model.norm.weight", None, "the files lack 1 of its weights: model.norm.weight; copy"),
        ("llama", "lm_head.weight", None, "the files lack 1 of its weights: lm_head.weight; copy"),
        ("llama-tied", "model.embed_tokens.weight", None, "the files lack 2 of its weights: lm_head.weight, model.emb"),
        ("llama", "model.layers.2.mlp.up_proj.weight", torch.ones(2), "hold, without a place in the model, 1 of its "),
        ("llama", "lm_head.bias", torch.ones(VOCAB), "hold, without a place in the model, 1 of its weights: lm_head.b"),
        ("llama", "more.weight", torch.ones(2), "hold, without a place in the model, 1 of its weights: more.weight"),
        (
            "llama",
            "model.norm.weight",
            torch.full((16,), torch.nan),
            "1 of its weights hold NaN or infinity, the first",
        ),
    ],
)
def test_weights_that_a_file_lacks_has_beside_or_lost_are_refused_by_name(
    tmp_path: Path, family: str, name: str, tensor: Any, said: str
) -> None:
    # transformers 5.23.0 makes missing weights anew and leaves others out, with a table in its log
    tiny(family).save_pretrained(tmp_path)
    change(tmp_path, **{name: tensor})
    refused = refusal(load_policy, str(tmp_path))
    assert refused.startswith(f"cannot load a causal language model from {str(tmp_path)!r}: ")
    assert said in refused
    assert "opy or download it again" in refused


def test_a_weight_that_the_index_of_several_files_lacks_is_refused_by_name(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path, max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    text = json.loads(index.read_text("utf-8"))
    del text["weight_map"]["model.layers.1.input_layernorm.weight"]
    index.write_text(json.dumps(text), "utf-8")
    files = {name: load_file(tmp_path / name) for name in set(text["weight_map"].values())}
    for name, weights in files.items():
        weights.pop("model.layers.1.input_layernorm.weight", None)
        save_file(weights, tmp_path / name, metadata={"format": "pt"})
    assert "lack 1 of its weights: model.layers.1.input_layernorm.weight" in refusal(load_policy, str(tmp_path))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "v_head.summary.weight"),  # the value head of TRL's PPO, beside the policy
        ("llama", "score.weight"),
        ("llama", "model.vision_tower.patch_embed.weight"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),  # buffers that older releases saved
        ("gpt2", "transformer.h.0.attn.masked_bias"),
        ("llama-tied", "lm_head.weight"),
    ],
)
def test_parts_of_a_file_that_a_language_model_does_not_need_are_left_out(
    tmp_path: Path, family: str, name: str
) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    tied = name == "lm_head.weight"
    change(tmp_path, **{name: model.get_input_embeddings().weight.detach().clone() if tied else torch.ones(2)})
    loaded = load_policy(str(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_a_new_head_on_a_trunk_is_made_anew_on_purpose_and_the_trunk_never(saved: Path) -> None:
    kind, how = AutoModelForSequenceClassification, {"new_head": True, "num_labels": 1, "pad_token_id": 0}
    load_model(kind, "a classifier", saved, **how)
    with pytest.raises(ModelError, match=r"lack 1 of its weights: score\.weight"):
        load_model(kind, "a classifier", saved, num_labels=1)  # such as a saved classifier, which has its head
    change(saved, **{"model.norm.weight": None})
    with pytest.raises(ModelError, match=r"lack 1 of its weights: model\.norm\.weight"):
        load_model(kind, "a classifier", saved, **how)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_damaged_files_beside_the_weights_are_refused(saved: Path, name: str) -> None:
    word_tokenizer(["red cat"]).save_pretrained(saved)
    (saved / name).write_text("{damaged")
    load, what = (
        (policy_config, "a causal language model") if name == "config.json" else (load_tokenizer, "a tokenizer")
    )
    assert refusal(load, str(saved)).startswith(f"cannot load {what} from {str(saved)!r}: ")


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path)
    assert refusal(policy_config, str(tmp_path)) == (
        f"{str(tmp_path)!r} is a t5 model, not a causal language model; name the directory or hub name of such a model"
    )


def test_an_adapter_has_the_config_of_its_base_and_a_damaged_one_is_refused(saved: Path, tmp_path: Path) -> None:
    model = with_lora(AutoModelForCausalLM.from_pretrained(saved), r=2, alpha=4, targets="all-linear")
    model.save_pretrained(tmp_path / "adapter")
    assert policy_config(str(tmp_path / "adapter")).model_type == "llama"
    upper = Path(shutil.copytree(tmp_path / "adapter", tmp_path / "upper"))  # as a lesson on the adapter of another
    (upper / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "adapter")}))
    assert policy_config(str(upper)).model_type == "llama"
    (tmp_path / "adapter" / "adapter_config.json").write_text("{damaged")
    path = tmp_path / "adapter" / "adapter_config.json"
    assert refusal(policy_config, str(tmp_path / "adapter")).startswith(f"cannot read {path}: ")


# LoRA targets.


def training(targets: Any) -> ModelConfig:
    return ModelConfig(lora_r=2, lora_targets=targets if isinstance(targets, str) else list(targets))


@pytest.mark.parametrize(
    "targets", ["all-linear", "upper-third", ("q_proj", "v_proj"), ("self_attn.q_proj",), r".*layers\.0.*_proj"]
)
def test_targets_that_fit_are_taken(saved: Path, targets: Any) -> None:
    model = with_lora(load_to_train(str(saved), training(targets)), r=2, alpha=4, targets=targets)
    assert any("lora_A" in name for name, _ in base_of(model).named_modules())


@pytest.mark.parametrize("targets", [("q_proj", "v_prooj"), "v_prooj"])
def test_a_target_that_fits_no_module_is_refused_with_the_names_there_are(saved: Path, targets: Any) -> None:
    for refused in (
        lambda: load_to_train(str(saved), training(targets)),
        lambda: check_lora_targets(tiny("llama"), targets),
    ):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert str(caught.value) == (
            "model.lora_targets: the model has no module 'v_prooj'. Did you mean \"v_proj\"? Known linear modules: "
            "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj; all-linear takes all but the "
            "output layer, upper-third those of the last layers"
        )


def test_a_target_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.lora_targets = '\*proj' is no regular expression: "):
        check_lora_targets(tiny("llama"), "*proj")


# A whole run: nothing of this reaches a loaded model.


def start(path: Path, tokenizer: Any, prompt: Any, monkeypatch: pytest.MonkeyPatch, **model: Any) -> Any:
    def loading(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the weights would be loaded now")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loading)
    settings = {
        "model": model,
        "rollout": {"batch_size": 2, "max_new_tokens": 4},
        "run": {"out": str(path.parent / "run"), "tracker": "none"},
    }

    def critic(examples: Any, responses: Any) -> list[Critique]:
        return [Critique("")] * len(responses)

    return Text2GradTrainer(str(path), critic, [Example(prompt)], make_recipe(settings), processing_class=tokenizer)


def test_what_a_run_cannot_use_is_refused_before_the_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = word_tokenizer(["red cat"])
    path = tmp_path / "model"
    tiny_llama(tokenizer, seed=0, width=16).save_pretrained(path)
    with pytest.raises(ModelError, match="the weights would be loaded now"):
        start(path, tokenizer, "red cat", monkeypatch)
    with pytest.raises(ConfigError, match="has no module"):
        start(path, tokenizer, "red cat", monkeypatch, lora_r=2, lora_targets=["q_prok"])
    with pytest.raises(ModelError, match="no chat template"):
        start(path, tokenizer, [{"role": "user", "content": "red"}], monkeypatch)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(ModelError, match="the model's embedding has"):
        start(path, tokenizer, "red <new>", monkeypatch)
    (path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(ModelError, match="is damaged or incomplete"):
        start(path, tokenizer, "red cat", monkeypatch)
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigError) as caught:
        start(path, tokenizer, "red cat", monkeypatch)
    assert str(caught.value) == (
        f"cannot write to {tmp_path / 'run'}: {tmp_path / 'run'}: it is a file; choose another with --out DIR"
    )


def test_a_tokenizer_with_more_tokens_than_the_model_trains_if_no_prompt_has_them(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["red cat", "cat"])
    model = tiny_llama(tokenizer, seed=0, width=16)
    tokenizer.add_special_tokens({"pad_token": "<new pad>"})  # as some Qwen2 directories do; the embedding stays
    assert tokenizer.pad_token_id == len(tokenizer) - 1 == model.config.vocab_size
    settings = {
        "rollout": {"batch_size": 2, "max_new_tokens": 4},
        "run": {"out": str(tmp_path / "run"), "tracker": "none", "steps": 1},
    }

    def critic(examples: Any, responses: Any) -> list[Critique]:
        return [Critique("")] * len(responses)

    examples = [Example("red cat"), Example("cat")]  # of two lengths, so that there is padding
    Text2GradTrainer(model, critic, examples, make_recipe(settings), processing_class=tokenizer).train()


def test_an_adapter_whose_base_is_elsewhere_names_both(tmp_path: Path) -> None:
    with_lora(tiny("llama"), r=2, alpha=4, targets="all-linear").save_pretrained(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    text = json.loads(config.read_text("utf-8")) | {"base_model_name_or_path": "./gone/base"}
    config.write_text(json.dumps(text), "utf-8")
    for load in (policy_config, load_policy, partial(load_policy, merge=False)):  # the last: `text2grad reward` on it
        said = refusal(load, str(tmp_path / "adapter"))
        assert f"it is an adapter on './gone/base', which is no directory seen from {Path.cwd()}" in said
        assert f"change base_model_name_or_path in {config}" in said
