"""A critic may be anything that answers; what it answers is checked before anything uses it."""

import importlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from text2grad.errors import ConfigError, CriticError
from text2grad.feedback.critic import Critic, ask
from text2grad.feedback.records import critique_to_json
from text2grad.feedback.user_code import load_callable
from text2grad.rl.metrics import FAILURE_WINDOW, FailureRate, said_nothing, warning_of_silence
from text2grad.types import Critique, Example, Span

EXAMPLES = [Example("one"), Example("two")]
HERE = os.path.relpath(__file__)
RESPONSES = ["see Lyon", "a “fine”  day"]


def answering(answers: Any) -> Any:
    """Return a critic that gives these answers whatever it is asked."""

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> Any:
        return answers

    return critic


def refusal(critic: Any) -> str:
    with pytest.raises(CriticError) as caught:
        ask(critic, EXAMPLES, RESPONSES, match="exact")
    return str(caught.value)


def test_a_critic_is_asked_once_about_all_responses() -> None:
    seen: list[Any] = []

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        seen.append((examples, responses))
        return [Critique(response) for response in responses]

    assert [c.feedback for c in ask(critic, EXAMPLES, RESPONSES, match="exact")] == RESPONSES
    assert seen == [(EXAMPLES, RESPONSES)]


def test_critiques_with_offsets_come_back_as_they_are() -> None:
    given = [
        Critique("wrong city", (Span(4, 8, "negative"), Span(0, 3, "positive")), -0.5, "repaired", ("Paris",)),
        Critique("no answer in time", status="timed_out"),
    ]
    assert ask(answering(given), EXAMPLES, RESPONSES, match="exact") == given
    assert ask(answering(tuple(given)), EXAMPLES, RESPONSES, match="exact") == given


def test_critiques_in_text_are_read_and_their_quotes_located() -> None:
    texts = [
        json.dumps({"textual_feedback": "Wrong city.", "poor_spans": ["Lyon", "Paris"]}),
        'No JSON here, but {"textual_feedback": "Good.", "good_spans": ["a \\"fine\\" day"]}',
    ]
    exact = ask(answering(texts), EXAMPLES, RESPONSES, match="exact")
    assert exact[0] == Critique("Wrong city.", (Span(4, 8, "negative"),), unmatched=("Paris",))
    assert (exact[1].spans, exact[1].unmatched) == ((), ('a "fine" day',))
    forgiving = ask(answering(texts), EXAMPLES, RESPONSES, match="normalized")
    assert forgiving[1].spans == (Span(0, 13, "positive"),)


def test_texts_and_critiques_may_be_mixed_and_nonsense_is_an_outcome() -> None:
    cut_off = '{"textual_feedback": "I would'
    first, second = ask(answering([cut_off, Critique("fine")]), EXAMPLES, RESPONSES, match="exact")
    assert (first.status, first.failed, first.spans) == ("unparsable", True, ())
    assert second == Critique("fine")


def test_a_span_may_reach_the_end_of_the_response_and_no_further() -> None:
    to_the_end = Critique("", (Span(4, 8, "negative"),))
    beyond = Critique("look", (Span(0, 3, "positive"), Span(4, 9, "negative")), 1.0, unmatched=("x",))
    found = ask(answering([to_the_end, beyond]), EXAMPLES, [RESPONSES[0]] * 2, match="exact")
    assert found == [to_the_end, Critique("look", status="unparsable")]


@pytest.mark.parametrize("outcome", [float("nan"), float("inf"), float("-inf")])
def test_an_outcome_that_is_no_finite_number_cannot_be_read(outcome: float) -> None:
    given = [Critique("how odd", (Span(0, 3, "positive"),), outcome), Critique("fine", outcome=0.0)]
    found = ask(answering(given), EXAMPLES, RESPONSES, match="exact")
    assert found == [Critique("how odd", status="unparsable"), Critique("fine", outcome=0.0)]


