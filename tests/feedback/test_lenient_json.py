"""Reading objects: agreement with the json module, places in the text, and what is refused."""

import json
import math

import pytest
from hypothesis import given, settings, strategies as st

from text2grad.feedback.lenient_json import Cut, CutObject, Reading, printable, read_objects, unescape

law = settings(derandomize=True, deadline=None)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
objects = st.dictionaries(st.text(), values, max_size=4)


@law
@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_json_reads_as_the_json_module_reads_it(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert [reading.value for reading in read_objects(text)] == [json.loads(text)]


@law
@given(objects, st.text("ab ,:\n"), st.text("ab ,:\n"))
def test_place_of_an_object_is_exactly_its_text(value, before, after):
    text = json.dumps(value)
    (reading,) = read_objects(before + text + after)
    assert (reading.start, reading.end) == (len(before), len(before) + len(text))


@law
@given(objects, st.data())
def test_cut_json_is_a_cut_object_whose_pairs_came_before_the_cut(value, data):
    text = json.dumps(value)
    end = data.draw(st.integers(1, len(text) - 1))
    reading = next(read_objects(text[:end]))
    assert isinstance(reading.value, CutObject)
    assert list(reading.value) == list(value)[: len(reading.value)]


def values_of(text, **options):
    return [reading.value for reading in read_objects(text, **options)]


def test_objects_come_left_to_right_without_those_inside():
    assert list(read_objects('{"a": {"b": 1}} {} {"c": 2}')) == [
        Reading({"a": {"b": 1.0}}, 0, 15),
        Reading({}, 16, 18),
        Reading({"c": 2.0}, 19, 27),
    ]


def test_text_so_far_is_kept_in_a_cut():
    ((value,),) = (list(v.values()) for v in values_of('{"a": "b c'))
    assert (type(value), value) == (Cut, "b c")


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": -', '{"a": nul', '{"a":', '{"a": 1.', "{'a': 1e", '{"a": ...'])
def test_unfinished_number_or_word_is_an_empty_cut(text):
    (value,) = values_of(text)
    assert value == {"a": ""}
    assert isinstance(value["a"], Cut)


def test_finished_number_before_the_end_is_a_number():
    assert values_of('{"a": 1 ') == [{"a": 1.0}]


@pytest.mark.parametrize(
    "text",
    ["", "plain", "[1, 2]", "{x | x > 0}", '{"a" 1}', '{"a": b}', '{"a": 1; "b": 2}', '{"a": "b" c}', "{]}", "{1: 2}"],
)
def test_what_is_no_object_is_passed_over(text):
    assert values_of(text) == []


def test_numbers_and_constants():
    text = "{a: -1.5e3, b: +.5, c: 7., d: True, e: FALSE, f: None, g: NaN, h: -Infinity, i: undefined}"
    (value,) = values_of(text)
    assert math.isnan(value.pop("g"))
    assert value == {
        **{"a": -1500.0, "b": 0.5, "c": 7.0, "d": True, "e": False, "f": None},
        **{"h": float("-inf"), "i": None},
    }


def test_triple_quoted_text_ends_at_three_delimiters():
    assert values_of("""{'a': '''x'y''z''', "b": \"\"\"w\"\"\"}""") == [{"a": "x'y''z", "b": "w"}]


@pytest.mark.parametrize("text", ['{"a": 1, "b"', '{"a": 1, "b" ', "{'a': 1, b", '{"a": 1, "b', '{"a": 1, '])
def test_key_without_its_colon_is_dropped(text):
    assert values_of(text) == [{"a": 1.0}]


def test_outer_bracket_closes_inner_ones():
    assert values_of('{"a": [(1, 2], "b": [3}') == [{"a": [[1.0, 2.0]], "b": [3.0]}]


def test_fence_ends_an_object_that_was_not_closed():
    (reading,) = read_objects('{"a": ["b"\n```\n"c"]}')
    assert (reading.value, reading.end) == ({"a": ["b"]}, 11)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "say "hi" now"}', 'say "hi" now'),
        ('{"a": "x "y", z", "b": 1}', 'x "y", z'),
        ('{"a": "x "y": z"}', 'x "y": z'),
        ('{"a": "x {"y"} z"}', 'x {"y'),  # it looks like the end of the object: not even people could tell
        ('{"a": ["f("x")", "y"]}', ['f("x")', "y"]),
        ('{"a": ["d["k"] = 1"]}', ['d["k"] = 1']),
        ('{"a": ["x", "y" and z"]}', ["x", 'y" and z']),
        ('{"a": ["x", None, "y", -1, ("z")]}', ["x", None, "y", -1.0, ["z"]]),
        ('{"a": ["x" "y"]}', ["x", "y"]),
        ('{"a": ["x\\"", "y"]}', ['x"', "y"]),
        ("{'a': ['it's', 'so']}", ["it's", "so"]),
        ('{"a": "x"\\n, "b": 1}', "x"),
    ],
)
def test_lenient_ends_pass_over_inner_delimiters(text, value):
    assert values_of(text, lenient_ends=True)[0]["a"] == value


def test_unescape_knows_json_and_python():
    assert unescape(r"\"\'\\\/\b\f\n\r\t\u00e9\xe9\U0001f600\ud83d\ude00") == "\"'\\/\b\f\n\r\téé😀😀"


def test_unescape_leaves_the_unknown_as_written():
    text = "\\d \\u12 \\xg \\U00110000 \\"
    assert unescape(text) == text


def test_printable_joins_pairs_and_replaces_halves():
    assert printable("a\ud83d\ude00b\ud83dc\ude00") == "a😀b\ufffdc\ufffd"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": {"b": 1}, "c": 50%} {"d": 1}', [{"d": 1}]),  # nothing of an object that cannot be read
        ('{"a": [{"b": 1}, {"c": {"d": 1}}], "c": 1, "c": 2}', []),
        ('{"c": 50%, "a": {"b": 1}}', [{"b": 1}]),  # what stands behind its first fault is read for itself
        ('{{"a": 1}}', [{"a": 1}]),
        ('{"a": 1, "a": 1.0}', [{"a": 1}]),
    ],
)
def test_an_object_that_cannot_be_read_takes_the_objects_before_its_fault_with_it(text, values):
    assert values_of(text) == values


def test_numpy_prints_arrays_with_their_type_and_without_commas():
    text = "{'a': array([{'b': 1},\n   {'b': 2}], dtype=object), 'c': array([], dtype=object), 'd': np.int64(3)}"
    assert values_of(text) == [{"a": [{"b": 1}, {"b": 2}], "c": [], "d": 3}]
    assert values_of("{'a': ['b' \"it's\"\n 'c']}", lenient_ends=True) == [{"a": ["b", "it's", "c"]}]
    assert values_of('{"a": [1 "b"], "c": 2 "d": 3}', lenient_ends=True) == [{"a": [1, "b"], "c": 2, "d": 3}]
    assert values_of('{"a": 8 "of 10"}', lenient_ends=True) == []  # what is behind a number and no key belongs to it
    assert values_of("{'a': array([1, 2") == [{"a": [1, ""]}]
    assert values_of("{'a': array(") == [{"a": ""}]
