"""Raters who flip labels, mark everything, hurry, or mark one name are named, honest ones are not; figures by hand."""

import random
from collections.abc import Sequence
from dataclasses import replace
from math import isnan, log
from typing import Any

import pytest

from text2grad.errors import DataError
from text2grad.feedback import CritiqueRecord
from text2grad.runs.raters import PRIOR, check_raters
from text2grad.types import Conversation, Critique, Label, Span, Turn

LABEL: dict[int, Label] = {1: "positive", -1: "negative"}


def answer(rater: str | None, response: str, deltas: Sequence[int], **more: Any) -> CritiqueRecord:
    """Return an answer with a span on each word whose δ is not 0."""
    spans, start = list[Span](), 0
    for word, delta in zip(response.split(" "), deltas, strict=True):
        spans += [Span(start, start + len(word), LABEL[delta])] if delta else []
        start += len(word) + 1
    return CritiqueRecord(1, "", "Why?", response, Critique("", tuple(spans)), rater=rater, **more)


def rated(*answers: CritiqueRecord) -> dict[str, Any]:
    return {row["rater"]: row for row in check_raters(answers)}


def reasons(row: dict[str, Any]) -> list[str]:
    return [reason for strength, reason in row["signs"] if strength >= 1]


def test_the_agreement_of_two_raters_is_cohens_kappa() -> None:
    rows = rated(answer("ann", "a b c d", [1, 1, 0, 0]), answer("ben", "a b c d", [1, 0, 0, 0]))
    # alike on 3 of 4 words; by chance on 2/4 · 1/4 + 2/4 · 3/4 = 1/2 of them: (3/4 − 1/2) / (1 − 1/2)
    assert rows["ann"]["agreement"].value == pytest.approx(0.5)
    assert rows["ben"]["agreement"].value == pytest.approx(0.5)
    assert (rows["ann"]["marks"], rows["ann"]["answers"], rows["ann"]["marked"]) == (2, 1, 0.5)


def test_the_agreement_of_two_raters_is_the_weighted_kappa_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng, said = random.Random(0), list[tuple[list[int], list[int]]]()
    for _ in range(12):
        mine = [rng.choice((-1, 0, 0, 1)) for _ in range(6)]
        said.append((mine, [d if rng.random() < 0.6 else rng.choice((-1, 0, 1)) for d in mine]))
    answers = [answer(who, f"a b c d e {n}", said[n][side]) for n in range(12) for side, who in enumerate("xy")]
    flat = [[d for pair in said for d in pair[side]] for side in (0, 1)]
    estimate = rated(*answers)["x"]["agreement"]
    assert estimate.value == pytest.approx(metrics.cohen_kappa_score(*flat, weights="quadratic"))
    assert estimate.low < estimate.value < estimate.high < 1
    alone = [answer("x", "u v w", [1, 1, 1]), answer("y", "t u", [1, 1])]  # judged by one of them: no agreement
    assert rated(*answers, *alone)["x"]["agreement"].value == estimate.value


def test_two_raters_against_each_other_are_both_named_since_nothing_says_who_errs() -> None:
    pairs = [([1, -1, 0], [-1, 1, 0] if n % 4 else [1, 0, 0]) for n in range(12)]
    rows = rated(*(answer("xy"[side], f"a{n} b{n} c", pairs[n][side]) for n in range(12) for side in (0, 1)))
    kappa = rows["x"]["agreement"]
    assert kappa.high < 0  # half of the others' median would be above it; chance, 0, is the limit
    assert rows["x"]["signs"][0] == (
        pytest.approx(-kappa.value / (kappa.high - kappa.value)),
        "marks the opposite of the others",
    )
    assert reasons(rows["y"]) == ["marks the opposite of the others"]


def test_the_agreement_of_one_of_three_is_with_both_others() -> None:
    given = {"ann": [1, -1, 0, 0], "ben": [1, -1, 0, 0], "cleo": [0, -1, 0, 1]}
    rows = rated(*(answer(rater, "a b c d", deltas) for rater, deltas in given.items()))
    # ann: squared differences 0 from ben, 1 + 1 from cleo, mean 1; by chance Σδ² + mean Σδ'² − 2 · 0 · 0 = 2 + 2
    assert rows["ann"]["agreement"].value == pytest.approx(1 - 1 / 4)
    # cleo: 1 + 1 from each of the others; by chance 2 + 2
    assert rows["cleo"]["agreement"].value == pytest.approx(1 - 2 / 4)


