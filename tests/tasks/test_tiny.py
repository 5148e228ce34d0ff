"""A tokenizer that gives every text back, and a Llama made for it."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from task_texts import texts_of
from text2grad.align.offsets import token_offsets
from text2grad.tasks import tiny
from text2grad.tasks.summarization.task import SummarizationTask
from text2grad.tasks.tiny import EOS, PAD, UNKNOWN, begin_alike, tiny_llama, word_tokenizer
from verdict_tokens import check_verdicts

ODD = "Ann's  bike -- sold!\n\n\tTL;DR: (café) naïve,  “yes” 3.5 % 北京 e\u0301 "


@pytest.fixture(scope="module")
def summaries() -> Any:
    """A tokenizer as the quickstart makes it: of texts, of every word in both forms, and of verdicts."""
    task = SummarizationTask("train")
    words = [form for word in task.vocabulary() for form in (word, f" {word}")]
    return word_tokenizer([*texts_of(task, 2_000), *words], task.verdicts())


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_text_of_the_summarization_task_comes_back_without_an_unknown_word(summaries: Any, split: Any) -> None:
    for text in texts_of(SummarizationTask(split), 150, seed=3):
        ids = summaries(text).input_ids
        assert summaries.unk_token_id not in ids, text
        assert summaries.decode(ids) == text
        assert summaries.decode(ids, skip_special_tokens=True) == text


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
    texts = texts_of(SummarizationTask("train"), 100)
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


# Which tokens are the same


def forms(tokenizer: Any) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the ids of each word without and with a space before it, and those of the words that have one form."""
    vocabulary = tokenizer.get_vocab()
    pairs = [(vocabulary[word], vocabulary[f" {word}"]) for word in vocabulary if f" {word}" in vocabulary]
    return pairs, sorted({*vocabulary.values()} - {number for pair in pairs for number in pair})


def matrices(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def test_the_keys_of_every_layer_begin_as_its_queries_and_nothing_else_of_it_does() -> None:
    model = tiny_llama(word_tokenizer([ODD]), seed=3, width=48, layers=3)
    assert len(model.model.layers) == 3
    queries = []
    for layer in model.model.layers:
        attention = layer.self_attn
        assert torch.equal(attention.k_proj.weight, attention.q_proj.weight)
        assert attention.k_proj.weight.data_ptr() != attention.q_proj.weight.data_ptr(), "they part in training"
        assert attention.q_proj.weight.std().item() == pytest.approx(0.1, rel=0.1)
        others = (attention.v_proj.weight, attention.o_proj.weight)
        assert not any(torch.equal(other, attention.q_proj.weight) for other in others)
        queries.append(attention.q_proj.weight)
    assert not any(torch.equal(first, second) for first, second in pairwise(queries))


def test_both_forms_of_a_word_begin_alike_and_no_other_two_tokens_do(summaries: Any) -> None:
    pairs, single = forms(summaries)
    assert len(pairs) >= len(SummarizationTask().vocabulary()), "every word has both"
    assert {*summaries.convert_ids_to_tokens(single)} >= {PAD, EOS, UNKNOWN, *SummarizationTask().verdicts()}
    for matrix in matrices(tiny_llama(summaries, seed=0)):
        for bare, spaced in pairs:
            assert torch.equal(matrix[bare], matrix[spaced])
        kept = [*(spaced for _, spaced in pairs), *single]
        assert len({tuple(row) for row in matrix[kept].tolist()}) == len(kept) == len(summaries) - len(pairs)
        real = [number for number in kept if number != summaries.pad_token_id]
        assert matrix[real].std().item() == pytest.approx(0.1, rel=0.1)
    one, other = matrices(tiny_llama(summaries, seed=0))
    assert not torch.equal(one, other), "what a word is read as and what it is said as are two things"


def test_the_two_forms_of_a_word_by_hand() -> None:
    tokenizer = word_tokenizer(["red cat red. cat: dog"])  # "red" and " red", " cat", " dog", "." and ":"
    model = tiny_llama(tokenizer, seed=1, width=16, layers=1)
    assert {word for word in tokenizer.get_vocab() if word.startswith(" ")} == {" red", " cat", " dog"}
    number = tokenizer.get_vocab()
    for matrix in matrices(model):
        assert torch.equal(matrix[number["red"]], matrix[number[" red"]])
        apart = [" red", " cat", " dog", ".", ":", PAD, EOS, UNKNOWN]
        assert len({tuple(matrix[number[word]].tolist()) for word in apart}) == len(apart)
    assert forms(tokenizer)[0] == [(number["red"], number[" red"])]


def test_only_keys_and_bare_words_are_changed_and_a_second_time_changes_nothing(
    summaries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(summaries, seed=2)
    monkeypatch.setattr(tiny, "begin_alike", lambda model, tokenizer: None)
    before = dict(tiny_llama(summaries, seed=2).named_parameters())
    bare = [number for number, _ in forms(summaries)[0]]
    rest = [number for number in range(len(summaries)) if number not in bare]
    for name, after in model.named_parameters():
        if "k_proj" in name:
            assert torch.equal(after, before[name.replace("k_proj", "q_proj")])
            assert not torch.equal(after, before[name])
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(after[rest], before[name][rest])
            assert not any(torch.equal(after[number], before[name][number]) for number in bare)
        else:
            assert torch.equal(after, before[name])
    alike = {name: parameter.clone() for name, parameter in model.named_parameters()}
    begin_alike(model, summaries)
    assert all(torch.equal(alike[name], parameter) for name, parameter in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


# Verdicts


@pytest.mark.parametrize("escaped", [False, True])
def test_a_verdict_is_one_token_right_after_the_quoted_word(escaped: bool) -> None:
    """Also within JSON, where a quotation mark has a backslash before it."""
    check_verdicts(SummarizationTask(), escaped=escaped)
