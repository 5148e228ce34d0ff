"""Responses come from π_old itself: the drawn token, the loop around it and the prompts before it, by oracles."""

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import GenerationConfig

from text2grad.errors import DataError, ModelError
from text2grad.models.adapters import with_lora
from text2grad.models.decoding import steps_are_right
from text2grad.models.fine_tuning import conversation_rows
from text2grad.models.prompts import encode_prompts, fitting_prompts, padding_id, stop_ids
from text2grad.models.randomness import batch_indices, sample_inverse_cdf, step_uniforms
from text2grad.models.sampling import make_rollouts, sample
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Example
from tiny_models import tiny

ALMOST_ONE = 1 - 2**-24  # the largest number that torch.rand gives in fp32
EOS, PAD = (2, 9, 17, 33, 41), 0
PROMPTS = [(3, 4, 5, 6, 7), (8,), (9, 10, 11), (4, 4), (12, 13, 14, 15), (3, 4, 5, 6, 7)]
TOKENS = 14


# The drawn token.


def test_token_v_is_drawn_exactly_from_the_uniforms_between_its_cdf_edges() -> None:
    # Four tokens of probability 1/4 between tokens of probability 0; every number here is exact in fp32:
    #   v      0    1    2    3    4    5    6    7
    #   p      0   1/4   0   1/4  1/4   0   1/4   0
    #   cdf    0   1/4  1/4  1/2  3/4  3/4   1    1
    never = -torch.inf
    logits = torch.tensor([never, 7.0, never, 7.0, 7.0, never, 7.0, never])
    below = 2**-24
    edges = [(0.0, 1), (0.25 - below, 1), (0.25, 3), (0.5 - below, 3), (0.5, 4), (0.75 - below, 4), (0.75, 6)]
    edges.append((ALMOST_ONE, 6))
    uniform = torch.tensor([u for u, _ in edges])
    drawn = sample_inverse_cdf(logits.expand(len(edges), -1), uniform)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == [token for _, token in edges]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_grid_of_uniforms_draws_what_counting_up_the_probabilities_in_double_precision_draws(
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(5, 11, generator=generator) * 3).to(dtype)
    logits[:, 4], logits[:, 10] = -torch.inf, -torch.inf
    grid = (torch.arange(4_000) + 0.5) / 4_000
    for row in logits:
        probabilities = row.double().softmax(-1).tolist()
        edges = torch.tensor(probabilities, dtype=torch.float64).cumsum(-1)
        clear = ((grid.double()[:, None] - edges).abs() > 1e-6).all(dim=1)  # fp32 decides the rest
        assert clear.float().mean() > 0.99
        expected = [counted(probabilities, u) for u in grid[clear].tolist()]
        assert sample_inverse_cdf(row.expand(len(expected), -1), grid[clear]).tolist() == expected


def counted(probabilities: Sequence[float], uniform: float) -> int:
    """Return the first v with p_0 + ... + p_v > uniform, one addition at a time."""
    total = 0.0
    for token, probability in enumerate(probabilities):
        total += probability
        if total > uniform:
            return token
    raise AssertionError(f"probabilities sum to {total}, which does not reach {uniform}")


def test_frequencies_equal_the_softmax() -> None:
    # Pearson's χ² of 8 cells has 7 degrees of freedom and exceeds 40.5 once in a million seeds; this seed is fixed.
    logits = torch.tensor([1.0, -0.5, 0.0, 2.0, -3.0, 0.7, 1.5, -1.0])
    draws = 40_000
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(5))
    seen = sample_inverse_cdf(logits.expand(draws, -1), uniform).bincount(minlength=8).double()
    expected = logits.double().softmax(-1) * draws
    assert float(((seen - expected).square() / expected).sum()) < 40.5


