"""The figures of the report, each counted by hand."""

import json
from collections.abc import Iterable

from evidence.commands.fidelity import Fidelity, Tally
from evidence.commands.token_rewards import TokenRewards, label_tokens
from text2grad.align.delta import DEFAULT, AlignSettings
from text2grad.types import Critique, Span, Status
from tokenizers_made_here import of_tokens

TOKENS = ["in", " Lyon", "s", " now", ".", {"special": "<end>"}]  # "in Lyons now." and an end
STARTS = "0-2, 2-7, 7-8, 8-12, 12-13, 13-13"


def made(*spans: Span, settings: AlignSettings = DEFAULT, status: Status = "ok", unmatched: int = 0) -> TokenRewards:
    tokenizer, ids = of_tokens("byte_level", TOKENS)
    critique = Critique("", spans, status=status, unmatched=("?",) * unmatched)
    rewards = label_tokens(tokenizer, "in Lyons now.", critique, settings, ids=ids)
    assert rewards is not None
    return rewards


def fidelity(records: Iterable[TokenRewards]) -> Fidelity:
    tally = Tally()
    for rewards in records:
        tally.add(rewards)
    return tally.report()


def figures() -> Fidelity:
    tally = Tally()
    tally.add(made(Span(3, 8, "negative"), Span(9, 13, "positive"), unmatched=1))  # 2 tokens, 2 tokens; both clean
    tally.add(made(Span(0, 4, "positive"), Span(3, 7, "negative"), Span(5, 5, "negative"), status="repaired"))
    tally.add(made(status="unparsable", unmatched=2))
    tally.leave_out()
    tally.skip()
    tally.skip()
    return tally.report()


def test_counts_are_those_counted_by_hand() -> None:
    # Second response: "in L" marks 0 and 1 (1 holds "yon", too), "Lyon" marks 1, an empty span marks nothing. Token 1
    # lies in both labels and cancels, so that one token stays positive and none negative.
    assert figures() == Fidelity(
        aligned=3,
        respaced=0,
        not_aligned=1,
        skipped=2,
        tokens=18,
        tokens_by_label={"positive": 3, "negative": 2},
        contested_tokens=1,
        spans_by_label={"positive": 2, "negative": 3},
        clean_spans=3,
        spans_without_token=1,
        unmatched=3,
        statuses={"ok": 1, "repaired": 1, "unparsable": 1, "timed_out": 0, "withdrawn": 0},
        span_tokens=(1.75, 2.0, 2.0),  # of 1, 2, 2, 2
    )


def test_shares_follow_from_the_counts() -> None:
    assert figures().rates == {
        "unmatched_rate": 3 / 8,
        "labelled_share": 5 / 18,
        "positive_share": 3 / 18,
        "negative_share": 2 / 18,
        "contested_share": 1 / 18,
        "spans_per_response": 5 / 3,
        "clean_spans_share": 3 / 5,
    }


def test_a_person_reads_the_same_figures() -> None:
    assert figures().rows() == [
        ("responses aligned", "3"),
        ("responses not aligned", "1"),
        ("records skipped", "2"),
        ("critiques", "1 ok, 1 repaired, 1 unparsable"),
        ("spans", "5 (2 positive, 3 negative)"),
        ("spans per response", "1.67"),
        ("clean spans", "60.0 % (3 of 5)"),
        ("spans without token", "1"),
        ("tokens per span, quartiles", "1.75 · 2 · 2"),
        ("quotes not found", "37.5 % (3 of 8)"),
        ("tokens", "18"),
        ("tokens labelled", "27.8 % (5 of 18)"),
        ("positive tokens", "16.7 % (3 of 18)"),
        ("negative tokens", "11.1 % (2 of 18)"),
        ("contested tokens", "5.6 % (1 of 18)"),
    ]


def test_nothing_at_all_is_reported_as_nothing() -> None:
    nothing = fidelity([])
    assert set(nothing.rates.values()) == {0.0}
    assert nothing.span_tokens is None
    rows = dict(nothing.rows())
    assert rows["tokens per span, quartiles"] == "–"
    assert rows["critiques"] == "0"
    assert rows["quotes not found"] == "0.0 % (0 of 0)"
    assert "records skipped" not in rows


def test_contract_tells_how_many_spans_lose_all_their_tokens() -> None:
    spans = Span(3, 7, "negative"), Span(8, 13, "positive")
    assert fidelity([made(*spans)]).spans_without_token == 0
    contracted = fidelity([made(*spans, settings=AlignSettings(mode="contract"))])
    assert contracted.spans_without_token == 1
    assert contracted.span_tokens == (2.0, 2.0, 2.0)
    assert contracted.clean_spans == 2  # what a span touches does not depend on the mode


def test_white_space_around_a_span_leaves_it_clean_and_a_letter_does_not() -> None:
    assert fidelity([made(Span(3, 8, "negative"))]).clean_spans == 1  # " Lyon" begins a space before it
    assert fidelity([made(Span(4, 8, "negative"))]).clean_spans == 0  # "L" is rewarded, too
    assert fidelity([made(Span(3, 6, "negative"))]).clean_spans == 0  # "n" is rewarded, too


def test_respaced_responses_are_counted() -> None:
    tokenizer, ids = of_tokens("llama", ["▁I", "▁am"])
    found = [label_tokens(tokenizer, text, Critique(""), AlignSettings(), ids=ids) for text in (" I am", "I am")]
    report = fidelity(filter(None, found))
    assert (report.aligned, report.respaced) == (2, 1)
    assert report.rows()[0] == ("responses aligned", "2, 1 of them respaced")


def test_the_figures_are_ready_for_json() -> None:
    written = json.loads(json.dumps(figures().as_json(), allow_nan=False))
    assert written["spans"] == 5
    assert written["tokens_by_label"] == {"positive": 3, "negative": 2}
    assert written["unmatched_rate"] == 0.375
    assert written["span_tokens"] == [1.75, 2.0, 2.0]
