"""The lessons in a stack of adapters, and the words on which the marks of a new lesson contradict them."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from text2grad.errors import DataError
from text2grad.feedback import Annotation, annotation_to_json, write_annotations
from text2grad.runs.learned import contradictions, lessons_in
from text2grad.types import Critique, Span


def annotation(prompt: str, response: str, feedback: str = "", rater: str | None = None, **quotes: Any) -> Annotation:
    """Return an annotation whose quotes are marked with the label that is their keyword."""
    places = [(response.index(quote), quote, label) for label, quote in quotes.items()]
    spans = tuple(Span(start, start + len(quote), label, rater=rater) for start, quote, label in places)
    return Annotation(prompt, response, Critique(feedback, spans))


def lesson(*annotations: Annotation, raters: tuple[str, ...] = ()) -> dict[str, Any]:
    records = [annotation_to_json(own) for own in annotations]
    return {"name": "begin", "date": "2026-03-12", "raters": raters, "records": records}


def told(annotations: list[Annotation], *lessons: dict[str, Any]) -> list[str]:
    return contradictions([annotation_to_json(own) for own in annotations], lessons)


def test_words_of_a_negative_mark_contradict_each_positive_mark_in_which_they_stand() -> None:
    before = lesson(
        annotation("p", "In the Folder", positive="the Folder"),  # the same prompt
        annotation("q", "a folder", positive="folder"),
        annotation("p", "two folders", positive="folders"),  # another word
        annotation("p", "no folder", negative="folder"),  # the same label
        raters=("ann", "bob"),
    )
    new = [annotation(prompt, "A Folder.", negative="Folder") for prompt in ("p", "p", "r")]
    assert told(new, before) == [
        '"folder" is negative here, positive in begin, the lesson of 2026-03-12 by ann, bob: 2×, 1× on the same prompt'
    ]


def test_words_that_a_lesson_blamed_and_a_new_mark_praises_are_told_too() -> None:
    before = lesson(
        annotation("p", "a directory", negative="directory"),
        annotation("q", "one directory", negative="directory"),
        annotation("p", "in the directory", negative="in the directory"),  # more than is praised
    )
    new = [annotation("p", "the directory", positive="the directory")]
    assert told(new, before) == [
        '"directory" is positive here, negative in begin, the lesson of 2026-03-12: 2×, 1× on the same prompt'
    ]
    assert told(new, lesson(annotation("p", "the directory", positive="directory"))) == []
    assert told(new) == []


def test_the_most_frequent_contradictions_come_first_and_the_others_are_counted() -> None:
    words = ["zero", "one", "two", "three", "four", "five", "six"]
    praised = [annotation("p", word, positive=word) for n, word in enumerate(words) for _ in range(n)]
    lines = told([annotation("q", word, negative=word) for word in words], lesson(*praised))
    assert [line.split()[0] for line in lines] == ['"six"', '"five"', '"four"', '"three"', '"two"', "1"]
    assert lines[-1] == "1 more"
    [line] = told([annotation("q", "a\x1bb", negative="a\x1bb")], lesson(annotation("q", "a\x1bb", positive="a\x1bb")))
    assert line.startswith('"a ␛ b" is negative'), "text of a model cannot act on a terminal"


def test_marks_on_conversations_are_left_out() -> None:
    record = annotation_to_json(annotation("p", "cat", negative="cat"))
    record["critique"]["spans"][0]["turn"] = 0
    assert contradictions([record], [lesson(annotation("p", "cat", positive="cat"))]) == []


def adapter(home: Path, base: Path | str, *, before: float = 0.5) -> Path:
    """Write the files of a lesson that are read, with its adapter's; return the directory of the adapter."""
    policy = home / "run" / "checkpoints" / "step-000002" / "policy"
    policy.mkdir(parents=True)
    (policy / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (policy / "adapter_model.safetensors").touch()
    write_annotations(home / "marks.jsonl", [annotation("p", "a b", f"Of {home.name}.", "ann", negative="a")])
    write_annotations(home / "alternatives.jsonl", [annotation("p", "c", positive="c")])
    (home / "lesson.json").write_text(json.dumps({"marked_before": before, "marked_after": 0.0}))
    os.utime(home / "lesson.json", (datetime(2026, 3, 12).timestamp(),) * 2)
    return policy


def test_a_stack_of_adapters_has_the_lessons_of_all_of_them(tmp_path: Path) -> None:
    first = adapter(tmp_path / "begin", "some/model")
    second = adapter(tmp_path / "folder", first, before=0.0)
    lessons = lessons_in(second)
    known = [(own["name"], own["date"], own["effect"]) for own in lessons]
    assert known == [("begin", "2026-03-12", [0.5, 0.0]), ("folder", "2026-03-12", None)]
    assert lessons[0]["raters"] == ["ann"]
    assert [record["response"] for record in lessons[0]["records"]] == ["a b", "c"]
    assert [own["name"] for own in lessons_in(first)] == ["begin"]
    assert lessons_in("some/model") == []
    (tmp_path / "folder" / "lesson.json").unlink()  # an adapter of another command
    assert [own["name"] for own in lessons_in(second)] == ["begin"]


def test_a_damaged_file_of_a_lesson_is_named(tmp_path: Path) -> None:
    policy = adapter(tmp_path / "begin", "some/model")
    (tmp_path / "begin" / "lesson.json").write_text("{}")
    with pytest.raises(DataError, match=r"cannot read .*begin.lesson\.json: it holds no 'marked_before'\. Put back"):
        lessons_in(policy)
    (tmp_path / "begin" / "lesson.json").write_text('{"marked_before": 0, "marked_after": 0}')
    (tmp_path / "begin" / "marks.jsonl").write_text("{}")
    with pytest.raises(DataError, match="it holds no 'critique'"):
        lessons_in(policy)
