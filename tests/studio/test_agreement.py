"""Agreement of raters, by hand."""

from typing import Any

import pytest

from text2grad_studio.agreement import agreement, finished, word_labels
from text2grad_studio.marks import Marked

ITEM = "i"
OPEN = {"at": 0, "op": "open", "item": ITEM, "prompt": "", "response": "a bad, good cat"}  # a bad , good cat


def span(name: str, start: int, end: int, label: str) -> dict[str, Any]:
    return {"at": 1, "op": "span", "item": ITEM, "id": name, "start": start, "end": end, "label": label, "note": ""}


DONE = {"at": 2, "op": "state", "item": ITEM, "value": "done"}


def marks(*events: dict[str, Any]) -> dict[str, Marked]:
    return finished([OPEN, *events, DONE])


def test_a_word_has_the_labels_of_the_spans_that_touch_it() -> None:
    given = marks(span("a", 2, 5, "negative"), span("b", 7, 12, "positive"), span("c", 10, 15, "negative"))[ITEM]
    assert word_labels(given) == [0, 2, 0, 3, 2]


def test_agreement_by_hand() -> None:
    # ann 0 2 0 1 0, ben 0 2 0 2 2: same 3 of 5; marked alike 1 ("bad"), marked 2 + 3, F1 = 2 · 1 / 5
    ann = marks(span("a", 2, 5, "negative"), span("b", 7, 11, "positive"))
    ben = marks(span("a", 2, 5, "negative"), span("b", 7, 15, "negative"))
    [pair] = agreement({"ben": ben, "ann": ann, "cleo": {}})
    assert pair["raters"] == ["ann", "ben"]
    assert (pair["both"], pair["words"], pair["same"], pair["f1"]) == (1, 5, 0.6, 0.4)
    # alpha = 1 − (n − 1) Σ_u disagreements / Σ_{c≠k} n_c n_k: n = 10 labels, 5 of 0, 4 of 2, 1 of 1;
    # observed 2 of 5 units differ: D_o = 0.4; D_e = (100 − 25 − 16 − 1) / (10 · 9) = 58 / 90
    assert pair["alpha"] == pytest.approx(1 - 0.4 / (58 / 90))


def test_marks_after_the_first_end_do_not_count() -> None:
    after = finished([OPEN, span("a", 2, 5, "negative"), DONE, span("b", 7, 11, "positive")])
    assert list(after[ITEM].spans) == ["a"]
    assert finished([OPEN, span("a", 2, 5, "negative")]) == {}
    assert agreement({"ann": marks(), "ben": marks()})[0]["alpha"] is None


def test_a_word_with_vowel_signs_is_one_word() -> None:
    hindi = {
        **OPEN,
        "response": "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    }  # two words
    given = finished([hindi, span("a", 0, 2, "negative"), DONE])[ITEM]
    assert word_labels(given) == [2, 0]
