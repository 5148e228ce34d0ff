"""A response as text: its tokens, its δ, and where its spans go when white space changes."""

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers.processors import TemplateProcessing

from text2grad.align.texts import encode, move_spans, text_delta
from text2grad.errors import AlignmentError
from text2grad.types import Critique, Label, Span
from tokenizers_made_here import gpt2, made


def test_a_response_given_as_text_has_a_delta_for_each_token_unless_they_decode_to_another_text() -> None:
    tokenizer, text = made("gpt2"), "The dog said <end> to Tom."
    marked = Critique("No.", (Span(13, 18, "negative"),))
    delta, ids = text_delta(tokenizer, text, marked), encode(tokenizer, text)
    assert delta is not None
    words = [tokenizer.decode([i]) for i, own in zip(ids, delta, strict=True) if own]
    assert (set(delta), "".join(words).strip()) == ({0.0, -1.0}, "<end>")
    assert text_delta(tokenizer, text, Critique("No.", marked.spans, status="timed_out")) == [0.0] * len(ids)
    assert text_delta(tokenizer, "", Critique("")) == []
    assert text_delta(made("bert"), "Quebec people", marked) is None  # it knows no Q, which decoding hides
    with pytest.raises(AlignmentError, match="reaches beyond its response"):
        text_delta(tokenizer, "in", marked)


def test_encoding_keeps_no_special_token_and_adds_none() -> None:
    tokenizer = gpt2()
    begin = [("<start>", tokenizer.convert_tokens_to_ids("<start>"))]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<start> $A", special_tokens=begin)
    assert tokenizer.decode(tokenizer("a")["input_ids"]) == "<start>a"
    assert tokenizer.decode(list(encode(tokenizer, "<start>a<end>"))) == "<start>a<end>"


SPACES = st.text(st.sampled_from(" \n\t"), max_size=2)


@st.composite
def respaced_texts(draw: st.DrawFn) -> tuple[str, str, list[Span]]:
    letters = draw(st.lists(st.sampled_from("aabx,é"), max_size=8))
    texts = ["".join(draw(SPACES) + letter for letter in letters) + draw(SPACES) for _ in range(2)]
    spans = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(texts[0])))
        end = draw(st.integers(start, len(texts[0])))
        labels: list[Label] = ["positive", "negative"]
        spans.append(Span(start, end, draw(st.sampled_from(labels))))
    return texts[0], texts[1], spans


def seen_before(text: str, place: int) -> int:
    return sum(not character.isspace() for character in text[:place])


@settings(deadline=None, derandomize=True, max_examples=500)
@given(respaced_texts())
def test_a_moved_span_holds_the_very_same_visible_characters(case: tuple[str, str, list[Span]]) -> None:
    response, text, spans = case
    moved = move_spans(spans, response, text)
    assert moved is not None
    for before, after in zip(spans, moved, strict=True):
        assert after.label == before.label
        assert after.end <= len(text)
        assert seen_before(text, after.start) == seen_before(response, before.start)
        assert seen_before(text, after.end) == seen_before(response, before.end)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(respaced_texts())
def test_spans_of_an_unchanged_text_stay_where_they_are_white_space_and_all(
    case: tuple[str, str, list[Span]],
) -> None:
    response, _, spans = case
    assert move_spans(spans, response, response) == spans
    moved = move_spans(spans, response, "  " + response)
    lead = len(response) - len(response.lstrip())
    for before, after in zip(spans, moved or [], strict=True):
        if before.start > lead and response.strip():
            assert (after.start, after.end) == (before.start + 2, before.end + 2)


def test_white_space_that_both_texts_have_alike_stays_in_a_span() -> None:
    assert move_spans([Span(3, 8, "negative")], " in Lyon now", "in Lyon now") == [Span(2, 7, "negative")]
    assert move_spans([Span(2, 4, "negative")], "ab  cd", "ab cd") == [Span(3, 3, "negative")]


@pytest.mark.parametrize("other", ["Lyons", "lyon", "L yonn", "Lyo", "Ly0n", "", "Ly\u200bon"])
def test_texts_that_differ_in_anything_but_white_space_are_never_matched(other: str) -> None:
    assert move_spans([], "Lyon", other) is None


def test_a_span_that_moves_keeps_what_is_said_about_it() -> None:
    said = Span(3, 9, "negative", None, "It is Nice.", "Fact", "major", 0.5, "ann", "mqm")
    (moved,) = move_spans([said], " Hi, Lyon", "Hi , Lyon") or []
    assert (moved.start, moved.end) == (3, 9)
    assert {**moved.stated, "start": 3, "end": 9} == said.stated
    (shifted,) = move_spans([said], " Hi, Lyon", "Hi,  Lyon") or []
    assert shifted.stated == {**said.stated, "start": shifted.start, "end": shifted.end}


def test_a_span_of_an_annotation_weighs_what_it_says() -> None:
    marked = Critique("", (Span(0, 3, "negative", weight=0.25), Span(4, 7, "positive", severity="minor")))
    delta = text_delta(made("gpt2"), "The dog", marked)
    assert set(delta or ()) == {-0.25, 1.0}
