"""One base in several roles: adapters on and off, what is trained, and no dropout anywhere."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.bert import BertConfig, BertLMHeadModel
from transformers.models.mamba import MambaConfig, MambaForCausalLM

from text2grad.errors import ConfigError, ModelError
from text2grad.models.adapters import (
    POLICY_ADAPTER,
    VALUE_ADAPTER,
    adapter_active,
    adapter_parameters,
    adapters_off,
    base_of,
    disable_dropout,
    half_precision,
    is_peft,
    load_lora,
    with_lora,
)
from text2grad.reward_models.shared_base import add_role
from tiny_models import FAMILIES, VOCAB, tiny

# peft asks transformers for a property that has a newer name
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

IDS = torch.arange(1, 9)[None]


def lora(value_adapter: bool = True, **kwargs: Any) -> Any:
    return with_lora(tiny("llama"), r=2, alpha=4, targets="all-linear", value_adapter=value_adapter, **kwargs)


def stir(model: Any, adapter: str, seed: int) -> None:
    """Give an adapter, which starts as nothing, something to say."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if f"lora_B.{adapter}." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def flags(model: nn.Module) -> dict[str, bool]:
    return {name: p.requires_grad for name, p in model.named_parameters()}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits


def test_a_model_is_told_from_one_with_adapters() -> None:
    model = tiny("llama")
    assert not is_peft(model)
    assert base_of(model) is model
    adapted = lora()
    assert is_peft(adapted)
    assert type(base_of(adapted)).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize("value_adapter", [False, True])
def test_only_the_adapters_are_trained(value_adapter: bool) -> None:
    model = lora(value_adapter)
    trained = {name for name, on in flags(model).items() if on}
    # two layers of seven linear maps (q k v o gate up down), each with A and B; "all-linear" leaves the head out
    assert len(trained) == 2 * 7 * 2 * (1 + value_adapter)
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    assert sum(f".{VALUE_ADAPTER}." in name for name in trained) == 28 * value_adapter
    assert sum(f".{POLICY_ADAPTER}." in name for name in trained) == 28
    assert not any("lm_head" in name for name in trained)


def test_the_upper_third_of_the_layers_gets_adapters_alone_and_is_read_again(tmp_path: Path) -> None:
    model = with_lora(tiny("llama", num_hidden_layers=5), r=2, alpha=4, targets="upper-third")
    adapted = {name.split(".lora_")[0] for name, on in flags(model).items() if on}
    # of five layers the last two: the third from 5 · 2 // 3 = 3 on; seven linear maps in each
    assert {name.split(".layers.")[1].split(".")[0] for name in adapted} == {"3", "4"}
    assert len(adapted) == 2 * 7
    stir(model, POLICY_ADAPTER, 1)
    model.save_pretrained(tmp_path)
    again = load_lora(tiny("llama", num_hidden_layers=5), str(tmp_path))
    assert torch.equal(logits(again), logits(model))


def test_the_adapter_is_scaled_by_alpha_over_r() -> None:
    model = lora()
    layer = base_of(model).model.layers[0].mlp.up_proj
    stir(model, POLICY_ADAPTER, 1)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    a, b = layer.lora_A[POLICY_ADAPTER].weight, layer.lora_B[POLICY_ADAPTER].weight
    torch.testing.assert_close(layer(x), x @ layer.base_layer.weight.t() + (4 / 2) * (x @ a.t()) @ b.t())


def test_fresh_adapters_change_nothing() -> None:
    model = lora()
    base = logits(tiny("llama"))
    assert torch.equal(logits(model), base)
    with adapter_active(model, VALUE_ADAPTER):
        assert torch.equal(logits(model), base)


def test_each_role_sees_its_own_adapter_and_the_reference_sees_none() -> None:
    model = lora()
    stir(model, POLICY_ADAPTER, 1)
    policy = logits(model)
    stir(model, VALUE_ADAPTER, 2)
    assert torch.equal(logits(model), policy)
    with adapter_active(model, VALUE_ADAPTER):
        value = logits(model)
    with adapters_off(model):
        reference = logits(model)
    assert torch.equal(reference, logits(tiny("llama")))
    assert torch.equal(logits(model), policy)
    assert not torch.allclose(policy, reference, atol=0.1)
    assert not torch.allclose(value, reference, atol=0.1)
    assert not torch.allclose(value, policy, atol=0.1)
    with adapter_active(model, VALUE_ADAPTER), adapters_off(model):
        assert torch.equal(logits(model), reference)
    assert torch.equal(logits(model), policy)


