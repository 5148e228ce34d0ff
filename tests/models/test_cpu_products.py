"""fp32 products move to oneDNN by rule: a wide fp32 model on AMD without AMX, in a command, if they stay exact."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from text2grad.models import cpu_products as module
from text2grad.models.cpu_products import attention, fast_products, product_error, slow_mkl, use_fast_products
from text2grad.models.pretrained import load_policy
from text2grad.models.sampling import sample
from tiny_models import tiny

AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512bw avx512_bf16\n\nprocessor\t: 1\n"
MATMUL = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = MATMUL.fp32_precision
    yield
    MATMUL.fp32_precision = before


@pytest.fixture
def on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "slow_mkl", lambda: True)
    monkeypatch.delenv(module.VARIABLE, raising=False)


def model(width: int = 256, dtype: torch.dtype = torch.float32) -> Any:
    return tiny("llama", hidden_size=width, intermediate_size=16).to(dtype)


def test_a_command_moves_the_products_of_a_wide_model_and_puts_them_back(on_amd: None) -> None:
    with fast_products():
        assert MATMUL.fp32_precision == "none"
        assert not use_fast_products(model(width=192))
        assert not use_fast_products(model(dtype=torch.bfloat16))
        assert MATMUL.fp32_precision == "none"
        assert use_fast_products(model())
        assert MATMUL.fp32_precision == "bf16"
        assert use_fast_products(model(width=64))  # the process computes so already
        with fast_products():
            pass  # a command that a command calls ends nothing
        assert MATMUL.fp32_precision == "bf16"
    assert MATMUL.fp32_precision == "none"
    assert not use_fast_products(model())  # a library user's process stays as it is
    assert MATMUL.fp32_precision == "none"


def test_the_variable_and_a_decision_of_somebody_else_are_kept(on_amd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, "0")
    with fast_products():
        assert not use_fast_products(model())
    monkeypatch.delenv(module.VARIABLE)
    MATMUL.fp32_precision = "ieee"
    with fast_products():
        assert not use_fast_products(model())
    assert MATMUL.fp32_precision == "ieee"


def test_products_that_round_to_bf16_are_refused(on_amd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "product_error", lambda: 4e-3)
    with fast_products():
        assert not use_fast_products(model())
        assert MATMUL.fp32_precision == "none"


def test_the_error_of_fp32_passes_and_that_of_bf16_does_not() -> None:
    assert product_error() < module.LARGEST_ERROR / 3
    a, b = torch.randn(128, 512), torch.randn(512, 128)
    exact = a.double() @ b.double()
    rounded = a.bfloat16().double() @ b.bfloat16().double()  # as AMX would: inputs rounded, sums exact
    assert float((rounded - exact).abs().max() / exact.abs().max()) > 30 * module.LARGEST_ERROR


@pytest.mark.parametrize("masked", [None, "bool", "additive"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scaling", [0.3, None])
def test_attention_of_a_single_token_is_that_of_transformers(
    scaling: float | None, groups: int, masked: str | None
) -> None:
    generator = torch.Generator().manual_seed(groups)
    query, key, value = (
        torch.randn(3, n, length, 8, generator=generator) for n, length in ((4, 1), (groups, 5), (groups, 5))
    )
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool()[:, None, None]
    mask = {None: None, "bool": keep, "additive": (~keep).float() * torch.finfo(torch.float32).min}[masked]
    layer = torch.nn.Module()
    layer.num_key_value_groups, layer.is_causal = 4 // groups, True  # type: ignore[assignment]
    with torch.no_grad():
        ours, _ = attention(layer, query, key, value, mask, scaling=scaling)
        theirs, _ = sdpa_attention_forward(layer, query, key, value, mask, scaling=scaling)
    assert ours.shape == theirs.shape == (3, 1, 4, 8)
    torch.testing.assert_close(ours, theirs)


def test_a_wide_model_samples_the_same_text_in_a_command(on_amd: None) -> None:
    policy, prompts = tiny("llama", hidden_size=256, num_attention_heads=4, num_key_value_heads=2), [[3, 4], [5, 6, 7]]
    ids = torch.tensor([[3, 4, 5, 6]])

    def answers() -> Any:
        responses = sample(policy, prompts, torch.full((2, 6), 0.4), eos_ids=(99,), pad_id=0)
        return responses, policy(input_ids=ids).logits.detach()

    plain, logits = answers()
    with fast_products():
        assert use_fast_products(policy)
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attention
        fast, fast_logits = answers()
        assert MATMUL.fp32_precision == "bf16"  # attention of new tokens leaves it so
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert fast == plain
    torch.testing.assert_close(fast_logits, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("before", "after", "slow"),
    [
        ("", "", True),
        ("AuthenticAMD", "GenuineIntel", False),
        ("avx512_bf16", "avx512_bf16 amx_tile", False),
        ("avx512bw ", "", False),
    ],
)
def test_the_machine_is_judged_by_vendor_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, slow: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    file = tmp_path / "cpuinfo"
    file.write_text(AMD.replace(before, after) if before else AMD)
    assert slow_mkl(file) == slow
    assert not slow_mkl(tmp_path / "none")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not slow_mkl(file)


@pytest.mark.parametrize(
    ("capability", "device", "width", "dtype", "warned"),
    [
        ("AVX2", None, 256, torch.bfloat16, True),
        ("AVX2", None, 256, torch.float16, True),
        ("AVX2", None, 256, torch.float32, False),
        ("AVX2", None, 16, torch.bfloat16, False),
        ("AVX2", "cuda", 256, torch.bfloat16, False),
        ("AVX2", "mps", 256, torch.bfloat16, True),  # models stay on the CPU there
        ("AVX512", None, 256, torch.bfloat16, False),
    ],
)
def test_16_bits_on_a_cpu_without_products_for_them_are_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    capability: str,
    device: str | None,
    width: int,
    dtype: torch.dtype,
    warned: bool,
) -> None:
    model(width).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    found = device and torch.device(device)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    load_policy(str(tmp_path), dtype=str(dtype).removeprefix("torch."))
    told = [one for one in caplog.messages if f"in {str(dtype).removeprefix('torch.')}, and this CPU" in one]
    assert len(told) == warned
