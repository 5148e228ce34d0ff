"""Grounded answers: RAGTruth's files and prepared prompts, with the figures of the task `grounded`."""

import json
from pathlib import Path
from typing import Any

import pytest

from evidence.suites.grounding import GroundingSuite
from evidence.tasks.grounded.metric import grounded_metrics
from text2grad.errors import DataError
from text2grad.evaluation.intervals import estimate
from text2grad.evaluation.registry import make_suites
from text2grad.evaluation.suite import Answer, SuiteOptions
from text2grad.feedback import write_examples
from text2grad.types import Example

PASSAGE = "Ana Ruiz drew 22 arches in ink."
SOURCES = [
    {"source_id": "7", "task_type": "Summary", "source": "CNN", "source_info": PASSAGE, "prompt": "Summarize: ..."},
    {
        **{"source_id": "8", "task_type": "QA", "source": "MARCO", "prompt": "Answer: ..."},
        "source_info": {"question": "Who drew for Lyon?", "passages": PASSAGE},
    },
    {
        **{"source_id": "9", "task_type": "Data2txt", "source": "Yelp", "prompt": "Write: ..."},
        "source_info": {"name": "Cafe Roma", "stars": 4},
    },
    {"source_id": "10", "task_type": "Summary", "source": "CNN", "source_info": "Trained on.", "prompt": "Summarize"},
]
RESPONSES = [
    {"id": str(row), "source_id": one["source_id"], "model": "gpt-4", "temperature": 0.7, "labels": [], "response": "x"}
    | {"split": "train" if one["source_id"] == "10" else "test", "quality": "good"}
    for row, one in enumerate(SOURCES)
]
ANSWERS = ["Ana Ruiz drew 24 arches.", "She drew for Lyon.", "A cafe, Roma, with 4 stars and Wifi."]


def lines(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")


def figures(suite: GroundingSuite, texts: list[str]) -> dict[str, float]:
    answers = [
        Answer(question, 0, (text,), (1,), ("stop",)) for question, text in zip(suite.questions, texts, strict=True)
    ]
    scores = suite.score(answers, Path())
    rows = [suite.counts([own]) for own in scores]
    statistics = {name: one.statistic for name, one in suite.measures.items()}
    return {name: one.value for name, one in estimate(rows, statistics, draws=5).items()}


def test_ragtruth_by_hand(tmp_path: Path) -> None:
    lines(tmp_path / "source_info.jsonl", SOURCES)
    lines(tmp_path / "response.jsonl", RESPONSES)
    for data in (tmp_path, tmp_path / "source_info.jsonl"):
        [suite] = make_suites([f"evidence.suites.grounding:grounding={data}"], SuiteOptions())
        assert isinstance(suite, GroundingSuite)
        assert [one.id for one in suite.questions] == ["7", "8", "9"]  # source 10 is for training
        found = figures(suite, ANSWERS)
        # Ruiz, 24; Lyon; Roma, 4, Wifi: 24 and Wifi are unsupported, Lyon stands in the question ("ana" is a word)
        assert found["unsupported_share"] == pytest.approx(2 / 6)
        assert found["answers_with_unsupported"] == pytest.approx(2 / 3)
        assert found["words"] == pytest.approx((5 + 4 + 8) / 3)
    assert len(make_suites([f"grounding={tmp_path}"], SuiteOptions(limit=2))[0].questions) == 2  # type: ignore[attr-defined]
    assert [one.id for one in GroundingSuite(SuiteOptions(data=str(tmp_path), split="train")).questions] == ["10"]


def test_prepared_prompts_have_the_figures_of_the_task(tmp_path: Path) -> None:
    examples = [
        Example(
            [{"role": "user", "content": f"Use the passage. {PASSAGE}"}],
            reference="Ana Ruiz, in ink.",
            meta={"passage": PASSAGE, "question": "Who drew them?"},
        ),
        Example(
            [{"role": "user", "content": "Summarize."}], meta={"passage": "It opens at nine in Lyon.", "question": ""}
        ),
    ]
    write_examples(tmp_path / "held_out.jsonl", examples)
    suite = GroundingSuite(SuiteOptions(data=str(tmp_path / "held_out.jsonl")))
    texts = ["Ana Ruiz drew 24 arches for Lyon.", "It opens in Lyon."]
    whole, _ = grounded_metrics(examples, texts)
    found = figures(suite, texts)
    for name in ("unsupported_share", "answers_with_unsupported", "recall"):
        assert found[name] == pytest.approx(whole[name]), name
    assert found["unsupported_share"] == pytest.approx(2 / 4)  # Ruiz, 24, Lyon; Lyon
    assert suite.questions[0].prompt == examples[0].prompt


def test_a_record_without_passage_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "mine.jsonl", [{"prompt": "p"}])
    with pytest.raises(DataError, match=r'mine\.jsonl:1: "prompt" must be a text or chat messages, and "passage"'):
        GroundingSuite(SuiteOptions(data=str(tmp_path / "mine.jsonl")))