def test_a_vocabulary_of_128_000_tokens_is_sampled_to_fp32_and_never_where_the_probability_is_zero() -> None:
    vocab = 128_256
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(vocab, generator=generator) * 2
    logits[torch.rand(vocab, generator=generator) < 0.5] = -torch.inf
    logits[:50], logits[-1_000:] = -torch.inf, -torch.inf
    uniform = torch.cat([torch.tensor([0.0, ALMOST_ONE]), torch.rand(254, generator=generator)])
    drawn = sample_inverse_cdf(logits.expand(len(uniform), -1), uniform)
    assert torch.isfinite(logits[drawn]).all()
    assert drawn[0] == torch.isfinite(logits).nonzero()[0]
    probabilities = logits.double().softmax(-1)
    cdf = probabilities.cumsum(-1)
    # A sum of 128,256 fp32 terms up to 1 errs by less than 1e-4 here; a token off by one would be off by up to its p.
    assert ((cdf - probabilities)[drawn] - 1e-4 <= uniform).all()
    assert (uniform <= cdf[drawn] + 1e-4).all()


def test_each_row_has_its_own_uniform() -> None:
    logits = torch.zeros(3, 4)
    assert sample_inverse_cdf(logits, torch.tensor([0.1, 0.6, 0.9])).tolist() == [0, 2, 3]


# The loop around it.


@torch.no_grad()
def by_hand(model: Any, prompt: Sequence[int], uniforms: Tensor, temperature: float) -> tuple[int, ...]:
    """Sample one response token by token: alone, unpadded, without a cache, counting in double precision."""
    ids: list[int] = list(prompt)
    for uniform in uniforms.tolist():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double() / temperature
        ids.append(counted(logits.softmax(-1).tolist(), uniform))
        if ids[-1] in EOS:
            break
    return tuple(ids[len(prompt) :])


def uniforms(rows: int = len(PROMPTS)) -> Tensor:
    return step_uniforms(seed=4, step=0, rows=rows, tokens=TOKENS)


def sampled(model: Any, prompts: Sequence[Sequence[int]] = PROMPTS, **settings: Any) -> list[tuple[int, ...]]:
    return sample(model, prompts, uniforms(len(prompts)), **({"eos_ids": EOS, "pad_id": PAD} | settings))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_sampling_equals_a_loop_written_by_hand(family: str, temperature: float) -> None:
    model = tiny(family)
    found = sampled(model, temperature=temperature)
    assert found == [by_hand(model, p, u, temperature) for p, u in zip(PROMPTS, uniforms(), strict=True)]
    assert len({len(response) for response in found}) > 2, "the case should hold responses of several lengths"


def test_the_temperature_changes_what_is_drawn() -> None:
    model = tiny("llama")
    assert sampled(model, temperature=1.0) != sampled(model, temperature=0.6)


def test_at_temperature_0_the_most_likely_token_is_taken() -> None:
    model = tiny("llama")
    found = sampled(model, temperature=0.0)
    assert found == sample(model, PROMPTS, 1 - uniforms(), eos_ids=EOS, pad_id=PAD, temperature=0.0)
    assert found == [by_hand(model, prompt, u, 1e-4) for prompt, u in zip(PROMPTS, uniforms(), strict=True)]


@pytest.mark.parametrize("rows_at_once", [1, 2, 5])
def test_rows_at_once_changes_no_response(rows_at_once: int) -> None:
    model = tiny("llama")
    assert sampled(model, rows_at_once=rows_at_once) == sampled(model)


def test_a_response_depends_on_no_other_row() -> None:
    model, everything = tiny("llama"), uniforms()
    alone = [sample(model, [p], everything[[i]], eos_ids=EOS, pad_id=PAD)[0] for i, p in enumerate(PROMPTS)]
    assert alone == sampled(model)


def test_sampling_draws_nothing_from_the_global_generator() -> None:
    model = tiny("llama")
    torch.manual_seed(1)
    first, state = sampled(model), torch.get_rng_state()
    torch.manual_seed(2)
    assert sampled(model) == first
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_end_of_sequence_stands_once_and_last_and_a_cut_response_has_none() -> None:
    found = sampled(tiny("llama"))
    ended = [response for response in found if len(response) < TOKENS]
    cut = [response for response in found if len(response) == TOKENS and response[-1] not in EOS]
    assert ended
    assert cut
    assert all(response[-1] in EOS for response in ended)
    assert all(not set(response[:-1]) & set(EOS) for response in found)


