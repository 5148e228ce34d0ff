"""A marked answer, other answers, and what in them stands in place of the marks."""

import pytest

from text2grad.runs.alternatives import departing
from text2grad.types import Critique, Span


def mark(response: str, quote: str) -> Span:
    start = response.index(quote)
    return Span(start, start + len(quote), "negative")


def positive(response: str, marks: list[str], alternative: str) -> list[str] | None:
    critique = departing(response, [mark(response, quote) for quote in marks], alternative)
    return None if critique is None else [alternative[span.start : span.end] for span in critique.spans]


LEAD_IN = "To undo it, you can use `git reset`."


@pytest.mark.parametrize(
    ("response", "marks", "alternative", "spans"),
    [
        (LEAD_IN, ["To undo it, you can use"], "Call `git reset`.", ["Call"]),
        (LEAD_IN, ["To undo it, you can use"], "`git reset`.", ["`"]),  # what stands behind what is gone
        ("To do it, use x.", ["To do it"], "x. That is, to do it well, use it.", None),  # it comes later
        ("To do it, use x.", ["To do it"], "First x. To do this, use x.", ["First x.", "this"]),  # put before a mark
        ("Use a. Then b.", ["Then"], "Use a. Then, now b.", None),
        ("Open the directory now.", ["directory"], "Open the folder soon.", ["folder soon"]),  # one replaced block
        ("Open the directory now.", ["directory"], "Open the folder now, please.", ["folder"]),  # ", please": no mark
        ("A bad and a worse word", ["bad", "worse"], "A good and a better word", ["good", "better"]),
        ("Open the Directory.", ["Directory"], "Open the directory.", None),  # whatever the case
        ("One two three.", ["two"], "Seven two nine.", None),  # the marked word is still there
        ("a b c", ["a b"], "b a c", ["b", "c"]),  # "c" stands behind what is gone
        ("One two.", [], "Three.", None),  # nothing is marked, so nothing departs from a mark
    ],
)
def test_words_in_place_of_marked_ones_are_positive(
    response: str, marks: list[str], alternative: str, spans: list[str] | None
) -> None:
    assert positive(response, marks, alternative) == spans


def test_where_the_marked_words_stood_last_the_end_itself_is_positive() -> None:
    response = "Use ls. It lists files."
    critique = departing(response, [mark(response, "It lists files.")], "Use ls.")
    assert critique == Critique("", (), outcome=1.0)
    critique = departing(response, [mark(response, "It lists files.")], "Use ls. Done.")
    assert critique is not None
    assert (critique.outcome, len(critique.spans)) == (None, 1)


def test_positive_marks_of_a_person_ask_for_nothing_else() -> None:
    assert departing("a b", [Span(0, 1, "positive")], "c b") is None
