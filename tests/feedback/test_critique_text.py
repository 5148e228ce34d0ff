"""Reading critiques: conformance cases as data, truncation, round trips, and texts made to do harm."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from places import DATA, SHARED
from text2grad.errors import CriticError
from text2grad.feedback.critique_text import (
    MAX_CHARS,
    ParsedCritique,
    parse_critique,
    parse_critique_object,
)
from text2grad.feedback.quotes import place_of
from text2grad.types import Critique

CASES = json.loads((DATA / "critiques.json").read_text("utf-8"))
SHARED_DATA = SHARED / "data"

law = settings(derandomize=True, deadline=None)
words = st.text(min_size=1, max_size=30).filter(str.strip)
quotes = st.lists(words, max_size=4)

VALID = {  # one of each shape, with what makes cutting hard: escapes, quotes in code, brackets, many bytes
    "json": json.dumps(
        {
            "textual_feedback": 'Says "Lyon, France" [twice], {really}: \\n is literal.',
            "good_spans": ['He said "hi", and left', "a\nb\\", "été 東京 👩‍💻", "}]"],
            "poor_spans": ["x = {'k': [1, 2]}", "f(\"a\", 'b')", "//no comment", "```"],
            "outcome": -1.25,
        }
    ),
    "json in utf-8": json.dumps(
        {"code_feedback": "né 東京", "good_spans": ["été", "東京 👩‍💻"], "wrong_code": ['d["k"] = "v"', "é"]},
        ensure_ascii=False,
        indent=2,
    ),
    "prose and fence": "Zuerst: gut.\n```json\n"
    + json.dumps({"Good spans": ["it's", 'a "b"'], "Poor spans": [], "feedback": "ok"}, indent=1)
    + "\n```\nThat is all.",
    "python": str(
        {"textual_feedback": "It's 'so' \"so\"", "good_spans": ["it's", 'a "b"'], "poor_spans": ["a'b\"c", "\n"]}
    ),
    "tuples": str({"good_spans": (("a b", "why, 'now'"), ("c", 'it"s')), "poor_spans": ("d", "e f")}),
    "label map": 'Good.\n{"a b": "positive", "c, d": "negative", "the": "neutral", "e": "negative"}',
    "labelled objects": json.dumps({"spans": [{"span": "a", "label": "positive"}, {"label": "bad", "span": "b"}]}),
    "span objects": json.dumps({"poor_spans": [{"reason": "so", "span": "a"}, {"span": "b", "reason": "x"}]}),
    "reasons by quote": json.dumps({"poor_spans": {"a b": "why", "c": "so"}, "good_spans": [{"d": "e"}]}),
    "code as text": json.dumps({"code_feedback": "Off.", "wrong_code": 'print("x")', "improvement_code": "y"}),
    "trailing commas": '{"good_spans": ["a", "b c",], "poor_spans": ["d",],}',
    "escaped twice": json.dumps(json.dumps({"textual_feedback": 'a "b"', "good_spans": ['c "d"', "e\\f"]})),
}


def summary(parsed: ParsedCritique) -> dict[str, object]:
    """What the conformance data state of a critique."""
    return {
        "feedback": parsed.feedback,
        "positive": list(parsed.positive),
        "negative": list(parsed.negative),
        "status": parsed.status,
        "outcome": parsed.outcome,
    }


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_critique_reads_as_the_conformance_data_say(case):
    expected = {"outcome": None} | {k: v for k, v in case.items() if k not in {"name", "text"}}
    assert summary(parse_critique(case["text"])) == expected


def test_conformance_data_cover_enough_and_repeat_no_name():
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("name", VALID)
def test_valid_critique_cut_at_any_byte_yields_only_whole_quotes_in_order(name):
    whole = parse_critique(VALID[name])
    assert whole.positive + whole.negative
    data = VALID[name].encode()
    counts = []
    for end in range(len(data)):
        cut = parse_critique(data[:end].decode(errors="ignore"))
        assert cut.positive == whole.positive[: len(cut.positive)]
        assert cut.negative == whole.negative[: len(cut.negative)]
        assert cut.status in {"ok", "repaired", "unparsable"}
        assert cut.outcome in {None, whole.outcome}
        counts.append(len(cut.positive) + len(cut.negative))
    assert counts == sorted(counts), "a longer text never says less"
    assert counts[0] == 0


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_no_conformance_case_raises_wherever_it_is_cut(case):
    data = case["text"].encode()
    for end in range(len(data)):
        cut = parse_critique(data[:end].decode(errors="ignore"))
        if case["status"] == "ok":
            assert set(cut.positive) <= set(case["positive"])
            assert set(cut.negative) <= set(case["negative"])


def test_quote_whose_closing_mark_alone_was_cut_is_dropped():
    assert parse_critique('{"good_spans": ["a b", "c d"').positive == ("a b", "c d")
    assert parse_critique('{"good_spans": ["a b", "c d').positive == ("a b",)


def test_cut_feedback_is_plain_text():
    assert type(parse_critique('{"good_spans": ["a"], "feedback": "The su').feedback) is str


@law
@given(words, quotes, quotes, st.booleans(), st.sampled_from([None, 2]))
def test_json_of_any_critique_reads_back(feedback, positive, negative, ascii_only, indent):
    record = {"textual_feedback": feedback, "good_spans": positive, "poor_spans": negative}
    text = json.dumps(record, ensure_ascii=ascii_only, indent=indent)
    assert parse_critique(text) == ParsedCritique(feedback, tuple(positive), tuple(negative), "ok")


@law
@given(words, quotes, quotes)
def test_python_text_of_any_critique_reads_back(feedback, positive, negative):
    parsed = parse_critique(repr({"textual_feedback": feedback, "good_spans": positive, "poor_spans": negative}))
    assert (parsed.feedback, parsed.positive, parsed.negative) == (feedback, tuple(positive), tuple(negative))
    assert parsed.status in {"ok", "repaired"}


@law
@given(st.text("Hi, there.\n{}()'", max_size=20), words, quotes, st.text(max_size=20))
def test_prose_and_fence_around_json_change_nothing(before, feedback, positive, after):
    record = json.dumps({"textual_feedback": feedback, "good_spans": positive})
    parsed = parse_critique(f"{before}\n```json\n{record}\n```\n{after}")
    assert parsed == ParsedCritique(feedback, tuple(positive), (), "ok")


FRAGMENTS = [
    *"{}[]():,\"'\\“”‘’#/-.1 \n\t\x00\ud800e",
    *("good_spans", "poor_spans", '"good_spans": [', '{"spans": ', "feedback", "score", "null", "NaN", "...", "```"),
    *("\\n", "\\u00", "\\ud83d", '"""', "//", "<think>", '{"', '"a" "b" ', "span", "reason"),
]


