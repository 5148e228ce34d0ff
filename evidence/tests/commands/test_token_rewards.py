"""A judged response as tokens: whose ids, where its spans go when white space changes, and when there is no telling."""

from typing import Any

import pytest

from evidence.commands.token_rewards import TokenRewards, label_tokens
from text2grad.align.delta import DEFAULT, AlignSettings
from text2grad.errors import AlignmentError
from text2grad.feedback.records import CritiqueRecord
from text2grad.types import Critique, Span
from tokenizers_made_here import made, of_tokens


def judged(response: str, *spans: Span, ids: tuple[int, ...] | None = None, **critique: Any) -> CritiqueRecord:
    return CritiqueRecord(1, "file:1", "Where?", response, Critique("No.", spans, **critique), ids)


def labelled(tokenizer: Any, record: CritiqueRecord, settings: AlignSettings = DEFAULT) -> TokenRewards:
    found = label_tokens(tokenizer, record.response, record.critique, settings, ids=record.ids)
    assert found is not None
    return found


def words() -> tuple[Any, list[int]]:
    return of_tokens("byte_level", ["in", " Lyon", "s", " now", {"special": "<end>"}])


def test_sampled_ids_are_used_as_they_are_and_never_encoded_again() -> None:
    tokenizer, ids = words()
    ids = [ids[0], ids[4], *ids[1:]]  # an end-of-sequence in the middle: no encoder writes that
    found = labelled(tokenizer, judged("in Lyons now", Span(3, 7, "negative"), ids=tuple(ids)))
    assert found.ids == tuple(ids)
    assert found.offsets == ((0, 2), (2, 2), (2, 7), (7, 8), (8, 12), (12, 12))
    assert found.delta == (0.0, 0.0, -1.0, 0.0, 0.0, 0.0)
    assert found.tokens == ((2,),)


def test_a_response_without_ids_is_encoded_without_special_tokens() -> None:
    tokenizer = made("gpt2")
    text = "The dog said <end> to Tom."
    found = labelled(tokenizer, judged(text, Span(13, 18, "negative")))
    assert tokenizer.convert_tokens_to_ids("<end>") not in found.ids
    assert found.text == text
    assert "".join(text[a:b] for (a, b), d in zip(found.offsets, found.delta, strict=True) if d).strip() == "<end>"


def test_every_setting_reaches_the_rewards() -> None:
    tokenizer, ids = words()
    record = judged("in Lyons now", Span(3, 8, "positive"), Span(7, 12, "negative"), ids=tuple(ids))
    assert labelled(tokenizer, record).delta == (0.0, 1.0, 0.0, -1.0, 0.0)
    assert labelled(tokenizer, record, AlignSettings(overlap="negative_wins")).delta == (0.0, 1.0, -1.0, -1.0, 0.0)
    contracted = labelled(tokenizer, record, AlignSettings(mode="contract", span_mass="span"))
    assert contracted.delta == (0.0, 0.0, 0.0, -0.5, 0.0)
    assert contracted.tokens == ((2,), (2, 3))
    decayed = labelled(tokenizer, record, AlignSettings(weighting="linear_decay", overlap="last_wins"))
    assert decayed.delta == pytest.approx((0.0, 1.0, -1.0, -0.1, 0.0))


def test_a_critique_that_failed_gives_nothing_even_if_it_has_spans() -> None:
    tokenizer, ids = words()
    found = labelled(tokenizer, judged("in Lyons now", Span(3, 8, "negative"), ids=tuple(ids), status="timed_out"))
    assert found.delta == (0.0,) * 5
    assert found.spans == ()


def test_an_empty_response_has_no_tokens() -> None:
    found = labelled(made("gpt2"), judged(""))
    assert (found.ids, found.text, found.offsets, found.delta) == ((), "", (), ())


def test_a_first_space_that_the_tokenizer_drops_moves_the_spans() -> None:
    tokenizer, ids = of_tokens("llama", ["▁I", "▁live", "▁here"])
    found = labelled(tokenizer, judged(" I live here", Span(0, 2, "positive"), Span(2, 7, "negative"), ids=tuple(ids)))
    assert found.text == "I live here"
    assert found.text != found.response
    assert found.spans == (Span(0, 1, "positive"), Span(1, 6, "negative"))
    assert found.delta == (1.0, -1.0, 0.0)


def test_spaces_that_the_decoder_adds_move_the_spans() -> None:
    tokenizer, ids = of_tokens("wordpiece", ["don", "'", "t", "go"])
    found = labelled(tokenizer, judged("don't go", Span(3, 5, "negative"), Span(6, 8, "positive"), ids=tuple(ids)))
    assert found.text == "don ' t go" != found.response
    assert found.spans == (Span(4, 7, "negative"), Span(8, 10, "positive"))
    assert found.delta == (0.0, -1.0, -1.0, 1.0)


def test_a_response_that_the_tokens_do_not_say_has_no_rewards() -> None:
    bert = made("bert")  # it knows no Q: the whole word becomes <unk>, which decoding hides
    critique = Critique("", (Span(0, 6, "negative"),))
    assert label_tokens(bert, "Quebec people", critique, DEFAULT) is None
    tokenizer, ids = words()
    assert label_tokens(tokenizer, "in Nice now", Critique("", (Span(3, 7, "negative"),)), DEFAULT, ids=ids) is None


def test_ids_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(AlignmentError, match="id 99 is not in the tokenizer's vocabulary"):
        label_tokens(words()[0], "in", Critique(""), DEFAULT, ids=(0, 99))
