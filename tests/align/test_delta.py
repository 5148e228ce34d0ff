"""Spans to δ: conformance cases derived by hand, settings, and every error word for word."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from places import DATA
from text2grad.align.delta import pseudo_rewards, span_tokens
from text2grad.align.offsets import token_offsets
from text2grad.errors import AlignmentError, ConfigError
from text2grad.types import Span
from tokenizers_made_here import made, of_tokens, words

CASES = json.loads((DATA / "alignment.json").read_text())["cases"]
SETTINGS = ("mode", "weighting", "overlap", "span_mass")


@pytest.fixture(params=CASES, ids=lambda case: case["name"].replace(" ", "_"))
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def spans_of(case: dict[str, Any]) -> list[Span]:
    return [Span(*span) for span in case["spans"]]


def test_there_are_conformance_cases_for_every_family_and_setting() -> None:
    assert len(CASES) >= 80
    assert {case["family"] for case in CASES} == {"byte_level", "llama", "gemma", "metaspace", "wordpiece"}
    assert {setting for case in CASES for setting in SETTINGS if setting in case} == set(SETTINGS)


def test_a_case_decodes_to_its_text_and_its_tokens_lie_where_they_should(case: dict[str, Any]) -> None:
    tokenizer, ids = of_tokens(case["family"], case["tokens"])
    assert tokenizer.decode(ids, skip_special_tokens=True) == case["text"]
    assert token_offsets(tokenizer, ids) == [tuple(pair) for pair in case["ranges"]]


def test_a_case_gives_its_pseudo_rewards(case: dict[str, Any]) -> None:
    tokenizer, ids = of_tokens(case["family"], case["tokens"])
    settings = {name: case[name] for name in SETTINGS if name in case}
    delta = pseudo_rewards(tokenizer, ids, spans_of(case), **settings)
    assert delta == pytest.approx(case["delta"], abs=1e-9)


def test_span_tokens_tells_the_tokens_of_each_span_in_their_order() -> None:
    offsets = [(0, 2), (2, 7), (7, 7), (7, 8), (8, 12)]
    spans = [Span(9, 12, "positive"), Span(3, 8, "negative"), Span(4, 4, "negative")]
    assert span_tokens(offsets, spans) == [[4], [1, 3], []]
    assert span_tokens(offsets, spans, mode="contract") == [[], [3], []]
    assert span_tokens(offsets, [Span(2, 8, "negative")], mode="strict") == [[1, 3]]


def test_a_span_beyond_the_response_is_refused() -> None:
    tokenizer, ids = words("one", " two", special="<end>")
    with pytest.raises(AlignmentError) as caught:
        pseudo_rewards(tokenizer, ids, [Span(4, 8, "positive")])
    assert str(caught.value) == (
        "Span(start=4, end=8, label='positive') reaches beyond its response, which has 7 characters. Spans count "
        "characters of tokenizer.decode(response_ids, skip_special_tokens=True), neither stripped nor encoded "
        "again"
    )


def test_a_span_of_an_empty_response_is_refused() -> None:
    tokenizer, _ = words("one")
    with pytest.raises(AlignmentError, match="which has 0 characters"):
        pseudo_rewards(tokenizer, [], [Span(0, 1, "positive")])


def test_offsets_of_another_response_are_refused() -> None:
    tokenizer, ids = words("one", " two")
    with pytest.raises(AlignmentError) as caught:
        pseudo_rewards(tokenizer, ids, [], offsets=[(0, 3)])
    assert str(caught.value) == (
        "offsets has 1 ranges for 2 response ids. Give what token_offsets(tokenizer, response_ids) returns, or "
        "leave offsets out"
    )


def test_given_offsets_are_used() -> None:
    tokenizer, ids = words("one", " two")
    assert pseudo_rewards(tokenizer, ids, [Span(0, 1, "negative")], offsets=[(0, 0), (0, 7)]) == [0.0, -1.0]


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("mode", "expnd", '\'expnd\'. Did you mean "expand"? Known values: strict, contract, expand'),
        ("mode", "all", "'all'. Known values: strict, contract, expand"),
        ("weighting", "linear", "'linear'. Did you mean \"linear_decay\"? Known values: uniform, linear_decay"),
        ("overlap", "cancle", '\'cancle\'. Did you mean "cancel"? Known values: cancel, negative_wins, last_wins'),
        ("span_mass", 1, "1. Known values: token, span, response"),
    ],
)  # fmt: skip
def test_a_setting_without_such_a_value_names_the_nearest_and_all(setting: str, value: Any, told: str) -> None:
    tokenizer, ids = words("one")
    with pytest.raises(ConfigError) as caught:
        pseudo_rewards(tokenizer, ids, [], **{setting: value})
    assert str(caught.value) == f"{setting} has no value {told}"


def test_the_ids_are_never_encoded_again() -> None:
    tokenizer = made("gpt2")
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "the dog".replace(" ", "Ġ")]
    assert tokenizer("the dog")["input_ids"] != letters
    delta = pseudo_rewards(tokenizer, letters, [Span(4, 7, "positive")])
    assert delta == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_aligning_loads_neither_torch_nor_transformers() -> None:
    check = "import sys, text2grad.align; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The weight of a span.

RATED = [
    Span(0, 3, "negative", severity="major", rater="ann"),
    Span(3, 7, "negative", severity=" Minor", rater="bob", category="Style"),
    Span(7, 12, "positive", weight=2.0),
    Span(12, 17, "positive", severity="odd", rater="Bob"),
]
WEIGHTS = {"severity": {"major": 1.5, "minor": 0.5}, "rater": {"bob": 0.25}, "category": {"style": 0.5}}


@pytest.mark.parametrize(
    ("weights", "spans", "expected"),
    [
        (None, RATED, [-1.0, -1.0, 2.0, 1.0]),
        ({"severity": WEIGHTS["severity"]}, RATED, [-1.5, -0.5, 2.0, 1.0]),
        ({"rater": WEIGHTS["rater"]}, RATED, [-1.0, -0.25, 2.0, 0.25]),
        (WEIGHTS, RATED, [-1.5, -0.0625, 2.0, 0.25]),  # the second: 0.5 · 0.25 · 0.5
        ({"rater": {"bob": 3.0}}, [Span(7, 12, "positive", weight=0.5, rater="bob")], [0.0, 0.0, 1.5, 0.0]),  # 0.5 · 3
        ({"rater": {"bob": 0.0}}, RATED, [-1.0, 0.0, 2.0, 0.0]),
    ],
)  # fmt: skip
def test_the_weight_of_a_span_is_the_size_of_delta(weights: Any, spans: list[Span], expected: list[float]) -> None:
    tokenizer, ids = words("One", " two", " four", " six.")
    assert pseudo_rewards(tokenizer, ids, spans, weights=weights) == expected


@pytest.mark.parametrize(
    ("overlap", "good", "poor", "expected"),
    [  # " two" in both spans, " four" in the negative one alone; the positive one comes first
        ("cancel", 2.0, 0.5, [2.0, 0.0, -0.5]),  # a contradiction is no signal, whatever it weighs
        ("negative_wins", 2.0, 0.5, [2.0, -0.5, -0.5]),
        ("last_wins", 2.0, 0.5, [2.0, -0.5, -0.5]),
        ("cancel", 2.0, 0.0, [2.0, 2.0, 0.0]),  # a span of weight 0 is none, and takes nothing from another
        ("negative_wins", 2.0, 0.0, [2.0, 2.0, 0.0]),
        ("last_wins", 2.0, 0.0, [2.0, 2.0, 0.0]),
        ("cancel", 0.0, 0.5, [0.0, -0.5, -0.5]),
    ],
)
def test_labels_and_not_weights_decide_where_spans_overlap(
    overlap: Any, good: float, poor: float, expected: list[float]
) -> None:
    tokenizer, ids = words("One", " two", " four")
    spans = [Span(0, 7, "positive", weight=good), Span(3, 12, "negative", weight=poor)]
    assert pseudo_rewards(tokenizer, ids, spans, overlap=overlap) == expected


def test_of_spans_with_one_label_the_heaviest_counts() -> None:
    tokenizer, ids = words("One", " two", " four")
    spans = [Span(0, 7, "negative", weight=0.5), Span(3, 12, "negative", weight=3.0)]
    assert pseudo_rewards(tokenizer, ids, spans) == [-0.5, -3.0, -3.0]
    # the decay over " two four" is 1, 0.1: max(0.5 · 0.1, 3 · 1) = 3, 3 · 0.1
    assert pseudo_rewards(tokenizer, ids, spans, weighting="linear_decay") == pytest.approx([-0.5, -3.0, -0.3])


@pytest.mark.parametrize(
    ("mass", "expected"),
    [("token", -3.0), ("span", -1.5), ("response", -1.0)],  # 3; 3 · 1/2, of two tokens; 3 · 1/3, of a response of three
)
def test_the_mass_of_a_span_is_multiplied_by_its_weight(mass: Any, expected: float) -> None:
    tokenizer, ids = words("One", " two", " four")
    spans = [Span(3, 12, "negative", weight=3)]
    assert pseudo_rewards(tokenizer, ids, spans, span_mass=mass) == [0.0, expected, expected]


def test_without_weights_every_digit_stays(case: dict[str, Any]) -> None:
    tokenizer, ids = of_tokens(case["family"], case["tokens"])
    settings = {name: case[name] for name in SETTINGS if name in case}
    plain = pseudo_rewards(tokenizer, ids, spans_of(case), **settings)
    said = [replace(span, reason="So.", severity="minor", rater="ann", weight=1.0) for span in spans_of(case)]
    weighed = pseudo_rewards(tokenizer, ids, said, weights={"severity": {"major": 0.1}, "rater": {}}, **settings)
    assert [value.hex() for value in weighed] == [value.hex() for value in plain]


def test_a_weight_beyond_float32_is_refused() -> None:
    tokenizer, ids = words("One", " two")
    with pytest.raises(ConfigError) as caught:
        pseudo_rewards(
            tokenizer, ids, [Span(0, 3, "negative", weight=1e6, rater="ann")], weights={"rater": {"ann": 1e6}}
        )
    assert str(caught.value) == (
        "the weight of Span(start=0, end=3, label='negative', weight=1000000.0, rater='ann') is 1e+12, its own times "
        "those of reward.severity, reward.raters and reward.categories; weights lie in [0, 1e+09]. Choose smaller ones"
    )
