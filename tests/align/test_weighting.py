"""How spans weigh their tokens, by hand."""

import pytest

from text2grad.align.delta import pseudo_rewards
from text2grad.align.weighting import linear_decay, uniform
from text2grad.errors import ConfigError
from text2grad.types import Span
from tokenizers_made_here import of_tokens, words


def test_linear_decay_follows_the_paper() -> None:
    # appendix I.1: r_i = 1 − (i − 1)·0.9/(n − 1), here n = 5
    assert linear_decay(list("abcde")) == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1])
    assert linear_decay(["a"]) == [1.0]
    assert linear_decay([]) == []
    assert uniform(["a", "b"]) == [1.0, 1.0]


def test_a_weighting_of_your_own_sees_each_span_with_its_spaces_and_weighs_it() -> None:
    tokenizer, ids = of_tokens("byte_level", ["a", " b", {"bytes": "f09f"}, {"bytes": "9880"}, " c"])
    seen = []

    def weigh(texts: list[str]) -> list[float]:
        seen.append(texts)
        return [0.5, 0.25, 0.0][: len(texts)]

    spans = [Span(2, 4, "negative"), Span(0, 1, "positive"), Span(6, 6, "positive")]
    assert pseudo_rewards(tokenizer, ids, spans, weighting=weigh) == [0.5, -0.5, -0.25, 0.0, 0.0]
    assert seen == [[" b", "😀", ""], ["a"]]


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0], "the weighting gave 1 weights for 2 tokens; give one per token"),
        ([1.0, 1.5], "the weighting gave 1.5 for the token ' two'; weights lie in [0, 1]"),
        ([-0.1, 1.0], "the weighting gave -0.1 for the token 'one'; weights lie in [0, 1]"),
        ([float("nan"), 1.0], "the weighting gave nan for the token 'one'; weights lie in [0, 1]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: list[float], told: str) -> None:
    tokenizer, ids = words("one", " two")
    with pytest.raises(ConfigError) as caught:
        pseudo_rewards(tokenizer, ids, [Span(0, 7, "positive")], weighting=lambda texts: weights)
    assert str(caught.value) == told


def test_a_span_whose_weights_are_all_zero_gives_zero_whatever_its_mass() -> None:
    tokenizer, ids = words("one", " two")
    delta = pseudo_rewards(tokenizer, ids, [Span(0, 7, "negative")], weighting=lambda texts: [0, 0], span_mass="span")
    assert [str(value) for value in delta] == ["0.0", "0.0"]  # and never −0.0


def test_a_token_that_weighs_nothing_still_lies_in_its_span() -> None:
    tokenizer, ids = words("a", " b")
    spans = [Span(0, 1, "positive"), Span(0, 3, "negative")]
    by_length = {1: [1.0], 2: [0.0, 1.0]}
    delta = pseudo_rewards(tokenizer, ids, spans, weighting=lambda texts: by_length[len(texts)])
    assert delta == [0.0, -1.0]