@pytest.mark.parametrize("pad_id", [*EOS, 60])
def test_padding_may_be_any_id_even_one_that_ends_a_response(pad_id: int) -> None:
    model = tiny("llama")
    assert sampled(model, pad_id=pad_id) == sampled(model)


NASTY = {
    "do_sample": True,
    "temperature": 0.1,
    "top_p": 0.2,
    "top_k": 2,
    "min_p": 0.5,
    "typical_p": 0.3,
    "repetition_penalty": 5.0,
    "no_repeat_ngram_size": 1,
    "min_length": 12,
    "min_new_tokens": 12,
    "max_length": 3,
    "num_beams": 3,
    "bad_words_ids": [[5], [6], [7]],
    "suppress_tokens": [20, 21, 22, 23],
    "begin_suppress_tokens": [30, 31, 32],
    "forced_bos_token_id": 40,
    "forced_eos_token_id": 2,
    "exponential_decay_length_penalty": (1, 5.0),
    "eos_token_id": 33,
    "pad_token_id": 34,
    "use_cache": False,
}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
def test_no_setting_of_the_models_own_generation_config_changes_what_is_drawn(adapter: bool, family: str) -> None:
    model = tiny(family)
    expected = sampled(model)
    model.generation_config = GenerationConfig(**NASTY)
    before = copy.deepcopy(model.generation_config.to_dict())
    policy = with_lora(model, r=2, alpha=2, targets="all-linear") if adapter else model
    own = policy.generation_config
    assert sampled(policy) == expected
    assert policy.generation_config is own
    assert model.generation_config.to_dict() == before


def test_the_mode_comes_back_when_sampling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gemma2").train()
    assert steps_are_right(model, 0)
    assert model.training

    def broken(**_: Any) -> None:
        assert not model.training
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "forward", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        sampled(model)
    assert model.training


def test_a_model_in_training_mode_is_sampled_without_dropout_and_stays_in_training_mode() -> None:
    calm, noisy = tiny("gpt2"), tiny("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train()
    assert sampled(noisy) == sampled(calm)
    assert noisy.training
    assert all(module.training for module in noisy.modules())
    assert not calm.training


def test_an_adapters_weights_take_part() -> None:
    base = tiny("llama")
    policy = with_lora(base, r=2, alpha=16, targets="all-linear").eval()
    fresh = sampled(policy)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    moved = sampled(policy)
    assert moved != fresh
    assert moved == [by_hand(policy, p, u, 1.0) for p, u in zip(PROMPTS, uniforms(), strict=True)]


def test_rollouts_hold_the_sampled_ids_their_text_and_whether_they_were_cut() -> None:
    tokenizer = word_tokenizer(["red cat runs"])
    red, cat, runs = tokenizer(["red cat runs"])["input_ids"][0]
    end = tokenizer.eos_token_id
    responses = [(red, cat, end), (red, runs), (end,), (), (cat,)]
    examples = [Example(str(i)) for i in range(5)]
    made = make_rollouts(tokenizer, examples, [(red,), [cat], (runs,), (red,), (red,)], responses, (end, cat))
    assert [r.example for r in made] == examples
    assert [r.prompt_ids for r in made] == [(red,), (cat,), (runs,), (red,), (red,)]
    assert [r.response_ids for r in made] == responses
    assert [r.response for r in made] == ["red cat", "red runs", "", "", " cat"]
    assert [r.truncated for r in made] == [False, True, False, True, False]
    assert make_rollouts(tokenizer, [], [], [], (end,)) == []  # transformers 5.23 decodes no rows to one empty text


# What follows from seed and step alone.


def test_uniform_numbers_follow_from_seed_and_step_alone() -> None:
    torch.manual_seed(0)
    one = step_uniforms(seed=1, step=2, rows=3, tokens=4)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(step_uniforms(seed=1, step=2, rows=3, tokens=4), one)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.shape == (3, 4)
    assert ((one >= 0) & (one < 1)).all()
    others = [(1, 3), (2, 2), (2, 1), (1, 1), (-1, 2), (2**80, 2)]
    assert not any(torch.equal(step_uniforms(seed=s, step=n, rows=3, tokens=4), one) for s, n in others)


def test_each_epoch_is_a_permutation_also_across_the_borders_of_batches() -> None:
    drawn = [i for step in range(14) for i in batch_indices(7, 3, step=step, seed=5)]
    epochs = [drawn[start : start + 7] for start in range(0, 42, 7)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 6
    assert len({tuple(epoch) for epoch in epochs}) == 6, "each epoch has its own order"


def test_a_batch_larger_than_the_data_holds_whole_epochs() -> None:
    drawn = [batch_indices(3, 8, step=step, seed=0) for step in range(3)]
    assert [len(batch) for batch in drawn] == [8, 8, 8]
    flat = [i for batch in drawn for i in batch]
    assert all(sorted(flat[start : start + 3]) == [0, 1, 2] for start in range(0, 24, 3))
    assert batch_indices(1, 4, step=9, seed=0) == [0, 0, 0, 0]


def test_batches_follow_from_seed_and_step_alone() -> None:
    torch.manual_seed(0)
    one = batch_indices(50, 20, step=3, seed=1)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert batch_indices(50, 20, step=3, seed=1) == one
    assert torch.equal(torch.get_rng_state(), state)
    others = [(3, 2), (4, 1), (3, -1), (3, 2**32 - 1)]
    assert all(batch_indices(50, 20, step=step, seed=seed) != one for step, seed in others)


# Which ids end a response, which fills padding.


def model_with(eos: Any, context: int | None = 16) -> Any:
    text_config = SimpleNamespace(max_position_embeddings=context)
    return SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=eos),
        config=SimpleNamespace(get_text_config=lambda: text_config),
    )


