"""What a critic said is on disk as it was said, and no critic is asked the same thing twice."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from conversations import FAIR
from text2grad.critics.cached import CachedCritic
from text2grad.errors import CriticError, DataError
from text2grad.feedback.critic import annotate
from text2grad.feedback.records import (
    Annotation,
    critique_from_json,
    critique_to_json,
    read_annotations,
    read_critique_records,
    write_annotations,
)
from text2grad.files import to_json
from text2grad.types import LABELS, Conversation, Critique, Example, Span, Turn

WHOLE = Annotation(
    "Say it:",
    'see "Lyon"',
    Critique('No, "Paris".', (Span(0, 3, "positive"), Span(4, 10, "negative")), -0.5, "repaired", ("Rome",)),
)


class CountingCritic:
    """Calls every first character good, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        self.asked.append([(e.prompt_text, r) for e, r in zip(examples, responses, strict=True)])
        return [self.judge(response) for response in responses]

    @staticmethod
    def judge(response: str) -> Critique:
        spans = (Span(0, 1, "positive"),) if response else ()
        return Critique(f"On {response}.", spans, len(response) / 2, "ok", (response * 2,))


def nobody(examples: Sequence[Example], responses: Sequence[str]) -> Any:
    raise AssertionError(f"asked about {responses}")


def remembering(path: Path, critic: Any = nobody) -> Any:
    return CachedCritic(critic, path)


def examples(*prompts: str) -> list[Example]:
    return [Example(prompt) for prompt in prompts]


# Annotations.