def test_numbers_of_other_libraries_become_pythons_so_that_they_can_be_written_down() -> None:
    given = Critique("", (Span(np.int64(0), np.int64(3), "positive"),), np.float32(0.5))  # type: ignore[arg-type]
    (found,) = ask(answering([given]), EXAMPLES[:1], RESPONSES[:1], match="exact")
    assert json.loads(json.dumps(critique_to_json(found)))["spans"] == [{"start": 0, "end": 3, "label": "positive"}]
    assert (type(found.outcome), found.outcome) == (float, 0.5)


def test_scores_may_come_as_an_array() -> None:
    critiques = ask(answering(np.array([0.5, -1.0])), EXAMPLES, RESPONSES, match="exact")
    assert [critique.outcome for critique in critiques] == [0.5, -1.0]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_critique_for_each_response_is_needed(count: int) -> None:
    assert refusal(answering([Critique("")] * count)) == (
        f"critic critic returned {count} critiques for 2 responses; one each is needed"
    )


def test_answers_that_are_no_list_are_refused() -> None:
    assert refusal(answering(None)) == "critic critic returned a NoneType; a list of critiques is needed"
    assert refusal(answering(Critique("") for _ in range(2))) == (
        "critic critic returned a generator; a list of critiques is needed"
    )
    assert refusal(answering("ok")) == "critic critic returned a str; a list of critiques is needed"


def test_answers_of_another_type_are_refused() -> None:
    assert refusal(answering([Critique("fine"), None])) == (
        "critic critic returned for response 2 of 2 a NoneType; a text2grad.Critique, a dict with quotes, a text, a "
        "pair of number and text, or a number is needed"
    )
    assert "a tuple; a text2grad.Critique" in refusal(answering([Critique("fine"), ("fine", 1.0)]))


QUOTED = Critique("Wrong city.", (Span(4, 8, "negative"),))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (QUOTED, QUOTED),
        ({"feedback": "Wrong city.", "negative": ["Lyon"]}, QUOTED),
        (
            {"textual_feedback": "Wrong city.", "good_spans": [], "poor_spans": ["Lyon"], "score": 0.25},
            Critique("Wrong city.", QUOTED.spans, 0.25),
        ),
        ('Wrong city. {"poor_spans": ["Lyon"]}', QUOTED),
        ("Wrong city.", Critique("Wrong city.")),
        ("Use {name}, not Lyon.", Critique("Use {name}, not Lyon.")),
        ((0.5, "Wrong city."), Critique("Wrong city.", (), 0.5)),
        ([1, '{"feedback": "Wrong city.", "negative": ["Lyon"]}'], Critique("Wrong city.", QUOTED.spans, 1.0)),
        ((0.5, ""), Critique("", (), 0.5)),
        ((0.5, "The set {a: b} is wrong."), Critique("The set {a: b} is wrong.", (), 0.5)),
        (0.75, Critique("", (), 0.75)),
        (np.float32(0.5), Critique("", (), 0.5)),
        (True, Critique("", (), 1.0)),
        ({"feedback": "Wrong.", "outcome": np.float32(0.5)}, Critique("Wrong.", (), 0.5)),
        ({"poor_spans": np.array(["Lyon"])}, Critique("", QUOTED.spans)),
        (
            {"feedback": "Wrong.", "outcome": True},
            Critique("the outcome given is no number: Wrong.", status="unparsable"),
        ),
        (
            {"feedback": "Wrong.", "outcome": math.nan},
            Critique("the outcome nan is no number: Wrong.", status="unparsable"),
        ),
        (
            {"feedback": "Fine.", "score": "4/5 stars"},
            Critique("the outcome 4/5 stars is no number: Fine.", status="unparsable"),
        ),
        (
            {"feedback": "Fine.", "outcome": [10**5_000]},
            Critique("the outcome given is no number: Fine.", status="unparsable"),
        ),
        ('{"feedback": "Wrong ci', Critique("Wrong ci", status="unparsable")),  # cut off: a failure, not words
        ("", Critique("", status="unparsable")),
    ],
)
def test_a_critic_may_give_words_quotes_numbers_or_both(answer: Any, expected: Critique) -> None:
    [critique, _] = ask(answering([answer, "Fine."]), EXAMPLES, RESPONSES, match="exact")
    assert (critique.feedback, critique.spans, critique.outcome, critique.failed) == (
        expected.feedback,
        expected.spans,
        expected.outcome,
        expected.failed,
    )


