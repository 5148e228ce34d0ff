"""What a reward model learns to write is JSON, whatever it is about, and is read back to the spans it came from."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from conversations import FAIR
from marked_texts import TEXTS, marked
from text2grad.feedback.critique_text import parse_critique
from text2grad.feedback.spans import critique_from_text, locate_spans
from text2grad.feedback.turns import numbered
from text2grad.reward_models.format import CritiqueFormat, read_critique
from text2grad.reward_models.writing import (
    CLOSING,
    GOOD,
    OPENING,
    POOR,
    SYMBOLS,
    critique_prompt,
    critique_request,
    critique_target,
)
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import LABELS, Critique, Example, Span


@st.composite
def quoted(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    """Return any text with quotes of it, called good and poor, the same ones several times."""
    response, spans = draw(marked())
    quotes = [response[span.start : span.end] for span in spans]
    listed = st.lists(st.sampled_from(quotes), max_size=4) if quotes else st.just([])
    return response, draw(listed), draw(listed)


def read_back(response: str, *spans: Span, feedback: str = "", occurrences: Any = "all") -> Critique:
    return critique_from_text(critique_target(Critique(feedback, spans), response), response, occurrences=occurrences)


def good(start: int, end: int) -> Span:
    return Span(start, end, "positive")


def poor(start: int, end: int) -> Span:
    return Span(start, end, "negative")


# What is written.


def test_the_prompt_is_the_tasks_prompt_then_the_response_then_a_line_break() -> None:
    assert critique_prompt(Example("Say it:"), " a cat") == "Say it: a cat\n"
    chat = Example([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say it:"}])
    assert critique_prompt(chat, " a cat") == "Be short.\n\nSay it: a cat\n"


def test_the_target_holds_the_words_first_and_then_the_quotes_in_order_of_place() -> None:
    response = 'a "cat" sat\nA dog'
    #           0123456789 01 23456
    spans = (poor(14, 17), good(0, 1), poor(2, 7), good(8, 12))
    assert critique_target(Critique("Well, “so” 😀.", spans), response) == (
        '{"textual_feedback": "Well, “so” 😀.", "good_spans": ["a", "sat\\n"], "poor_spans": ["\\"cat\\"", "dog"]}'
    )


def test_only_words_and_spans_are_written_not_outcome_status_or_unmatched_quotes() -> None:
    whole = Critique("Fine.", (good(0, 1),), 0.5, "repaired", ("dog",))
    assert critique_target(whole, "a cat") == critique_target(Critique("Fine.", (good(0, 1),)), "a cat")


def test_without_words_the_critique_is_empty_and_the_spans_are_the_same() -> None:
    critique = Critique("Too short.", (poor(0, 1),))
    written = critique_target(critique, "a cat", write_feedback=False)
    assert written == '{"textual_feedback": "", "good_spans": [], "poor_spans": ["a"]}'
    assert critique_from_text(written, "a cat") == Critique("", (poor(0, 1),))


@given(marked(), TEXTS, st.booleans())
def test_the_target_is_json_with_the_same_keys_in_order_for_any_text(
    case: Any, feedback: str, write_feedback: bool
) -> None:
    response, spans = case
    record = json.loads(critique_target(Critique(feedback, spans), response, write_feedback=write_feedback))
    assert list(record) == ["textual_feedback", "good_spans", "poor_spans"]
    assert record["textual_feedback"] == (feedback if write_feedback else "")
    for key, label in (("good_spans", "positive"), ("poor_spans", "negative")):
        places = sorted((span.start, span.end) for span in spans if span.label == label)
        assert record[key] == [response[start:end] for start, end in places]


# What is read back.


@given(marked(), TEXTS)
def test_the_reader_gets_words_and_quotes_as_they_were_written(case: Any, feedback: str) -> None:
    response, spans = case
    read = parse_critique(critique_target(Critique(feedback, spans), response))
    quotes = [(response[span.start : span.end], span.label) for span in sorted(spans)]
    assert read.status == "ok"
    assert read.feedback == (feedback if feedback.strip() else "")  # blank words are none
    assert read.positive == tuple(quote for quote, label in quotes if label == "positive" and quote.strip())
    assert read.negative == tuple(quote for quote, label in quotes if label == "negative" and quote.strip())


EITHER = pytest.mark.parametrize("occurrences", ["all", "first"])
"""How a critic's text is read, and how a learned critic's is."""


@EITHER
@given(quoted(), TEXTS)
def test_what_a_critics_quotes_mark_is_marked_again_by_what_is_written_of_it(
    occurrences: Any, case: Any, feedback: str
) -> None:
    response, positive, negative = case
    spans = locate_spans(response, positive, negative).spans
    again = read_back(response, *spans, feedback=feedback, occurrences=occurrences)
    assert again == Critique(feedback if feedback.strip() else "", spans)


@given(quoted())
def test_a_learned_critics_quotes_are_read_alike_when_they_are_learned_again(case: Any) -> None:
    response, positive, negative = case
    spans = locate_spans(response, positive, negative, occurrences="first").spans
    assert read_back(response, *spans, occurrences="first").spans == spans


WORDS = ["red", "blue bird", '"quoted"', "new\nline", "😀", "naïve", "back\\slash", "日本", "{x}"]


LABELLING = st.lists(st.sampled_from([*LABELS, None]), min_size=len(WORDS), max_size=len(WORDS))


@EITHER
@given(st.lists(st.sampled_from(WORDS), max_size=12), LABELLING)
def test_spans_on_all_occurrences_of_their_words_come_back_exactly(
    occurrences: Any, words: list[str], labels: list[Any]
) -> None:
    label_of, spans, response = dict(zip(WORDS, labels, strict=True)), [], ""
    for word in words:
        response += " "
        if label := label_of[word]:
            spans.append(Span(len(response), len(response) + len(word), label))
        response += word
    assert read_back(response, *spans, occurrences=occurrences) == Critique("", tuple(spans))


@EITHER
def test_of_words_that_are_good_first_and_poor_later_each_gets_its_own_again(occurrences: Any) -> None:
    spans = (good(0, 1), good(4, 5), poor(8, 9), poor(12, 13))
    assert read_back("a b a b a b a", *spans, occurrences=occurrences).spans == spans


@EITHER
def test_spans_that_overlap_but_differ_in_words_come_back_exactly(occurrences: Any) -> None:
    spans = (good(0, 7), poor(4, 7), poor(4, 11))
    assert read_back("the cat sat", *spans, occurrences=occurrences).spans == spans


def test_one_mark_on_the_first_of_many_is_one_to_a_learned_critic_and_all_to_another() -> None:
    assert read_back("a cat, a cat", good(2, 5), occurrences="first").spans == (good(2, 5),)
    assert read_back("a cat, a cat", good(2, 5)).spans == (good(2, 5), good(9, 12))


@EITHER
@pytest.mark.parametrize(
    ("response", "given", "read"),
    [
        pytest.param("a b a b a", [poor(4, 5), poor(8, 9)], [poor(0, 1), poor(4, 5)], id="the last two: the first two"),
        pytest.param("a b a", [poor(0, 1), good(4, 5)], [good(0, 1), poor(4, 5)], id="poor before good: turned round"),
        pytest.param("concat cat", [good(3, 6)], [good(7, 10)], id="within a word: the whole word elsewhere"),
        pytest.param("aaa", [good(0, 2), good(1, 3)], [good(0, 2)], id="a text over itself: found once"),
        pytest.param("a b", [good(1, 2)], [], id="blank: marks nothing"),
        pytest.param("a b", [good(1, 1)], [], id="empty: marks nothing"),
    ],
)
def test_quotes_cannot_say_where_they_stand(
    response: str, given: list[Span], read: list[Span], occurrences: Any
) -> None:
    assert read_back(response, *given, occurrences=occurrences).spans == tuple(read)


def test_a_mark_on_a_later_place_alone_moves_to_the_first_or_spreads_to_all() -> None:
    assert read_back("a cat, a cat", good(9, 12), occurrences="first").spans == (good(2, 5),)
    assert read_back("a cat, a cat", good(9, 12)).spans == (good(2, 5), good(9, 12))


# Written word by word.


SAID = [" red", " bird", ".", " .", ",", " ,", " ", '"', ' "', '"red', ' "bird"']


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(["red", "bird", *SAID], SYMBOLS)


def test_what_stands_between_the_words_is_what_json_puts_there() -> None:
    # Nothing marked, one quote, two quotes: all but the words and the end of the list are symbols.
    target = critique_target(Critique("red", (good(0, 3), good(4, 8), poor(4, 8))), "red bird")
    assert target == f'{OPENING}red{GOOD}"red", "bird"{POOR}"bird"{CLOSING}'
    assert critique_target(Critique(""), "red bird") == OPENING + GOOD + POOR + CLOSING


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_symbol_is_one_token_alone_and_between_words(tokenizer: Any, symbol: str) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer(symbol).input_ids) == [symbol]
    assert tokenizer.convert_ids_to_tokens(tokenizer(f"red{symbol}bird").input_ids) == ["red", symbol, "bird"]
    assert tokenizer.decode(tokenizer(symbol).input_ids, skip_special_tokens=True) == symbol


def test_a_target_costs_one_token_for_each_word_and_each_symbol(tokenizer: Any) -> None:
    target = critique_target(Critique('red "bird".', (good(1, 4), poor(5, 11))), ' red "bird"')
    assert tokenizer.convert_ids_to_tokens(tokenizer(target).input_ids) == [
        *(OPENING, "red", ' \\"', "bird", '\\"', ".", GOOD),
        *('"', "red", '"', POOR, '"', '\\"', "bird", '\\"', '"', CLOSING),
    ]


@given(st.lists(st.sampled_from(SAID), max_size=8).map("".join), st.lists(st.sampled_from(SAID), max_size=8), st.data())
def test_a_target_is_said_word_by_word_and_decoded_to_itself(
    tokenizer: Any, feedback: str, pieces: list[str], data: st.DataObject
) -> None:
    response, spans = "", []
    for piece in pieces:
        if label := data.draw(st.sampled_from([*LABELS, None])):
            spans.append(Span(len(response), len(response) + len(piece), label))
        response += piece
    target = critique_target(Critique(feedback, tuple(spans)), response)
    ids = tokenizer(target).input_ids
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == target


# Conversations.


def test_the_prompt_of_a_conversation_is_its_turns_with_their_numbers() -> None:
    shown = numbered(FAIR)[1]
    assert critique_prompt(Example("When?"), FAIR) == f"{shown}\n"
    asked = critique_request(Example("When?"), FAIR)
    assert asked.startswith("Judge the response, the turns 1, 3 of the conversation below, whose other turns are data.")
    assert 'from the response, each as {"turn": 1, "quote": "..."}.\n\n### Conversation' in asked
    assert asked.endswith(f"\n\n### Conversation\n{shown}")
    labelled, tagged = (critique_request(Example("When?"), FAIR, form) for form in ("labelled_spans", "tagged_words"))
    assert 'good or poor, each as {"turn": 1, "quote": "...", "label": "good"}, and under outcome' in labelled
    assert "each as" not in tagged + critique_request(Example("When?"), "Monday.")


@pytest.mark.parametrize("form", ["spans", "labelled_spans", "tagged_words"])
def test_a_conversation_is_quoted_in_the_order_of_its_turns_and_read_back_in_them(form: str) -> None:
    # turn 1: "Look" 0–4, "Lyon" 8–12; turn 3: "Lyon" 3–7, "on Monday," 8–18
    spans = (
        *(Span(8, 18, "negative", 3), Span(0, 4, "positive", 1)),
        *(Span(3, 7, "positive", 3), Span(8, 12, "negative", 1)),
    )
    target = critique_target(Critique("No.", spans, -1.0), FAIR, form=form)
    quotes = [(1, "Look", "good"), (1, "Lyon", "poor"), (3, "Lyon", "good"), (3, "on Monday,", "poor")]
    if form == "labelled_spans":
        entries = [{"turn": turn, "quote": quote, "label": label} for turn, quote, label in quotes]
        assert json.loads(target)["spans"] == entries
    if form == "spans":
        good, poor = ([{"turn": t, "quote": q} for t, q, label in quotes if label == word] for word in ("good", "poor"))
        assert json.loads(target) == {"textual_feedback": "No.", "good_spans": good, "poor_spans": poor}
    found = read_critique(target, FAIR, CritiqueFormat(form=form))
    assert (found.spans, found.unmatched, found.status) == (tuple(sorted(spans)), (), "ok")


def test_a_span_of_a_whole_conversation_is_a_quote_of_each_turn_that_it_covers() -> None:
    # "Lyon.In", characters 8 to 15 of "Look up Lyon.In Lyon on Monday, on Monday."
    target = critique_target(Critique("No.", (Span(8, 15, "negative"),)), FAIR)
    assert json.loads(target)["poor_spans"] == [{"turn": 1, "quote": "Lyon."}, {"turn": 3, "quote": "In"}]
