"""A merged, saved or reloaded adapter is the model that it was, for the kinds of adapters that peft has.

`test_every_kind_of_adapter` (slow) writes tests/matrices/adapters.md.
"""

import copy
import shutil
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers.models.falcon_mamba import FalconMambaConfig
from transformers.models.mixtral import MixtralConfig

from text2grad.errors import ModelError
from text2grad.models.adapters import load_lora
from text2grad.models.pretrained import load_policy
from text2grad.models.probing import apart, probe, save_model
from tiny_models import DECODER, VOCAB, tiny

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore:`is_gradient_checkpointing`:FutureWarning")

LAYERS = {"gpt2": ["c_attn", "c_proj"]}  # Conv1D, whose weights are transposed
EMBEDDING = {"gpt2": "wte"}
MATRIX = Path(__file__).parents[1] / "matrices" / "adapters.md"


def layers(family: str) -> list[str]:
    return LAYERS.get(family, ["q_proj", "v_proj", "down_proj"])


def lora(family: str, *more: str, **settings: Any) -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules=[*layers(family), *more], task_type="CAUSAL_LM", **settings)


def other(kind: str, family: str, **settings: Any) -> Any:
    """Return the config of an adapter of another kind than LoRA, on as many layers as it allows."""
    return getattr(peft, f"{kind}Config")(**{"target_modules": layers(family), "task_type": "CAUSAL_LM"} | settings)


def kinds(family: str) -> dict[str, Callable[[], Any]]:
    embedding, of, replicated = EMBEDDING.get(family, "embed_tokens"), partial(lora, family), [[0, 2], [1, 2]]
    kind = partial(other, family=family)
    return {
        "LoRA": of,
        "rsLoRA": partial(of, use_rslora=True),
        "DoRA": partial(of, use_dora=True),
        "bias all": partial(of, bias="all"),
        "bias lora_only": partial(of, bias="lora_only"),
        "lora_bias": partial(of, lora_bias=True),
        "on the embedding": partial(of, embedding),
        "on the output layer": partial(of, "lm_head"),
        "on both": partial(of, embedding, "lm_head"),
        "on the embedding, ensure_weight_tying": partial(of, embedding, ensure_weight_tying=True),
        "DoRA on the embedding": partial(of, embedding, use_dora=True),
        "DoRA on the output layer": partial(of, "lm_head", use_dora=True),
        "modules_to_save: embedding": partial(of, modules_to_save=[embedding]),
        "modules_to_save: output layer": partial(of, modules_to_save=["lm_head"]),
        "modules_to_save: both": partial(of, modules_to_save=[embedding, "lm_head"]),
        "modules_to_save: both, ensure_weight_tying": partial(
            of, modules_to_save=[embedding, "lm_head"], ensure_weight_tying=True
        ),
        "trainable_token_indices": partial(of, trainable_token_indices=[1, 5, 40]),
        "rank_pattern, alpha_pattern": partial(
            of, rank_pattern={layers(family)[0]: 2}, alpha_pattern={layers(family)[1]: 1}
        ),
        "layer_replication": partial(of, layer_replication=replicated),
        "layer_replication, on the embedding": partial(of, embedding, layer_replication=replicated),
        "PiSSA": partial(of, init_lora_weights="pissa"),
        "PiSSA, fast SVD": partial(of, init_lora_weights="pissa_niter_4"),
        "OLoRA": partial(of, init_lora_weights="olora"),
        "VeRA": partial(kind, "Vera", r=4, target_modules=layers(family)[:1]),
        "LoHa": partial(kind, "LoHa", r=4),
        "LoHa on the output layer": partial(kind, "LoHa", r=4, target_modules=[*layers(family), "lm_head"]),
        "LoKr": partial(kind, "LoKr", r=4),
        "(IA)³": partial(kind, "IA3", feedforward_modules=layers(family)[-1:]),
        "OFT": partial(kind, "OFT", r=0, oft_block_size=4),
        "BOFT": partial(kind, "BOFT", boft_block_size=4),
        "AdaLoRA": partial(kind, "AdaLora", init_r=4, target_r=2, total_step=10),
        "HRA": partial(kind, "HRA", r=4),
        "FourierFT": partial(kind, "FourierFT", n_frequency=20),
        "MiSS": partial(kind, "Miss", r=4),
        "layer norms": partial(kind, "LNTuning", target_modules=["ln_1" if family == "gpt2" else "input_layernorm"]),
        "prompt tuning": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    }


