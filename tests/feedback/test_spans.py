"""Finding quotes: conformance cases as data, oracles, laws, and real critiques."""

import json
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from conversations import FAIR
from places import DATA, SHARED
from text2grad.errors import AlignmentError, ConfigError, CriticError
from text2grad.feedback.critique_text import parse_critique_object
from text2grad.feedback.normalize import normalize
from text2grad.feedback.spans import LocatedSpans, count_places, critique_from_text, locate_critique, locate_spans
from text2grad.feedback.words import whole_words, words_of
from text2grad.types import Conversation, Critique, Span, Turn

CASES = json.loads((DATA / "quotes.json").read_text("utf-8"))
SHARED_DATA = SHARED / "data"

law = settings(derandomize=True, deadline=None, max_examples=300)
few_letters = st.text("ab_ -.", max_size=14)
TRICKY = "aB 1.\n\t*_`-—…“'\"ßİﬁé\u0301\u0323\u200b\ufe0f\u200d👩🏽가\u1100\u1161\u11a8東²"
tricky = st.text(TRICKY, max_size=20) | st.text(max_size=20)


@st.composite
def response_and_quote(draw, responses):
    response = draw(responses.filter(str.strip))
    start = draw(st.integers(0, len(response) - 1))
    end = draw(st.integers(start + 1, len(response)))
    return response, response[start:end], start


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_quotes_stand_where_the_conformance_data_say(case):
    options = {"match": case["match"], "occurrences": case["occurrences"]}
    located = locate_spans(case["response"], case["positive"], case["negative"], **options)
    assert [[span.start, span.end, span.label] for span in located.spans] == case["spans"]
    assert list(located.unmatched) == case["unmatched"]


def test_conformance_data_cover_enough_and_repeat_no_name():
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)


@law
@given(response_and_quote(st.text(min_size=1) | few_letters))
def test_any_piece_of_a_response_is_found_as_it_is_written(drawn):
    response, quote, _ = drawn
    located = locate_spans(response, [quote], [])
    if not quote.strip():
        assert located == LocatedSpans((), (quote,))
        return
    assert located.spans
    assert located.unmatched == ()
    assert all(response[span.start : span.end] == quote for span in located.spans)


@pytest.mark.parametrize(
    ("order", "spans"),
    [
        ((), [(0, 4, "positive"), (13, 17, "negative")]),  # two lists: positive listings come first
        (("negative", "positive"), [(0, 4, "negative"), (13, 17, "positive")]),
        (("positive", "negative"), [(0, 4, "positive"), (13, 17, "negative")]),
    ],
)
@pytest.mark.parametrize("match", ["exact", "normalized"])
def test_listings_in_one_list_mark_occurrences_in_its_order(match, order, spans):
    located = locate_spans("Lyon is big. Lyon is in Spain.", ["Lyon"], ["Lyon"], match=match, order=order)
    assert located == LocatedSpans(tuple(Span(*span) for span in spans), ())


def test_more_listings_than_occurrences_contradict_each_other_also_in_one_list():
    located = locate_spans("Lyon is big.", ["Lyon"], ["Lyon"], order=("negative", "positive"))
    assert located.spans == (Span(0, 4, "negative"), Span(0, 4, "positive"))
    located = locate_spans("a b a", ["a"], ["a", "a"], order=("negative", "negative", "positive"))
    assert located == LocatedSpans((Span(0, 1, "positive"), Span(4, 5, "negative")), ("a",))


@pytest.mark.parametrize("order", [("positive",), ("positive", "positive"), ("positive", "negative", "negative")])
def test_an_order_of_other_labels_is_refused(order):
    with pytest.raises(
        CriticError, match=f"^order has {len(order)} labels, {order.count('negative')} of them negative"
    ):
        locate_spans("a b", ["a"], ["b"], order=order)


@pytest.mark.parametrize(
    ("text", "quote", "start"),
    [
        ("मेंढक कुएँ में है", "में", 11),  # the frog begins with the same signs
        ("हिन्दी भाषा हि", "हि", 12),
        ("pre\u0301re re", "re", 7),
        ("re\u0323\u0301s re", "re", 6),  # two marks on one letter
        ("نمی‌خواهم خواهم", "خواهم", 10),  # a joiner within a word
    ],
)
def test_marks_and_joiners_do_not_end_a_word(text, quote, start):
    assert text[start:].startswith(quote)
    assert locate_spans(text, [quote], []).spans == (Span(start, start + len(quote), "positive"),)


