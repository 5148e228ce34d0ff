"""A model that learned to label words, from annotations to the loop: trained, saved, loaded and measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from small_reward import ANNOTATIONS, prepare, recipe
from text2grad.cli.__main__ import main
from text2grad.config import make_recipe
from text2grad.errors import ConfigError
from text2grad.feedback import Annotation
from text2grad.feedback.critic import ask
from text2grad.feedback.preferences import split_by_prompt
from text2grad.feedback.records import write_annotations
from text2grad.models import NO_LOSS
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.writing import LABEL_FORMS, critique_target, spans_of
from text2grad.types import Critique, CritiqueForm, Example

LEARNED, HELD_OUT = split_by_prompt(ANNOTATIONS, 0.34, seed=3)
TARGET_TOKENS = {
    # The opening, 3 of "Animals please.", '", "', the key, '"', ":", " ", '"', 2 labels, '"', "}" and the end: 15.
    "dense": 15,
    # Up to ":" the same 8, " [" and "[", then twice the 6 of '"', word, '"', ",", " 1", "]", with "," and " [" between,
    # "]}" and the end. -1 is one more, " -" and "1": half of the words are poor, and so one of a target's two.
    "scores": 8 + 2 + 6 + 2 + 6 + 2 + 1,
    # The same 10 up to '"', then twice a word and its sign, and '", "', "outcome", '"', ":", " null", "}" and the end.
    "tagged_words": 10 + 2 * 2 + 7,
    "tagged_sentences": 10 + 2 + 1 + 7,  # two words with one sign
    "numbered_sentences": 10 + 2 + 7,  # the number and its sign
}


SENTENCES = ("tagged_sentences", "numbered_sentences")


@pytest.fixture(
    scope="module",
    params=[
        *("dense", "scores", "tagged_words", "tagged_sentences"),
        pytest.param("numbered_sentences", marks=pytest.mark.slow),
    ],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[CritiqueForm, Path]:
    """A form, and the directory of a finished run that learned it by heart."""
    home = tmp_path_factory.mktemp(request.param)
    prepare(home, request.param)
    how = {"form": request.param, "steps": 120, "eval_every": 120, "lr": 0.01, "batch_size": 8}
    RewardRun(recipe(home, reward_model=how)).run()
    return request.param, home / "run"


def asked(annotations: Any) -> tuple[list[Example], list[str]]:
    return [Example(one.prompt) for one in annotations], [one.response for one in annotations]


def test_it_writes_labels_which_are_read_as_the_spans_that_were_annotated(trained: Any) -> None:
    form, run = trained
    critic = GenerativeRewardModel.load(run / "model")
    assert (critic.form, critic.constrain, critic.write_feedback) == (form, True, True)
    targets = [critique_target(one.critique, one.response, form=form) for one in LEARNED]
    right = [text == target for text, target in zip(critic.write(*asked(LEARNED)), targets, strict=True)]
    assert sum(right) >= 23  # of 24
    for critique, one, was_right in zip(ask(critic, *asked(LEARNED), match="exact"), LEARNED, right, strict=True):
        known = LABEL_FORMS[form]
        spans = spans_of(one.response, known.labels(one.response, one.critique.spans), known.split)
        assert (critique == Critique("Animals please.", spans)) == was_right


def test_what_it_cost_is_in_the_results_and_on_the_card(trained: Any) -> None:
    form, run = trained
    counts = json.loads((run / "results.json").read_bytes())["counts"]
    assert (counts["learned"], counts["target_tokens"]) == (24, 24 * TARGET_TOKENS[form])
    card = (run / "model" / "README.md").read_text("utf-8")
    assert f"| tokens of all critiques trained on | {24 * TARGET_TOKENS[form]} |" in card
    assert ("a label for each word of the response" in card) == (form == "dense")
    assert ("a list of the response's words, each with a score of 1, -1 or 0, which" in card) == (form == "scores")
    assert ("the response's words, each with a sign (good, poor, neither)" in card) == (form == "tagged_words")
    assert ("the response's sentences, each with a sign (good, poor, neither)" in card) == (form == "tagged_sentences")
    assert ("a sign for each numbered sentence of the response" in card) == (form == "numbered_sentences")
    unit = "sentence" if form in SENTENCES else "word"
    assert f"constrained to complete JSON and a label for each {unit} for 12 held-out responses" in card
    assert "| held out, for the measurements below | 12 |" in card  # others are held out beyond `eval_limit`


def test_a_text_without_room_for_all_labels_is_a_failure_with_its_reason(trained: Any) -> None:
    form, run = trained
    critic = GenerativeRewardModel.load(run / "model", max_new_tokens=TARGET_TOKENS[form] - 3, constrain=False)
    for critique in critic(*asked(LEARNED[:3])):
        assert (critique.status, critique.spans) == ("unparsable", ())
        assert critique.feedback.startswith(f"no whole JSON object with {LABEL_FORMS[form].key}")


def test_in_the_loop_it_is_loaded_with_its_form_and_its_constraint(trained: Any) -> None:
    form, run = trained
    settings: dict[str, Any] = {"model": {}, "critic": {"model": str(run / "model")}}
    for settings["critic"]["constrain"], constrained in ((None, True), (False, False)):
        critic = critic_from_recipe(recipe(run.parent, **settings))
        assert isinstance(critic, GenerativeRewardModel)
        assert (critic.form, critic.constrain) == (form, constrained)


def test_a_form_that_nobody_knows_is_refused(trained: Any) -> None:
    _, run = trained
    with pytest.raises(ConfigError, match="form has no value 'dens'"):
        GenerativeRewardModel.load(run / "model", form="dens")


def test_constrained_labels_are_whole_before_training_and_free_ones_are_not(trained: Any) -> None:
    form, run = trained
    how = {"form": form, "steps": 1, "max_new_tokens": 2 * TARGET_TOKENS[form]}
    for constrain in (True, False):
        out = f"{form}-{constrain}"
        RewardRun(recipe(run.parent, out, reward_model=how, critic={"constrain": constrain})).run()
        results = json.loads((run.parent / out / "results.json").read_bytes())
        assert results["before"]["failure_rate"] == (0 if constrain else 1)
        assert json.loads((run.parent / out / "model" / "reward_model.json").read_bytes())["constrain"] is constrain


def test_it_is_measured_like_any_other(trained: Any, tmp_path: Path) -> None:
    form, run = trained
    write_annotations(tmp_path / "truth.jsonl", LEARNED)
    args = ["evaluate-reward", str(tmp_path / "truth.jsonl"), "--model", str(run / "model"), "--no-words"]
    assert main([*args, "--draws", "20", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_bytes())
    assert found["constrained"] is True
    assert found["metrics"]["failure_rate"]["value"] <= 1 / 24
    # half of the responses have one poor word of two, and as sentences are poor as a whole: 24 words of 36 are right
    assert found["metrics"]["precision/negative"]["value"] > (0.6 if form in SENTENCES else 0.9)


CHOICES = {
    "dense": "+  +",
    "scores": " 1  1",
    "tagged_words": " +  +",
    "tagged_sentences": " +",
    "numbered_sentences": " +",
}
"""The tokens with a loss behind the feedback of the target of "cat cat", of which both words are good.