def test_the_harm_is_the_change_of_the_error_on_the_others_held_out_marks() -> None:
    # The only word of the other response has mark 1: mean of all words 1 / 5, of the word (1 + 4/5) / 5, of the pair:
    assert PRIOR == 4.0
    predicted = (1 + 4 * (1 + 4 / 5) / 5) / 5  # 0.488; without the other rater 0
    opposite = rated(answer("ann", "x", [1]), replace(answer("ben", "x", [-1]), prompt="How?"))
    assert opposite["ann"]["harm"].value == pytest.approx((1 + predicted) ** 2 - 1)
    alike = rated(answer("ann", "x", [1]), replace(answer("ben", "x", [1]), prompt="How?"))
    assert alike["ben"]["harm"].value == pytest.approx((1 - predicted) ** 2 - 1)
    assert isnan(alike["ben"]["agreement"].value)  # no response in common


def test_the_model_never_learns_from_the_response_that_it_predicts() -> None:
    rows = rated(answer("ann", "x", [1]), answer("ben", "x", [1]))
    assert rows["ann"]["harm"].value == 0.0


def test_the_model_knows_the_word_before_and_falls_back_to_the_word() -> None:
    ann = answer("ann", "x y", [0, 1])  # mean of all words 1 / 6, of x 4/6 / 5, of y (1 + 4/6) / 5 = 1 / 3
    after_other = rated(ann, replace(answer("ben", "y", [1]), prompt="How?"))
    assert after_other["ann"]["harm"].value == pytest.approx((1 - 1 / 3) ** 2 - 1)
    same = rated(ann, replace(answer("ben", "x y", [0, 1]), prompt="How?"))
    x, y = 4 * (4 * (1 / 6) / 5) / 5, (1 + 4 / 3) / 5  # of the pairs: x is first, y is behind x
    assert same["ann"]["harm"].value == pytest.approx(x**2 + (1 - y) ** 2 - 1)


def test_a_word_that_one_rater_marks_alone_is_named_with_its_counts() -> None:
    def said(rater: str, number: int, tom: int) -> CritiqueRecord:
        return answer(rater, f"word{number} so Tom went", [1, 0, tom, 0])

    def of_words(row: dict[str, Any]) -> list[tuple[float, str]]:
        return [sign for sign in row["signs"] if "“" in sign[1] and sign[0] >= 1]

    answers = [said(rater, n, 0) for rater in ("ann", "ben", "dora", "eve") for n in range(10)]
    rows = rated(*answers, *(said("cleo", n, -(n < 9)) for n in range(10)))
    [(strength, reason)] = of_words(rows["cleo"])
    assert reason == "marks “tom” negative in 9 of 10 places, the others in 0 of 40"
    # Chernoff: 10 · KL(9/10 ‖ 1/42); tests: 5 raters, 2 labels, 3 words in 3 places or more
    bound = 10 * (0.9 * log(0.9 * 42) + 0.1 * log(0.1 / (41 / 42)))
    assert strength == pytest.approx(bound / log(5 * 2 * 3 / 0.01))
    assert [of_words(row) for name, row in rows.items() if name != "cleo"] == [[]] * 4
    few = [answer("cleo", f"Tom {n}", [-1, 0]) for n in range(2)]
    assert of_words(rated(*answers, *few)["cleo"]) == []  # two places are too few
    half = [said("cleo", n, n % 2) for n in range(10)]
    assert of_words(rated(*answers, *half)["cleo"]) == []  # 5 of 10 are less than 1/42 and a half


def test_a_rater_in_a_hurry_is_named_and_unknown_times_are_not_judged() -> None:
    def timed(rater: str, *seconds: float | None) -> list[CritiqueRecord]:
        return [answer(rater, f"a b {n}", [1, 0, 0], seconds=time) for n, time in enumerate(seconds)]

    rows = rated(*timed("ann", 30, 40, None), *timed("ben", 30, 20), *timed("cleo", 9, 9, 90), *timed("dora", None))
    # medians 35, 25 and 9; of 35 and 25, beside cleo, the median is 30, and a third of it 10
    assert [rows[name]["seconds"] for name in ("ann", "ben", "cleo")] == [35, 25, 9]
    assert reasons(rows["cleo"]) == ["takes 9 s per answer, the others 30 s"]
    assert reasons(rows["ann"]) == reasons(rows["ben"]) == reasons(rows["dora"]) == []
    assert isnan(rows["dora"]["seconds"])


WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "very",
    "very",
    "old",
    "mat",
    "maybe",
    "in",
    "Lyon",
    "today",
    "I",
    "think",
    "so",
]


def honest(rng: random.Random, words: Sequence[str]) -> list[int]:
    """Return the marks of an honest rater: hedges are negative, places positive, one mark in five is lost."""
    sure = {"very": -1, "maybe": -1, "think": -1, "Lyon": 1, "today": 1}
    return [sure.get(word, int(rng.random() < 0.03)) * (rng.random() < 0.8) for word in words]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda deltas: [-delta for delta in deltas], "marks the opposite of the others"),
        (lambda deltas: [1] * len(deltas), "agrees less than half as much as the others do (median"),
        (lambda deltas: [0] * len(deltas), "agrees less than half as much as the others do (median"),
    ],
)
def test_who_flips_labels_or_marks_everything_or_nothing_is_first_and_honest_raters_have_no_sign(
    change: Any, reason: str
) -> None:
    rng, answers = random.Random(0), list[CritiqueRecord]()
    texts = [[rng.choice(WORDS) for _ in range(12)] for _ in range(30)]
    for rater in ("ann", "ben", "cleo", "dora"):
        for words in texts:
            deltas = honest(rng, words)
            answers.append(answer(rater, " ".join(words), change(deltas) if rater == "cleo" else deltas))
    rows = check_raters(answers)
    assert rows[0]["rater"] == "cleo"
    assert any(said.startswith(reason) for said in reasons(rows[0]))
    assert all(reasons(row) == [] for row in rows[1:])


def test_raters_who_share_no_response_are_judged_by_the_model() -> None:
    rng, answers = random.Random(1), list[CritiqueRecord]()
    for number, rater in enumerate(("ann", "ben", "cleo", "dora")):
        for row in range(40):
            words = [rng.choice(WORDS) for _ in range(12)]
            deltas = [-d if rater == "dora" else d for d in honest(rng, words)]
            answers.append(replace(answer(rater, " ".join(words), deltas), prompt=f"{number}.{row}"))
    rows = check_raters(answers)
    assert rows[0]["rater"] == "dora"
    assert any("others' marks are predicted" in reason for reason in reasons(rows[0]))
    assert rows[0]["harm"].low > 0
    assert all(isnan(row["agreement"].value) and reasons(row) == [] for row in rows[1:])


def test_the_later_answer_counts_and_blank_responses_and_nobodys_do_not() -> None:
    twice = [answer("ann", "a b", [-1, -1]), answer("ann", "a b", [1, 0])]
    others = [answer("ben", "a b", [1, 0]), answer(None, "a b", [-1, 0]), answer("ben", "", [0])]
    rows = rated(*twice, *others)
    assert {name: row["answers"] for name, row in rows.items()} == {"ann": 1, "ben": 1}
    assert rows["ann"]["agreement"].value == pytest.approx(1.0)


def test_spans_of_a_conversation_count_in_their_turns() -> None:
    talk = Conversation([Turn("assistant", "a b ", True), Turn("user", "So?"), Turn("assistant", "c d", True)])
    flat = answer("ann", "a b c d", [0, 0, 1, 0])
    turned = Critique("", (Span(0, 1, "positive", turn=2),))
    rows = rated(flat, CritiqueRecord(1, "", "Why?", talk, turned, rater="ben"))
    assert rows["ben"]["agreement"].value == pytest.approx(1.0)


@pytest.mark.parametrize(("raters", "named"), [([], "none"), (["ann"], "ann")])
def test_a_rater_alone_is_refused(raters: list[str], named: str) -> None:
    with pytest.raises(DataError) as caught:
        check_raters([answer(rater, "a b", [1, 0]) for rater in raters])
    assert str(caught.value) == (
        f"raters are judged by each other, and the files name {named}. Give the answers of two or more: spans or lines "
        'with a "rater", or a file for each'
    )
