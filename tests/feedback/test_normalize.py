"""The forgiving form: what is equal, what is not, and the exact way back."""

import sys
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from text2grad.feedback.normalize import MAX_UNIT, normalize

law = settings(derandomize=True, deadline=None)
TRICKY = "aB 1.\n\t*_`-—…“'ßİﬁé\u0301\u0323\u200b\ufe0f\u200d👩🏽가\u1100\u1161\u11a8ﾊ\uff9f東²"
texts = st.text(TRICKY, max_size=25) | st.text(max_size=25)


@law
@given(texts)
def test_units_lie_in_order_without_overlap(text):
    normalized = normalize(text)
    assert len(normalized.form) == len(normalized.starts) == len(normalized.ends)
    units = list(dict.fromkeys(zip(normalized.starts, normalized.ends, strict=True)))
    assert all(0 <= start < end <= len(text) for start, end in units)
    assert all(end <= start for (_, end), (start, _) in pairwise(units))


@law
@given(texts)
def test_each_unit_alone_has_the_form_it_has_in_the_text(text):
    normalized = normalize(text)
    for start, end in set(zip(normalized.starts, normalized.ends, strict=True)):
        characters = [c for c, s in zip(normalized.form, normalized.starts, strict=True) if s == start]
        alone = normalize(text[start:end]).form
        assert alone.strip("*_") == "".join(characters).strip("*_")


@law
@given(texts)
def test_composition_changes_no_form(text):
    marks_at_the_start = text and unicodedata.combining(text[0])
    forms = {normalize(unicodedata.normalize(kind, text)).form for kind in ("NFC", "NFD")}
    assert len(forms) == 1 or marks_at_the_start or "  " in text or any(c in text for c in "*_`\u200b\u200d")


@law
@given(st.text([c for c in TRICKY if c not in "*_`\u200b\u200d"], max_size=25))
def test_form_of_a_form_is_itself_for_text_without_emphasis_and_invisible_signs(text):
    form = normalize(text).form
    assert normalize(form).form == form


def test_every_character_that_composes_with_the_one_before_is_kept_with_it():
    """All of Unicode: no composed character may differ in form from its parts."""
    different = []
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code))
        if parts and not parts.startswith("<"):
            composed, apart = chr(code), unicodedata.normalize("NFD", chr(code))
            if normalize(composed).form != normalize(apart).form:
                different.append(composed)
    assert different == []


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", ""),
        (" \t\r\n\u00a0\u3000 ", " "),
        ("a \u200b b", "a b"),
        ("A–B—C--D−E", "a-b-c-d-e"),
        ("‘a’ “b” «c» „d‟ ′e″", '\'a\' "b" "c" "d" \'e"'),
        ("**a** __b__ ***c*** `d` ```e```", "a b c d e"),
        ("a*b c_d 2 * 3 4 ** 5", "a*b c_d 2 * 3 4 ** 5"),
        ('(*a*) "_b_"! *c*, **d**s', '(a) "b"! c, d**s'),
        ("ß ﬁ … Ａ ㎏ ½ ² ① ℝ", "ss fi ... a kg ½ ² ① r"),
        ("❤️ ❤ ﬁ\ufe0f", "❤ ❤ fi"),
        ("a \ufe0f b-\ufe0f—c", "a b-c"),
    ],
)
def test_form_by_hand(text, form):
    assert normalize(text).form == form


def test_interval_is_exact_and_never_inside_a_unit():
    normalized = normalize("xßy…e\u0301 \n z")
    assert normalized.form == "xssy...é z"
    assert normalized.interval(0, 1) == (0, 1)
    assert normalized.interval(0, 2) is None
    assert normalized.interval(2, 4) is None
    assert normalized.interval(1, 3) == (1, 2)
    assert normalized.interval(3, 7) == (2, 4)
    assert normalized.interval(3, 6) is None
    assert normalized.interval(7, 8) == (4, 6)
    assert normalized.interval(8, 10) == (6, 10)
    assert normalized.interval(0, 10) == (0, 10)


def test_run_with_something_dropped_inside_is_one_unit():
    normalized = normalize("a \u200b b-\ufe0f—")
    assert normalized.form == "a b-"
    assert (normalized.starts, normalized.ends) == ([0, 1, 4, 5], [1, 4, 5, 8])


def test_marks_beyond_the_longest_unit_stand_alone():
    normalized = normalize("a" + "\u0301" * MAX_UNIT)
    assert set(normalized.ends) == {MAX_UNIT, MAX_UNIT + 1}


@pytest.mark.parametrize(
    "piece", ["*", "_", "`", "-", " \u200b", "a *", "\u0300\u0316", "\u1100\u1161", "\u200d👩", "é "]
)
def test_time_grows_no_faster_than_the_text(piece):
    normalize(piece * (200_000 // len(piece)))  # no clock: pytest ends what takes minutes