@pytest.mark.parametrize(
    ("configured", "own", "found"),
    [
        (5, None, (5,)),
        ([5, 6], None, (5, 6)),
        ([5, 6], 6, (5, 6)),
        (5, 7, (5, 7)),
        (0, None, (0,)),
        (None, 7, (7,)),
        (None, 0, (0,)),
    ],
)
def test_a_response_ends_where_the_model_or_the_tokenizer_says(configured: Any, own: int | None, found: Any) -> None:
    assert stop_ids(model_with(configured), SimpleNamespace(eos_token_id=own)) == found


def test_the_ids_of_the_recipe_go_first_and_alone() -> None:
    assert stop_ids(model_with([5, 6]), SimpleNamespace(eos_token_id=7), [8, 9]) == (8, 9)


@pytest.mark.parametrize("configured", [None, []])
def test_a_model_that_could_never_stop_is_refused(configured: Any) -> None:
    with pytest.raises(ModelError) as caught:
        stop_ids(model_with(configured), SimpleNamespace(eos_token_id=None))
    assert str(caught.value) == (
        "neither the tokenizer nor the model's generation config names an end-of-sequence token, so no response "
        "could ever end. Set rollout.eos_token_ids."
    )


def test_padding_is_the_tokenizers_or_else_the_first_stop_id() -> None:
    assert padding_id(model_with(5), SimpleNamespace(pad_token_id=0), (5, 6)) == 0
    assert padding_id(model_with(5), SimpleNamespace(pad_token_id=None), (5, 6)) == 5


def test_padding_beyond_the_embedding_is_replaced_by_a_stop_id() -> None:
    model = model_with(5)
    model.config.get_text_config().vocab_size = 8
    assert padding_id(model, SimpleNamespace(pad_token_id=7), (5, 6)) == 7
    assert padding_id(model, SimpleNamespace(pad_token_id=8), (5, 6)) == 5


# Prompts.

CHAT = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "red cat"}]


def words(chat: bool = False) -> Any:
    tokenizer = word_tokenizer(
        ["<user> red cat <assistant> ", "<system> be brief <user> ", "red cat", "cat", "be brief\n\n"]
    )
    tokenizer.chat_template = CHAT if chat else None
    return tokenizer


