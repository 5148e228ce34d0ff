"""Decoding with a growing cache and a shrinking batch, beside transformers' own cache."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from text2grad.models import decoding
from text2grad.models.decoding import decode, steps_are_right
from text2grad.models.kv_cache import LEAST_ROOM, GrowingLayer, empty_cache
from text2grad.models.sampling import _draw, sample
from tiny_models import FAMILIES, tiny

PROMPTS = [(3, 4, 5, 6, 7), (8,), (9, 10, 11), (4, 4), (12, 13, 14, 15), (3, 4, 5, 6, 7)]
LONG = 2 * LEAST_ROOM + 20
CACHED = [name for name in FAMILIES if name != "gemma2"]  # has sliding windows


def drawn(
    model: Any, eos: Sequence[int], tokens: int = 40, *, seed: int = 0, groups: Any = ()
) -> list[tuple[int, ...]]:
    uniforms = torch.rand(len(PROMPTS), tokens, generator=torch.Generator().manual_seed(seed))
    limits: dict[str, Any] = {"max_new_tokens": tokens, "eos_ids": eos, "pad_id": 0}
    return decode(
        model, PROMPTS, partial(_draw, uniforms, 1.0, logps=torch.empty_like(uniforms)), **limits, groups=groups
    )


@pytest.mark.parametrize("family", CACHED)
@pytest.mark.parametrize("eos", [(), (2, 9, 17, 33, 41)])
def test_rows_that_leave_the_batch_change_no_other_row(
    family: str, eos: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family, max_position_embeddings=256) if family != "gpt2" else tiny(family, n_positions=256)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "empty_cache", lambda _: None)
        expected = drawn(model, eos)  # with transformers' cache
    found = drawn(model, eos)
    assert found == expected
    assert len({len(row) for row in found}) > 1 if eos else {len(row) for row in found} == {40}
    assert drawn(model, eos, groups=PROMPTS) == expected  # a common beginning is read once


def test_the_batch_shrinks_when_half_of_its_rows_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = tiny("llama"), list[int]()
    assert steps_are_right(model, 0)  # the trial's passes are not counted
    forward = model.forward

    def watched(**given: Any) -> Any:
        sizes.append(len(given["input_ids"]))
        return forward(**given)

    monkeypatch.setattr(model, "forward", watched)
    limits: dict[str, Any] = {"max_new_tokens": 9, "eos_ids": (), "pad_id": 0}

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        return rows + 20  # each row writes its own number

    found = decode(model, PROMPTS, choose, **limits, ended=lambda ids: len(ids) == ids[0] - 18)
    assert found == [(20 + row,) * (row + 2) for row in range(6)]  # rows 0 to 5 end after 2 to 7 tokens
    # 6 rows run in steps 1 and 2; 5 after step 2, 4 after 3, 3 after 4: half of 6. 2 after 5, 1 after 6: half of 3
    assert sizes == [6, 6, 6, 6, 3, 3, 1]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_row_ends_where_its_own_rule_says(family: str) -> None:
    model, uniforms, calls = tiny(family), torch.rand(6, 9, generator=torch.Generator().manual_seed(0)), list[int]()
    limits: dict[str, Any] = {"eos_ids": (), "pad_id": 0}
    whole = sample(model, PROMPTS, uniforms, **limits)
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    cut = sample(model, PROMPTS, uniforms, **limits, ended=lambda ids: len(ids) == 2 + ids[0] % 3)
    assert cut == [row[: 2 + row[0] % 3] for row in whole]
    assert len({len(row) for row in cut}) > 1
    assert len(calls) <= max(map(len, cut)) + 1  # + 1: the beginning of equal prompts


def test_a_growing_layer_holds_what_a_dynamic_one_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    mine, theirs = GrowingLayer(), DynamicLayer()

    def append(tokens: int, rows: int) -> None:
        new = [torch.randn(rows, 2, tokens, size, generator=generator) for size in (4, 6)]
        with torch.no_grad():
            found, expected = mine.update(*new), theirs.update(*new)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert mine.get_seq_length() == theirs.get_seq_length()

    append(5, 3)
    for _ in range(LONG):
        append(1, 3)
    for layer in (mine, theirs):
        layer.batch_select_indices(torch.tensor([2, 0]))
    append(1, 2)
    append(3, 2)
    for layer in (mine, theirs):
        layer.crop(-4)
    append(2, 2)
    for layer in (mine, theirs):
        layer.batch_repeat_interleave(2)
    append(1, 4)


def test_a_selection_of_all_rows_is_not_written_into_the_buffer_before() -> None:
    layer, new = GrowingLayer(), torch.ones(2, 1, 3, 4)
    with torch.no_grad():
        layer.update(new, new)
        layer.update(new[:, :, :1], new[:, :, :1])
        before = layer.keys
        layer.batch_select_indices(torch.tensor([1, 0]))
        layer.update(2 * new[:, :, :1], 2 * new[:, :, :1])
    assert before is not None
    assert layer.keys is not None
    assert layer.keys.data_ptr() != before.data_ptr()
    assert before.shape[2] == 4


def test_the_buffers_are_rarely_copied() -> None:
    layer, places = GrowingLayer(), set[int]()
    new = torch.ones(1, 1, 1, 4)
    with torch.no_grad():
        for _ in range(LONG):
            layer.update(new, new)
            assert layer.keys is not None
            places.add(layer.keys.data_ptr())
    assert len(places) <= 4


def test_gradients_flow_through_a_growing_layer() -> None:
    layer = GrowingLayer()
    parts = [torch.ones(1, 1, 2, 4, requires_grad=True) for _ in range(4)]
    read = [keys.square().sum() for keys, _ in (layer.update(part, part) for part in parts)]  # the graph keeps each
    torch.stack(read).sum().backward()
    for number, part in enumerate(parts):
        assert part.grad is not None
        assert float(part.grad[0, 0, 0, 0]) == 2 * (4 - number)  # d/dx of x², read by this update and the later ones


def test_models_with_other_caches_have_none() -> None:
    assert empty_cache(tiny("gemma2")) is None
    assert empty_cache(tiny("llama")) is not None


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_each_row_has_a_limit_of_its_own_within_the_context(family: str) -> None:
    # Positions of GPT-2 are a table: a row that ended at the end of its context must not go on.
    model = tiny(family, max_position_embeddings=64) if family != "gpt2" else tiny(family, n_positions=64)
    prompts = [(3, 4, 5) * 20, (8,), (9, 10, 11)]  # 60, 1 and 3 tokens
    limits = [4, 50, 30]
    found = decode(model, prompts, max_new_tokens=limits, eos_ids=(), pad_id=0)
    assert [len(row) for row in found] == limits
    for prompt, limit, row in zip(prompts, limits, found, strict=True):
        assert decode(model, [prompt], max_new_tokens=limit, eos_ids=(), pad_id=0) == [row]
