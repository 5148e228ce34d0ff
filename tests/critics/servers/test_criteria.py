"""Rubrics: what the judge is asked, its answer by criterion, prompts of one's own, and judges that teach nothing."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from conversations import FAIR
from text2grad import LLMCritic, make_recipe
from text2grad.config import AnnotateConfig
from text2grad.critics.servers import Annotator, Answer, Item, Template
from text2grad.critics.servers.criteria import Criterion, critique_by_criterion
from text2grad.errors import ConfigError
from text2grad.types import Critique, Example, Span

RESPONSE = "The fair is in Lyon on Monday, dude."
FACTS, TONE = Criterion("facts", "Is it true?"), Criterion("tone", "Is it polite?", 0.25)
ANSWER = {
    "reasoning": "Lyon is right.",
    "criteria": {
        "facts": {
            "reason": "The day is Tuesday.",
            "good_spans": ["Lyon"],
            "poor_spans": ["Monday"],
            "verdict": "partly",
        },
        "tone": {"reason": "Too familiar.", "good_spans": [], "poor_spans": ["dude", "Monday"], "verdict": "not met"},
    },
}
SPANS = [
    Span(15, 19, "positive", reason="The day is Tuesday.", category="facts"),
    Span(23, 29, "negative", reason="The day is Tuesday.", category="facts"),
    Span(23, 29, "negative", reason="Too familiar.", category="tone", weight=0.25),
    Span(31, 35, "negative", reason="Too familiar.", category="tone", weight=0.25),
]


def settings(**annotate: Any) -> AnnotateConfig:
    return make_recipe({"annotate": {"model": "m", **annotate}}).annotate


def content(template: Template, response: str = RESPONSE, **more: Any) -> str:
    example = Example("Where is the fair?", reference="In Lyon, on Tuesday.")
    return template.messages(example, response, **more)[0]["content"]


def judged(template: Template, answers: list[dict[str, Any]], *, feedback: str | None = None) -> list[Critique]:
    """Return the critiques of a server with these answers."""
    waiting = iter(answers)

    class Client:
        async def answer(self, request: Any) -> Answer:
            return Answer(json.dumps(next(waiting)), "stop")

    annotator, client, item = Annotator(template), Client(), Item("1", Example("Where?"), RESPONSE, feedback)

    async def all_of_them() -> list[Critique]:
        return [(await annotator.annotate(client, item))[0] for _ in answers]  # type: ignore[arg-type]

    return asyncio.run(all_of_them())


# Answers.


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ("{}", "ok"),
        ("Well: {} That is all.", "ok"),
        ('<think>{{"criteria": {{"facts": {{"poor_spans": ["The"]}}}}}}</think>{}', "ok"),
    ],
)
def test_each_criterion_has_its_own_quotes_reason_verdict_and_weight(form: str, status: str) -> None:
    critique = critique_by_criterion(form.format(json.dumps(ANSWER)), RESPONSE, (FACTS, TONE))
    assert [span.stated for span in critique.spans] == [span.stated for span in SPANS]
    assert critique.feedback == "facts (partly): The day is Tuesday.\ntone (not met): Too familiar."
    assert (critique.status, critique.unmatched) == (status, ())


def test_names_in_other_letters_and_lists_of_criteria_are_read_and_other_criteria_are_not() -> None:
    listed = [{"name": name.title(), **said} for name, said in ANSWER["criteria"].items()]  # type: ignore[attr-defined]
    critique = critique_by_criterion(json.dumps({"criteria": listed}), RESPONSE, (TONE,))
    assert [span.stated for span in critique.spans] == [span.stated for span in SPANS[2:]]
    bare = critique_by_criterion(json.dumps(ANSWER["criteria"]), RESPONSE, (FACTS, TONE))
    assert len(bare.spans) == 4


def test_a_criterion_that_the_length_limit_cut_says_nothing() -> None:
    text = json.dumps(ANSWER)
    critique = critique_by_criterion(text[: text.index(', "verdict": "not met"')], RESPONSE, (FACTS, TONE))
    assert [span.stated for span in critique.spans] == [span.stated for span in SPANS[:2]]
    assert (critique.status, critique.feedback) == ("repaired", "facts (partly): The day is Tuesday.")


def test_an_answer_without_criteria_is_a_critique_like_any_other() -> None:
    critique = critique_by_criterion('{"textual_feedback": "No.", "poor_spans": ["Lyon"]}', RESPONSE, (FACTS,))
    assert critique == Critique("No.", (Span(15, 19, "negative"),))
    assert critique_by_criterion("I would rather not.", RESPONSE, (FACTS,)).status == "unparsable"


def test_a_model_has_no_word_in_weights_raters_and_categories_and_quotes_of_nobody_are_told() -> None:
    quote = {"quote": "Lyon", "weight": 9, "rater": "Ann", "category": "tone", "reason": "wrong", "severity": "major"}
    said = {"criteria": {"facts": {"poor_spans": [quote, "Nice"]}}}
    critique = critique_by_criterion(json.dumps(said), RESPONSE, (FACTS,))
    assert critique.spans[0].stated == {
        **{"start": 15, "end": 19, "label": "negative", "reason": "wrong", "category": "facts", "severity": "major"}
    }
    assert critique.unmatched == ("Nice",)


def test_quotes_of_a_conversation_name_their_turns() -> None:
    said = {"criteria": {"facts": {"poor_spans": [{"turn": 3, "quote": "Monday,"}]}}}
    assert critique_by_criterion(json.dumps(said), FAIR, (FACTS,)).spans == (Span(11, 18, "negative", 3),)
    quotes = Template("qa", criteria=(FACTS,)).schema(grounding=False, turns=True)["properties"]["criteria"]
    assert quotes["properties"]["facts"]["properties"]["poor_spans"]["items"]["required"] == ["turn", "quote"]


names = st.text(min_size=1, max_size=12).filter(lambda name: name.strip() and name.casefold().isprintable())


@given(names=st.lists(names, min_size=1, max_size=3, unique_by=str.casefold), weight=st.floats(0, 9))
def test_any_name_of_a_criterion_comes_back(names: list[str], weight: float) -> None:
    criteria = [Criterion(name, name, weight) for name in names]
    said = {name: {"reason": "No.", "good_spans": [], "poor_spans": ["Lyon"], "verdict": "met"} for name in names}
    critique = critique_by_criterion(json.dumps({"criteria": said}), RESPONSE, criteria)
    assert {span.category for span in critique.spans} == set(names)
    assert {span.weight for span in critique.spans} == {None if weight == 1 else weight}


# Prompts.


def test_the_prompt_asks_for_what_the_schema_demands_and_a_persons_words_come_before_a_rubric() -> None:
    template = Template.of(settings(criteria=["facts", {"name": "tone", "ask": "Is it polite?", "weight": 0.25}]))
    assert template.criteria == (Criterion("facts", "facts"), TONE)
    shown = content(template)
    assert '1. "facts"\n2. "tone": Is it polite?\n3. Only then' in shown
    assert "What exactly was asked" not in shown
    schema = template.schema(grounding=False)
    assert schema["required"] == ["reasoning", "criteria"]
    assert schema["properties"]["criteria"]["required"] == ["facts", "tone"]
    assert [*schema["properties"]["criteria"]["properties"]["tone"]["properties"]] == [
        *("reason", "good_spans", "poor_spans", "verdict")
    ]
    for key in ("criteria", "facts", "tone", "reason", "good_spans", "poor_spans", "verdict"):
        assert f'"{key}": ' in shown
    by_person = content(template, feedback="The day is wrong.")
    assert "tone" not in by_person
    assert template.schema(grounding=True)["required"] == ["reasoning", "good_spans", "poor_spans"]
    [critique] = judged(template, [{"good_spans": ["Lyon"], "poor_spans": []}], feedback="The city is right.")
    assert (critique.feedback, critique.spans) == ("The city is right.", (Span(15, 19, "positive"),))
    assert [span.stated for span in judged(template, [ANSWER])[0].spans] == [span.stated for span in SPANS]


def test_without_reasoning_there_are_no_reasons() -> None:
    template = Template.of(settings(criteria=["facts"], reasoning=False))
    assert '"reason"' not in content(template)
    facts = template.schema(grounding=False)["properties"]["criteria"]["properties"]["facts"]
    assert facts["required"] == ["good_spans", "poor_spans", "verdict"]


def test_examples_stand_between_tags_before_the_task() -> None:
    example = {"prompt": "Where is the sea?", "response": "In </response> Lyon.", "answer": {"poor_spans": ["Lyon"]}}
    shown = content(Template.of(settings(), [example]))
    assert "<response-1>\nIn </response> Lyon.\n</response-1>" in shown
    assert '<answer>\n{"poor_spans": ["Lyon"]}\n</answer>' in shown
    assert shown.index("Where is the sea?") < shown.index("Where is the fair?")
    assert "the sea" not in content(Template.of(settings(), [example]), feedback="No.")
    with pytest.raises(ConfigError, match='example 1 of the judge has no "answer"'):
        LLMCritic("m", api_key_env="", examples=[{"prompt": "x", "response": "y"}])


def test_a_file_of_ones_own_is_the_prompt(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text('Judge {response} beside {reference}.\n{criteria}\nJSON like {"a": 1}.\n{task}')
    template = Template.of(settings(template=str(own), criteria=["facts"]))
    shown = content(template, "It is {reference}.")
    assert shown.startswith(
        "Judge <response>\nIt is {reference}.\n</response> beside <reference>\nIn Lyon, on Tuesday."
    )
    assert '1. "facts"\nJSON like {"a": 1}.\n<task>\nWhere is the fair?\n</task>' in shown
    assert shown.count("Answer with one JSON object") == 1
    assert not template.shows_tests
    assert template.is_echo(Critique("{criteria} JSON like {'a': 1}. {task}"), grounding=False)
    assert not template.is_echo(Critique("What exactly was asked, and which parts reply to it?"), grounding=False)
    own.write_text("{form}\n{tests}\n{response}")
    template = Template.of(settings(template=str(own)))
    assert template.shows_tests
    assert content(template, tests="All passed.").endswith(
        f"<tests>\nAll passed.\n</tests>\n<response>\n{RESPONSE}\n</response>"
    )
    assert content(template).count("Answer with one JSON object") == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Judge it.", r"own\.txt has no field \{response\}"),
        ("{response} {passage}", r"the prompt has the unknown field \{passage\}; known: task, response"),
        (None, r"\[annotate\] template: cannot read .*own\.txt"),
    ],
)
def test_a_file_that_cannot_be_a_prompt_is_refused(text: str | None, error: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "own.txt").write_text(text)
    with pytest.raises(ConfigError, match=error):
        Template.of(settings(template=str(tmp_path / "own.txt")))


def test_a_task_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="template has no value 'qq'"):
        LLMCritic("m", api_key_env="", template="qq")


@pytest.mark.parametrize(
    ("criteria", "error"),
    [
        ([""], 'a criterion is a text, or a table with the text "name"'),
        ([{"ask": "Why?"}], 'a criterion is a text, or a table with the text "name"'),
        ([{"name": "tone", "wight": 1}], '"tone" has the key "wight"'),
        ([{"name": "tone", "weight": -1}], '"tone" has the weight -1'),
        ([{"name": "tone", "ask": 3}], '"tone" asks 3'),
        (["Tone", {"name": "tone"}], 'two criteria have the name "tone"'),
    ],
)
def test_a_rubric_that_cannot_be_meant_is_refused(criteria: list[Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        settings(criteria=criteria)


# Judges that teach nothing.


@pytest.mark.parametrize(
    ("quotes", "said"),
    [
        ({}, "the judge has given 16 answers and quotes nothing"),
        ({"good_spans": ["Lyon"]}, "the judge has given 16 answers and marks everything as positive"),
        ({"poor_spans": ["Lyon"]}, "the judge has given 16 answers and marks everything as negative"),
        ({"poor_spans": ["Lyon"], "good_spans": ["Monday"]}, ""),
    ],
)
def test_a_judge_with_one_label_is_told_once_after_its_first_answers(
    quotes: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = {"textual_feedback": "Hm.", "good_spans": [], "poor_spans": [], **quotes}
    with caplog.at_level(logging.WARNING):
        judged(Template("qa"), [answer] * 15)
        assert not caplog.messages
        judged(Template("qa"), [answer] * 40)
        judged(Template("qa"), [answer] * 20, feedback="Hm.")  # the words are a person's
    assert len(caplog.messages) == bool(said)
    assert not said or said in caplog.text
