"""Agreement of raters and judges: by hand, as in the textbook, and as two other tools have it."""

import krippendorff
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from nltk.metrics.agreement import AnnotationTask

from text2grad.runs.critic_quality.verdicts import fleiss_kappa, measure_agreement

derandomized = settings(derandomize=True, deadline=None, max_examples=60)

# Fleiss (1971) as in every textbook: 14 raters put 10 subjects into 5 categories.
TEXTBOOK = """0 0 0 0 14  0 2 6 4 2  0 0 3 5 6  0 3 9 2 0  2 2 8 1 1
              7 7 0 0 0   3 2 6 3 0  2 5 3 2 2  6 5 2 1 0  0 2 2 3 7"""


def test_where_nothing_can_be_told_from_chance_there_is_no_kappa_and_no_alpha() -> None:
    alike = measure_agreement([[True, True], [True, True]])
    assert (alike["agreement"], alike["kappa"], alike["alpha"]) == (1.0, None, None)
    alone = measure_agreement([[True, False]])
    assert (alone["agreement"], alone["kappa"], alone["alpha"]) == (None, None, None)


def test_kappa_is_of_the_items_that_every_rater_rated() -> None:
    found = measure_agreement([[True, False, True], [True, False, False], [False, False, None]])
    # the first two items: P = (1/3 + 1) / 2 = 2/3, two ratings of six are yes: P_e = 1/9 + 4/9; (6/9 - 5/9) / (4/9)
    assert found["kappa"] == pytest.approx(1 / 4)
    assert found["agreement"] == pytest.approx((1 / 3 + 1 + 0) / 3)


def test_kappa_is_that_of_the_textbook() -> None:
    counts = np.array(TEXTBOOK.split(), dtype=float).reshape(10, 5)
    assert fleiss_kappa(counts) == pytest.approx(0.210, abs=5e-4)


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
