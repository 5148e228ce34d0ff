"""Words of one answer in another."""

import pytest

from text2grad.runs.words import new_words, places_of


@pytest.mark.parametrize(
    ("quote", "text", "said"),
    [
        ("one", "None, or ONE: one.", ["ONE", "one"]),
        ("To do it", "First x. To do\n it, use x.", ["To do\n it"]),  # over a line
        ("directory", "A directory of directories", ["directory"]),  # another word
        ("a a", "a a a", ["a a", "a a"]),  # they overlap
        ("use `x`", "use `x` and `y`", ["use `x`"]),
        ("longer than it", "longer", []),
        ("", "a", []),
        (" \n", "a", []),  # no words are nowhere
    ],
)
def test_the_words_of_a_quote_are_looked_for_not_its_characters(quote: str, text: str, said: list[str]) -> None:
    assert [text[start:end] for start, end in places_of(quote, text)] == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("To undo it, you can use `git reset`.", "Call `git reset`.", ["Call"]),
        ("To undo it, you can use `git reset`.", "`git reset`.", []),  # nothing is new
        ("Open the directory now.", "Open the folder now, please.", ["folder", ", please"]),
        ("Open the Directory.", "Open the directory.", []),  # whatever the case
        ("", "One two.", ["One two."]),
        ("One two.", "", []),
        ("Go.", "Go to İzmir now.", ["to İzmir now"]),  # in lower case the letter İ has two characters
    ],
)
def test_new_words_are_those_that_the_older_answer_does_not_have(old: str, new: str, said: list[str]) -> None:
    assert [new[start:end] for start, end in new_words(old, new)] == said
