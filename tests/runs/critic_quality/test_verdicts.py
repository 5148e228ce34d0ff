"""Agreement of raters and judges: by hand, as in the textbook, and as two other tools have it."""

import krippendorff
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from nltk.metrics.agreement import AnnotationTask

from text2grad.runs.critic_quality.verdicts import measure_agreement

derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def test_where_nothing_can_be_told_from_chance_there_is_no_alpha() -> None:
    alike = measure_agreement([[True, True], [True, True]])
    assert (alike["agreement"], alike["alpha"]) == (1.0, None)
    alone = measure_agreement([[True, False]])
    assert (alone["agreement"], alone["alpha"]) == (None, None)


def test_agreement_is_of_all_items_that_two_raters_rated() -> None:
    ratings = measure_agreement([[True, False, True], [True, False, False], [False, False, None]])
    assert ratings["agreement"] == pytest.approx((1 / 3 + 1 + 0) / 3)


@derandomized
@given(st.lists(st.lists(st.sampled_from([True, False, None]), min_size=3, max_size=3), min_size=2, max_size=8))
def test_alpha_is_that_of_two_other_tools(items: list[list[bool | None]]) -> None:
    items = [item for item in items if sum(one is not None for one in item) > 1]  # nltk knows no single ratings
    ratings = [list(rater) for rater in zip(*items, strict=True)]
    if len({one for item in items for one in item if one is not None}) < 2:
        return
    triples = [(rater, n, one) for n, item in enumerate(items) for rater, one in enumerate(item) if one is not None]
    found = measure_agreement(ratings)["alpha"]
    assert found == pytest.approx(AnnotationTask(data=triples).alpha())
    counts = np.array([[item.count(True), item.count(False)] for item in items])
    assert found == pytest.approx(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))
