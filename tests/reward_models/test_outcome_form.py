"""Critiques that end with an outcome: written, constrained, read back, trained."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from constrained_writing import begin, grammar_accepts, skeleton, written
from served_models import untrained
from text2grad.cli.__main__ import main
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.feedback.spans import critique_from_text
from text2grad.models.fine_tuning import FineTuning
from text2grad.reward_models.decoding.grammar import critique_grammar
from text2grad.reward_models.decoding.skeleton import START
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import critique_request, critique_target
from text2grad.tasks.tiny import tiny_llama
from text2grad.types import Critique, Example, Span
from tokenizers_made_here import FAMILIES, made, parameters
from trained_reward_model import train_reward_model

RESPONSE = "In Lyon, on Friday."
SPANS = (Span(3, 7, "positive"), Span(9, 18, "negative"))
WRITERS = [name for name in FAMILIES if not name.startswith("bert") and name != "t5"]
EMPTIES = {
    "labelled_spans": '{"textual_feedback": "", "spans": [], "outcome": ',
}
FORMS: list[Any] = list(EMPTIES)


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [(-4.0, "-4"), (None, "null"), (0.0, "0"), (0.5, "0.5"), (2 / 3, "0.67"), (-0.001, "0"), (123456, "123456")],
)
def test_a_target_ends_with_the_outcome(outcome: float | None, shown: str) -> None:
    assert critique_target(Critique("Why?", SPANS, outcome), RESPONSE, form="labelled_spans") == (
        f'{{"textual_feedback": "Why?", "spans": [["Lyon", "good"], ["on Friday", "poor"]], "outcome": {shown}}}'
    )
    assert "outcome" not in critique_target(Critique("Why?", SPANS, outcome), RESPONSE)


@pytest.mark.parametrize("form", FORMS)
@given(st.none() | st.integers(-999_999, 999_999) | st.decimals(-999, 999, places=2).map(float))
def test_what_is_written_is_read_and_may_be_written_under_the_constraint(form: Any, outcome: float | None) -> None:
    target = critique_target(Critique("Why?", SPANS, outcome), RESPONSE, form=form)
    found = critique_from_text(target, RESPONSE)
    assert (found.outcome, found.spans, found.status) == (outcome, SPANS, "ok")
    critique = begin(made("llama3"), RESPONSE, form=form)
    assert written(critique, target)
    assert critique.text == target


def test_a_labelled_quote_marks_the_place_that_it_was_written_for() -> None:
    response = "Lyon is big. Lyon is in Spain."
    spans = (Span(0, 4, "negative"), Span(13, 17, "positive"))
    target = critique_target(Critique("So.", spans, 1.0), response, form="labelled_spans")
    assert critique_from_text(target, response, occurrences="first").spans == spans


BEGUN = '{"textual_feedback": "\\"Lyon\\", \\"on\\"", "spans": ['


@pytest.mark.parametrize(
    "entries",
    [
        '["Lyon", "bad"]',  # no label
        '["Lyon"]',  # without a label
        '"Lyon"',  # no pair
        '["Nice", "good"]',  # not in the response
        '["Lyon", "good"], ["Lyon", "poor"]',  # occurs once only
        '["Lyon", "good"], ]',
        '["Lyon", "good",',
        "[]",
    ],
)
def test_what_is_no_labelled_quote_is_refused(entries: str) -> None:
    assert not written(begin(made("llama3"), RESPONSE, form="labelled_spans"), f"{BEGUN}{entries}")


@pytest.mark.parametrize("entry", ['["Friday', '["Lyon", "good"], ["on", "poor"], ["Friday'])
def test_labelled_quotes_keep_to_the_limits(entry: str) -> None:
    def fits(entries: str) -> bool:
        critique = begin(made("llama3"), RESPONSE, form="labelled_spans", quoted_in_feedback=True)
        return written(critique, f"{BEGUN}{entries}")

    assert fits('["Lyon", "good"], ["on", "poor"]')
    for one_list in (False, True):  # "day" occurs twice
        critique = begin(made("llama3"), "A day, a day.", form="labelled_spans", one_list=one_list)
        twice = '{"textual_feedback": "", "spans": [["day", "good"], ["day", "poor"]'
        assert written(critique, twice) == (not one_list)
    assert not fits(entry)  # the feedback does not quote it


@pytest.mark.parametrize(
    "number", ["-", "01", "-00", "1.", ".5", "1.234", "1234567", "+1", "1e5", "nul", "-null", "--1"]
)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_outcome_is_refused(form: Any, number: str) -> None:
    critique = begin(made("llama3"), RESPONSE, form=form)
    assert written(critique, EMPTIES[form])
    assert not written(critique, f"{number}}}")


def test_without_an_outcome_the_critique_may_not_end() -> None:
    plain = begin(made("llama3"), RESPONSE)
    assert not written(plain, '{"textual_feedback": "", "good_spans": [], "poor_spans": [], "outcome": ')
    labelled = begin(made("llama3"), RESPONSE, form="labelled_spans")
    assert not written(labelled, '{"textual_feedback": "", "spans": []}')


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", parameters(WRITERS))
def test_random_logits_write_whole_json_with_an_outcome(name: str, form: Any) -> None:
    tokenizer, generator, rng = made(name), np.random.default_rng(0), random.Random(0)
    least, outcomes = int(skeleton(tokenizer, form=form).cost[START]), set()
    for _ in range(40):
        critique = begin(tokenizer, RESPONSE, room=least + rng.randrange(60), form=form)
        while critique.state is not None and critique.room:
            critique.take_from(generator.normal(size=critique.skeleton.vocabulary.size).astype(np.float32))
        said = json.loads(critique.text)
        assert list(said) == list(json.loads(EMPTIES[form] + "null}"))
        lists = [said.get(f"{word}_spans", []) for word in ("good", "poor")]
        quotes = [quote for listed in lists for quote in listed] + [quote for quote, _ in said.get("spans", [])]
        assert all(quote in RESPONSE for quote in quotes)
        outcomes.add(said["outcome"])
    assert len(outcomes) > 3
    assert all(one is None or isinstance(one, int | float) for one in outcomes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", ["-4", "null", "0", "12.25", "01", "1.", "x", ""])
def test_the_grammar_of_servers_knows_the_same_outcomes(number: str, form: Any) -> None:
    llguidance = pytest.importorskip("llguidance")
    from llguidance.hf import from_tokenizer

    tokenizer = from_tokenizer(made("gpt2"))
    grammar = critique_grammar(RESPONSE, CritiqueFormat(form), max_tokens=200)
    lists = '{"textual_feedback": "", "good_spans": [], "poor_spans": [], "outcome": '  # the longest of the forms
    room = 200 - len(lists) - len("-123456.12}")  # for the longest number
    assert f"text[max_tokens={room}]" in grammar

    def accepts(text: str) -> bool:
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar))
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.tokenize_bytes(text.encode())
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    target = critique_target(Critique("No.", SPANS), RESPONSE, form=form)
    assert accepts(target.replace("null", number)) == (number in {"-4", "null", "0", "12.25"})
    assert not accepts(target.replace("Lyon", "Nice"))
    assert not accepts(target.replace('"good"', '"bad"').replace("good_spans", "bad_spans"))


@pytest.mark.parametrize("form", ["labelled_spans", "tagged_words"])
def test_a_model_that_learned_no_outcomes_writes_none(form: Any) -> None:
    tokenizer = made("gpt2")
    settings: dict[str, Any] = {"form": form, "write_feedback": False, "max_new_tokens": 120, "votes": 8}
    model = tiny_llama(tokenizer, seed=2, context=400)
    found = {}
    for outcomes in (True, False):
        critic = GenerativeRewardModel(model, tokenizer, CritiqueFormat(outcomes=outcomes, **settings))
        found[outcomes] = critic._drawn([Example("Where?")], [RESPONSE], 8)[0]
        assert all(one.status == "ok" for one in critic.draw([Example("Where?")], [RESPONSE])[0])
    assert any(not text.endswith('"outcome": null}') for text in found[True])
    assert all(text.endswith('"outcome": null}') for text in found[False])


@pytest.mark.parametrize("form", ["labelled_spans", "tagged_words"])
def test_the_grammar_of_servers_has_no_number_where_none_was_learned(form: Any) -> None:
    for number, is_valid in (("null", True), ("-4", False)):
        target = critique_target(Critique("No.", SPANS), RESPONSE, form=form).replace("null", number)
        assert grammar_accepts(RESPONSE, target, form=form, outcomes=False, max_tokens=200) == is_valid


@pytest.mark.parametrize("outcome", [None, 1.0])
def test_a_training_keeps_whether_it_had_outcomes(tmp_path: Path, outcome: float | None) -> None:
    untrained(tmp_path / "base")
    known = [one._replace(critique=replace(one.critique, outcome=outcome)) for one in annotations()]
    write_annotations(tmp_path / "annotations.jsonl", known)
    (tmp_path / "recipe.toml").write_text("")
    arguments = ["--annotations", str(tmp_path / "annotations.jsonl"), "--out", str(tmp_path / "run")]
    settings = (f"model.path={tmp_path / 'base'}", "reward_model.steps=1", "reward_model.form=labelled_spans")
    sets = [part for one in (*settings, "run.tracker=none") for part in ("--set", one)]
    assert main(["reward", str(tmp_path / "recipe.toml"), *sets, *arguments]) == 0
    critic = GenerativeRewardModel.load(tmp_path / "run" / "model")
    assert critic.format.outcomes == (outcome is not None)
    training = FineTuning(steps=1, batch_size=2, learning_rate=0.0)
    again, _ = train_reward_model(critic.model, critic.tokenizer, known, training, form="labelled_spans")
    assert again.format.outcomes == critic.format.outcomes


def test_a_model_with_a_chat_template_is_asked_for_it() -> None:
    assert "outcome" not in critique_request(Example("Where?"), RESPONSE, "spans")
    added = ", and under outcome a number for the response as a whole, or null."
    labelled = critique_request(Example("Where?"), RESPONSE, "labelled_spans")
    assert f"pairs: words quoted exactly from the response, in its order, and good or poor{added}" in labelled


def annotations() -> list[Annotation]:
    """Ten answers that name a city, and ten that say nothing, which only the outcome blames."""
    cities = ["Lyon", "Nice", "Oslo", "Rome", "Bonn", "Kiel", "Graz", "Linz", "Genf", "Bern"]
    named = [
        Annotation(f"Where {n}?", f"In {city}.", Critique("", (Span(3, 7, "positive"),), 1.0))
        for n, city in enumerate(cities)
    ]
    return [*named, *(Annotation(f"Where {n}?", "Well.", Critique("", (), -4.0)) for n in range(10))]


@pytest.fixture(scope="module", params=FORMS)
def trained(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The directory of a finished run of `text2grad reward` in a form with outcomes."""
    home = tmp_path_factory.mktemp("outcomes")
    untrained(home / "base")
    write_annotations(home / "annotations.jsonl", annotations())
    settings = {
        "form": request.param,
        "steps": 150,
        "eval_every": 150,
        "batch_size": 10,
        "held_out": 0.1,
        "lr": 0.01,
    }
    sets = [part for name, value in settings.items() for part in ("--set", f"reward_model.{name}={value}")]
    sets += ["--set", f"model.path={home / 'base'}", "--set", "run.tracker=none"]
    recipe = home / "recipe.toml"
    recipe.write_text("")
    arguments = ["--annotations", str(home / "annotations.jsonl"), "--out", str(home / "run")]
    assert main(["reward", str(recipe), *sets, *arguments]) == 0
    return home / "run"


