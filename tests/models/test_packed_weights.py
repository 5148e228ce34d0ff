"""Products with packed weights: the same numbers, only where they pay, and gone behind the context."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from text2grad.models import packed_weights as module
from text2grad.models.adapters import with_lora
from text2grad.models.packed_weights import LEAST_STEPS, packed_weights
from text2grad.models.sampling import sample
from text2grad.tasks.tiny import tiny_llama, word_tokenizer


@pytest.fixture
def small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_WEIGHTS", 1)


def packed(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if "forward" in layer.__dict__]


@pytest.mark.usefixtures("small_ones")
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_layer(bias: bool) -> None:
    torch.manual_seed(0)
    layer, states = nn.Linear(40, 56, bias=bias), torch.randn(3, 5, 40)
    with torch.no_grad():
        expected = layer(states)
        with packed_weights(layer, rows=15, steps=LEAST_STEPS):
            assert packed(layer) == [""]
            torch.testing.assert_close(layer(states), expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(layer(states[:1, :2]), expected[:1, :2], rtol=1e-5, atol=1e-6)  # fewer rows
        assert not packed(layer)
        assert torch.equal(layer(states), expected)


@pytest.mark.usefixtures("small_ones")
def test_a_policy_with_an_adapter_samples_the_same_responses_and_learns_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products, product = list[int](), module._product
    monkeypatch.setattr(module, "_product", lambda *parts: (products.append(1), product(*parts))[1])
    tokenizer = word_tokenizer(["a b c d e f g h"])
    policy: Any = with_lora(tiny_llama(tokenizer, seed=0, width=32, layers=2), r=4, alpha=8, targets="all-linear")
    prompts, uniforms = [[1, 2, 3], [2], [1, 2, 3]], torch.rand(3, LEAST_STEPS, generator=torch.manual_seed(1))
    logps: list[list[tuple[float, ...]]] = []

    def sampled(steps: int) -> list[tuple[int, ...]]:
        return sample(
            *(policy, prompts, uniforms[:, :steps]), eos_ids=(), pad_id=0, on_part=lambda _, logp: logps.append(logp)
        )

    responses = sampled(LEAST_STEPS)
    assert not packed(policy)
    assert products, "packed in between"
    products.clear()
    assert [row[:-1] for row in responses] == sampled(LEAST_STEPS - 1)
    assert not products, "too few steps"
    for own, plain in zip(*logps, strict=True):
        assert own[:-1] == pytest.approx(plain, abs=1e-5)
    policy(torch.tensor(prompts[:1])).logits.sum().backward()
    assert any(p.grad is not None for p in policy.parameters())


@pytest.mark.usefixtures("small_ones")
@pytest.mark.parametrize("has_products", [True, False])
def test_bfloat16_is_packed_where_the_processor_has_products_of_it(
    has_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_products)
    layer, states = nn.Linear(64, 48).bfloat16(), torch.randn(5, 64).bfloat16()
    with torch.no_grad():
        expected = layer(states)
        with packed_weights(layer, rows=5, steps=LEAST_STEPS):
            assert packed(layer) == [""] * has_products
            torch.testing.assert_close(layer(states), expected, rtol=0.02, atol=0.02)  # 8 bits of mantissa


@pytest.mark.usefixtures("small_ones")
def test_layers_in_half_precision_and_of_another_kind_stay_as_they_are_also_after_an_error() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 8).half(), Own(8, 8), nn.Linear(8, 8, device="meta"), nn.Linear(8, 8))
    with packed_weights(model, rows=1, steps=LEAST_STEPS):
        assert packed(model) == ["3"]
    with suppress(KeyError), packed_weights(model, rows=1, steps=LEAST_STEPS):
        raise KeyError
    assert not packed(model)
    with packed_weights(model, rows=1, steps=LEAST_STEPS - 1):
        assert not packed(model)


def test_small_layers_are_not_worth_the_copy() -> None:
    large, small = nn.Linear(512, 256), nn.Linear(256, 256)
    with packed_weights(nn.ModuleList([large, small]), rows=1, steps=100):
        assert ("forward" in large.__dict__, "forward" in small.__dict__) == (True, False)
