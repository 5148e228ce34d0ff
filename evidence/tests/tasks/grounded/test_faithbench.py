"""Marks of FaithBench: every one is a span or a loss with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from evidence import register
from loss_account import account_for
from places import SHARED
from text2grad.errors import DataError
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import NOT_JUDGED, Item, Options
from text2grad.feedback.sources.registry import read_items, read_source
from text2grad.types import Critique, Example, Span

register()
LYON = "I live in Lyon."
NO = Span(10, 14, "negative")


def items(tmp_path: Path, format: str, record: dict[str, Any], **options: Any) -> list[Item]:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(record) + "\n", "utf-8")
    return [item._replace(where="") for item in read_items(path, format, Options(**options))]


def test_every_mark_of_faithbench_is_a_span_or_a_loss_with_its_reason() -> None:
    path = SHARED / "data" / "faithbench" / "samples.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/faithbench, which is not part of the project")
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    found = account_for(read_items(path, "faithbench"))
    marks = [mark for record in records for mark in record["annotations"]]
    unwanted = sum(any(label.startswith("Unwanted") for label in mark["labels"]) for mark in marks)
    marked_twice = found.losses.pop("marked twice at the same place: one span, both in words")
    assert found.spans["negative"] + marked_twice == unwanted == 863
    raters = [{m["annotator"] for m in record["annotations"]} for record in records]
    unsure = sum(
        all(
            not label.startswith("Unwanted")
            for m in record["annotations"]
            if m["annotator"] == rater
            for label in m["labels"]
        )
        for record, of_record in zip(records, raters, strict=True)
        for rater in of_record
    )
    assert found.losses == {
        "marks that are neither positive nor negative by their labels": len(marks) - unwanted,
        NOT_JUDGED: unsure,  # all that this person marked is neither
    }
    assert found.annotations == sum(not of_record for of_record in raters) + sum(map(len, raters)) - unsure
    read = read_source(path, format="faithbench", labels={"Questionable": "negative"})
    more = [item.critique.spans for item in read if isinstance(item, Annotation)]
    assert sum(map(len, more)) > found.spans["negative"]


def test_marks_of_faithbench_carry_their_reason_and_belong_to_their_annotator(tmp_path: Path) -> None:
    marks = [
        {"annotator": "b", "labels": ["Benign"], "note": "", "start": 0, "end": 2},
        {"annotator": "a", "labels": ["Unwanted", "Unwanted.Extrinsic"], "note": " Not said. ", "start": 10, "end": 14},
        {"annotator": "a", "labels": ["Unwanted"], "start": 10, "end": 14},
    ]
    found = items(tmp_path, "faithbench", {"source": " A fair. ", "summary": LYON, "annotations": marks})
    feedback = 'Unwanted, Unwanted.Extrinsic: "Lyon" Not said.\nUnwanted: "Lyon"'
    prompt = "Summarize the passage in one or two sentences. Use only what the passage says.\n\nPassage: A fair."
    assert [item.made for item in found] == [
        Annotation(prompt, LYON, Critique(feedback, (NO,))),
        Example(prompt, meta={"response": LYON}),
    ]
    assert [len(item.losses) for item in found] == [1, 2]
    (span,) = found[0].made.critique.spans
    said = {"reason": "Not said.", "category": "Unwanted.Extrinsic", "rater": "a", "source": "faithbench"}
    assert span.stated == {"start": 10, "end": 14, "label": "negative", **said}
    record = {"source": "A fair.", "summary": LYON, "annotations": marks}
    meanings = {"unwanted.extrinsic": "positive", "BENIGN": "negative"}
    found = items(tmp_path, "faithbench", record, labels=meanings)
    assert [[span.label for span in one.made.critique.spans] for one in found] == [
        ["negative", "positive"],
        ["negative"],
    ]
    (nothing,) = items(tmp_path, "faithbench", {"source": "A fair.", "summary": LYON, "annotations": []})
    assert nothing == Item(Annotation(prompt, LYON, Critique("No errors marked.")))
    with pytest.raises(DataError, match="label 'Odd' has no known meaning; give it one, such as --label Odd=negative"):
        items(tmp_path, "faithbench", {"source": "", "summary": LYON, "annotations": [{**marks[0], "labels": ["Odd"]}]})
