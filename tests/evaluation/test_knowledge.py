"""lm-eval's tasks on our loaded model: ARC by hand from the model's own log-probabilities; the clear errors."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from text2grad.errors import ConfigError, DataError
from text2grad.evaluation.intervals import estimate
from text2grad.evaluation.registry import make_suites
from text2grad.evaluation.subjects import load, outline, read_subjects
from text2grad.evaluation.suite import ExaminedSuite, SuiteOptions

needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason='needs the extra "lm-eval"')
LETTERS = ["A", "B", "C", "D"]
QUESTIONS = [
    ("Which is a planet?", ["Mars", "a dog in the house", "iron", "rain"], "A"),
    ("What melts ice?", ["cold", "heat", "the dark", "a loud sound"], "B"),
    ("What do plants need?", ["noise", "salt", "light and water", "oil"], "C"),
    ("Who barks?", ["cat", "fish", "cow", "dog"], "D"),
    ("What is wet?", ["stone", "water", "sand", "wood"], "2"),
]


def on_the_hub() -> list[dict[str, Any]]:
    labels = [LETTERS] * 4 + [["1", "2", "3", "4"]]  # some questions of ARC have numbers
    return [
        {"id": f"q{n}", "question": text, "choices": {"text": choices, "label": label}, "answerKey": key}
        for n, ((text, choices, key), label) in enumerate(zip(QUESTIONS, labels, strict=True))
    ]


def written(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return str(path)


def by_hand(policy: Path) -> tuple[float, float]:
    """Return acc and acc_norm (by characters) from the log-probabilities of each choice after the question."""
    [subject] = read_subjects([str(policy)])
    loaded = load(outline(subject))
    right = norm = 0
    for one in on_the_hub():
        totals = []
        for choice in one["choices"]["text"]:
            context = loaded.tokenizer(f"Question: {one['question']}\nAnswer:").input_ids
            whole = loaded.tokenizer(f"Question: {one['question']}\nAnswer: {choice}").input_ids
            with torch.no_grad():
                logp = loaded.model(torch.tensor([whole])).logits[0].log_softmax(-1)
            places = range(len(context), len(whole))
            totals.append(sum(float(logp[place - 1, whole[place]]) for place in places))
        key = one["choices"]["label"].index(one["answerKey"])
        right += max(range(4), key=lambda n: totals[n]) == key
        norm += max(range(4), key=lambda n: totals[n] / len(one["choices"]["text"][n])) == key
    return right / len(QUESTIONS), norm / len(QUESTIONS)


@needs_lm_eval
@pytest.mark.filterwarnings("ignore")
def test_arc_is_the_share_of_right_choices(policy: Path, tmp_path: Path) -> None:
    [suite] = make_suites([f"arc={written(tmp_path / 'arc.jsonl', on_the_hub())}"], SuiteOptions())
    assert isinstance(suite, ExaminedSuite)
    assert list(suite.measures) == ["acc", "acc_norm"]
    [subject] = read_subjects([str(policy)])
    rows = suite.examine(load(outline(subject)))
    assert len(rows) == len(QUESTIONS)
    statistics = {name: one.statistic for name, one in suite.measures.items()}
    found = estimate([counts for _, counts in rows], statistics, draws=10)
    assert (found["acc"].value, found["acc_norm"].value) == pytest.approx(by_hand(policy))


@needs_lm_eval
@pytest.mark.filterwarnings("ignore")
def test_data_and_tasks_that_are_not_there_are_named(tmp_path: Path, no_hub: None, monkeypatch: Any) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^--suite lm-eval:arc_chalenge: lm-eval has no task 'arc_chalenge'"):
        make_suites(["lm-eval:arc_chalenge"], SuiteOptions())
    with pytest.raises(
        DataError, match=r"cannot be loaded: there is no file none\.jsonl\. Give the rows of ARC-Challenge's test split"
    ):
        make_suites(["arc=none.jsonl"], SuiteOptions())
    with pytest.raises(
        DataError,
        match=r"^suite arc: the data of lm-eval's task arc_challenge cannot be loaded: .*\. Give "
        r"the rows of ARC-Challenge's test split as JSONL with --suite arc=FILE \(data set allenai/ai2_arc",
    ):
        make_suites(["arc"], SuiteOptions())


def test_without_lm_eval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    with pytest.raises(
        ConfigError, match=r"^suite arc needs lm_eval, not installed here: run pip install -e \"\.\[lm-eval\]"
    ):
        make_suites(["arc=x.jsonl"], SuiteOptions())
