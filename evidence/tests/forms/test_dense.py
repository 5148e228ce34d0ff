"""The ablation with a label per word: written, read back, decoded under the constraint, trained."""

import json
from itertools import product
from pathlib import Path

import pytest

from constrained_writing import begin, reachable, spelled_by
from evidence import forms
from evidence.forms.dense import DENSE
from small_reward import prepare, recipe
from text2grad.errors import ConfigError
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.writing import FORMS, OPENING, critique_from_labels, critique_target
from text2grad.types import Critique, Span


@pytest.fixture(autouse=True)
def _registered() -> None:
    forms.register()


def test_what_is_written_by_hand() -> None:
    critique = Critique('The "day" is wrong.', (Span(3, 7, "positive"), Span(9, 14, "negative")))
    written = '{"textual_feedback": "The \\"day\\" is wrong.", "word_labels": "0 + 0 -"}'
    assert critique_target(critique, "in Lyon, today", form="dense") == written
    assert critique_from_labels(written, "in Lyon, today", DENSE) == critique


@pytest.mark.parametrize(
    "text",
    [
        '{"word_labels": "0 +"}',
        '{"word_labels": "0+-"}',
        '{"word_labels": "0 + 1"}',
        '{"word_labels": [0, 1, -1]}',
        '{"word_labels": "0 + -"',
    ],
)
def test_what_labels_other_words_is_a_failure_that_says_why(text: str) -> None:
    read = critique_from_labels(text, "in Lyon.", DENSE)
    assert (read.status, read.spans) == ("unparsable", ())
    assert read.feedback in (
        f"no whole object with word_labels: {text}",
        f"word_labels does not fit the words of the response: {text}",
    )


@pytest.mark.parametrize("response", ["", "a", "a b", "é😀"])
def test_every_labelling_can_be_written_and_nothing_else(response: str) -> None:
    parts = {OPENING + DENSE.opening, *DENSE.around(response), "x"} - {""}
    count = len(DENSE.around(response)) - 1
    tokenizer = spelled_by([*sorted(parts), *DENSE.signs, '"', " +"])  # one token spans a blank and a label
    language = {
        json.dumps({"textual_feedback": "", "word_labels": " ".join(labels)}) for labels in product("0+-", repeat=count)
    }
    assert set(reachable(begin(tokenizer, response, write_feedback=False, form="dense"), 99)) == language


def test_a_reward_model_learns_the_form_by_a_recipe_and_keeps_it(tmp_path: Path) -> None:
    prepare(tmp_path, "dense")
    how = {"form": "dense", "steps": 2, "eval_every": 2, "batch_size": 8, "max_new_tokens": 40}
    RewardRun(recipe(tmp_path, reward_model=how)).run()
    model = GenerativeRewardModel.load(tmp_path / "run" / "model")
    assert model.format == CritiqueFormat("dense", max_new_tokens=40, outcomes=False)
    assert "a label for each word of the response" in (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
    FORMS.pop("dense")
    with pytest.raises(ConfigError, match="form has no value 'dense'"):
        GenerativeRewardModel.load(tmp_path / "run" / "model")
    forms.register()
