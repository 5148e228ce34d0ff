"""A tokenizer that gives every text back, and a Llama made for it."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from text2grad.offsets import token_offsets
from text2grad.tasks.registry import built_in
from text2grad.tasks.summarization import SummarizationTask
from text2grad.tasks.tiny import EOS, PAD, UNKNOWN, tiny_llama, word_tokenizer

ODD = "Ann's  bike -- sold!\n\n\tTL;DR: (café) naïve,  “yes” 3.5 % 北京 e\u0301 "


@pytest.fixture(scope="module")
def summaries() -> Any:
    """The tokenizer that the quickstart makes."""
    return word_tokenizer(SummarizationTask("train").texts(2_000))


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_text_of_the_summarization_task_comes_back_without_an_unknown_word(summaries: Any, split: Any) -> None:
    for text in SummarizationTask(split).texts(150, seed=3):
        ids = summaries(text).input_ids
        assert summaries.unk_token_id not in ids, text
        assert summaries.decode(ids) == text
        assert summaries.decode(ids, skip_special_tokens=True) == text


def test_every_opening_of_the_stories_task_comes_back() -> None:
    task = built_in("stories")
    texts = [example.prompt_text for example in (*task.train(100, 0), *task.held_out(100, 0))]
    tokenizer = word_tokenizer(texts)
    for text in texts:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_each_word_takes_the_space_before_it_and_each_mark_stands_alone() -> None:
    tokenizer = word_tokenizer([ODD])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(ODD).input_ids)
    assert tokens[:14] == ["Ann", "'", "s", " ", " bike", " -", "-", " sold", "!", "\n", "\n", "\t", "TL", ";"]
    assert "".join(tokens) == ODD
    assert tokenizer.decode(tokenizer(ODD).input_ids) == ODD


def test_the_offsets_of_tokens_agree_with_the_decoded_text() -> None:
    tokenizer = word_tokenizer([ODD])
    ids = [*tokenizer(ODD).input_ids, tokenizer.eos_token_id]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    offsets = token_offsets(tokenizer, ids)
    assert text == ODD
    assert [text[a:b] for a, b in offsets[:-1]] == tokenizer.convert_ids_to_tokens(ids[:-1])
    assert offsets[-1] == (len(text), len(text))
    assert all(first[1] == second[0] for first, second in pairwise(offsets))


def test_an_unknown_word_is_one_token_without_text() -> None:
    tokenizer = word_tokenizer(["red cat"])
    ids = tokenizer("red dog cat").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["red", UNKNOWN, " cat"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "red cat"
    assert token_offsets(tokenizer, ids) == [(0, 3), (3, 3), (3, 7)]


def test_the_special_tokens_come_first_and_are_known_to_the_tokenizer() -> None:
    tokenizer = word_tokenizer(["red cat"])
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == [PAD, EOS, UNKNOWN]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert len(tokenizer) == 5
    assert tokenizer("red cat").input_ids == [4, 3], "words of one frequency in the order of the alphabet"


def test_the_same_texts_make_the_same_tokenizer() -> None:
    texts = SummarizationTask("train").texts(100)
    assert word_tokenizer(texts).get_vocab() == word_tokenizer(iter(texts)).get_vocab()


def test_a_saved_tokenizer_is_the_same_when_it_is_loaded(tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = word_tokenizer([ODD])
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(ODD).input_ids == tokenizer(ODD).input_ids
    assert again.decode(again(ODD).input_ids) == ODD
    assert (again.pad_token_id, again.eos_token_id) == (0, 1)


def test_the_model_fits_its_tokenizer() -> None:
    tokenizer = word_tokenizer([ODD])
    model = tiny_llama(tokenizer, seed=0, width=48, layers=3, context=24)
    assert model.get_input_embeddings().weight.shape == (len(tokenizer), 48)
    assert (model.config.num_hidden_layers, model.config.max_position_embeddings) == (3, 24)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (1, 0)
    assert model.generation_config.eos_token_id == 1
    assert model(input_ids=torch.tensor([tokenizer(ODD).input_ids[:20]])).logits.shape == (1, 20, len(tokenizer))


def test_the_quickstarts_model_has_about_a_tenth_of_a_million_parameters(summaries: Any) -> None:
    assert 80_000 < tiny_llama(summaries, seed=0).num_parameters() < 150_000


def test_the_seed_alone_makes_the_weights() -> None:
    tokenizer = word_tokenizer(["red cat"])
    torch.manual_seed(1)
    one = tiny_llama(tokenizer, seed=4, width=16, layers=1)
    torch.manual_seed(2)
    again, other = tiny_llama(tokenizer, seed=4, width=16, layers=1), tiny_llama(tokenizer, seed=5, width=16, layers=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.get_input_embeddings().weight, other.get_input_embeddings().weight)
