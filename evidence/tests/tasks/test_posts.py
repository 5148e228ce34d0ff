"""ROUGE-L of the summaries, beside the product's metrics."""

import pytest
from hypothesis import given, settings, strategies as st

from evidence.tasks.posts import PostsTask, rouge_l


@pytest.mark.parametrize(
    ("reference", "response", "expected"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b c d", "b d", 2 * 2 / 6),
        ("a b c d", "d c b a", 2 * 1 / 8),
        ("a b a b", "b a b a", 2 * 3 / 8),
        ("A b, c.", "a b c", 1.0),
        ("a b", "x y", 0.0),
        ("a b", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_rouge_l_is_right_by_hand(reference: str, response: str, expected: float) -> None:
    assert rouge_l(reference, response) == pytest.approx(expected)


@settings(deadline=None, derandomize=True)
@given(st.text("ab ", max_size=14), st.text("ab ", max_size=14))
def test_rouge_l_agrees_with_a_recursive_definition(left: str, right: str) -> None:
    def common(a: list[str], b: list[str]) -> int:
        if not a or not b:
            return 0
        return common(a[1:], b[1:]) + 1 if a[0] == b[0] else max(common(a[1:], b), common(a, b[1:]))

    a, b = left.split(), right.split()
    assert rouge_l(left, right) == pytest.approx(2 * common(a, b) / max(1, len(a) + len(b)))


def test_rouge_l_stands_beside_the_metrics_of_the_product() -> None:
    example = PostsTask().examples(1)[0]
    assert PostsTask().score(example, str(example.reference)) == {"fact_f1": 1.0, "rouge_l": 1.0, "exact": 1.0}
