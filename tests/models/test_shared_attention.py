"""Rows attend to a beginning that they share and to their own tokens, as if they had read both."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import CONFIG_MAPPING, DynamicCache

from architectures import model_of
from text2grad.models import shared_attention
from text2grad.models.adapters import trunk_of, with_lora
from text2grad.models.batch import collate
from text2grad.models.decoding import decode
from text2grad.models.policy import response_logprobs
from text2grad.models.shared_attention import Beginnings, attending, attends_to_shared, can_attend_to_shared
from text2grad.models.shared_prefix import can_share_prompts, prefill
from text2grad.types import Example, Rollout
from tiny_models import tiny

GROUPS = torch.tensor([1, 0, 1, 1])
MASK = torch.tensor([[1, 1, 1], [0, 1, 1]])


def cache_of(keys: Tensor, values: Tensor) -> Any:
    cache = DynamicCache()
    cache.update(keys, values, 0)
    return cache


def attention(*args: Any) -> Any:
    return shared_attention._Attention.apply(*args)  # type: ignore[no-untyped-call]


def test_a_token_attends_to_shared_and_own_values_by_hand() -> None:
    # Queries of zero give every visible key the same weight. Group 0 shares the values 1, 2, 3; group 1 has padding
    # before 5, 7. The rows' own values are 10, 20, 30, 40.
    values = torch.tensor([[1.0, 2.0, 3.0], [100.0, 5.0, 7.0]])[:, None, :, None]  # [G, K, P, D]
    beginnings = Beginnings(cache_of(torch.randn(2, 1, 3, 1), values), GROUPS, MASK)
    own = torch.tensor([10.0, 20.0, 30.0, 40.0])[:, None, None, None]
    shared = beginnings.layers[0]
    found = attention(beginnings, False, None, torch.zeros(4, 1, 1, 1), torch.randn(4, 1, 1, 1), own, *shared)
    # (10 + 5 + 7) / 3, (20 + 1 + 2 + 3) / 4, (30 + 12) / 3, (40 + 12) / 3
    torch.testing.assert_close(found.flatten(), torch.tensor([22 / 3, 6.5, 14.0, 52 / 3]))


def test_a_group_without_a_beginning_attends_to_its_own_tokens_alone() -> None:
    beginnings = Beginnings(cache_of(*torch.randn(2, 2, 1, 3, 4)), GROUPS, torch.tensor([[1, 1, 1], [0, 0, 0]]))
    query, key, value = torch.randn(3, 4, 1, 2, 4)
    found = attention(beginnings, True, None, query, key, value, *beginnings.layers[0])
    alone = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(found[[0, 2, 3]], alone[[0, 2, 3]])
    assert (found[1] - alone[1]).abs().max() > 0.01


@pytest.mark.parametrize("mask", [MASK, torch.ones_like(MASK)], ids=["padded", "whole"])
def test_the_gradient_is_that_of_finite_differences(mask: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    # 4 heads of queries for 2 of shared keys
    query, key, value = drawn(4, 4, 2, 8), drawn(4, 4, 2, 8), drawn(4, 4, 2, 8)
    shared = drawn(2, 2, 3, 8), drawn(2, 2, 3, 8)
    beginnings = Beginnings(cache_of(*shared), GROUPS, mask)
    assert torch.autograd.gradcheck(
        lambda *tensors: attention(beginnings, True, 0.4, *tensors), (query, key, value, *shared)
    )


def test_beginnings_that_are_short_or_shared_by_few_rows_or_other_kernels_are_copied() -> None:
    trunk, cache = tiny("llama").model, cache_of(*torch.zeros(2, 2, 1, 128, 4))
    assert attends_to_shared(trunk, cache, 4)
    assert not attends_to_shared(trunk, cache, 3)
    assert not attends_to_shared(trunk, cache_of(*torch.zeros(2, 2, 1, 127, 4)), 4)
    trunk.config._attn_implementation = "eager"
    assert not attends_to_shared(trunk, cache, 4)


@pytest.mark.parametrize("model_type", ["diffllama", "deepseek_v3"])
def test_an_architecture_with_an_attention_of_its_own_has_copies(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DiffLlama joins halves of the values behind the cache; DeepSeek has other sizes of values.
    monkeypatch.setattr(shared_attention, "LEAST_SHARED", 1)
    model = model_of(CONFIG_MAPPING[model_type]).eval()
    assert can_share_prompts(model)
    assert not can_attend_to_shared(trunk_of(model))
    assert model.config._attn_implementation != "text2grad_shared"
    rows = [Rollout(Example("x"), (5, 6, 7, 8, 9, 10), (11 + n, 12), "y", True) for n in range(4)]
    logps = [
        response_logprobs(model, collate(rows, pad_id=0, share_prompts=shares))[0].detach() for shares in (True, False)
    ]
    torch.testing.assert_close(*logps, rtol=0, atol=1e-5)


def test_the_models_own_attention_is_back_after_an_error() -> None:
    model = tiny("llama")
    beginnings = Beginnings(cache_of(*torch.zeros(2, 1, 1, 3, 4)), torch.zeros(2, dtype=torch.long), torch.ones(1, 3))
    names: list[str] = []

    def failing() -> None:
        with attending(model, beginnings):
            names.append(model.config._attn_implementation)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert names == ["text2grad_shared"]
    assert model.config._attn_implementation == "sdpa"
    assert not shared_attention._now


def test_responses_to_a_long_prompt_go_on_from_one_copy_of_it_also_when_rows_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = with_lora(tiny("llama"), r=2, alpha=4, targets="all-linear").eval()
    monkeypatch.setattr(shared_attention, "LEAST_SHARED", 8)
    prompts = [[*range(3, 15)]] * 5 + [[*range(20, 30)]] * 3
    found = prefill(model, prompts, list(map(tuple, prompts)), 0)
    assert found is not None
    assert found[2].beginnings.layers[0][0].shape[::2] == (2, 11)  # G, P: the last token of a prompt is each row's own
    assert found[2].get_seq_length() == 11
    limits = [9, 1, 2, 6, 7, 1, 2, 8]  # after 2 tokens half of the rows have ended

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        return logits.topk(4).indices[torch.arange(len(rows)), (rows + step) % 4]

    end: dict[str, Any] = {"eos_ids": [], "pad_id": 0}
    together = decode(model, prompts, choose, max_new_tokens=limits, groups=list(map(tuple, prompts)), **end)
    assert together == decode(model, prompts, choose, max_new_tokens=limits, **end)
    assert list(map(len, together)) == limits
    assert len(set(together)) == 8


def test_chats_with_one_long_system_message_are_scored_as_rows_read_whole() -> None:
    from text2grad.tasks.tiny import word_tokenizer

    system = " ".join(f"w{n % 50}" for n in range(140))
    tokenizer = word_tokenizer([system, "system: user: assistant:"])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    chats = [[{"role": "system", "content": system}, {"role": "user", "content": f"w{n}"}] for n in range(2)]
    prompts = [
        tuple(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) for chat in chats
    ]
    assert min(map(len, prompts)) > 140
    rows = [
        Rollout(Example("x"), prompts[n % 3 == 1], tuple(range(4, 5 + n)), "y", True) for n in range(5)
    ]  # groups of 3 and 2
    model = tiny("llama", vocab_size=len(tokenizer), max_position_embeddings=256)
    logps = [
        response_logprobs(model, collate(rows, pad_id=0, share_prompts=shares))[0].detach() for shares in (True, False)
    ]
    torch.testing.assert_close(*logps, rtol=0, atol=1e-5)
