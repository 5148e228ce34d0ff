"""A marked answer and another answer: kept marks, and words that are new."""

import pytest

from text2grad.runs.alternatives import keeps_mark, new_words
from text2grad.types import Span


def mark(response: str, quote: str) -> Span:
    start = response.index(quote)
    return Span(start, start + len(quote), "negative")


@pytest.mark.parametrize(
    ("response", "marks", "alternative", "kept"),
    [
        ("To do it, use x.", ["To do it"], "Call x.", False),
        ("To do it, use x.", ["To do it"], "x. That is, to do it well, use it.", True),  # it comes later
        ("To do it, use x.", ["To do it"], "To do that, use x.", False),
        ("Open the Directory.", ["Directory"], "Open the directory.", True),  # whatever the case
        ("Open the directory.", ["directory"], "Open the directories.", False),  # another word
        ("A bad and a worse word", ["bad", "worse"], "A good and a worse word", True),  # one of both
        ("One two.", [], "One two.", False),
    ],
)
def test_an_alternative_keeps_a_mark_if_the_marked_words_stand_in_it(
    response: str, marks: list[str], alternative: str, kept: bool
) -> None:
    assert keeps_mark(response, [mark(response, quote) for quote in marks], alternative) is kept


def test_positive_marks_of_a_person_may_be_kept() -> None:
    assert not keeps_mark("a b", [Span(0, 1, "positive")], "a b")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Open the directory now.", "Open the folder now, please.", ["folder", ", please"]),
        ("a b c", "a c", []),  # what is gone is nowhere
        ("a c", "a b c", ["b"]),
        ("same", "same", []),
        ("", "all new", ["all new"]),
    ],
)
def test_new_words_stand_in_place_of_others_or_between_them(old: str, new: str, words: list[str]) -> None:
    assert [new[span.start : span.end] for span in new_words(old, new)] == words