def test_a_run_of_marks_takes_no_longer_than_its_length():
    text = "a" + "\u0301" * 1_000_000 + " re"  # by the square of the length, the test would not end
    assert locate_spans(text, ["re"], []).spans == (Span(1_000_002, 1_000_004, "positive"),)


def in_word(text, position):
    """Whether a cut would go through a word, for the few letters of these tests."""
    return 0 < position < len(text) and text[position - 1] in "ab_" and text[position] in "ab_"


def found_by_trying(response, quote):
    """Try every place; take whole words, if any, and what does not overlap the one before."""
    places = [i for i in range(len(response)) if response[i : i + len(quote)] == quote]
    whole = [i for i in places if not in_word(response, i) and not in_word(response, i + len(quote))]
    taken = []
    for place in whole or places:
        if not taken or place >= taken[-1] + len(quote):
            taken.append(place)
    return taken if quote.strip() else []


@law
@given(few_letters, st.text("ab_ -.", min_size=1, max_size=4))
def test_places_agree_with_trying_every_place(response, quote):
    spans = locate_spans(response, [], [quote]).spans
    assert [span.start for span in spans] == found_by_trying(response, quote)


def dealt_by_hand(places, good, poor):
    """Deal places to listings, one at a time, as rules 3 and 4 say."""
    if good + poor == 1:
        return (places, []) if good else ([], places), 0 if places else 1
    queue = list(places)
    positive = [queue.pop(0) for _ in range(good) if queue]
    if not queue:
        queue = list(places)
    negative = [queue.pop(0) for _ in range(poor) if queue]
    return (positive, negative), good + poor - len(positive) - len(negative)


@pytest.mark.parametrize("there", range(5))
@pytest.mark.parametrize("good", range(4))
@pytest.mark.parametrize("poor", range(4))
def test_listings_share_the_places_as_the_rules_say(there, good, poor):
    located = locate_spans("x " * there, ["x"] * good, ["x"] * poor)
    (positive, negative), surplus = dealt_by_hand([2 * i for i in range(there)], good, poor)
    assert [s.start for s in located.spans if s.label == "positive"] == positive
    assert [s.start for s in located.spans if s.label == "negative"] == negative
    assert located.unmatched == ("x",) * (surplus if good + poor else 0)


def core(text):
    """A form without what may be taken off its ends."""
    form = normalize(text).form.strip(" *_`")
    bare = form[1:-1].strip(" *_`")
    return bare if bare and form[0] == form[-1] and form[0] in "\"'" else form


@law
@given(tricky, st.text(TRICKY, min_size=1, max_size=6))
def test_what_is_found_forgivingly_has_the_form_of_its_quote(response, quote):
    for span in locate_spans(response, [quote], [], match="normalized").spans:
        assert core(response[span.start : span.end]) == core(quote)


@law
@given(response_and_quote(tricky))
def test_any_piece_between_units_is_found_forgivingly(drawn):
    response, quote, start = drawn
    normalized = normalize(response)
    bounds = {0, len(response), *normalized.starts, *normalized.ends}
    located = locate_spans(response, [quote], [], match="normalized")
    if {start, start + len(quote)} <= bounds and normalize(quote).form.strip(" *_`"):
        assert located.unmatched == ()


@law
@given(st.text("abé\u0323 .ßİ", min_size=1, max_size=12), st.text("abéß", min_size=1, max_size=3))
def test_places_found_forgivingly_do_not_depend_on_composition(response, quote):
    def found(kind):
        text = unicodedata.normalize(kind, response)
        spans = locate_spans(text, [unicodedata.normalize("NFD", quote)], [], match="normalized").spans
        return [unicodedata.normalize("NFC", text[s.start : s.end]) for s in spans]

    assert found("NFC") == found("NFD")


