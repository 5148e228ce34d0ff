"""Labels of words: which words there are, what spans make of them, and that they are read whole or not at all."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marked_texts import TEXTS, marked
from text2grad.feedback import words_of
from text2grad.reward_models.prompts import critique_prompts
from text2grad.reward_models.writing import (
    FORMS,
    critique_from_labels,
    critique_request,
    critique_target,
    labels_of,
    spans_of,
)
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Example, Span

TAGGED = FORMS["tagged_words"]
EACH = pytest.mark.parametrize("form", ["tagged_words"])


def good(start: int, end: int) -> Span:
    return Span(start, end, "positive")


def poor(start: int, end: int) -> Span:
    return Span(start, end, "negative")


@st.composite
def labelled(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Return any text with a label for each of its words."""
    response = draw(TEXTS)
    count = len(words_of(response))
    return response, draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=count, max_size=count))


# Words.


def test_words_are_runs_of_letters_and_digits_and_single_marks() -> None:
    text = "It's 5.50€,\n日本 e\u0301t\u00e9 ok_1 😀!"
    #       0123456789 0 1 23  4 5    6      789
    assert [text[start:end] for start, end in words_of(text)] == [
        *("It", "'", "s", "5", ".", "50", "€", ",", "日", "本", "e\u0301té", "ok_1", "😀", "!"),
    ]
    assert words_of(" to  be") == [(1, 3), (5, 7)]
    assert words_of("") == words_of(" \n\t") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("\u0e27\u0e31\u0e19\u0e17\u0e35", ["\u0e27\u0e31", "\u0e19", "\u0e17\u0e35"], id="Thai"),
        pytest.param("\u17a2\u17b6 \u1780", ["\u17a2\u17b6", "\u1780"], id="Khmer"),
        pytest.param("\u2764\ufe0f!", ["\u2764\ufe0f", "!"], id="emoji with a selector"),
        pytest.param("\u0e27 \u0301", ["\u0e27", "\u0301"], id="a mark behind a space has no character before it"),
    ],
)
def test_a_vowel_sign_belongs_to_the_character_before_it(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in words_of(text)] == words


@given(TEXTS)
def test_every_visible_character_is_in_exactly_one_word(text: str) -> None:
    places = [place for start, end in words_of(text) for place in range(start, end)]
    assert places == sorted(set(places))
    assert {place for place in range(len(text)) if not text[place].isspace()} == set(places)


# Spans to labels and back.


@pytest.mark.parametrize(
    ("spans", "labels"),
    [
        pytest.param([], [0, 0, 0, 0], id="no span marks nothing"),
        pytest.param([good(3, 7)], [0, 1, 0, 0], id="a span that ends where a mark begins leaves it out"),
        pytest.param([good(2, 3)], [0, 0, 0, 0], id="blanks are no word"),
        pytest.param([good(2, 4)], [0, 1, 0, 0], id="the first letter is touched"),
        pytest.param([good(6, 9)], [0, 1, 1, 0], id="the last letter and the comma, not the word after the blank"),
        pytest.param([poor(13, 15)], [0, 0, 0, -1], id="beyond the last word a span may go on"),
        pytest.param([poor(4, 4)], [0, 0, 0, 0], id="an empty span marks nothing"),
        pytest.param([good(0, 14), poor(9, 14)], [1, 1, 1, 0], id="both labels: none"),
        pytest.param([good(3, 5), good(5, 7)], [0, 1, 0, 0], id="twice the same: once"),
    ],
)
def test_a_word_has_the_label_of_the_spans_that_touch_it(spans: list[Span], labels: list[int]) -> None:
    assert labels_of("in Lyon, today ", spans) == labels
    #                 012345678901234


@pytest.mark.parametrize(
    ("labels", "spans"),
    [
        ([1, 1, 1, 1], [good(1, 15)]),  # from the first letter to the last
        ([0, 1, 1, 0], [good(4, 9)]),
        ([0, 1, -1, -1], [good(4, 8), poor(8, 15)]),
        ([-1, 0, -1, 1], [poor(1, 3), poor(8, 9), good(10, 15)]),
        ([0, 0, 0, 0], []),
    ],
)
def test_a_run_of_equal_labels_is_one_span(labels: list[int], spans: list[Span]) -> None:
    assert spans_of(" in Lyon, today ", labels) == tuple(spans)


@given(labelled())
def test_labels_come_back_from_the_spans_that_they_mean(case: Any) -> None:
    response, labels = case
    assert labels_of(response, spans_of(response, labels)) == labels


# Written.


def test_what_is_written_by_hand() -> None:
    critique = Critique('The "day" is wrong.', (good(3, 7), poor(9, 14)))
    words = '{"textual_feedback": "The \\"day\\" is wrong.", '
    judged = replace(critique, outcome=-4.0)
    assert critique_target(judged, "in Lyon, today", form="tagged_words") == (
        words + '"word_tags": "in = Lyon + , = today -", "outcome": -4}'
    )
    assert critique_target(Critique(""), "", form="tagged_words") == (
        '{"textual_feedback": "", "word_tags": "", "outcome": null}'
    )


