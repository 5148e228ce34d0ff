"""benchmarks/people_reward.py: joined marks, words, baselines and counts by hand."""

import sys
from collections.abc import Iterator

import pytest

from places import ROOT
from text2grad.evaluation.intervals import estimate
from text2grad.feedback import Annotation
from text2grad.types import Critique, Span


@pytest.fixture(scope="module")
def bench() -> Iterator[object]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import people_reward

        yield people_reward
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_marks_of_several_people_are_joined(bench) -> None:
    one = Annotation("p", "in Lyon on Friday", Critique("City.", (Span(3, 7, "negative"),)))
    two = Annotation("p", "in Lyon on Friday", Critique("Day.", (Span(11, 17, "negative"),)))
    [found] = bench.joined([one, two, one])
    assert found.critique == Critique("City.\nDay.", (Span(3, 7, "negative"), Span(11, 17, "negative")))
    words = bench.words_of(found.response, found.critique)
    assert [(word.text, word.place, word.length, word.true) for word in words] == [
        ("in", 0.0, 4, False),
        ("lyon", 0.25, 4, True),
        ("on", 0.5, 4, False),
        ("friday", 0.75, 4, True),
    ]


def test_look_up_and_its_threshold(bench) -> None:
    """Of four words two are marked: mean 1/2. "bad" 2 of 2: (2 + 2 · ½) / (2 + 2) = ¾, "good" 0 of 2: 1/4."""
    train = [bench.Word(text, 0.0, 4, text == "bad") for text in ("bad", "good", "bad", "good")]
    score = bench.look_up(train)
    assert (score(train[0]), score(train[1])) == (0.75, 0.25)
    assert score(bench.Word("new", 0.0, 4, False)) == 0.5
    assert bench.best_threshold(train, score) == 0.75
    assert bench.best_threshold(train, lambda word: 1.0) == 1.0  # all or none: F1 2 · 2 / (4 + 2)


def test_counts_give_f1_and_area(bench) -> None:
    """Marked: words 1 and 2, true: 1 and 4: F1 2 · 1 / (2 + 2). Scores: 1 > ½, 1 > 0, 0 < ½, 0 = 0."""
    words = [bench.Word("w", 0.0, 4, true) for true in (True, False, False, True)]
    row = bench.counts(words, [1.0, 0.5, 0.0, 0.0], [True, True, False, False])
    found = estimate([row], {"f1": bench.F1, "auroc": bench.AUROC}, draws=1)
    assert found["f1"].value == 0.5
    assert found["auroc"].value == 2.5 / 4


def test_the_prior_knows_place_and_length(bench) -> None:
    train = [bench.Word("w", place, 20, place < 0.5) for place in (0.0, 0.05, 0.5, 0.9)]
    score = bench.prior(train)
    assert score(train[0]) > score(train[2]) == score(train[3])
    assert score(bench.Word("w", 0.0, 200, False)) == 0.5  # no response of this length was seen