@law
@given(response_and_quote(st.text("abc é東\n", min_size=1, max_size=20)))
def test_exact_and_forgiving_agree_where_there_is_nothing_to_forgive(drawn):
    response, quote, _ = drawn
    clean = quote.strip()
    if "\n" in response or "  " in response or not clean:
        return
    assert locate_spans(response, [clean], []) == locate_spans(response, [clean], [], match="normalized")


@law
@given(tricky, st.lists(st.text(TRICKY, max_size=4), max_size=5), st.sampled_from(["exact", "normalized"]))
def test_spans_are_sorted_lie_in_the_response_and_every_quote_is_accounted_for(response, quotes, match):
    located = locate_spans(response, quotes[:3], quotes[3:], match=match)
    assert list(located.spans) == sorted(set(located.spans))
    assert all(0 <= span.start < span.end <= len(response) for span in located.spans)
    assert all(located.unmatched.count(quote) <= quotes.count(quote) for quote in located.unmatched)
    assert bool(located.spans) == (len(located.unmatched) < len(quotes))


def test_spans_of_one_label_on_one_place_are_one_span():
    located = locate_spans("a b", ["a b", " a b"], [], match="normalized")
    assert located.spans == (Span(0, 3, "positive"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match": "exat"}, "match has no value 'exat'. Did you mean \"exact\"? Known values: exact, normalized"),
        ({"match": "fuzzy"}, "match has no value 'fuzzy'. Known values: exact, normalized"),
        (
            {"occurrences": "al"},
            "occurrences has no value 'al'. Did you mean \"all\"? Known values: all, first",
        ),
    ],
)
def test_unknown_option_is_refused_with_the_known_ones(options, message):
    for call in (lambda: locate_spans("a", [], [], **options), lambda: critique_from_text("", "a", **options)):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == message


def test_one_text_instead_of_a_list_is_refused():
    with pytest.raises(CriticError) as caught:
        locate_spans("abc", [], "abc")
    assert str(caught.value) == "negative is a list of quotes, got one text: 'abc'. Write ['abc']"


def test_critique_from_text_joins_reading_and_finding():
    text = 'Wrong city.\n{"good_spans": ["I live"], "poor_spans": ["Lyon", "Rome"], "outcome": -1,}'
    assert critique_from_text(text, "I live in Lyon.") == Critique(
        feedback="Wrong city.",
        spans=(Span(0, 6, "positive"), Span(10, 14, "negative")),
        outcome=-1.0,
        status="repaired",
        unmatched=("Rome",),
    )


def test_critique_from_text_passes_its_options_on():
    text = '{"poor_spans": ["LYON"]}'
    assert critique_from_text(text, "Lyon, Lyon").spans == ()
    both = critique_from_text(text, "Lyon, Lyon", match="normalized")
    assert both.spans == (Span(0, 4, "negative"), Span(6, 10, "negative"))
    first = critique_from_text(text, "Lyon, Lyon", match="normalized", occurrences="first")
    assert first.spans == (Span(0, 4, "negative"),)


def test_unparsable_critique_has_words_and_no_spans():
    assert critique_from_text(" Bad. ", "Bad.") == Critique("Bad.", status="unparsable")


@pytest.mark.parametrize("match", ["exact", "normalized"])
@pytest.mark.parametrize(
    ("response", "quote"),
    [
        ("a" * 50_000, "a" * 25_000),
        ("-a" * 20_000, "-a" * 5_000),
        ("ß" * 20_000, "s" * 9_999),
        ("the " * 20_000, "the the"),
        ("a " * 30_000, "a"),
        ("*" * 50_000 + "a", "a"),
    ],
)
def test_repetitive_responses_take_no_more_than_a_moment(match, response, quote):
    locate_spans(response, [quote], [quote], match=match)  # no clock: pytest ends what takes minutes


def test_many_listings_take_no_more_than_a_moment():
    located = locate_spans("the cat " * 500, ["cat"] * 20_000, [f"dog {i}" for i in range(20_000)])
    assert (len(located.spans), len(located.unmatched)) == (500, 39_500)