def test_a_chat_model_is_asked_for_the_form_that_it_writes() -> None:
    asked = [critique_request(Example("Where?"), " in Lyon", form) for form in ("spans", "tagged_words")]
    for request, key in zip(asked, ("good_spans and poor_spans ", "word_tags "), strict=True):
        assert f"your critique in words, then under {key}" in request
        assert request.endswith(".\n\n### Prompt\nWhere?\n\n### Response\n in Lyon")
    assert "+ for a good one, - for a poor one, = for any other, and under outcome a number" in asked[1]
    assert asked[0] == critique_request(Example("Where?"), " in Lyon")
    tokenizer = word_tokenizer([*asked, "Where? in Lyon\n"], ())
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    for prompt_format, text in (("chat", asked[1]), ("plain", "Where? in Lyon\n")):
        found = critique_prompts(tokenizer, [Example("Where?")], [" in Lyon"], prompt_format, "tagged_words")
        assert found == [tokenizer(text, add_special_tokens=prompt_format == "plain").input_ids]


# Read.


@EACH
@given(response=TEXTS, data=st.data(), feedback=TEXTS)
@settings(deadline=None)
def test_spans_that_are_runs_of_pieces_come_back_exactly(form: Any, response: str, data: Any, feedback: str) -> None:
    count = len(words_of(response))
    labels = data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=count, max_size=count))
    spans = spans_of(response, labels)
    assert labels_of(response, spans) == labels
    target = critique_target(Critique(feedback, spans), response, form=form)
    read = critique_from_labels(target, response, FORMS[form])
    assert read == Critique(feedback if feedback.strip() else "", spans)  # blank words are none


@EACH
@given(case=marked(), feedback=TEXTS, write_feedback=st.booleans())
@settings(deadline=None)
def test_of_any_spans_the_labels_of_words_come_back(form: Any, case: Any, feedback: str, write_feedback: bool) -> None:
    response, spans = case
    target = critique_target(Critique(feedback, spans), response, write_feedback=write_feedback, form=form)
    assert list(json.loads(target))[:2] == ["textual_feedback", FORMS[form].key]
    assert ("outcome" in json.loads(target)) == FORMS[form].outcome
    read = critique_from_labels(target, response, FORMS[form])
    assert read.status == "ok"
    assert labels_of(response, read.spans) == labels_of(response, spans)
    assert critique_target(read, response, write_feedback=write_feedback, form=form) == critique_target(
        Critique(feedback if feedback.strip() else "", spans), response, write_feedback=write_feedback, form=form
    )


@EACH
@given(case=marked(), data=st.data())
@settings(deadline=None)
def test_a_critique_of_another_response_is_never_taken_for_one_of_this(form: Any, case: Any, data: Any) -> None:
    response, spans = case
    longer = response + data.draw(st.sampled_from([" x", ".", "\n日"]))
    target = critique_target(Critique("Fine.", spans), response, form=form)
    assert critique_from_labels(target, longer, FORMS[form]).failed


@EACH
@given(case=marked(), data=st.data())
@settings(deadline=None)
def test_what_was_cut_off_anywhere_marks_nothing(form: Any, case: Any, data: Any) -> None:
    response, spans = case
    target = critique_target(Critique("Fine.", spans), response, form=form)
    cut = target[: data.draw(st.integers(0, len(target) - 1))]
    read = critique_from_labels(cut, response, FORMS[form])
    assert (read.status, read.spans) == ("unparsable", ())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (TAGGED, '{"word_tags": "in = Lyon +"}'),
        (TAGGED, '{"word_tags": "in = Lyon + ."}'),
        (TAGGED, '{"word_tags": "in = Lyon + ! -"}'),
        (TAGGED, '{"word_tags": "in = Lyon 0 . -"}'),
        (TAGGED, '{"word_tags": ["in", "="]}'),
        (TAGGED, '{"textual_feedback": "Good."}'),
        (TAGGED, '{"word_tags": "in = Lyon + . -"'),
        (TAGGED, ""),
    ],
)
def test_what_labels_other_words_is_a_failure_that_says_why(form: Any, text: str) -> None:
    read = critique_from_labels(text, "in Lyon.", form)
    assert (read.status, read.spans) == ("unparsable", ())
    assert read.feedback.startswith(("no whole object with word_tags: ", "word_tags does not fit the words of the"))
    assert read.feedback.endswith(f": {text}")  # what it wrote is kept


@pytest.mark.parametrize(
    ("form", "text", "status"),
    [
        (TAGGED, '{"textual_feedback": "So.", "word_tags": "in = Lyon + . -"}', "ok"),
        (TAGGED, 'Well. ```json\n{"word_tags": "in = Lyon + . -", "textual_feedback": "So."}\n```', "ok"),
        (TAGGED, "{'textual_feedback': 'So.', 'word_tags': 'in = Lyon + . -',}", "repaired"),
        (TAGGED, '{"a": 1} {"textual_feedback": "So.", "word_tags": "  in  = Lyon + . - "}', "ok"),
    ],
)
def test_json_is_read_as_models_write_it(form: Any, text: str, status: Any) -> None:
    assert critique_from_labels(text, "in Lyon.", form) == Critique("So.", (good(3, 7), poor(7, 8)), status=status)


def test_an_outcome_is_read_where_the_form_has_one() -> None:
    for form, text, outcome in (
        (TAGGED, '{"word_tags": "a +", "outcome": -4}', -4.0),
        (TAGGED, '{"word_tags": "a +", "outcome": null}', None),
        (TAGGED, '{"word_tags": "a +", "outcome": "bad"}', None),
    ):
        read = critique_from_labels(text, "a", form)
        assert (read.outcome, read.status, read.spans) == (outcome, "ok", (good(0, 1),))
