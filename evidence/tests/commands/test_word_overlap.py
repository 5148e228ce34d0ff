"""Whether words speak of what is quoted."""

import pytest

from evidence.commands.word_overlap import has_word_overlap, quotes_without_overlap
from text2grad.types import Critique, Span


@pytest.mark.parametrize(
    ("span", "feedback", "supported"),
    [
        ("Lyon", "Not LYON.", True),
        ("in\nLyon", "You say in  Lyon", True),
        ("in Lyon", "in Nice", False),
        ("the lazy brown dogs", "brown and lazy", True),  # two of three long words
        ("the lazy brown dogs", "brown", False),
        ("a b", "b then a", True),  # no long word: all of them
        ("a b", "b", False),
        ("-", "a - b", True),
        ("-", "minus", False),
        ("cat", "concatenate it", True),  # quoted, as far as characters go
        ("a\ncat", "a  cats' home", True),  # quoted, as white space goes; "cat" is no word of it
        ("STRASSE", "Die Straße", True),  # one word, as case goes
        ("दिल्ली शहर", "दल्लू शहर", False),  # words with vowel signs, not their letters
        ("दिल्ली में", "शहर दिल्ली है", True),
        ("서울에서 열렸다", "서울에서 열린 것이 아니다", True),
    ],
)
def test_support_by_hand(span: str, feedback: str, supported: bool) -> None:
    assert has_word_overlap(span, feedback) is supported


@pytest.mark.parametrize(
    ("feedback", "missing"),
    [
        ("The city, Lyon, is wrong.", ("on Friday at noon",)),
        ('"Lyon" is right; FRIDAY at two is not.', ()),  # one of two long words
        ("", ("Lyon", "on Friday at noon")),
    ],
)
def test_a_quote_is_supported_where_half_of_its_words_are_named(feedback: str, missing: tuple[str, ...]) -> None:
    response = "Lyon, on Friday at noon"
    critique = Critique(feedback, (Span(0, 4, "positive"), Span(6, 23, "negative")))
    assert quotes_without_overlap(critique, response) == missing


def test_a_quote_that_stands_twice_is_named_once() -> None:
    critique = Critique("", (Span(0, 4, "negative"), Span(6, 10, "negative")))
    assert quotes_without_overlap(critique, "Lyon, Lyon") == ("Lyon",)


def test_a_quote_without_words_is_supported_where_it_stands_in_the_critique() -> None:
    critique = Critique("The + should be a minus.", (Span(2, 3, "negative"), Span(6, 7, "negative")))
    assert quotes_without_overlap(critique, "a + b * c") == ("*",)