def test_errors_marked_by_people_are_found_where_they_were_marked():
    path = SHARED_DATA / "qa_feedback" / "feedback.json"
    if not path.exists():
        pytest.skip("needs ../shared/data/qa_feedback, which only the project's own machines have")
    marked = found = 0
    for record in json.loads(path.read_text("utf-8")):
        response = record["prediction 1"]
        for error in record["feedback"]["errors"]:
            place = (error["start"], error["end"])
            quote = response[slice(*place)]
            for match in ("exact", "normalized"):
                text = json.dumps({"textual_feedback": error["explanation"], "poor_spans": [quote]})
                critique = critique_from_text(text, response, match=match)
                assert (critique.status, critique.unmatched) == ("ok", ())
                marked += 1
                found += place in {(span.start, span.end) for span in critique.spans}
    assert marked == 2 * 1110
    assert found / marked > 0.98, "the rest begin or end inside a word that occurs whole elsewhere"


def test_errors_of_translations_are_found_in_german():
    path = SHARED_DATA / "mqm_ted_ende" / "segments.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/mqm_ted_ende, which only the project's own machines have")
    for line in path.read_text("utf-8").splitlines():
        segment = json.loads(line)
        for rating in (r for ratings in segment["ratings"].values() for r in ratings):
            response = segment[rating["side"]]
            quote = response[rating["start"] : rating["end"]]
            if not quote.strip():
                continue
            for match in ("exact", "normalized"):
                assert locate_spans(response, [], [quote], match=match).spans, (response, quote)
            shouted = locate_spans(response, [], [f"“{quote.upper()}”"], match="normalized")
            assert shouted.unmatched == ()


def test_lines_of_real_programs_are_found():
    path = SHARED_DATA / "kodcode" / "kodcode_algorithm.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/kodcode, which only the project's own machines have")
    for line in path.read_text("utf-8").splitlines():
        program = json.loads(line)["solution"]
        rows = [row for row in dict.fromkeys(program.splitlines()) if row.strip()]
        for match in ("exact", "normalized"):
            located = locate_spans(program, [], rows, match=match)
            assert located.unmatched == ()
            assert {program[span.start : span.end].strip() for span in located.spans} >= {
                row.strip() for row in rows if match == "exact"
            }


@given(st.text("ab_5é\u0301 .'\n😀\ufe0f\u0926\u093f\u094d\u200d\u200c", max_size=12))
def test_whole_words_are_the_words_of_a_script_with_spaces(text: str) -> None:
    assert whole_words(text) == words_of(text)


def test_letters_of_a_script_without_spaces_are_one_whole_word() -> None:
    assert whole_words("東京、 ที่นี่ x") == [(0, 2), (2, 3), (4, 10), (11, 12)]


