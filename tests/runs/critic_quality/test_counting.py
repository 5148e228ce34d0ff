"""What is counted of a critic beside annotations, by hand and against nltk's own numbers; intervals likewise."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from nltk.metrics import f_measure, precision, recall

from text2grad.align.delta import pseudo_rewards
from text2grad.evaluation.intervals import Estimate, Ratio, estimate
from text2grad.evaluation.words import Wording
from text2grad.reward_models.agreement import compare
from text2grad.runs.critic_quality.counting import BUCKETS
from text2grad.runs.critic_quality.evaluation import Evaluation, evaluate, evaluation_page, tables
from text2grad.runs.critic_quality.pairs import Pair
from text2grad.runs.critic_quality.units import Units, mark
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Label, Span

RESPONSE = "aa bb cc dd ee ff"  # words 0 to 5, at characters 0, 3, 6, 9, 12, 15
derandomized = settings(derandomize=True, deadline=None, max_examples=40)

WORDS, NO_WORDS = Units("words"), Wording(ngrams=False)


def at(first: int, last: int, label: Label) -> Span:
    """Return the span of words `first` to `last`."""
    return Span(3 * first, 3 * last + 2, label)


def pair(predicted: list[Span], true: list[Span], **critique: object) -> Pair:
    said = Critique("", tuple(sorted(predicted)), **critique)  # type: ignore[arg-type]
    return Pair("f:1", "p", RESPONSE, said, Critique("", tuple(sorted(true))))


def evaluation(*pairs: Pair) -> Evaluation:
    return evaluate(pairs, WORDS, NO_WORDS, draws=50)


def values(*pairs: Pair) -> dict[str, float]:
    return {name: one.value for name, one in evaluation(*pairs).metrics.items()}


ONE = pair(
    [at(0, 2, "positive"), at(4, 5, "negative")], [at(1, 3, "positive"), at(4, 4, "negative"), at(5, 5, "negative")]
)
TWO = pair([at(0, 0, "negative")], [at(0, 0, "negative"), at(2, 3, "positive")], unmatched=("zz",))
FAILED = pair([at(0, 5, "positive")], [at(5, 5, "positive")], status="unparsable")


def test_precision_recall_and_f1_are_those_made_by_hand() -> None:
    # positive: predicted words 0 1 2 of ONE; true 1 2 3 of ONE, 2 3 of TWO; both 1 2
    # negative: predicted 4 5 of ONE, 0 of TWO; true the same
    found = values(ONE, TWO)
    assert found["precision/positive"] == 2 / 3
    assert found["recall/positive"] == 2 / 5
    assert found["f1/positive"] == pytest.approx(2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5))  # = 4 / 8
    assert (found["precision/negative"], found["recall/negative"], found["f1/negative"]) == (1, 1, 1)
    # marking all 12 words finds the 5 positive and the 3 negative ones: 2 · 5 / (12 + 5), 2 · 3 / (12 + 3)
    assert found["f1_everything/positive"] == pytest.approx(10 / 17)
    assert found["f1_everything/negative"] == pytest.approx(6 / 15)


def test_criteria_are_counted_for_themselves_and_their_names_in_any_letters() -> None:
    def of(span: Span, category: str) -> Span:
        return replace(span, category=category)

    own = [of(at(0, 1, "negative"), "tone"), of(at(3, 3, "positive"), "facts"), at(5, 5, "negative")]
    true = [of(at(1, 2, "negative"), "Tone"), of(at(1, 1, "positive"), "tone"), of(at(3, 3, "negative"), "facts")]
    # tone: own − 0 1; true − 1 2 + 1; alike − 1. facts: own + 3, true − 3
    found = values(pair(own, true))
    assert (found["precision_of/tone"], found["recall_of/tone"]) == (1 / 2, 1 / 3)
    assert found["f1_of/tone"] == pytest.approx(2 * 1 / (2 + 3))
    assert (found["precision_of/facts"], found["recall_of/facts"], found["f1_of/facts"]) == (0, 0, 0)
    [table] = [table for table in tables(evaluation(pair(own, true))) if table.caption.startswith("Criteria")]
    assert [row[0] for row in table.rows] == ["facts", "tone"]
    assert [row[-3:] for row in table.rows] == [["1", "1", "0"], ["2", "3", "1"]]
    assert not any(table.caption.startswith("Criteria") for table in tables(evaluation(ONE)))


def test_a_critic_below_one_that_marks_everything_is_told_apart() -> None:
    # of ONE marking all words has F1 2 · 3 / (6 + 3) = 6/9 for positive and 2 · 2 / (6 + 2) = 4/8 for negative
    everything, some = [at(0, 5, "positive")], [at(1, 3, "positive")]
    assert not evaluation(ONE).beaten_by_marking_everything  # 2 · 2 / (3 + 3) = 4/6 is no more, but 1 is for negative
    assert evaluation(pair([], some)).beaten_by_marking_everything
    assert evaluation(pair(everything, some)).beaten_by_marking_everything
    assert not evaluation(pair(some, some)).beaten_by_marking_everything
    assert not evaluation(pair(everything, [])).beaten_by_marking_everything  # nothing is known of it
    assert not evaluation(pair(everything, everything)).beaten_by_marking_everything  # both are right


def test_spans_are_exact_or_partial_and_oui_is_the_mean_overlap_of_those_that_are_hit() -> None:
    found = evaluation(ONE, TWO)
    # positive, true: 1-3 is overlapped by 0-2: |{1, 2}| / |{0, 1, 2, 3}| = 1/2; 2-3 of TWO is missed
    # negative, true: 4 and 5 are each overlapped by 4-5: 1/2 each; 0 of TWO is hit exactly: 1
    expected = {"true_spans": (2, 3), "spans": (1, 2), "exact": (0, 1), "partial": (1, 2), "iou": (0.5, 2.0)}
    for name, (positive, negative) in expected.items():
        assert (found.counts[f"{name}/positive"], found.counts[f"{name}/negative"]) == (positive, negative)
    rates = {name: one.value for name, one in found.metrics.items()}
    assert (rates["exact/positive"], rates["partial/positive"], rates["oui/positive"]) == (0, 1 / 2, 1 / 2)
    assert (rates["exact/negative"], rates["partial/negative"], rates["oui/negative"]) == (1 / 3, 2 / 3, 2 / 3)


def test_a_span_of_the_other_label_hits_nothing() -> None:
    found = values(pair([at(0, 1, "positive")], [at(0, 1, "negative")]))
    assert (found["exact/negative"], found["partial/negative"], found["quote_overlap_90/positive"]) == (0, 0, 0)
    assert "oui/negative" not in found


def test_quotes_hit_exactly_or_by_nine_tenths_of_the_longer_one() -> None:
    text = "x" * 8 + " y" + "z" * 11  # 20 visible characters
    true = Critique("", (Span(0, 21, "negative"),))

    def rates(start: int, end: int) -> tuple[float, float]:
        said = Critique("", (Span(start, end, "negative"),), unmatched=("lost",))
        found = evaluate([Pair("", "", text, said, true)], Units("characters"), NO_WORDS, draws=1).metrics
        # with the quote that is not in the response: half of what it is without
        assert found["quote_exact/all"].value == found["quote_exact/negative"].value / 2
        return found["quote_exact/negative"].value, found["quote_overlap_90/negative"].value

    assert rates(0, 21) == (1, 1)
    assert rates(0, 19) == (0, 1)  # 18 of 20: the space does not count
    assert rates(0, 18) == (0, 0)  # 17 of 20


def test_white_space_is_no_part_of_an_overlap() -> None:
    text = "x" * 9 + " " * 5 + "y"  # 9 of 10 visible characters, 9 of 15 of all
    said, true = (Critique("", (Span(0, end, "negative"),)) for end in (9, 15))
    found = evaluate([Pair("", "", text, said, true)], WORDS, NO_WORDS, draws=1).metrics
    assert found["quote_overlap_90/negative"].value == 1.0


def test_a_unit_that_both_labels_mark_counts_as_unmarked() -> None:
    marked = mark(pair([at(0, 2, "positive"), at(1, 3, "negative")], []), WORDS)
    assert marked is not None
    assert marked.predicted.delta == (1.0, 0.0, 0.0, -1.0, 0.0, 0.0)


def test_failures_and_lost_quotes_are_counted_and_a_failed_critique_marks_nothing() -> None:
    found = values(ONE, TWO, FAILED)
    assert found["failure_rate"] == 1 / 3
    assert found["unmatched_rate"] == 1 / 5  # "zz" of 2 + 2 + 1: `compare` counts the spans of a failed critique, too
    assert found["recall/positive"] == 2 / 6
    assert evaluation(FAILED).counts["status/unparsable"] == 1


def test_accuracy_by_length_asks_for_half_of_a_spans_units() -> None:
    pairs = [
        pair([at(0, 0, "negative")], [at(0, 0, "negative")]),  # 1 unit, right
        pair([at(0, 1, "negative")], [at(1, 5, "negative")]),  # 2 units, 1 of them right: right
        pair([at(0, 2, "negative")], [at(2, 5, "negative")]),  # 3 units, 1 of them right: wrong
        pair([at(0, 5, "negative")], [at(0, 2, "positive"), at(3, 5, "negative")]),  # 6 units, 3 of them: right
        pair([at(0, 4, "negative")], [at(0, 4, "positive")]),  # 5 units, none
    ]
    found = evaluation(*pairs)
    assert found.quartiles == {"Q1/negative": 2.0, "Q2/negative": 3.0, "Q3/negative": 5.0}  # of 1 2 3 5 6
    rates = [found.metrics[f"accuracy/negative/{bucket}"].value for bucket in BUCKETS]
    assert rates == [1.0, 0.0, 0.0, 1.0]  # lengths 1 2 | 3 | 5 | 6


def test_without_a_mark_there_are_no_rates_but_tables_all_the_same() -> None:
    found = evaluation(pair([], []))
    everything = {f"f1_everything/{label}" for label in ("positive", "negative")}
    assert set(found.metrics) == {"failure_rate", "gap", *everything}
    assert {found.metrics[name].value for name in everything} == {0.0}
    assert [len(row) == len(table.columns) for table in tables(found) for row in table.rows] == [True] * 10
    assert not evaluate([], WORDS, NO_WORDS).metrics


SPANS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(["positive", "negative"])).map(
        lambda one: at(min(one[:2]), max(one[:2]), one[2])  # type: ignore[arg-type]
    ),
    max_size=3,
    unique=True,
)


@derandomized
@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=4))
def test_rates_are_those_of_nltk_and_of_compare_over_all_responses(spans: list[tuple[list[Span], list[Span]]]) -> None:
    pairs = [pair(predicted, true) for predicted, true in spans]
    found = evaluate(pairs, WORDS, NO_WORDS, draws=2)
    rates = {name: one.value for name, one in found.metrics.items()}
    marked = found.marked
    whole = compare(
        [one.predicted.delta for one in marked], [one.true.delta for one in marked], [p.predicted for p in pairs]
    )
    assert {name: rates[name] for name in whole.metrics()} == pytest.approx(whole.metrics())
    for label, sign in (("positive", 1.0), ("negative", -1.0)):
        sets = [
            {
                (row, unit)
                for row, one in enumerate(marked)
                for unit, delta in enumerate(getattr(one, who).delta)
                if delta == sign
            }
            for who in ("true", "predicted")
        ]
        for name, theirs in (("precision", precision), ("recall", recall), ("f1", f_measure)):
            if sets[0] and sets[1]:
                assert rates[f"{name}/{label}"] == pytest.approx(theirs(*sets) or 0.0)


@derandomized
@given(SPANS)
def test_units_of_a_tokenizer_are_marked_as_pseudo_rewards_are(spans: list[Span]) -> None:
    tokenizer = word_tokenizer([RESPONSE])
    marked = mark(pair(spans, []), Units("tokens of it", tokenizer))
    assert marked is not None
    assert list(marked.predicted.delta) == pseudo_rewards(tokenizer, tokenizer(RESPONSE).input_ids, spans)


def test_words_and_characters_cover_a_response_with_its_white_space() -> None:
    text = " Hé, you!\n\tBye  "
    assert [text[a:b] for a, b in WORDS.cut(text)[1]] == [" Hé", ",", " you", "!", "\n\tBye", "  "]
    assert [text[a:b] for a, b in Units("characters").cut(text)[1]] == list(text)
    assert WORDS.cut("") == ("", [])


def test_a_response_that_the_tokenizer_cannot_say_is_left_out_and_named() -> None:
    units = Units("tokens of it", word_tokenizer(["aa bb"]))
    found = evaluate(
        [ONE, ONE._replace(response="aa bb", true=Critique(""), predicted=Critique(""))],
        units,
        NO_WORDS,
    )
    assert (len(found.marked), list(found.left_out)) == (1, ["f:1"])


def test_an_interval_of_two_responses_is_that_of_their_four_resamples() -> None:
    # 0/1 and 1/1: the resamples 00 01 10 11 give 0, 1/2, 1/2, 1, a quarter of the time each end
    rows = [{"right": 0.0, "all": 1.0}, {"right": 1.0, "all": 1.0}]
    assert estimate(rows, {"a": Ratio(("right",), ("all",))}) == {"a": Estimate(0.5, 0.0, 1.0)}


def test_a_ratio_counts_a_name_twice_and_raises_e_where_it_is_told_to() -> None:
    rows = [{"x": 1.0, "y": 3.0}, {"x": 2.0}]
    found = estimate(
        rows, {"a": Ratio(("x", "x"), ("x", "y")), "b": Ratio(("x",), ("y",), exp=True), "c": Ratio(("x",), ("z",))}
    )
    assert found["a"].value == 6 / 6
    assert found["b"].value == pytest.approx(np.exp(3 / 3))
    assert "c" not in found  # of nothing


def test_an_interval_is_as_wide_as_the_normal_one_and_the_same_for_the_same_seed() -> None:
    rows = [{"right": float(n % 4 == 0), "all": 1.0} for n in range(400)]
    ratios = {"a": Ratio(("right",), ("all",))}
    found = estimate(rows, ratios, seed=1)["a"]
    half = 1.96 * (0.25 * 0.75 / 400) ** 0.5  # 0.0424
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    assert found.low < 0.25 < found.high
    rows = [{"right": n**0.5, "all": 1.0} for n in range(20)]
    first, again, other = (estimate(rows, ratios, seed=seed)["a"] for seed in (1, 1, 2))
    assert first == again != other


def test_a_rate_that_no_resample_speaks_of_has_its_value_as_interval() -> None:
    rows = [{"right": 1.0, "all": 2.0}, {"none": 1.0}, {"none": 1.0}]
    ratios = {"a": Ratio(("right",), ("all",))}  # a single resample leaves the first row out for some of the seeds
    found = [estimate(rows, ratios, draws=1, seed=seed)["a"] for seed in range(20)]
    assert found == [Estimate(0.5, 0.5, 0.5)] * 20


def test_a_resample_in_which_a_rate_is_of_nothing_says_nothing_of_it() -> None:
    rows = [{"right": 1.0, "all": 2.0}, {"none": 1.0}]  # a quarter of the resamples leave the first row out
    assert estimate(rows, {"a": Ratio(("right",), ("all",))}) == {"a": Estimate(0.5, 0.5, 0.5)}


def test_as_many_resamples_are_drawn_as_are_asked_for() -> None:
    rows = [{"right": float(n), "all": 1.0} for n in range(9)]
    one = estimate(rows, {"a": Ratio(("right",), ("all",))}, draws=1)["a"]
    assert one.low == one.high


def test_responses_are_resampled_and_not_their_tokens() -> None:
    # 100 tokens in each of two responses, all right in one: tokens would give ±0.07, responses 0 to 1
    rows = [{"right": 100.0, "all": 100.0}, {"right": 0.0, "all": 100.0}]
    assert estimate(rows, {"a": Ratio(("right",), ("all",))})["a"] == Estimate(0.5, 0.0, 1.0)


# ---- units


def test_a_word_with_vowel_signs_is_one_unit_with_the_white_space_before_it() -> None:
    text = "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \n"  # two words of six characters
    assert Units("words").cut(text) == (text, [(0, 6), (6, 13), (13, 15)])
    assert Units("characters").cut("e\u0301\n") == ("e\u0301\n", [(0, 1), (1, 2), (2, 3)])


def test_a_span_of_white_space_that_the_tokens_do_not_say_is_no_span_of_the_counts() -> None:
    units = Units("tokens of it", word_tokenizer(["aa bb"]))
    said = Critique("", (Span(0, 2, "positive"), Span(5, 7, "positive")))
    marked = mark(Pair("f:1", "p", "aa bb  ", said, said), units)
    assert marked is not None
    assert [units for _, units in marked.true.spans] == [{0}, set()]
    assert marked.true.unit_sets("positive") == [{0}]
    assert evaluate([marked.pair], units, NO_WORDS, draws=1).counts["true_spans/positive"] == 1


def test_the_page_shows_the_annotation_beside_the_critics_marks() -> None:
    said, true = Critique("All good.", (at(0, 5, "positive"),)), Critique("The end is wrong.", (at(5, 5, "negative"),))
    page = evaluation_page(evaluation(Pair("f:1", "p", RESPONSE, said, true)), "mine", "a.jsonl")
    critic, annotator = page.split('<p class="where as-is">Annotation</p>')
    assert ("All good." in critic, "The end is wrong." in annotator) == (True, True)
    assert ("6 positive" in critic, "1 negative" in annotator, "The end is wrong." in critic) == (True, True, False)