@pytest.mark.parametrize("role", ["value", "reference"])
def test_a_role_leaves_everything_as_it_was_even_when_it_fails(role: str) -> None:
    model = lora()
    stir(model, POLICY_ADAPTER, 1)
    next(p for n, p in model.named_parameters() if "lora_A.default" in n).requires_grad_(False)
    before, policy, active = flags(model), logits(model), model.active_adapter
    role_of = {"value": lambda: adapter_active(model, VALUE_ADAPTER), "reference": lambda: adapters_off(model)}
    with role_of[role]():
        pass
    kept = [flags(model) == before, torch.equal(logits(model), policy)]
    with pytest.raises(KeyError, match="stop"), role_of[role]():
        raise KeyError("stop")
    kept += [flags(model) == before, torch.equal(logits(model), policy)]
    assert kept == [True] * 4
    assert model.active_adapter == active
    assert model.get_model_status().enabled is True


def test_a_value_pass_changes_no_flag_while_it_runs() -> None:
    model = lora()
    before = flags(model)
    with adapter_active(model, VALUE_ADAPTER):
        assert flags(model) == before


def test_a_module_that_happens_to_be_called_value_is_not_the_value_adapter() -> None:
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        is_decoder=True,
    )
    model = with_lora(BertLMHeadModel(config), r=2, alpha=4, targets=["value", "query"], value_adapter=True)
    trained = {name for name, on in flags(model).items() if on}
    # attention.self.{query, value}: two modules, two matrices, two adapters; their base weights stay frozen
    assert len(trained) == 2 * 2 * 2
    assert all(".lora_" in name for name in trained)


def test_an_adapter_on_the_embedding_is_trained_too() -> None:
    model = with_lora(tiny("llama"), r=2, alpha=4, targets=["embed_tokens", "q_proj"], value_adapter=True)
    # one embedding and two query maps, A and B each; peft names an embedding's matrices another way
    for adapter in (POLICY_ADAPTER, VALUE_ADAPTER):
        own = adapter_parameters(model, adapter)
        assert len(own) == (1 + 2) * 2
        assert all(p.requires_grad for p in own.values())
    assert sum(flags(model).values()) == 12


# ------------------------------------------------------------------------------------------------------------- dropout

DROPOUT: dict[str, dict[str, float]] = {
    "llama": {"attention_dropout": 0.5},
    "qwen2": {"attention_dropout": 0.5},
    "gemma2": {"attention_dropout": 0.5},
    "gpt2": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
    "phi": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5},
    "opt": {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5},
}


@pytest.mark.parametrize("family", DROPOUT)
def test_no_dropout_is_left_in_training_mode(family: str) -> None:
    model = tiny(family, **DROPOUT[family]).train()
    torch.manual_seed(0)
    assert not torch.equal(logits(model), logits(model)), "this family's dropout does nothing: the test proves nothing"
    disable_dropout(model)
    kept = logits(model)
    assert model.training
    assert torch.equal(logits(model), kept)
    # PyTorch's attention may take another path in eval mode, so this one is not bit for bit
    torch.testing.assert_close(logits(model.eval()), kept)


def test_no_dropout_is_left_in_an_adapter() -> None:
    config = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(tiny("llama"), config).train()
    stir(model, POLICY_ADAPTER, 1)
    torch.manual_seed(0)
    assert not torch.equal(logits(model), logits(model))
    disable_dropout(model)
    assert torch.equal(logits(model), logits(model))