@settings(law, max_examples=600)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join) | st.text(st.characters(exclude_categories=())))
def test_no_text_raises_and_every_answer_can_be_written_to_a_file(text):
    parsed = parse_critique(text)
    for said in (parsed.feedback, *parsed.positive, *parsed.negative):
        assert type(said) is str
        said.encode()
    assert all(quote.strip() for quote in parsed.positive + parsed.negative)
    if parsed.status == "unparsable":
        assert parsed.positive + parsed.negative == ()


N = MAX_CHARS
HARMFUL = {
    "brackets": "[" * N,
    "braces": "{" * N,
    "nested objects": '{"a":' * (N // 5),
    "nested spans": '{"spans":' * (N // 9),
    "nested lists of spans": '{"spans":[' * (N // 10),
    "nested parentheses": "{a:(" * (N // 4),
    "nested and closed": ('{"x":' * 15 + "1" + "}" * 15) * (N // 91),
    "objects in lists": '{"a":[{"b":"c"},' * (N // 16),
    "quotation marks": '"' * N,
    "open quotation marks": '{"' * (N // 2),
    "backslashes": '{"' + "\\" * (N - 2),
    "forgotten commas": '{"good_spans": [' + '"a" b" ' * (N // 7 - 3),
    "stray apostrophes": "{'a': 'it's" * (N // 11),
    "white space": '{"good_spans": ["a' + '"       ' * (N // 8 - 3),
    "comments": "{//" * (N // 3),
    "escaped line breaks": "{\\n" * (N // 3),
    "fences": "```json " * (N // 8),
    "thinking": "<think>" * (N // 7),
    "channels": "<|channel|>analysis" + "<|channel|>final " * (N // 20),
    "digits": '{"outcome": ' + "9" * (N - 20) + "}",
    "keys of underscores": '{"' + "_ " * (N // 2 - 10) + '": 1}',
    "ten million characters": '{"good_spans": ["' + "x" * 10_000_000 + '"]}',
    "ten million braces": "{" * 10_000_000,
}


@pytest.mark.parametrize("name", HARMFUL)
def test_text_made_to_do_harm_is_read_in_a_few_seconds(name):
    parse_critique(HARMFUL[name])  # no clock: pytest ends what takes minutes


def test_text_is_read_up_to_the_limit_and_not_beyond():
    frame = '{"feedback": "", "good_spans": ["a"]}'
    padded = frame.replace('""', '"' + "x" * (MAX_CHARS - len(frame)) + '"')
    assert len(padded) == MAX_CHARS
    assert parse_critique(padded).positive == ("a",)
    beyond = padded + " "
    assert parse_critique(beyond) == ParsedCritique(padded, status="unparsable")


def test_objects_nest_sixteen_deep_and_reading_starts_again_below():
    def nested(depth):
        return '{"x": ' * (depth - 1) + '{"good_spans": "a"}' + "}" * (depth - 1)

    assert parse_critique(nested(16)) == ParsedCritique("", ("a",), (), "ok")
    below = parse_critique(nested(17))
    assert (below.positive, below.feedback) == (("a",), ('{"x": ' * 16).strip())


DRAFT, VERDICT = 'Maybe {"good_spans": ["a"]}?', '{"good_spans": ["b"]}'


@pytest.mark.parametrize("between", ["\n\n", " \n", "", "```json\n", "\r\n", "Fine. "])
def test_text_before_a_closing_think_tag_alone_is_a_draft(between: str) -> None:
    # Templates that put <think> into the prompt leave an answer that begins inside the reasoning.
    assert parse_critique(f"{DRAFT}</think>{between}{VERDICT}").positive == ("b",)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        *((f"<{tag}>", f"</{tag}>") for tag in ("think", "thinking", "thought", "reasoning", "seed:think")),
        ("[THINK]", "[/THINK]"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("<|channel|>analysis<|message|>", "<|end|><|channel|>final <|constrain|>json<|message|>"),
    ],
)
def test_a_draft_in_reasoning_is_no_critique_whatever_the_marks_of_the_model(begin: str, end: str) -> None:
    assert parse_critique(f"{begin}{DRAFT}{end}{VERDICT}") == ParsedCritique("", ("b",), (), "ok")
    assert parse_critique(f"\n{begin}\n{DRAFT}").status == "unparsable"  # cut off
    quoted = json.dumps({"good_spans": [f"{begin}x{end}"]})
    assert parse_critique(quoted).positive == (f"{begin}x{end}",)
    other = parse_critique(f"It has a {begin}: {VERDICT}")  # only at the beginning it is the model's own
    assert other.positive == ("b",)


def test_a_draft_without_a_verdict_is_no_critique() -> None:
    parsed = parse_critique(f"{DRAFT}\n</think>")
    assert (parsed.status, parsed.positive) == ("unparsable", ())


def test_a_think_tag_inside_a_quote_is_no_draft() -> None:
    quotes = ("say </think> here", "</think>", "</think>{x}")
    text = json.dumps({"good_spans": ["no"], "poor_spans": quotes})
    parsed = parse_critique(text)
    assert (parsed.positive, parsed.negative) == (("no",), quotes)
    nested = {"feedback": "It says </think> too early.", "spans": {"good": ["a"], "poor": ["b"]}}
    assert parse_critique(json.dumps(nested)) == ParsedCritique(nested["feedback"], ("a",), ("b",), "ok")  # type: ignore[arg-type]
    # the tag that ends the reasoning is the first that an answer may follow
    assert parse_critique(f'A "</think>" is odd. {DRAFT}\n</think>\n{text}').negative == parsed.negative


def test_a_think_tag_inside_a_quote_is_no_draft_after_prose() -> None:
    quotes = ("2+2=5\n</think>\nThe answer is 5",)
    text = f"The sum is wrong. {json.dumps({'good_spans': [], 'poor_spans': quotes})}"
    parsed = parse_critique(text)
    assert (parsed.feedback, parsed.negative, parsed.status) == ("The sum is wrong.", quotes, "ok")
    assert parse_critique(f"[{json.dumps({'poor_spans': quotes})}]").negative == quotes
    assert parse_critique(f"<think>{text}").status == "unparsable"  # all of it is a draft


@pytest.mark.parametrize(
    ("entries", "order"),
    [
        ([["a", "poor"], ["a", "good"], ["b", "poor"]], ("negative", "positive", "negative")),
        ([{"text": "a", "label": "poor"}, {"text": "c", "label": "neutral"}, {"text": "a", "label": "good"}], None),
    ],
)
def test_labels_of_one_list_keep_their_order(entries: Any, order: Any) -> None:
    parsed = parse_critique(json.dumps({"spans": entries}))
    assert parsed.order == (order or ("negative", "positive"))
    assert parsed.positive == ("a",)
    mixed = parse_critique(json.dumps({"spans": entries, "good_spans": ["d"]}))
    assert (mixed.order, mixed.positive) == ((), ("d", "a"))  # two lists have no common order


def test_what_is_no_text_is_refused():
    with pytest.raises(CriticError) as caught:
        parse_critique(b'{"good_spans": []}')
    assert str(caught.value) == "a critique is text (str), got bytes; decode bytes first"


def test_status_is_one_a_critique_may_have():
    for case in CASES:
        parsed = parse_critique(case["text"])
        assert Critique(parsed.feedback, status=parsed.status).failed == (parsed.status == "unparsable")


def test_reading_critiques_loads_no_heavy_library():
    code = (
        "import sys, text2grad.feedback.spans as s; s.critique_from_text('{\"good_spans\": [\"a\"]}', 'a');"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_words_of_people_on_code_are_kept_whole_and_claim_no_spans():
    path = SHARED_DATA / "ilf_code_feedback" / "surge_annotations.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/ilf_code_feedback, which only the project's own machines have")
    for line in path.read_text("utf-8").splitlines():
        said = json.loads(line)["Feedback"]
        assert parse_critique(said) == ParsedCritique(said.strip(), status="unparsable")


@pytest.mark.parametrize(
    "write", [json.dumps, repr, lambda record: f"So.\n```json\n{json.dumps(record, indent=1)}\n```"]
)
def test_lines_of_real_programs_survive_being_quoted(write):
    path = SHARED_DATA / "kodcode" / "kodcode_algorithm.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/kodcode, which only the project's own machines have")
    for line in path.read_text("utf-8").splitlines():
        item = json.loads(line)
        lines = tuple(row for row in item["solution"].splitlines() if row.strip())
        text = write({"code_feedback": item["question"], "wrong_code": list(lines), "improvement_code": None})
        parsed = parse_critique(text)
        assert (parsed.feedback, parsed.negative, parsed.status == "unparsable") == (item["question"], lines, False)


WORDS_IN_OBJECTS = ["", " ", "good", "poor", "-1", "a cat", "the {dog}", "none", "\n"]
KEYS_IN_OBJECTS = ["feedback", "Critique", "good-spans", "negative", "spans", "label", "quote", "outcome", "score", "x"]
OBJECTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS_IN_OBJECTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS_IN_OBJECTS), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYS_IN_OBJECTS), OBJECTS, max_size=4))
def test_an_object_is_read_as_its_json_text_is(value: dict[str, Any]) -> None:
    text, parsed = parse_critique(json.dumps(value)), parse_critique_object(value)
    assert parsed == text or (not parsed.feedback.strip() and replace(parsed, feedback="") == text)


def test_an_object_without_a_known_key_is_read_as_its_text() -> None:
    assert parse_critique_object({"x": 1}) == ParsedCritique('{"x": 1}', status="unparsable")
    assert parse_critique_object({"content": '{"good_spans": ["a"]}'}).positive == ("a",)


def test_numbers_and_nesting_without_bound_are_no_error() -> None:
    deep: dict[str, Any] = {"good": ["a"]}
    for _ in range(500):
        deep = {"spans": deep}
    assert parse_critique_object(deep).status == "ok"
    assert parse_critique_object({"feedback": "x", "outcome": 10**400}).outcome is None


def test_the_place_of_a_quote_is_kept_with_it():
    text = """{"poor_spans": [{"text": "a", "start": 3, "end": 4}, {"quote": "b", "start": 0}, [5, 6]],
               "spans": [[7, 8, "good"], {"start_offset": 9, "end_offset": 11, "label": "poor"}, [1, 2, "odd", 1]]}"""
    parsed = parse_critique(text)
    assert (parsed.positive, parsed.negative) == (("[7, 8]",), ("a", "b", "[9, 11]"))
    places = [getattr(quote, "place", None) for quote in parsed.positive + parsed.negative]
    assert places == [(7, 8), (3, 4), (0, 1), (9, 11)]  # a quote of one character that starts at 0 ends at 1


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"start": 0, "end": 4, "label": "positive", "turn": 2}, (0, 4)),  # as this project writes spans
        ({"start": 0, "end": 4, "span": [5, 9]}, (5, 9)),  # a range by its own name comes first
        ({"start": 0, "end": 4.0}, (0, 4)),
        ({"start": True, "end": 4}, None),
        ({"start": 0, "end": None, "label": "positive"}, None),
    ],
)
def test_the_place_of_an_object(entry: dict[str, Any], place: tuple[int, int] | None) -> None:
    assert place_of(entry) == place


@pytest.mark.parametrize(
    ("entry", "labels"),
    [
        ({"text": "a", "severity": "critical", "score": 0.9}, ()),  # the score is how sure a tool is
        ({"text": "a", "entity": "Error", "score": "0.99"}, ()),
        ({"text": "a", "severity": "critical", "score": -0.9}, ("negative",)),
        ({"text": "a", "category": "fact", "score": 1}, ("positive",)),
        ({"text": "a", "score": 0.9}, ("positive",)),
        ({"text": "a", "severity": "critical", "label": "bad", "score": 0.9}, ("negative",)),
    ],
)
def test_a_probability_beside_the_word_of_a_tool_is_no_label(entry, labels):
    assert parse_critique_object({"spans": [entry]}).order == labels


def test_two_outcomes_under_one_name_are_unreadable_and_a_score_is_another_number():
    assert parse_critique('{"Outcome": 1, "outcome": -1}').status == "unparsable"
    assert parse_critique('{"Outcome": 1, "outcome": "1.0"}').outcome == 1.0
    assert parse_critique('{"score": 8, "outcome": -1}').outcome == -1.0


@pytest.mark.parametrize(
    ("entry", "quote", "turn"),
    [
        ({"turn": 2, "quote": "Lyon"}, "Lyon", 2),
        ({"quote": "Lyon", "Turn": "2", "reason": "no"}, "Lyon", 2),
        ({"turn": 0, "text": "Lyon"}, "Lyon", 0),
        ({"turn": 2.0, "span": "Lyon"}, "Lyon", 2),
        ({"turn": -1, "quote": "Lyon"}, "Lyon", -1),
        ({"turn": 1.5, "quote": "Lyon"}, "Lyon", -1),
        ({"turn": "second", "quote": "Lyon"}, "Lyon", -1),
        ({"turn": None, "quote": "Lyon"}, "Lyon", None),
        ({"turn": 2, "start": 3, "end": 7}, "[3, 7]", 2),
        ({"quote": "Lyon"}, "Lyon", None),
        ({"turn": "Lyon"}, "turn", None),  # {quote: reason}
        ("Lyon", "Lyon", None),
    ],
)
def test_a_quote_may_name_its_turn_and_what_is_no_number_is_no_turn(entry: Any, quote: str, turn: int | None) -> None:
    for listed in (entry, [entry], [entry, entry]):
        found = parse_critique_object({"poor_spans": listed}).negative
        assert found[-1] == quote
        assert getattr(found[-1], "turn", None) == turn
