"""A model that learned to label words, from annotations to the loop: trained, saved, loaded and measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from small_reward import ANNOTATIONS, prepare, recipe
from text2grad.cli.__main__ import main
from text2grad.errors import ConfigError
from text2grad.feedback.critic import ask
from text2grad.feedback.records import write_annotations
from text2grad.feedback.splits import split_by_prompt
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.writing import FORMS, critique_target, labels_of, spans_of
from text2grad.types import Critique, Example

LEARNED, HELD_OUT = split_by_prompt(ANNOTATIONS, 0.34, seed=3)
TARGET_TOKENS = {
    # The opening, 3 of "Animals please.", '", "', the key, '"', ":", " ", '"'; twice a word and its sign; and '", "',
    # "outcome", '"', ":", " null", "}" and the end.
    "tagged_words": 10 + 2 * 2 + 7,
}


@pytest.fixture(scope="module", params=["tagged_words"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
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
    assert (critic.format.form, critic.format.constrain, critic.format.write_feedback) == (form, True, True)
    targets = [critique_target(one.critique, one.response, form=form) for one in LEARNED]
    right = [text == target for text, target in zip(critic.write(*asked(LEARNED)), targets, strict=True)]
    assert sum(right) >= 23  # of 24
    for critique, one, was_right in zip(ask(critic, *asked(LEARNED), match="exact"), LEARNED, right, strict=True):
        spans = spans_of(one.response, labels_of(one.response, one.critique.spans))
        assert (critique == Critique("Animals please.", spans)) == was_right


def test_what_it_cost_is_in_the_results_and_on_the_card(trained: Any) -> None:
    form, run = trained
    counts = json.loads((run / "results.json").read_bytes())["counts"]
    assert (counts["learned"], counts["target_tokens"]) == (24, 24 * TARGET_TOKENS[form])
    card = (run / "model" / "README.md").read_text("utf-8")
    assert f"| tokens of all critiques trained on | {24 * TARGET_TOKENS[form]} |" in card
    assert "the response's words, each with a sign (positive, negative, neither)" in card
    assert "constrained to complete JSON and a label for each word for 12 held-out responses" in card
    assert "| held out, for the measurements below | 12 |" in card  # others are held out beyond `eval_limit`


def test_a_text_without_room_for_all_labels_is_a_failure_with_its_reason(trained: Any) -> None:
    form, run = trained
    critic = GenerativeRewardModel.load(run / "model", max_new_tokens=TARGET_TOKENS[form] - 3, constrain=False)
    for critique in critic(*asked(LEARNED[:3])):
        assert (critique.status, critique.spans) == ("unparsable", ())
        assert critique.feedback.startswith(f"no whole object with {FORMS[form].key}")


def test_in_the_loop_it_is_loaded_with_its_form_and_its_constraint(trained: Any) -> None:
    form, run = trained
    settings: dict[str, Any] = {"model": {}, "critic": {"model": str(run / "model")}}
    for settings["critic"]["constrain"], constrained in ((None, True), (False, False)):
        critic = critic_from_recipe(recipe(run.parent, **settings))
        assert isinstance(critic, GenerativeRewardModel)
        assert (critic.format.form, critic.format.constrain) == (form, constrained)


def test_a_form_that_nobody_knows_is_refused(trained: Any) -> None:
    _, run = trained
    with pytest.raises(ConfigError, match="form has no value 'dense'"):
        GenerativeRewardModel.load(run / "model", form="dense")


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
    _, run = trained
    write_annotations(tmp_path / "truth.jsonl", LEARNED)
    args = ["evaluate", "critic", str(tmp_path / "truth.jsonl"), "--model", str(run / "model"), "--no-words"]
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_bytes())
    assert found["metrics"]["failure_rate"]["value"] <= 1 / 24
    assert found["metrics"]["precision/negative"]["value"] > 0.9