def test_a_critic_that_is_an_object_is_named_by_its_class_and_its_error_is_kept() -> None:
    class Tired:
        def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            raise TimeoutError("no answer in 60 s")

    line = Tired.__call__.__code__.co_firstlineno + 1
    assert refusal(Tired()) == (f"critic Tired failed on 2 responses: TimeoutError at {HERE}:{line}: no answer in 60 s")
    with pytest.raises(CriticError) as caught:
        ask(Tired(), EXAMPLES, RESPONSES, match="exact")
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_critic_that_ends_the_program_has_failed() -> None:
    def leaving(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        raise SystemExit(3)

    assert refusal(leaving).startswith("critic leaving failed on 2 responses: SystemExit at ")


def test_errors_of_text2grad_itself_are_passed_on_as_they_are() -> None:
    def strict(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        raise ConfigError("no key")

    assert refusal(strict) == "critic strict: no key"


def test_spans_beyond_the_response_are_warned_of_with_the_response(caplog: pytest.LogCaptureFixture) -> None:
    given = [Critique("", (Span(0, 9, "positive"),)), Critique("", outcome=float("nan"))]
    with caplog.at_level("WARNING", logger="text2grad"):
        ask(answering(given), EXAMPLES, RESPONSES, match="exact")
    assert caplog.messages == [
        "critic critic for response 1 of 2: span 0–9 ends after the response of 8 characters, and 1 more like it; such "
        "a critique counts as unparsable, with δ = 0"
    ]


def test_an_interrupted_critic_is_not_taken_for_a_failing_one() -> None:
    def interrupted(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(interrupted, EXAMPLES, RESPONSES, match="exact")


def test_any_callable_is_a_critic() -> None:
    assert isinstance(answering([]), Critic)
    assert not isinstance("critic", Critic)


# How often a critic may fail.


def test_the_failure_rate_is_that_of_the_last_hundred_critiques() -> None:
    failures = FailureRate(limit=0.25, batch_size=8)
    assert (FAILURE_WINDOW, failures.rate, failures.too_many) == (100, 0.0, False)
    failures.count(["unparsable"] * 20 + ["timed_out"] * 6 + ["ok"] * 70 + ["repaired"] * 3)
    assert (failures.rate, failures.too_many) == (26 / 99, False)  # too few to judge
    failures.count(["ok"])
    assert (failures.rate, failures.too_many) == (0.26, True)
    failures.count(["ok"])  # the oldest failure falls out of the window
    assert (failures.rate, failures.too_many) == (0.25, False)  # the limit itself is allowed


def test_a_critic_of_which_all_first_critiques_fail_is_stopped_at_eight() -> None:
    failures = FailureRate(limit=0.25, batch_size=4)
    failures.count(["unparsable"] * 7)
    assert not failures.too_many
    failures.count(["timed_out"])
    assert failures.too_many
    tolerant = FailureRate(limit=1.0, batch_size=4)
    tolerant.count(["unparsable"] * 200)
    assert not tolerant.too_many, "a limit of 1 allows everything"
    mixed = FailureRate(limit=0.25, batch_size=4)
    mixed.count(["unparsable"] * 98 + ["ok"])
    assert not mixed.too_many, "99 of which one could be read are too few to judge"


def test_silence_lasts_from_the_first_step_until_a_reward() -> None:
    nothing, something = ({"delta/labelled_share": share, "reward/nonzero_share": 0.0} for share in (0.0, 0.1))
    outcome = {"delta/labelled_share": 0.0, "reward/nonzero_share": 0.5}
    assert "in the first step:" in warning_of_silence([nothing])
    assert "in the first 3 steps:" in warning_of_silence([nothing] * 3)
    assert warning_of_silence([nothing, something, nothing]) == ""
    assert said_nothing([nothing, nothing])
    assert not said_nothing([nothing, outcome])
    assert not said_nothing([]), "nothing has happened yet"


def test_outcomes_that_cancel_are_no_silence() -> None:
    zero = {"delta/labelled_share": 0.0, "reward/per_response": 0.0}
    assert not said_nothing([{**zero, "reward/nonzero_share": 1.0}])  # +1 and −1
    assert said_nothing([{**zero, "reward/nonzero_share": 0.0}])


def test_a_batch_larger_than_the_window_is_judged_whole() -> None:
    failures = FailureRate(limit=0.5, batch_size=300)
    failures.count(["unparsable"] * 200 + ["ok"] * 100)
    assert (failures.rate, failures.too_many) == (2 / 3, True)


def test_a_critic_that_failed_too_often_is_named_with_its_rate() -> None:
    failures = FailureRate(limit=0.25, batch_size=8)
    failures.count(["timed_out"] * 40 + ["ok"] * 60)
    error = failures.error("Mend it.")
    assert isinstance(error, CriticError)
    assert str(error) == ("40% of the last 100 critiques could not be read (max_failure_rate is 25%). Mend it.")


# Critics named in a recipe.

MODULE = """
from text2grad.types import Critique

def praise(examples, responses):
    return [Critique("fine") for _ in responses]

class Judge:
    def __init__(self, words="fine"):
        self.words = words
    def __call__(self, examples, responses):
        return [Critique(self.words) for _ in responses]

class Strict:
    def __init__(self, rules):
        self.rules = rules

strict_one = Judge("strict")
number = 7
"""


@pytest.fixture
def critic_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "critics_of_this_test"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(("attribute", "words"), [("praise", "fine"), ("Judge", "fine"), ("strict_one", "strict")])
def test_a_critic_is_loaded_from_the_working_directory(critic_module: str, attribute: str, words: str) -> None:
    critic = load_callable(f"{critic_module}:{attribute}", "critic")
    assert [c.feedback for c in ask(critic, EXAMPLES, RESPONSES, match="exact")] == [words, words]


def test_an_edited_critic_and_one_of_another_directory_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (directory, words) in enumerate([("a", "old"), ("a", "newer"), ("b", "other"), ("a", "newer")]):
        file = tmp_path / directory / "critic_that_is_edited.py"
        file.parent.mkdir(exist_ok=True)
        if number != 3:
            file.write_text(f"def critic(examples, responses):\n    return [{words!r}] * len(responses)\n")
            os.utime(file, ns=(0, number * 10**9))
        monkeypatch.chdir(file.parent)
        assert (
            ask(load_callable("critic_that_is_edited:critic", "critic"), EXAMPLES[:1], RESPONSES[:1], match="exact")[
                0
            ].feedback
            == words
        )
    del sys.modules["critic_that_is_edited"]


@pytest.mark.parametrize("path", ["", "module", "module:", ":name", "./critic.py:name"])
def test_a_critic_is_named_by_module_and_name(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_callable(path, "critic")
    assert str(caught.value) == f'a critic is given as "module:name", got {path!r}'


def test_a_critic_that_is_not_there_is_refused(critic_module: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_callable("no_such_module_anywhere:critic", "critic")
    assert str(caught.value) == (
        "critic 'no_such_module_anywhere:critic' cannot be loaded: there is no module 'no_such_module_anywhere' in "
        f"{Path.cwd()}, and none is installed"
    )
    with pytest.raises(ConfigError) as caught:
        load_callable(f"{critic_module}:judge", "critic")
    assert str(caught.value).endswith("has no attribute 'judge'. Did you mean \"Judge\"?")
    with pytest.raises(ConfigError) as caught:
        load_callable(f"{critic_module}.py:praise", "critic")
    assert str(caught.value) == (
        f'a critic is given as "module:name", not by its file: "{critic_module}:praise", got '
        f"'{critic_module}.py:praise'"
    )
    with pytest.raises(ConfigError) as caught:
        load_callable(f"{critic_module}:blame", "critic")
    assert str(caught.value) == (
        f"critic '{critic_module}:blame' cannot be loaded: module '{critic_module}' has no attribute 'blame'"
    )


def test_what_cannot_be_called_is_no_critic(critic_module: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_callable(f"{critic_module}:number", "critic")
    assert str(caught.value) == f"critic '{critic_module}:number' is a int, which cannot be called"
    with pytest.raises(ConfigError) as caught:
        load_callable(f"{critic_module}:Strict", "critic")
    assert str(caught.value) == (
        f"critic '{critic_module}:Strict' is a class that cannot be called without arguments: "
        "TypeError: Strict.__init__() missing 1 required positional argument: 'rules'"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\ndef critic(:\n", "SyntaxError at broken_critic.py:2: invalid syntax"),
        ("import json\nraise ValueError('no model here')\n", "ValueError at broken_critic.py:2: no model here"),
        (
            "import json\n\nimport no_such_library\n",
            "ModuleNotFoundError at broken_critic.py:3: No module named 'no_",
        ),
        ("import sys\nsys.exit(3)\n", "SystemExit at broken_critic.py:2: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_explained_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "broken_critic.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError) as caught:
        load_callable("broken_critic:critic", "critic")
    start = "critic 'broken_critic:critic' cannot be loaded: importing broken_critic ends in "
    assert str(caught.value).startswith(start + reason)


def test_an_error_of_several_lines_is_told_in_one() -> None:
    def fails(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        raise ValueError("1 validation error\n  outcome\n    Field required")  # as pydantic writes it

    with pytest.raises(CriticError, match=r"^critic .*: 1 validation error outcome Field required$"):
        ask(fails, [Example("p")], ["r"], match="exact")


def test_a_class_that_fails_when_it_is_made_is_explained_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "class Judge:\n    def __init__(self):\n        open('no/such/key')\n"
    (tmp_path / "critic_without_key.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    with pytest.raises(ConfigError) as caught:
        load_callable("critic_without_key:Judge", "critic")
    assert "FileNotFoundError at critic_without_key.py:3: [Errno 2]" in str(caught.value)


def test_what_a_critic_says_about_its_spans_is_kept_and_its_weights_are_pythons() -> None:
    span = Span(4, 8, "negative", 2, "It is Nice.", "Fact", "major", np.float32(0.5), "ann", "rules")  # type: ignore[arg-type]
    (judged,) = ask(answering([Critique("", (span,))]), EXAMPLES[:1], RESPONSES[:1], match="exact")
    told = {
        "reason": "It is Nice.",
        "category": "Fact",
        "severity": "major",
        "weight": 0.5,
        "rater": "ann",
        "source": "rules",
    }
    assert critique_to_json(judged)["spans"] == [{"start": 4, "end": 8, "label": "negative", "turn": 2, **told}]
    assert type(judged.spans[0].weight) is float


def test_a_weight_that_is_none_names_the_critic_and_the_response() -> None:
    answer = {"poor_spans": [{"span": "Lyon", "weight": -1}]}
    with pytest.raises(CriticError) as caught:
        ask(answering([{}, answer]), EXAMPLES, ["", "see Lyon"], match="exact")
    assert str(caught.value).startswith(
        "critic critic, for response 2 of 2: a span's weight is a finite number from 0 up"
    )