The annotations have no outcomes, so that the constraint allows null alone.
"""


@pytest.mark.parametrize(
    ("form", "write_feedback"),
    [
        *(("dense", True), ("scores", False), ("tagged_words", True), ("tagged_sentences", False)),
        *(pytest.param(form, True, marks=pytest.mark.slow) for form in SENTENCES),
    ],
)
def test_choices_alone_have_a_loss_and_are_learned(form: CritiqueForm, write_feedback: bool, tmp_path: Path) -> None:
    prepare(tmp_path, form)
    how = {"form": form, "learned": "choices", "write_feedback": write_feedback, "lr": 0.003, "batch_size": 8}
    run = RewardRun(recipe(tmp_path, reward_model={**how, "steps": 200, "eval_every": 200}))
    assert LEARNED[0].response == " cat cat"
    labels = [one for one in run.rows[0]["labels"] if one != NO_LOSS]
    feedback = 'Animals  please . ", " ' if write_feedback else ""
    assert " ".join(run.tokenizer.convert_ids_to_tokens(labels)) == feedback + CHOICES[form]
    run.run()
    assert json.loads((tmp_path / "run" / "model" / "reward_model.json").read_bytes())["learned"] == "choices"
    critic = GenerativeRewardModel.load(tmp_path / "run" / "model", votes=4)
    targets = [critique_target(one.critique, one.response, form=form, write_feedback=write_feedback) for one in LEARNED]
    assert sum(map(str.__eq__, critic.write(*asked(LEARNED)), targets)) >= 23  # of 24
    with pytest.raises(
        ConfigError, match="allows, and constrain = False lifts the constraint; it belongs to the forms"
    ):
        GenerativeRewardModel.load(tmp_path / "run" / "model", constrain=False)


def test_a_response_without_words_has_no_choice_and_is_left_out(tmp_path: Path) -> None:
    prepare(tmp_path, "dense")
    none = Annotation("a:", "", Critique(""))
    write_annotations(tmp_path / "annotations.jsonl", [*ANNOTATIONS, none])
    how = {"form": "dense", "learned": "choices", "write_feedback": False, "held_out_file": ""}
    run = RewardRun(recipe(tmp_path, reward_model=how))
    assert all(any(label != NO_LOSS for label in row["labels"]) for row in run.rows)


def test_forms_that_quote_have_no_choices_alone() -> None:
    message = (
        'learned = "choices" belongs to forms with labels of words or sentences, and form = "spans" quotes; choose'
    )
    with pytest.raises(ConfigError, match=message):
        make_recipe({"reward_model": {"learned": "choices"}})