def test_an_annotation_is_a_response_with_what_the_critic_says_of_it() -> None:
    chat = Example([{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Hm."}])
    assert annotate(CountingCritic(), [Example("Who?"), chat], ["Ann", "here"]) == [
        Annotation("Who?", "Ann", CountingCritic.judge("Ann")),
        Annotation("<user>\nWhere?\n</user>\n\n<assistant>\nHm.\n</assistant>", "here", CountingCritic.judge("here")),
    ]


def test_critiques_in_text_are_read_before_they_are_annotations() -> None:
    texts = ['{"good_spans": ["“Ann”"]}', "no critique"]
    found = annotate(lambda e, r: texts, examples("x", "y"), ['"Ann"', "b"], match="normalized")
    assert [one.critique for one in found] == [
        Critique("", (Span(0, 5, "positive"),)),
        Critique("no critique"),
    ]
    exact = annotate(lambda e, r: texts, examples("x", "y"), ['"Ann"', "b"])
    assert exact[0].critique == Critique("", unmatched=("“Ann”",))


def test_a_critic_that_breaks_its_contract_is_an_error() -> None:
    with pytest.raises(CriticError) as caught:
        annotate(lambda e, r: ["one"], examples("x", "y"), ["a", "b"])
    assert str(caught.value) == "critic <lambda> returned 1 critiques for 2 responses; one each is needed"


def test_an_annotation_is_a_line_of_json(tmp_path: Path) -> None:
    write_annotations(tmp_path / "a.jsonl", [WHOLE, Annotation("", "é", Critique(""))])
    assert (tmp_path / "a.jsonl").read_text("ascii") == (
        '{"prompt": "Say it:", "response": "see \\"Lyon\\"", "critique": {"feedback": "No, \\"Paris\\".", "spans": '
        '[{"start": 0, "end": 3, "label": "positive"}, {"start": 4, "end": 10, "label": "negative"}], '
        '"outcome": -0.5, "status": "repaired", "unmatched": ["Rome"]}}\n'
        '{"prompt": "", "response": "\\u00e9", "critique": {"feedback": "", "spans": [], "outcome": null, '
        '"status": "ok", "unmatched": []}}\n'
    )
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_critique_is_a_record_of_plain_data() -> None:
    assert critique_to_json(WHOLE.critique) == {
        "feedback": 'No, "Paris".',
        "spans": [{"start": 0, "end": 3, "label": "positive"}, {"start": 4, "end": 10, "label": "negative"}],
        "outcome": -0.5,
        "status": "repaired",
        "unmatched": ["Rome"],
    }


def test_text2grad_align_reads_annotations_too(tmp_path: Path) -> None:
    write_annotations(tmp_path / "a.jsonl", [WHOLE])
    (judged,) = read_critique_records(tmp_path / "a.jsonl")
    assert Annotation(judged.prompt, judged.response, judged.critique) == WHOLE


PIECES = ["a", "cat", '"', "\\", "\n", "\r", "\u2028", "é", "😀", "<think>", "{}", "\ud800", '{"spans": []}', "\0"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=12)
OUTCOMES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
STATUSES = st.sampled_from(["ok", "repaired", "unparsable", "timed_out"])


@st.composite
def annotations(draw: st.DrawFn) -> Annotation:
    response = draw(TEXTS)
    bound = st.integers(0, len(response))
    ends = draw(st.lists(st.tuples(bound, bound, st.sampled_from(LABELS)), max_size=4))
    spans = tuple(sorted({Span(min(a, b), max(a, b), label) for a, b, label in ends}))
    feedback = draw(TEXTS)
    unmatched = tuple(draw(st.lists(TEXTS, max_size=3)))
    return Annotation(draw(TEXTS), response, Critique(feedback, spans, draw(OUTCOMES), draw(STATUSES), unmatched))


@given(annotations(), st.randoms(use_true_random=False))
def test_reading_a_written_critique_gives_it_back_whatever_the_order_of_its_spans(one: Annotation, rng: Random) -> None:
    spans = [*one.critique.spans] * 2
    rng.shuffle(spans)
    critique = replace(one.critique, spans=tuple(spans))
    read = critique_from_json(json.loads(to_json(critique_to_json(critique))), one.response, where="a.jsonl:1")
    assert read == critique
    assert repr(read) == repr(critique)


@given(annotations())
def test_critiques_of_version_0_1_are_read_as_they_were(one: Annotation) -> None:
    written = critique_to_json(one.critique)
    spans = [[span.start, span.end, span.label] for span in one.critique.spans]
    assert critique_from_json({**written, "spans": spans}, one.response, where="rollouts, cached") == one.critique
    kept = json.loads(to_json(asdict(one.critique)))
    assert critique_from_json(kept, one.response, where="kept") == one.critique


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(annotations(), min_size=1, max_size=4))
def test_annotations_come_back_from_their_file_as_they_were(tmp_path: Path, given: list[Annotation]) -> None:
    write_annotations(tmp_path / "a.jsonl", given)
    read = read_annotations(tmp_path / "a.jsonl")
    assert read == given
    assert repr(read) == repr(given)  # 0.0 is not −0.0, and 1.0 is not 1


def test_spans_come_back_from_a_file_in_order_and_once(tmp_path: Path) -> None:
    late, early = Span(2, 3, "positive"), Span(0, 1, "negative")
    write_annotations(tmp_path / "a.jsonl", [Annotation("p", "abc", Critique(" \n", (late, early, late)))])
    assert read_annotations(tmp_path / "a.jsonl") == [Annotation("p", "abc", Critique(" \n", (early, late)))]


@pytest.mark.parametrize("feedback", ["No. " * 37_500, " \n", "half \ud800 of a pair", '{"feedback": "in JSON"}', ""])
def test_any_feedback_survives_its_file(tmp_path: Path, feedback: str) -> None:
    given = [Annotation("p", "abc", Critique(feedback, (Span(0, 1, "positive"),), unmatched=("\udfff",)))]
    write_annotations(tmp_path / "a.jsonl", given)
    assert read_annotations(tmp_path / "a.jsonl") == given


@pytest.mark.parametrize("feedback", ["No. " * 37_500, " \n", "half \ud800 of a pair"])
def test_any_feedback_survives_beside_quotes_too(feedback: str) -> None:
    found = critique_from_json({"feedback": feedback, "good_spans": ["b"]}, "abc", where="a.jsonl:1")
    assert found == Critique(feedback, (Span(1, 2, "positive"),))


def test_annotations_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_annotations(path, [WHOLE])
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        write_annotations(path, [WHOLE, WHOLE._replace(critique=Critique("", outcome=float("nan")))])
    assert read_annotations(str(path)) == [WHOLE]


def test_a_file_without_annotations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_annotations(path, [])
    with pytest.raises(DataError) as caught:
        read_annotations(path)
    assert str(caught.value) == f"{path} has no records"
    with pytest.raises(DataError) as caught:
        read_annotations(tmp_path / "b.jsonl")
    assert str(caught.value) == f"cannot read {tmp_path / 'b.jsonl'}: No such file or directory"


def test_a_line_that_is_no_annotation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_annotations(path, [WHOLE, WHOLE._replace(response="see")])
    with pytest.raises(DataError) as caught:
        read_annotations(path)
    assert str(caught.value) == (
        f'{path}:2: span [4, 10, "negative"] does not lie in the response, which has 3 characters. Mend or remove '
        "the record"
    )


# A critic that is never asked twice.


def test_what_is_known_is_not_asked_again_and_the_rest_is_asked_in_order(tmp_path: Path) -> None:
    critic = CountingCritic()
    remembers = remembering(tmp_path / "a.jsonl", critic)
    assert remembers(examples("p", "q"), ["one", "two"]) == [critic.judge("one"), critic.judge("two")]
    answers = remembers(examples("r", "q", "s", "p"), ["four", "two", "three", "one"])
    assert answers == [critic.judge(word) for word in ("four", "two", "three", "one")]
    assert critic.asked == [[("p", "one"), ("q", "two")], [("r", "four"), ("s", "three")]]


def test_another_process_finds_every_answer_in_the_file(tmp_path: Path) -> None:
    critic, path = CountingCritic(), tmp_path / "not" / "there" / "a.jsonl"
    words = ["one", "two", "", "é\n😀"]
    remembering(path, critic)(examples("p", "p", "p", "p"), words)
    assert remembering(path)(examples("p", "p", "p", "p"), words) == [critic.judge(word) for word in words]
    assert len(critic.asked) == 1


def test_the_same_question_twice_in_a_batch_is_asked_once(tmp_path: Path) -> None:
    critic = CountingCritic()
    answers = remembering(tmp_path / "a.jsonl", critic)(examples("p", "q", "p", "p"), ["one", "one", "two", "one"])
    assert [answer.feedback for answer in answers] == ["On one.", "On one.", "On two.", "On one."]
    assert sorted(critic.asked[0]) == [("p", "one"), ("p", "two"), ("q", "one")]
    assert len(remembering(tmp_path / "a.jsonl").known) == 3


def test_prompt_and_response_are_told_apart(tmp_path: Path) -> None:
    critic = CountingCritic()
    remembers = remembering(tmp_path / "a.jsonl", critic)
    remembers(examples("ab"), ["c"])
    remembers(examples("a"), ["bc"])
    remembers(examples("a\ud800"), ["half a letter"])
    assert critic.asked == [[("ab", "c")], [("a", "bc")], [("a\ud800", "half a letter")]]


def test_examples_that_differ_in_tests_reference_or_meta_alone_are_judged_each(tmp_path: Path) -> None:
    critic = CountingCritic()
    remembers = remembering(tmp_path / "a.jsonl", critic)
    asked = [
        Example("p"),
        Example("p", tests="assert f(1)"),
        Example("p", tests="assert f(2)"),
        Example("p", reference="a"),
        Example("p", reference="b"),
        Example("p", meta={"passage": "a"}),
        Example("p", meta={"passage": "b"}),
    ]
    for one in asked:
        remembers([one], ["r"])
    assert len(critic.asked) == 7
    assert len({json.loads(line)["key"] for line in (tmp_path / "a.jsonl").read_text().splitlines() if line}) == 7
    assert len(remembering(tmp_path / "a.jsonl")(asked, ["r"] * 7)) == 7  # none is asked again


def test_critiques_of_prompts_alone_are_read_from_caches_of_before(tmp_path: Path) -> None:
    said = Critique("Good.")
    record = {"key": sha256(b"Where?\0Lyon").hexdigest(), "critique": critique_to_json(said)}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert remembering(tmp_path / "a.jsonl")(examples("Where?"), ["Lyon"]) == [said]


def test_nothing_is_asked_or_written_where_there_is_nothing_to_ask(tmp_path: Path) -> None:
    assert remembering(tmp_path / "a.jsonl")([], []) == []
    assert not (tmp_path / "a.jsonl").exists()


def test_critiques_in_text_are_kept_as_they_were_read(tmp_path: Path) -> None:
    def writing(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        return ['{"poor_spans": ["“Ann”", "Bob"]}', "no critique"]

    found = [Critique("", (Span(0, 5, "negative"),), unmatched=("Bob",)), Critique("no critique")]
    path = tmp_path / "a.jsonl"
    first = CachedCritic(writing, path, match="normalized")
    assert first(examples("p", "p"), ['"Ann"', "b"]) == found
    assert remembering(path)(examples("p", "p"), ['"Ann"', "b"]) == found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(annotations())
def test_any_critique_is_remembered_as_it_was(tmp_path: Path, one: Annotation) -> None:
    assume(abs(one.critique.outcome or 0.0) <= 1e9)  # a critic's larger ones are refused
    path = tmp_path / "a.jsonl"
    path.unlink(missing_ok=True)
    given = remembering(path, lambda e, r: [one.critique])([Example(one.prompt)], [one.response])
    assert given == [one.critique]
    if one.critique.status != "timed_out":
        assert repr(remembering(path)([Example(one.prompt)], [one.response])) == repr(given)


def test_who_did_not_answer_in_time_is_asked_again(tmp_path: Path) -> None:
    late, said = Critique("", status="timed_out"), Critique("Good.")
    assert remembering(tmp_path / "a.jsonl", lambda e, r: [late, said])(examples("p", "p"), ["a", "b"]) == [late, said]
    again = remembering(tmp_path / "a.jsonl", lambda e, r: [said] * (1 if list(r) == ["a"] else 9))
    assert again(examples("p", "p"), ["a", "b"]) == [said, said]


def test_an_answer_is_on_disk_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "a.jsonl", []

    def full(descriptor: int) -> None:
        synced.append(path.read_bytes())
        raise OSError("no space left")

    monkeypatch.setattr("text2grad.files.os.fsync", full)
    remembers = remembering(path, CountingCritic())
    with pytest.raises(OSError, match="no space left"):
        remembers(examples("p"), ["one"])
    assert remembers.known == {}
    assert len(synced) == 1
    assert json.loads(synced[0])["critique"] == critique_to_json(CountingCritic.judge("one"))


def test_a_critic_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken(examples: Sequence[Example], responses: Sequence[str]) -> Any:
        raise TimeoutError("no answer")

    path = tmp_path / "a.jsonl"
    remembering(path, CountingCritic())(examples("p"), ["one"])
    before = path.read_bytes()
    with pytest.raises(CriticError) as caught:
        remembering(path, broken)(examples("p", "p"), ["one", "two"])
    assert str(caught.value).startswith("critic broken failed on 1 responses: TimeoutError at ")
    assert path.read_bytes() == before


def test_a_file_cut_at_any_byte_loses_its_last_line_alone_and_is_mended_by_asking(tmp_path: Path) -> None:
    words, path = ["one", "é\n", "three"], tmp_path / "a.jsonl"
    prompts, critic = examples("p", "p", "p"), CountingCritic()
    for word in words:
        remembering(path, critic)(examples("p"), [word])
    whole = path.read_bytes()
    ends = [end for end in range(len(whole) + 1) if end == len(whole) or whole[end : end + 1] == b"\n"][1:]
    assert len(ends) == 3
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        left = sum(end <= size for end in ends)
        critic = CountingCritic()
        remembers = remembering(path, critic)
        assert len(remembers.known) == left
        assert remembers(prompts, words) == [critic.judge(word) for word in words]
        assert critic.asked == ([[("p", word) for word in words[left:]]] if left < 3 else [])
        assert remembering(path)(prompts, words) == [critic.judge(word) for word in words]


@pytest.mark.parametrize("torn", [b"\0" * 5, b"\n\0\0\0\0", b"\n\xff\xfe", b'\n{"key": "\xc3'])
def test_bytes_that_a_crash_of_the_machine_left_are_passed_over(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "a.jsonl"
    remembering(path, CountingCritic())(examples("p"), ["one"])
    with path.open("ab") as file:
        file.write(b"\n" + torn)
    critic = CountingCritic()
    remembering(path, critic)(examples("p", "p"), ["one", "two"])
    assert critic.asked == [[("p", "two")]]
    assert len(remembering(path).known) == 2


def test_equal_words_after_another_result_of_a_tool_are_judged_again(tmp_path: Path) -> None:
    other = Conversation([*FAIR.turns[:2], Turn("tool", "Lyon: Monday"), FAIR.turns[3]])
    asked: list[str] = []

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        asked.extend(response.turns[2].text for response in responses)  # type: ignore[attr-defined]
        return [Critique(response.turns[2].text, (Span(0, 7, "positive", 1),)) for response in responses]  # type: ignore

    for _ in range(2):
        found = CachedCritic(critic, tmp_path / "c.jsonl")(examples("p", "p", "p"), [FAIR, other, FAIR])
        assert [critique.feedback for critique in found] == ["Lyon: Friday", "Lyon: Monday", "Lyon: Friday"]
        assert [critique.spans for critique in found] == [(Span(0, 7, "positive", 1),)] * 3
    assert asked == ["Lyon: Friday", "Lyon: Monday"]


def test_what_was_judged_without_its_thought_is_judged_again_with_it(tmp_path: Path) -> None:
    critic, text = CountingCritic(), "<think>a</think>b"
    for _ in range(2):
        hidden, shown = (CachedCritic(critic, tmp_path / "c.jsonl", prompt_end=end) for end in ("", None))
        assert hidden(examples("p"), [text])[0].spans == (Span(16, 17, "positive"),)
        assert shown(examples("p"), [text])[0].spans == (Span(0, 1, "positive"),)
    assert critic.asked == [[("p", "b")], [("p", text)]]