@pytest.mark.parametrize(
    ("entry", "spans"),
    [
        ({"text": "Lyon", "start": 12, "end": 16}, [(12, 16)]),
        ({"text": "Lyon", "start": 28, "end": 32}, [(28, 32)]),  # not the first, as the error spans of XCOMET
        ({"text": "Lyon fair.", "start": 28, "end": 99}, [(28, 38)]),  # behind the end of the response
        ({"text": "Lyon", "start": 3, "end": 7}, []),  # it stands elsewhere, but twice: nothing tells where
        ({"text": "not", "start": 3, "end": 6}, [(20, 23)]),  # it stands elsewhere, once
        ({"text": "Lyon", "start": -10, "end": 32}, []),  # Python would count from the end
        ({"text": "Lyon", "start": "28", "end": 32.0}, [(28, 32)]),
        ({"text": "Lyon", "start": 28.5, "end": 32}, [(12, 16), (28, 32)]),  # no whole number: a quote alone
        ({"text": "Lyon", "span": [28, 32]}, [(28, 32)]),
        ({"text": "Lyon", "offset": 28, "length": 4}, [(28, 32)]),  # as entities of Azure
        ({"quote": "Lyon", "startOffset": 28, "endOffset": 32}, [(28, 32)]),
        ({"quote": "Lyon", "char_start": 28, "char_end": 32}, [(28, 32)]),
        ({"quote": "Lyon", "begin": 28, "end": 32}, [(28, 32)]),
        ({"quote": "Lyon", "s": 28, "e": 32}, [(28, 32)]),
        ({"word": "lyon", "start": 28, "end": 32}, [(28, 32)]),  # transformers' pipeline, of an uncased model
        ({"start": "28", "end": "32"}, [(28, 32)]),
        ({"from": 28, "to": 32}, [(28, 32)]),
        *(({key: "Lyon", "why": "no"}, [(12, 16), (28, 32)]) for key in ("exact", "Word", "original", "value")),
        ({"value": "fair", "text": "Lyon"}, [(12, 16), (28, 32)]),
        ({"value": "fair", "exact": "Lyon"}, [(12, 16), (28, 32)]),  # W3C's quotes, with another value
        ({"quote": "Lyon", "start_pos": 28, "end_pos": 32}, [(28, 32)]),
        ({"text": "Lyon", "startCharIndex": 28, "endCharIndex": 32}, [(28, 32)]),  # Datasaur
        ({"text": "Lyon", "characterOffsetBegin": 28, "characterOffsetEnd": 32}, [(28, 32)]),  # Stanford CoreNLP 4.5
        ({"text": "Lyon", "locations": 1, "location": {"start": 28, "end": 32}}, [(28, 32)]),
        ({"text": "Lyon", "offsets": [[28, 32]]}, [(28, 32)]),  # BioC
        ({"text": "Lyon", "position": {"offset": 28, "length": 4}}, [(28, 32)]),
        ({"text": "Lyon", "start": 28}, [(28, 32)]),  # its end is that of the quote: 28 + 4
        ({"text": "Lyon", "token_start": 6, "token_end": 7}, [(12, 16), (28, 32)]),  # tokens are no characters
    ],
)
def test_a_quote_with_its_place_marks_this_place_alone(entry, spans):
    response = "The fair in Lyon is not the Lyon fair."
    for text in (json.dumps({"poor_spans": [entry]}), json.dumps({"spans": [{**entry, "label": "negative"}]})):
        critique = critique_from_text(text, response)
        assert critique.spans == tuple(Span(*place, "negative") for place in spans)
        assert critique.unmatched == (() if spans else ("Lyon",))
        assert {type(quote) for quote in critique.unmatched} <= {str}


@pytest.mark.parametrize(
    "entry", [{"from": "2", "to": "3"}, {"s": "Lyon", "e": "Nice"}, {"start": "Lyon", "end": "fair"}]
)
def test_what_was_written_and_what_should_be_are_no_offsets(entry: dict[str, str]) -> None:
    response = "The fair in Lyon is not the Lyon fair."
    assert critique_from_text(json.dumps({"poor_spans": [entry]}), response) == Critique("")


def test_a_word_for_a_quote_that_stands_alone_is_itself_the_quote() -> None:
    critique = critique_from_text('{"poor_spans": [{"value": "is no name"}, {"word": "typo"}]}', "value = word")
    assert critique.spans == (Span(0, 5, "negative"), Span(8, 12, "negative"))


def test_a_place_may_count_utf_16_units_where_a_quote_shows_it():
    quoted = {"quote": "Lyon", "start": 3, "end": 7}  # 😀 and the blank: 2 code points, 3 UTF-16 units
    assert critique_from_text(json.dumps({"poor_spans": [quoted]}), "😀 Lyon Lyon").spans == (Span(2, 6, "negative"),)


def test_offsets_alone_in_the_text_of_a_critique_are_spans_or_unmatched():
    critique = critique_from_text('{"spans": [[0, 1, "good"], [1, 9, "poor"], [2, 2, "poor"]]}', "a b")
    assert critique.spans == (Span(0, 1, "positive"), Span(2, 2, "negative"))
    assert critique.unmatched == ("[1, 9]",)


# What is said about a span.