def stirred(base: Any, config: Any) -> Any:
    """Return a model with an adapter whose weights, and whatever else is trained, have moved."""
    torch.manual_seed(1)
    model, generator = get_peft_model(base, config), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def differences(base: Path, config: Any, out: Path) -> tuple[float, float, float]:
    """Return how far an adapter moves log-probs, and how far they are off when it is merged, and saved and read."""
    for name in ("adapter", "merged"):
        shutil.rmtree(out / name, ignore_errors=True)
    adapted = stirred(load_policy(str(base)), config)
    before, bare = probe(adapted), probe(load_policy(str(base)))
    save_model(adapted, out / "adapter")
    merged = load_policy(str(out / "adapter"))
    save_model(merged, out / "merged")
    again = load_policy(str(out / "merged"))
    tokens = torch.arange(1, 9)[None]
    for _ in range(3):  # with a cache, which layers of their own need
        with torch.no_grad():
            tokens = torch.cat([tokens, adapted.eval()(tokens, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    written = again.generate(tokens[:, :8], max_new_tokens=3, do_sample=False)
    assert torch.equal(written, tokens[:, : written.shape[1]])
    return apart(before, bare), apart(probe(merged), before), apart(probe(again), before)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "LoRA"),
        ("llama-tied", "on the embedding"),  # peft#2018, peft#2777: 15.7 nats off, with peft 0.21.0
        ("llama-tied", "on both"),
        ("llama-tied", "modules_to_save: output layer"),
        ("gpt2", "on the output layer"),
        ("llama", "layer_replication"),  # 2.7 in a logit, with peft 0.21.0
        ("qwen2", "bias all"),
        ("gemma2", "PiSSA"),
        ("llama-tied", "VeRA"),
    ],
)
def test_a_merged_saved_and_reloaded_adapter_is_the_same_model(family: str, kind: str, tmp_path: Path) -> None:
    tiny(family).save_pretrained(tmp_path / "base")
    effect, merged, again = differences(tmp_path / "base", kinds(family)[kind](), tmp_path)
    assert effect > 0.01
    assert max(merged, again) < 1e-4  # rounding in 32 bits


@pytest.mark.slow
def test_every_kind_of_adapter(tmp_path: Path) -> None:
    rows, wrong = [], []
    for family in ("llama", "llama-tied", "gpt2", "qwen2", "gemma2"):
        base = tmp_path / family
        tiny(family).save_pretrained(base)
        for kind, made in kinds(family).items():
            try:
                get_peft_model(tiny(family), made())(torch.arange(1, 9)[None])
            except (ValueError, TypeError, IndexError, RuntimeError) as error:
                rows.append((family, kind, "peft itself cannot: " + str(error).splitlines()[0][:120], "", ""))
                continue
            try:
                figures = differences(base, made(), tmp_path)
            except ModelError as error:
                reason = str(error).replace(str(tmp_path), "…").splitlines()[0][:260]
                rows.append((family, kind, f"refused: {reason}", "", ""))
                continue
            rows.append((family, kind, *(f"{figure:.1e}" for figure in figures)))
            if not max(figures[1:]) < 1e-4:
                wrong.append(rows[-1])
    versions = f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    head = ["model", "adapter", "moves log-probs by, nats", "off when merged", "off when saved and read"]
    table = [head, ["---"] * 5, *rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    MATRIX.write_text("\n".join([f"{date.today()}, {versions}", "", *lines]) + "\n", "utf-8")
    assert wrong == []


def test_what_a_merge_cannot_keep_is_refused(tmp_path: Path) -> None:
    # An adapter of FalconMamba's dt_proj has no effect before it is merged: the scan reads the weight itself
    # (transformers 5.23.0).
    config = FalconMambaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4, initializer_range=1.0
    )
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config)
    base.save_pretrained(tmp_path / "base")
    base = load_policy(str(tmp_path / "base"))
    stirred(base, LoraConfig(r=2, target_modules=["dt_proj"], lora_alpha=64)).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"adapter' cannot be merged into its base: log-probs .* differ by .* nats"):
        load_policy(str(tmp_path / "adapter"))
    tiny("llama").save_pretrained(tmp_path / "base")
    adapted = stirred(load_policy(str(tmp_path / "base")), lora("llama", lora_bias=True))
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(
        ModelError, match=r"adapter' cannot be merged .* \(RuntimeError: Impossible .*\. Train one that can"
    ):
        load_policy(str(tmp_path / "adapter"))