def with_beginning(tokenizer: Any) -> Any:
    """Make the tokenizer begin every text with </s>, as Llama's begins with <s>."""
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", tokenizer.eos_token_id)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("chat", "prompt_format", "prompt", "text"),
    [
        (False, "plain", "red cat", "red cat"),
        (True, "plain", "red cat", "red cat"),
        (False, "auto", "red cat", "red cat"),
        (True, "auto", "red cat", "<user> red cat <assistant>"),
        (True, "chat", "red cat", "<user> red cat <assistant>"),
        (True, "chat", MESSAGES, "<system> be brief <user> red cat <assistant>"),
        (True, "auto", MESSAGES, "<system> be brief <user> red cat <assistant>"),
        (False, "plain", MESSAGES, "be brief\n\nred cat"),
    ],
)
def test_a_prompt_becomes_ids_as_the_format_says(chat: bool, prompt_format: str, prompt: Any, text: str) -> None:
    tokenizer = words(chat)
    (ids,) = encode_prompts(tokenizer, [Example(prompt)], prompt_format=prompt_format)
    assert isinstance(ids, tuple)
    assert tokenizer.decode(ids) == text


def test_a_plain_prompt_gets_the_tokenizers_beginning_and_a_chat_only_what_its_template_says() -> None:
    tokenizer = with_beginning(words(chat=True))
    (plain,) = encode_prompts(tokenizer, [Example("red cat")], prompt_format="plain")
    (chat,) = encode_prompts(tokenizer, [Example("red cat")], prompt_format="chat")
    assert (tokenizer.decode(plain), tokenizer.decode(chat)) == ("</s>red cat", "<user> red cat <assistant>")


def test_a_plain_prompt_has_no_end_that_the_tokenizer_puts_behind_texts() -> None:
    tokenizer = words(chat=False)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="</s> $A </s>", special_tokens=[("</s>", tokenizer.eos_token_id)]
    )
    assert tokenizer.decode(tokenizer("red cat").input_ids) == "</s>red cat</s>"
    examples = [Example(""), Example("red cat"), Example("red</s>")]
    found = encode_prompts(tokenizer, examples, prompt_format="plain")
    assert [tokenizer.decode(ids) for ids in found] == ["</s>", "</s>red cat", "</s>red</s>"]
    (row,) = conversation_rows(tokenizer, [("red cat", "red")], "plain")
    assert tokenizer.decode(row["input_ids"]) == "</s>red catred</s>"


def test_prompts_keep_their_order_and_are_neither_padded_nor_cut() -> None:
    tokenizer = words()
    texts = ["red cat", "cat", "red cat red cat red cat"]
    found = encode_prompts(tokenizer, [Example(text) for text in texts])
    assert [tokenizer.decode(ids) for ids in found] == texts
    assert [len(ids) for ids in found] == [2, 1, 6]


def test_no_prompts_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        encode_prompts(words(), [])
    assert str(caught.value) == "there are no prompts: the list of examples is empty"


def test_a_prompt_without_tokens_is_refused_but_a_beginning_is_one() -> None:
    examples = [Example("red"), Example("")]
    with pytest.raises(DataError) as caught:
        encode_prompts(words(), examples)
    assert str(caught.value) == (
        "example 1 has no prompt token (prompt ''): nothing would predict its first response token. Give it some text, "
        "or a tokenizer that adds a beginning-of-sequence token."
    )
    tokenizer = with_beginning(words())
    assert encode_prompts(tokenizer, examples)[1] == (tokenizer.eos_token_id,)