def asked(known: Sequence[Annotation]) -> tuple[list[Example], list[str]]:
    return [Example(one.prompt) for one in known], [one.response for one in known]


def test_a_trained_model_blames_an_answer_that_says_nothing(trained: Path) -> None:
    critic = GenerativeRewardModel.load(trained / "model")
    assert critic.format.form in FORMS
    assert critic.format.constrain
    known = annotations()
    found = critic(*asked(known))
    right = [one.outcome == a.critique.outcome for one, a in zip(found, known, strict=True)]
    assert sum(right) >= 18
    assert all(one.status == "ok" for one in found)
    again = GenerativeRewardModel(critic.model, critic.tokenizer, replace(critic.format, max_new_tokens=200, votes=3))
    assert all(one.outcome is not None for one in again(*asked(known[:2])))  # the mean of three


def test_outcomes_that_a_form_does_not_teach_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    untrained(tmp_path / "base")
    write_annotations(tmp_path / "annotations.jsonl", annotations())
    (tmp_path / "recipe.toml").write_text("")
    for form, told in (("spans", True), ("labelled_spans", False)):
        arguments = ["--annotations", str(tmp_path / "annotations.jsonl"), "--out", str(tmp_path / form)]
        settings = (f"model.path={tmp_path / 'base'}", "reward_model.steps=1", "run.tracker=none")
        sets = [part for one in (*settings, f"reward_model.form={form}") for part in ("--set", one)]
        assert main(["reward", str(tmp_path / "recipe.toml"), *sets, *arguments]) == 0
        assert ('reward_model.form = "labelled_spans" teaches them' in capsys.readouterr().err) == told