class Noisy(nn.Module):
    """Every way in which the library's models keep a rate outside a Dropout module."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = (
            "activation_dropout",
            "residual_dropout",
            "hidden_dropout",
            "layerdrop",
            "resid_pdrop",
            "drop_prob",
            "jitter_noise",
        )
        for name in (*self.rates, "router_jitter_noise"):
            setattr(self, name, 0.3)
        self.eps, self.normalize_before_dropping, self.drop = 0.3, True, nn.AlphaDropout(0.3)


def test_rates_kept_as_plain_numbers_are_set_to_zero_and_nothing_else_is() -> None:
    module = Noisy()
    disable_dropout(module)
    assert [getattr(module, name) for name in module.rates] == [0.0] * 7
    assert module.router_jitter_noise == 0.3  # of Phi-3.5 MoE, which weighs experts by it
    assert module.drop.p == 0.0
    assert module.eps == 0.3
    assert module.normalize_before_dropping is True


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_seen_in_the_weights(family: str) -> None:
    model = tiny(family)
    assert not half_precision(model)
    base_of(model).get_input_embeddings().to(torch.float16)
    assert half_precision(model)
    assert half_precision(tiny(family).to(torch.bfloat16))
    assert not half_precision(tiny(family).to(torch.float64))


def test_a_module_that_peft_refuses_is_a_setting_to_change() -> None:
    config = MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1)
    with pytest.raises(ConfigError, match=r"^model\.lora_targets = 'all-linear': .*'out_proj'.* Name other modules$"):
        with_lora(MambaForCausalLM(config), r=2, alpha=4, targets="all-linear")
    with_lora(MambaForCausalLM(config), r=2, alpha=4, targets=["in_proj", "x_proj"])


def saved_adapter(directory: Path, config: Any = None) -> str:
    config = config or LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(tiny("llama"), config).save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("damage", ["cut", "another base", "another type"])
def test_an_adapter_that_cannot_be_loaded_is_one_clear_message(damage: str, tmp_path: Path) -> None:
    path = saved_adapter(tmp_path / "adapter")
    weights, config = tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "adapter" / "adapter_config.json"
    reason = {
        "cut": "SafetensorError: ",
        "another base": "RuntimeError: Error(s) in loading state_dict",
        "another type": "KeyError: 'OF_LATER'",
    }[damage]
    saved = json.loads(config.read_bytes())
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif damage == "another base":
        config.write_text(json.dumps({**saved, "r": 4}))  # as where the shapes of the base are others
    else:
        config.write_text(json.dumps({**saved, "peft_type": "OF_LATER"}))
    policy = lora(value_adapter=False)
    for load in (partial(load_lora, tiny("llama")), partial(add_role, policy)):
        with pytest.raises(ModelError) as refused:
            load(path)
        assert str(refused.value).startswith(f"cannot load the adapter {path!r} onto its base ({reason}")
        assert str(refused.value).endswith(
            ". Copy it again, or name in its adapter_config.json the base that it was trained on"
        )
        assert len(str(refused.value)) < 450 + len(path)  # peft's own reason is shortened


def test_an_adapter_that_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    path = saved_adapter(tmp_path / "adapter", PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    with pytest.raises(ModelError) as refused:
        load_lora(tiny("llama"), path)
    assert str(refused.value) == (
        f"the adapter {path!r} is of the type PROMPT_TUNING, which cannot be merged into its base; name a LoRA adapter"
    )


def test_a_trainable_adapter_is_loaded_to_be_trained(tmp_path: Path) -> None:
    path = saved_adapter(tmp_path / "adapter")
    for trainable in (False, True):
        weights = adapter_parameters(load_lora(tiny("llama"), path, trainable=trainable), POLICY_ADAPTER)
        assert {weight.requires_grad for weight in weights.values()} == {trainable}


def test_a_weight_that_an_adapter_lacks_or_has_beside_is_refused_by_name_and_its_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = saved_adapter(tmp_path / "adapter"), []
    load = peft.peft_model.load_peft_weights
    monkeypatch.setattr(peft.peft_model, "load_peft_weights", lambda *a, **b: reads.append(a) or load(*a, **b))
    load_lora(tiny("llama"), path)
    assert len(reads) == 1
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    whole = load_file(file)
    name = next(name for name in whole if "lora_B" in name)
    save_file({key: value for key, value in whole.items() if key != name}, file)
    with pytest.raises(ModelError, match=r"the files lack 1 of its weights: .*\.q_proj\.lora_B\.default\.weight; copy"):
        load_lora(tiny("llama"), path)
    save_file({**whole, name.replace("q_proj", "o_proj"): whole[name].clone()}, file)
    with pytest.raises(ModelError, match=r"hold, without a place in the model, 1 of its weights: .*o_proj\.lora_B"):
        load_lora(tiny("llama"), path)
