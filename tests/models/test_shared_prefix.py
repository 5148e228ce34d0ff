"""What rows begin with alike is read once, and they go on as if each had been read whole."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import small_run
from text2grad.models.adapters import with_lora
from text2grad.models.decoding import decode
from text2grad.models.kv_cache import arguments_of, cache_argument, empty_cache
from text2grad.models.shared_prefix import prefill, read_tokens
from tiny_models import CONFIGS, tiny

END, PAD = 2, 0
WHOLE = {"gemma2"}  # its attention has a window


def written(model: Any, rows: Sequence[Sequence[int]], groups: Sequence[str]) -> list[tuple[int, ...]]:
    return decode(model, rows, max_new_tokens=8, eos_ids=[END], pad_id=PAD, groups=groups)


ROWS = [[1, 7, 8, 9, 10, 11], [1, 7, 8, 9, 12], [1, 20, 21, 22], [1, 20, 21, 22], [5]]
GROUPS = ["a", "a", "b", "b", "c"]
HEADS = [1, 7, 8, 9], [1, 20]
LONG, LONGER, SHORT = [*range(30, 48)], [*range(29, 50)], [40, 41, 42, 43]
PROMPTS = [[*range(20, 42), 7], [*SHORT, 7], [*range(25, 41), 7], [*SHORT, 7], [50, 7]]
UNEVEN = [HEADS[0] + SHORT, HEADS[0] + LONG, HEADS[1] + [50, 51], HEADS[1] + LONGER]


def test_each_beginning_is_read_once_and_rows_end_in_one_column() -> None:
    model, read = tiny("llama"), []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    found = prefill(model, ROWS[:4], GROUPS[:4], PAD)
    hook.remove()
    assert read == [[[1, 7, 8, 9], [PAD, 1, 20, 21]]]  # of the second, the last token is left to go on from
    assert found is not None
    ids, mask, cache = found
    assert ids.tolist() == [
        [1, 7, 8, 9, 10, 11],
        [1, 7, 8, 9, PAD, 12],
        [PAD, 1, 20, 21, PAD, 22],
        [PAD, 1, 20, 21, PAD, 22],
    ]
    assert mask.tolist() == [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 1],
        [0, 1, 1, 1, 0, 1],
        [0, 1, 1, 1, 0, 1],
    ]
    assert cache.layers[0].keys.shape[::2] == (4, 4)  # rows, slots


def test_short_rests_are_not_padded_to_the_longest() -> None:
    model, read = tiny("llama"), []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    found = prefill(model, UNEVEN, GROUPS[:4], PAD)
    hook.remove()
    # Without their last tokens the rests have 3, 17, 1 and 20 tokens: 3 · 17 ≥ 2 · 20, but 3 · 3 < 2 · 20. A run whose
    # longest rest has 3 tokens, less than LEAST_APART, takes all that are shorter.
    assert read == [
        [HEADS[0], [PAD, PAD, *HEADS[1]]],
        [LONGER[:-1], [PAD, PAD, PAD, *LONG[:-1]]],
        [SHORT[:-1], [PAD, PAD, 50]],
    ]
    assert found is not None
    ids, mask, cache = found
    assert cache.layers[0].keys.shape[::2] == (4, 4 + 20)
    assert ids.shape == (4, 4 + 21)
    told = zip(ids.tolist(), mask.tolist(), strict=True)
    assert [[token for token, here in zip(*row, strict=True) if here] for row in told] == UNEVEN


def test_short_beginnings_are_not_padded_to_the_longest() -> None:
    model, read = tiny("llama"), []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    found = prefill(model, PROMPTS, ["a", "b", "c", "b", "d"], PAD)
    hook.remove()
    # The beginnings have 22, 4, 16 and 1 tokens: 3 · 16 ≥ 2 · 22, but 3 · 4 < 2 · 22.
    assert read == [
        [PROMPTS[0][:-1], [*[PAD] * 6, *PROMPTS[2][:-1]]],
        [SHORT, [PAD, PAD, PAD, 50]],
    ]
    assert found is not None
    ids, mask, cache = found
    assert cache.layers[0].keys.shape[::2] == (5, 22)
    told = zip(ids.tolist(), mask.tolist(), strict=True)
    assert [[token for token, here in zip(*row, strict=True) if here] for row in told] == PROMPTS
    for row, tokens in enumerate(PROMPTS):  # keys as of the row alone, at the end of its slots
        alone = empty_cache(model)
        model(input_ids=torch.tensor([tokens[:-1]]), use_cache=True, **{cache_argument(arguments_of(model)): alone})
        keys = cache.layers[1].keys[row, :, 22 - len(tokens[:-1]) :]
        torch.testing.assert_close(keys, alone.layers[1].keys[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "groups"),
    [(ROWS[:4], GROUPS[:4]), (UNEVEN, GROUPS[:4]), (PROMPTS, ["a", "b", "c", "b", "d"])],
    ids=["similar lengths", "uneven rests", "uneven beginnings"],
)
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_writes_what_it_writes_without(family: str, rows: list[list[int]], groups: list[str]) -> None:
    model = tiny(family)
    assert written(model, rows, groups) == written(model, rows, ())
    assert (prefill(model, rows, groups, PAD) is None) == (family in WHOLE)


def test_an_adapters_weights_take_part() -> None:
    plain = written(tiny("llama"), ROWS, ())
    model = with_lora(tiny("llama"), r=2, alpha=64, targets="all-linear")
    torch.manual_seed(0)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.5)
    assert prefill(model, ROWS, GROUPS, PAD) is not None
    assert written(model, ROWS, GROUPS) == written(model, ROWS, ()) != plain


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        (ROWS[:3:2], ["a", "b"]),  # nobody shares
        ([[1, 2, 3], [4, 5, 6]], ["a", "a"]),  # nothing is alike
        ([[3, *range(10, 40)], [4]], ["a", "a"]),  # nothing is alike in uneven rows
        ([[1], [1]], ["a", "a"]),  # one token, and that is needed to go on from
        # 2 × 3 tokens of beginnings, 4 × 3 of rests and 4 last ones are more than 4 × 5
        ([[1, 2, 3, 9], *([5, *range(start, start + 4)] for start in (10, 20, 30))], ["a", "b", "b", "b"]),
        ([[1, 7, 8, 9], [1, 20], [1, 21]], ["a", "b", "b"]),  # 2 × 3 + 3 × 1 = 9 < 3 × 4 tokens, in two passes
    ],
)
def test_where_nothing_is_saved_every_row_is_read_whole(rows: list[list[int]], groups: list[str]) -> None:
    saves = len(groups) == 3
    assert (prefill(tiny("llama"), rows, groups, PAD) is not None) == saves


TOKENS = st.integers(3, 60)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(TOKENS, max_size=30), st.lists(st.lists(TOKENS, min_size=1, max_size=30), min_size=1, max_size=4)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_rows_in_any_groups_go_on_as_without(made: list[tuple[list[int], list[list[int]]]]) -> None:
    rows = [head + rest for head, rests in made for rest in rests]
    groups = [str(number) for number, (_, rests) in enumerate(made) for _ in rests]
    model = tiny("llama")
    found = prefill(model, rows, groups, PAD)
    if found is not None:
        ids, mask, _ = found
        told = zip(ids.tolist(), mask.tolist(), strict=True)
        assert [[token for token, here in zip(*row, strict=True) if here] for row in told] == rows
    assert written(model, rows, groups) == written(model, rows, ())


def test_the_output_layer_reads_the_last_states_of_prompts_at_once() -> None:
    """Of a slice, which is not contiguous, torch on a CPU makes a product for each row, with a copy of the layer."""
    _, model = small_run.tokenizer_and_model()
    contiguous = []
    model.lm_head.register_forward_pre_hook(lambda _, states: contiguous.append(states[0].is_contiguous()))
    ids, cache = torch.tensor([[3, 4, 5], [6, 7, 8]]), empty_cache(model)
    read_tokens(model, ids, torch.ones_like(ids), torch.arange(3).expand(2, 3), cache)
    assert contiguous == [True]