def test_a_fast_pissa_which_peft_draws_again_when_it_loads_it_is_refused(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path / "base")
    adapted = stirred(load_policy(str(tmp_path / "base")), lora("llama", init_lora_weights="pissa_niter_4"))
    adapted.save_pretrained(tmp_path / "adapter")  # 3.5 nats off, with peft 0.21.0
    with pytest.raises(ModelError, match=r"^the adapter '.*' has init_lora_weights = 'pissa_niter_4': "):
        load_policy(str(tmp_path / "adapter"))


def test_adapters_of_experts_are_merged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(MixtralConfig(**DECODER, num_local_experts=2)).save_pretrained(tmp_path / "base")
    config = lora("llama", target_parameters=["mlp.experts.gate_up_proj", "mlp.gate.weight"])
    config.target_modules = {"q_proj"}
    effect, *off = differences(tmp_path / "base", config, tmp_path)
    assert effect > 0.1 > 1e-4 > max(off)


def test_an_adapter_on_another_base_than_its_own_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny("llama").save_pretrained(base)
    save_model(stirred(load_policy(str(base)), lora("llama")), tmp_path / "adapter")
    load_policy(str(tmp_path / "adapter"), dtype="bfloat16")  # rounding is no other base
    tiny("llama", seed=1).save_pretrained(base)
    with pytest.raises(ModelError) as refused:
        load_policy(str(tmp_path / "adapter"))
    said = str(refused.value)
    assert said.startswith(f"{str(tmp_path / 'adapter')!r} is not the model that was saved: its log-probs differ by ")
    assert f"its base {str(base)!r}, which is not the one that it was trained on" in said
    assert said.endswith(f"If you changed the model on purpose, remove {tmp_path / 'adapter' / 'probe.json'}")
    (tmp_path / "adapter" / "probe.json").unlink()
    load_policy(str(tmp_path / "adapter"))


@pytest.mark.parametrize(
    "text", [b"{cut", b"[]", b"{}", b"\xff", b'{"logp": [[0.0], [0.0, 1.0]], "eps": 1}', b'{"logp": [1.0], "eps": 1}']
)
def test_a_damaged_probe_is_named_with_the_ways_out(tmp_path: Path, text: bytes) -> None:
    save_model(tiny("llama"), tmp_path)
    (tmp_path / "probe.json").write_bytes(text)
    ways_out = "Copy the model again, or remove this file, which tells another model from it"
    with pytest.raises(ModelError, match=rf"^cannot read {tmp_path}/probe\.json: .*\. {ways_out}$"):
        load_policy(str(tmp_path))
    (tmp_path / "probe.json").unlink()
    load_policy(str(tmp_path))


def test_a_model_whose_file_changed_is_refused(tmp_path: Path) -> None:
    save_model(tiny("llama"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"].zero_()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"is not the model that was saved: .* The cause is its files, or damage"):
        load_policy(str(tmp_path))


@pytest.mark.parametrize("damage", ["lost", "added", "no number"])
def test_an_adapter_file_with_other_weights_than_its_layers_is_refused(damage: str, tmp_path: Path) -> None:
    get_peft_model(tiny("llama"), lora("llama")).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    if damage == "lost":  # peft 0.21.0 warns of it
        del weights[name]
    elif damage == "no number":
        weights[name][0, 0] = torch.nan
    else:  # as by a base with more layers; peft 0.21.0 leaves it out without a word
        weights[name.replace("layers.1", "layers.2")] = weights[name].clone()
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.[12]\.self_attn\.q_proj\.lora_A"):
        load_lora(tiny("llama"), str(tmp_path))


def test_a_probe_draws_nothing_and_leaves_the_model_as_it_is() -> None:
    model = tiny("gpt2").train()
    model.transformer.ln_f.eval()
    modes, state = [module.training for module in model.modules()], torch.random.get_rng_state()
    assert torch.equal(probe(model), probe(model))  # though this model has dropout
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    nan, logp = copy.deepcopy(model), probe(model)
    torch.nn.init.constant_(nan.transformer.ln_f.weight, float("nan"))
    others = (logp, logp + 0.5, probe(nan), logp[:, 1:])
    assert [apart(logp, other) for other in others] == [0.0, pytest.approx(0.5), float("inf"), float("inf")]


def test_tokens_that_a_model_masks_are_no_difference() -> None:
    class Masked(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits[..., 0] = -torch.inf
            return out

    model = tiny("llama", model_class=Masked)
    assert apart(probe(model), probe(model)) == 0.0
