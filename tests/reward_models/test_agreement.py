"""How good a reward model is, counted by hand."""

import pytest
from hypothesis import given, strategies as st

from text2grad.reward_models.agreement import Agreement, compare
from text2grad.types import Critique, Span

GOOD, POOR = Span(0, 3, "positive"), Span(4, 7, "negative")

# Tokens:          1     2     3     4     5
LEARNED = [[1.0, 1.0, -1.0, 0.0, 0.5], [-1.0, 0.0], [0.0]]
TRUE = [[1.0, -1.0, -1.0, 1.0, 0.0], [-2.0, -1.0], [0.0]]
CRITIQUES = [
    Critique("mixed", (GOOD, POOR), unmatched=("dog", "bird")),  # 4 quotes, 2 of them not there
    Critique("poor", (POOR,), status="repaired"),  # 1 quote
    Critique("", status="unparsable"),
]


def test_counts_are_those_made_by_hand() -> None:
    assert compare(LEARNED, TRUE, CRITIQUES) == Agreement(
        positive_both=1,  # token 1 of response 1
        positive=3,  # tokens 1, 2, 5
        positive_true=2,  # tokens 1, 4
        negative_both=2,  # token 3 of response 1, token 1 of response 2
        negative=2,  # the same
        negative_true=4,  # tokens 2, 3; tokens 1, 2
        failed=1,
        unmatched=2,
        quotes=5,
        responses=3,
        surplus=3.5,  # (1.5 − 0) + (−1 − −3) + 0
    )


def test_rates_are_those_made_by_hand() -> None:
    assert compare(LEARNED, TRUE, CRITIQUES).metrics() == pytest.approx(
        {
            "f1": 2 * 3 / (3 + 2 + 2 + 4),
            "f1/positive": 2 * 1 / (3 + 2),
            "f1/negative": 2 * 2 / (2 + 4),
            "precision/positive": 1 / 3,
            "recall/positive": 1 / 2,
            "precision/negative": 2 / 2,
            "recall/negative": 2 / 4,
            "failure_rate": 1 / 3,
            "unmatched_rate": 2 / 5,
            "gap": 3.5 / 3,
        }
    )


def test_the_gap_is_above_zero_where_a_policy_is_positive_for_nothing() -> None:
    assert compare([[1.0, 1.0]], [[0.0, 0.0]], [Critique("")]).metrics()["gap"] == 2.0
    assert compare([[0.0, 0.0]], [[1.0, 1.0]], [Critique("")]).metrics()["gap"] == -2.0


def test_opposite_signs_agree_in_nothing() -> None:
    agreement = compare([[1.0, -1.0]], [[-1.0, 1.0]], [Critique("")])
    assert (agreement.positive_both, agreement.negative_both) == (0, 0)
    assert (agreement.positive, agreement.positive_true, agreement.negative, agreement.negative_true) == (1, 1, 1, 1)


@pytest.mark.parametrize(("status", "failed"), [("ok", 0), ("repaired", 0), ("unparsable", 1), ("timed_out", 1)])
def test_a_failure_is_a_critique_that_could_not_be_used(status: str, failed: int) -> None:
    assert compare([[0.0]], [[0.0]], [Critique("", status=status)]).failed == failed  # type: ignore[arg-type]


def test_a_rate_of_nothing_is_left_out() -> None:
    assert Agreement().metrics() == {}
    assert compare([], [], []).metrics() == {}
    nothing_marked = compare([[0.0], []], [[0.0], []], [Critique(""), Critique("")])
    assert nothing_marked.metrics() == {"failure_rate": 0.0, "gap": 0.0}
    only_learned = compare([[1.0]], [[0.0]], [Critique("", (GOOD,))])
    rates = {"f1": 0.0, "f1/positive": 0.0, "precision/positive": 0.0, "failure_rate": 0.0, "unmatched_rate": 0.0}
    assert only_learned.metrics() == {**rates, "gap": 1.0}


def test_responses_and_tokens_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([[1.0]], [[1.0, 0.0]], [Critique("")])
    with pytest.raises(ValueError, match="zip"):
        compare([[1.0]], [], [Critique("")])


def test_merging_adds_every_count() -> None:
    one, other = Agreement(*range(1, 12)), Agreement(*range(10, 120, 10))
    assert one.merged(other) == Agreement(*(11 * n for n in range(1, 12)))
    assert one.merged(Agreement()) == one


DELTAS = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])  # sums of these are exact
ROWS = st.lists(st.lists(st.tuples(DELTAS, DELTAS), max_size=5), max_size=6)


@given(ROWS, st.integers(0, 6))
def test_batches_merge_to_what_all_of_them_give_at_once(rows: list[list[tuple[float, float]]], cut: int) -> None:
    def count(some: list[list[tuple[float, float]]]) -> Agreement:
        critiques = [Critique("", (GOOD,) * len(row), unmatched=("x",) * (len(row) // 2)) for row in some]
        return compare([[a for a, _ in row] for row in some], [[b for _, b in row] for row in some], critiques)

    assert count(rows[:cut]).merged(count(rows[cut:])) == count(rows)


@given(ROWS)
def test_exchanging_learned_and_true_exchanges_precision_and_recall_and_turns_the_gap(
    rows: list[list[tuple[float, float]]],
) -> None:
    learned, true = [[a for a, _ in row] for row in rows], [[b for _, b in row] for row in rows]
    critiques = [Critique("")] * len(rows)
    forth, back = compare(learned, true, critiques).metrics(), compare(true, learned, critiques).metrics()
    for label in ("positive", "negative"):
        assert forth.get(f"precision/{label}") == back.get(f"recall/{label}")
    assert forth.get("gap", 0.0) == -back.get("gap", 0.0)
    assert all(0 <= value <= 1 for name, value in forth.items() if name != "gap")