@pytest.mark.parametrize(
    ("prompt_format", "text"),
    [
        (
            "auto",
            "example 1 is a chat, but the tokenizer of '' has no chat template; take a model that has one, or join",
        ),
        (
            "chat",
            "example 1 is a chat, but the tokenizer of '' has no chat template; take a model that has one, or join",
        ),
    ],
)
def test_messages_without_a_chat_template_are_refused_unless_plain_is_asked_for(prompt_format: str, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        encode_prompts(words(), [Example("red cat"), Example(MESSAGES)], prompt_format=prompt_format)
    assert str(caught.value).startswith(text)


def test_a_chat_that_the_template_refuses_is_named_with_its_roles() -> None:
    tokenizer = words(chat=True)
    tokenizer.chat_template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}red"
    with pytest.raises(DataError) as caught:
        encode_prompts(tokenizer, [Example("red cat"), Example(MESSAGES)])
    assert str(caught.value) == (
        "the tokenizer's chat template refuses example 1 (roles 'system', 'user'): no system. Change its messages, or "
        'set model.prompt_format = "plain"'
    )


def test_a_token_beyond_the_embedding_is_refused() -> None:
    tokenizer = words()
    model = model_with(5, 64)
    model.config.get_text_config().vocab_size = size = len(tokenizer)
    tokenizer.add_tokens(["<new>"])  # and the embedding is not resized
    settings = {"prompt_format": "plain", "max_new_tokens": 4, "too_long": "skip"}
    fitting_prompts(model, tokenizer, [Example("red cat")], **settings)
    with pytest.raises(ModelError) as caught:
        fitting_prompts(model, tokenizer, [Example("red cat"), Example("red <new>")], **settings)
    assert str(caught.value) == (
        f"row 1 has the id {size}, and the model's embedding has {size} rows; call "
        "model.resize_token_embeddings(len(tokenizer)) and save the model, or take the tokenizer that belongs to it"
    )


def test_stop_ids_beyond_the_embedding_are_left_out_and_refused_if_no_other_is_left() -> None:
    model = model_with([5, 90])
    model.config.get_text_config().vocab_size = 61
    assert stop_ids(model, SimpleNamespace(eos_token_id=61)) == (5,)
    with pytest.raises(ModelError, match="the end-of-sequence token 61 lies beyond the model's embedding of 61 rows"):
        stop_ids(model, SimpleNamespace(eos_token_id=None), [61])


SHORT, LONG = Example("red cat"), Example("red cat red cat red")


def fitting(examples: list[Example], room: int, too_long: str, context: int | None = 16) -> Any:
    return fitting_prompts(
        model_with(None, context),
        words(),
        examples,
        prompt_format="plain",
        max_new_tokens=16 - room,
        too_long=too_long,
    )


def test_prompts_that_just_fit_are_kept() -> None:
    for too_long in ("refuse", "skip"):
        examples, ids = fitting([SHORT, LONG], 5, too_long)
        assert examples == [SHORT, LONG]
        assert [len(prompt) for prompt in ids] == [2, 5]


def test_a_prompt_one_token_too_long_is_refused_with_its_text() -> None:
    with pytest.raises(DataError) as caught:
        fitting([SHORT, LONG, LONG], 4, "refuse")
    assert str(caught.value) == (
        "2 of 3 prompts have more than 4 tokens, the room that the model's context leaves beside max_new_tokens; the "
        "first is example 1 with 5 tokens ('red cat red cat red'). Shorten them, lower rollout.max_new_tokens, or "
        'leave them out with data.too_long = "skip".'
    )


def test_prompts_that_are_too_long_are_left_out_on_request() -> None:
    examples, ids = fitting([LONG, SHORT, LONG], 4, "skip")
    assert examples == [SHORT]
    assert [len(prompt) for prompt in ids] == [2]


def test_leaving_out_every_prompt_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        fitting([LONG, LONG], 4, "skip")
    assert str(caught.value) == "all 2 prompts are longer than 4 tokens; lower rollout.max_new_tokens"


@pytest.mark.parametrize("too_long", ["refuse", "skip"])
def test_a_response_limit_as_long_as_the_context_is_refused(too_long: str) -> None:
    with pytest.raises(DataError) as caught:
        fitting([SHORT], 0, too_long)
    assert str(caught.value) == ("rollout.max_new_tokens = 16 leaves no room for a prompt in the model's context of 16")


def test_a_model_without_a_context_length_takes_every_prompt() -> None:
    assert fitting([SHORT, LONG], 1, "refuse", context=None)[0] == [SHORT, LONG]