def test_spans_of_one_place_and_label_are_one_whatever_is_said_about_them() -> None:
    plain, said = (
        Span(3, 7, "negative"),
        Span(3, 7, "negative", None, "It is Nice.", "Fact", "major", 0.5, "ann", "mqm"),
    )
    assert (plain == said, len({said, plain}), sorted([said, plain])[0].reason) == (True, 1, "It is Nice.")
    assert next(iter({said, plain})).rater == "ann"  # a set keeps the first
    assert {Span(3, 7, "positive"), Span(3, 7, "negative", turn=1), Span(3, 8, "negative")}.isdisjoint({said})
    words = "reason='It is Nice.', category='Fact', severity='major', weight=0.5, rater='ann', source='mqm'"
    assert repr(said) == f"Span(start=3, end=7, label='negative', {words})"
    assert repr(plain) == "Span(start=3, end=7, label='negative')"


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf"), "2", [1]])
def test_a_weight_that_is_none_is_refused(weight: Any) -> None:
    with pytest.raises(AlignmentError) as caught:
        Span(3, 7, "negative", weight=weight)
    assert str(caught.value) == (
        f"a span's weight is a finite number from 0 up, got {weight!r} at [3, 7]. Its label says the sign, and 0 takes "
        "the mark away"
    )


NICE = {"reason": "It is Nice."}


@pytest.mark.parametrize(
    ("quotes", "said"),
    [
        ({"poor_spans": [["Lyon", "It is Nice."]]}, NICE),
        ({"poor_spans": {"Lyon": "It is Nice."}}, NICE),
        ({"poor_spans": [{"Lyon": "It is Nice."}]}, NICE),
        ({"poor_spans": [{"span": "Lyon", "Comment": "It is Nice.", "type": "Fact", "severity": 2}]},
         {**NICE, "category": "Fact", "severity": "2"}),
        ({"spans": [["Lyon", "poor", "It is Nice."]]}, NICE),
        ({"spans": [{"quote": "Lyon", "label": "negative", "why": "It is Nice."}]}, NICE),
        ({"spans": [{"quote": "Lyon", "start": 10, "end": 14, "label": "poor", "reason": "It is Nice."}]}, NICE),
        ({"spans": [{"start": 10, "end": 14, "label": "poor", "reason": "It is Nice."}]}, NICE),
        ({"poor_spans": [["Lyon", "poor"]]}, {}),
        ({"poor_spans": [["Lyon", "-2"]]}, {}),
        ({"spans": {"Lyon": "negative"}}, {}),
        ({"poor_spans": ["Lyon"]}, {}),
    ],
)  # fmt: skip
def test_what_a_critic_says_about_a_quote_goes_with_its_span(quotes: dict[str, Any], said: dict[str, str]) -> None:
    critique = critique_from_text(json.dumps(quotes), "I live in Lyon.")
    span = critique.spans[-1]
    assert span.stated == {"start": 10, "end": 14, "label": "negative", **said}


def test_a_text_cannot_say_who_speaks_or_how_much_it_weighs() -> None:
    entry = {"span": "Lyon", "reason": "No.", "rater": "ann", "source": "mqm", "weight": -5}
    text = {"feedback": "No.", "poor_spans": [entry]}
    (span,) = critique_from_text(json.dumps(text), "I live in Lyon.").spans
    assert span.stated == {"start": 10, "end": 14, "label": "negative", "reason": "No."}
    entry["weight"] = 0.5
    (span,) = locate_critique(parse_critique_object(text), "I live in Lyon.").spans
    assert (span.reason, span.rater, span.source, span.weight) == ("No.", "ann", "mqm", 0.5)


def test_each_occurrence_of_a_quote_has_the_reason() -> None:
    (first, second) = critique_from_text('{"poor_spans": [["a", "Which?"]]}', "a or a").spans
    assert (first.start, second.start, first.reason, second.reason) == (0, 5, "Which?", "Which?")


# Conversations.


def in_fair(*quotes: Any, match: Any = "exact", key: str = "poor_spans") -> Any:
    return locate_critique(parse_critique_object({key: [*quotes]}), FAIR, match=match)


