"""What a better response changed: places by hand, and laws."""

import pytest
from hypothesis import given, strategies as st

from text2grad.feedback.sources.table import changed_spans


@pytest.mark.parametrize(
    ("response", "better", "quotes", "added"),
    [
        ("I live in Lyon.", "I live in Nice.", ["Lyon"], 0),
        ("a b c d", "a c", ["b", "d"], 0),
        ("a c", "a b c d", [], 2),
        ("a  b", "a b", [], 0),  # white space within a line does not count
        ("a\r\n\r\nb", "a\nb\n", [], 0),  # nor empty lines, nor what ends a line
        ("if a:\n    b\n    c", "if a:\n    b\nc", ["c"], 0),  # an indentation marks the word after it
        ("    return a - b", "return a - b", ["return"], 0),
        ("x = 1\ny = 2", "x = 1", ["y = 2"], 0),
        ("", "a", [], 1),
        ("a", "", ["a"], 0),
        ("é😀 a", "é😀 b", ["a"], 0),
        ("मेला शुक्रवार को है।", "मेला शनिवार को है।", ["शुक्रवार"], 0),  # words with vowel signs
        ("我去了巴黎", "我去了里昂", ["巴黎"], 0),  # a script without spaces
        ("b " + "a, " * 150, "c " + "a, " * 150, ["b"], 0),  # what stands often is compared, too
    ],
)
def test_changes_by_hand(response: str, better: str, quotes: list[str], added: int) -> None:
    spans, number = changed_spans(response, better)
    assert [response[span.start : span.end] for span in spans] == quotes
    assert number == added
    assert {span.label for span in spans} <= {"negative"}


TEXTS = st.lists(st.sampled_from(["a", "b", "if", "(", "\n", "\n  ", "\r\n\t", " ", "é", "😀"]), max_size=14).map(
    "".join
)


@given(TEXTS, TEXTS)
def test_spans_are_visible_text_in_order_and_only_differences_are_marked(response: str, better: str) -> None:
    spans, added = changed_spans(response, better)
    assert all(response[span.start : span.end].strip() for span in spans)
    assert spans == sorted(spans)
    assert changed_spans(response, response) == ([], 0)
    if not spans and not added:
        assert "".join(response.split()) == "".join(better.split())  # white space within a line is no difference