def test_a_quote_is_sought_in_the_turn_that_it_names_or_in_the_only_one_that_holds_it() -> None:
    # turn 1: "Look up Lyon."   turn 3: "In Lyon on Monday, on Monday."   "Friday" stands in a tool's result alone
    named = in_fair({"turn": 3, "quote": "Lyon"}, "turn 1: Lyon", {"Turn": "1", "text": "up"})
    assert named.spans == (Span(5, 7, "negative", 1), Span(8, 12, "negative", 1), Span(3, 7, "negative", 3))
    assert named.unmatched == ()
    assert in_fair({"turn": 3, "quote": "Lyon"}).spans == (Span(3, 7, "negative", 3),)
    alone = in_fair("Look", "Friday", "Lyon")
    assert alone.spans == (Span(0, 4, "negative", 1),)
    assert alone.unmatched == ("Friday", "Lyon (in turns 1, 3)")
    forgiving = in_fair("“Look  up”", {"turn": 3, "quote": "*In Lyon*"}, match="normalized")
    assert forgiving.spans == (Span(0, 7, "negative", 1), Span(0, 7, "negative", 3))


@pytest.mark.parametrize("turn", [0, 2, 4, -1, "two", 1.5, True, [1]])
def test_a_quote_of_no_turn_of_the_policy_is_unmatched_though_another_turn_holds_it(turn: Any) -> None:
    found = in_fair({"turn": turn, "quote": "Monday"})
    assert found.spans == ()
    assert found.unmatched == ("Monday",) if turn not in (0, 2, 4) else (f"turn {turn}: Monday",)


def test_in_one_turn_quotes_are_shared_as_in_one_response_and_each_turn_for_itself() -> None:
    monday = {"turn": 3, "quote": "Monday"}
    assert in_fair(monday, monday).spans == (Span(11, 17, "negative", 3), Span(22, 28, "negative", 3))
    assert in_fair(monday, monday, monday).unmatched == ("turn 3: Monday",)
    lyon = [{"turn": 1, "quote": "Lyon", "label": "good"}, {"turn": 3, "quote": "Lyon", "label": "bad"}]
    assert in_fair(*lyon, key="spans").spans == (Span(8, 12, "positive", 1), Span(3, 7, "negative", 3))


def test_marks_around_a_quote_are_left_out_if_its_own_turn_has_none() -> None:
    spoken = Conversation([Turn("assistant", 'see "Lyon"', True), Turn("assistant", "see Lyon", True)])
    parsed = parse_critique_object({"poor_spans": [{"turn": 1, "quote": '"Lyon"'}]})
    assert locate_critique(parsed, spoken, match="normalized").spans == (Span(4, 8, "negative", 1),)


def test_offsets_of_a_turn_count_in_it_and_offsets_without_one_in_the_whole() -> None:
    assert in_fair({"turn": 3, "start": 3, "end": 7}).spans == (Span(3, 7, "negative", 3),)
    assert in_fair({"turn": 1, "start": 3, "end": 14}).unmatched == ("turn 1: [3, 14]",)
    assert in_fair({"start": 8, "end": 16}).spans == (Span(8, 13, "negative", 1), Span(0, 3, "negative", 3))
    # a quote with a place: "Monday" stands at 22 of turn 3, too
    assert in_fair({"quote": "Monday", "start": 22, "end": 28}).spans == (Span(22, 28, "negative", 3),)


def test_a_quote_that_looks_as_if_it_named_a_turn_is_first_what_it_is() -> None:
    spoken = Conversation([Turn("assistant", "Go to turn 1: Lyon", True), Turn("assistant", "see Lyon", True)])
    assert critique_from_text('{"poor_spans": ["turn 1: Lyon"]}', spoken).spans == (Span(6, 18, "negative", 0),)


def test_quotes_of_a_turn_that_was_written_alone_are_found_as_in_a_single_response() -> None:
    for case in CASES:
        there = Conversation([Turn("user", case["response"]), Turn("assistant", case["response"], True)])
        how = {"match": case["match"], "occurrences": case["occurrences"]}
        one = locate_spans(case["response"], case["positive"], case["negative"], **how)
        found = locate_spans(there, case["positive"], case["negative"], **how)
        assert found.spans == tuple(replace(span, turn=1) for span in one.spans)
        assert len(found.unmatched) == len(one.unmatched)


def test_a_quote_has_as_many_places_as_whole_words_or_else_as_pieces() -> None:
    quotes = ("Monday", "Lyon", "on", "onda", "Friday", "")  # "onda" is no whole word anywhere
    assert [count_places("In Lyon on Monday, on Monday.", quote) for quote in quotes] == [2, 1, 2, 2, 0, 0]
