"""Errors of MQM: every one is a span or a loss with its reason."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loss_account import account_for
from places import SHARED
from text2grad.errors import DataError
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import MARKED_TWICE, NO_PLACE, NOT_JUDGED, Item, Loss, Options
from text2grad.feedback.sources.mqm import PLANTED
from text2grad.feedback.sources.registry import read_items, read_source
from text2grad.types import Critique, Example, Span

LYON = "I live in Lyon."
NO = Span(10, 14, "negative")


def items(tmp_path: Path, record: dict[str, Any]) -> list[Item]:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(record) + "\n", "utf-8")
    return [item._replace(where="") for item in read_items(path, "mqm")]


def table(tmp_path: Path, rows: list[tuple[str, ...]]) -> Path:
    """Write the published form of the data: a row per error."""
    header = ("system", "doc", "doc_id", "seg_id", "rater", "source", "target", "category", "severity")
    path = tmp_path / "mqm.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)), "utf-8")
    return path


def test_every_error_of_mqm_is_a_span_or_a_loss_with_its_reason() -> None:
    path = SHARED / "data" / "mqm_ted_ende" / "segments.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/mqm_ted_ende, which is not part of the project")
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    found = account_for(read_items(path, "mqm"))
    errors = sum(len(errors) for record in records for errors in record["ratings"].values())
    assert (found.annotations, found.spans["negative"], errors) == (1500, 800, 803)
    assert found.losses == {NO_PLACE: 2, "marked twice at the same place: one span, both in words": 1}
    quotes = Counter(e["text"] for r in records for es in r["ratings"].values() for e in es if e["side"] == "target")
    for one in read_source(path, format="mqm"):
        assert isinstance(one, Annotation)
        quotes -= Counter(one.response[span.start : span.end] for span in one.critique.spans)
    assert quotes == Counter(Es=1)  # the one that two errors share


def mqm(**error: Any) -> dict[str, Any]:
    return {"source": "in Nice", "target": LYON, "ratings": {"r1": [{"side": "target", **error}], "r2": []}}


def test_each_rater_of_mqm_has_an_annotation(tmp_path: Path) -> None:
    found = items(tmp_path, mqm(start=10, end=14, category="Accuracy", severity="major"))
    assert [item.made for item in found] == [
        Annotation("in Nice", LYON, Critique('Accuracy (major): "Lyon"', (NO,))),
        Annotation("in Nice", LYON, Critique("No errors marked."), {"rater": "r2"}),
    ]
    (unrated,) = items(tmp_path, {"source": "a", "target": "b", "ratings": {}})
    assert unrated == Item(Example("a", meta={"response": "b"}), (Loss(NOT_JUDGED),))


def test_an_error_of_mqm_that_is_marked_twice_has_one_span_and_is_no_missing_fact(tmp_path: Path) -> None:
    error = {"side": "target", "start": 10, "end": 14}
    (found,) = items(tmp_path, {"source": "in Nice", "target": LYON, "ratings": {"r": [error, error]}})
    assert isinstance(found.made, Annotation)
    assert found.made.critique.spans == (NO,)
    assert [loss.reason for loss in found.losses] == [MARKED_TWICE]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"start": 10, "end": 16}, "span [10, 16] does not lie in the response, which has 15 characters"),
        ({"start": 4, "end": 4}, "span [4, 4] does not lie in the response, which has 15 characters"),
        ({"start": "4", "end": 5}, 'span ["4", 5] does not lie in the response, which has 15 characters'),
        ({"side": "left"}, 'an error is an object with a "side", which is "source" or "target"'),
    ],
)
def test_errors_of_mqm_that_lie_nowhere_are_refused(tmp_path: Path, error: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        items(tmp_path, mqm(**error))
    assert str(caught.value) == f"{tmp_path}/in.jsonl:1: {message}. Mend or remove the record"


def test_rows_of_mqm_that_contradict_each_other_are_handed_over_and_the_next_are_read(tmp_path: Path) -> None:
    rows = [
        ("A", "d", "1", "1", "r1", "a", "I live in Lyon.", "Accuracy", "Major"),
        ("A", "d", "1", "1", "r1", "a", "I live in Nice.", "Accuracy", "Major"),
        ("A", "d", "1", "2", "r1", "c", "I live in <v>Lyon</v>.", "Grammar", "Minor"),
    ]
    path, bad = table(tmp_path, rows), list[str]()
    (found,) = read_items(path, "mqm", on_bad=lambda error: bad.append(str(error)))
    assert found.where == f"{path}:4"
    assert found.made == Annotation("c", LYON, Critique('Grammar (Minor): "Lyon"', (NO,)))
    message = (
        f'{path}:3: "target" is another text than in the row before, for the same segment. Mend or remove the record'
    )
    assert bad == [message]
    with pytest.raises(DataError) as caught:
        list(read_items(path, "mqm"))
    assert str(caught.value) == message


def test_the_published_table_of_mqm_is_one_record_per_segment_and_rater(tmp_path: Path) -> None:
    rows = [
        ("A", "d", "1", "1", "r1", 'a "b"', "I live in <v>Lyon</v>.", "Accuracy", "Major"),
        ("A", "d", "1", "1", "r1", 'a <v>"b"</v>', "I live in Lyon.", "Omission", "Minor"),
        ("A", "d", "1", "1", "r1", 'a "b"', "I live in Lyon.", "Style", "Minor"),
        ("A", "d", "1", "1", "r2", 'a "b"', "I live in Lyon.", "No-error", "no-error"),
        ("A", "d", "1", "2", "r2", "c", "<v>I</v> live in <v>Lyon</v>.", "Grammar", "Minor"),
    ]
    path = table(tmp_path, rows)
    found = list(read_items(path, "mqm"))
    assert [one.where for one in found] == [f"{path}:2", f"{path}:5", f"{path}:6"]
    words = 'Accuracy (Major): "Lyon"\nOmission (Minor), of the source: "\\"b\\""\nStyle (Minor)'
    assert found[0] == Item(
        Annotation('a "b"', LYON, Critique(words, (NO,))),
        (Loss(NO_PLACE, 'Omission (Minor), of the source: "\\"b\\""'), Loss(NO_PLACE, "Style (Minor)")),
        where=f"{path}:2",
    )
    assert list(read_items(path, "mqm", limit=1)) == found[:1]  # of records, not of rows
    assert found[1].made == Annotation('a "b"', LYON, Critique("No errors marked."), {"rater": "r2"})
    third = found[2].made
    assert isinstance(third, Annotation)
    assert third.critique.spans == (Span(0, 1, "negative"), NO)


@pytest.mark.parametrize("named", [True, False])
def test_rows_of_one_rater_that_stand_apart_are_one_record(tmp_path: Path, named: bool) -> None:
    """A table that is sorted by its categories, with the names of segments and without."""
    head = ("A", "d", "1") if named else ("", "", "")
    one, two = ("1", "2") if named else ("", "")
    rows = [
        (*head, one, "r1", "a", "I live in <v>Lyon</v>.", "Accuracy", "Major"),
        (*head, two, "r1", "b", "<v>He</v> lives in Nice.", "Accuracy", "Major"),
        (*head, one, "r2", "a", "I live in <v>Lyon</v>.", "Accuracy", "Major"),
        (*head, one, "r1", "a", "<v>I</v> live in Lyon.", "Style", "Minor"),
    ]
    path = table(tmp_path, rows)
    found = list(read_items(path, "mqm"))
    assert [(item.where, item.made) for item in found] == [
        (
            f"{path}:2",
            Annotation(
                "a", LYON, Critique('Accuracy (Major): "Lyon"\nStyle (Minor): "I"', (Span(0, 1, "negative"), NO))
            ),
        ),
        (
            f"{path}:3",
            Annotation("b", "He lives in Nice.", Critique('Accuracy (Major): "He"', (Span(0, 2, "negative"),))),
        ),
        (f"{path}:4", Annotation("a", LYON, Critique('Accuracy (Major): "Lyon"', (NO,)))),
    ]


def test_tests_of_the_rater_are_no_errors(tmp_path: Path) -> None:
    """Severity HOTW-test, as in generalMT2023 and later of github google/wmt-mqm-human-evaluation."""
    head = ("A", "d", "1")
    rows = [
        (*head, "1", "r1", "a", "I live in <v>Lyon</v>.", "Accuracy", "Major"),
        (*head, "1", "r1", "a", "I live in Lyon.", "Found", "HOTW-test"),
        (*head, "2", "r1", "a", "I live in Lyon.", "Missed", "HOTW-test"),
        (*head, "3", "r1", "a", "I live in Lyon.", "No-error", "No-error"),
        (*head, "3", "r1", "a", "I live in Lyon.", "Missed", "HOTW-test"),
    ]
    options = Options(missing_outcome=-0.5)
    marked, planted, clean = (item._replace(where="") for item in read_items(table(tmp_path, rows), "mqm", options))
    assert marked == Item(Annotation("a", LYON, Critique('Accuracy (Major): "Lyon"', (NO,))), (Loss(PLANTED, "Found"),))
    assert planted == Item(Example("a", meta={"response": LYON}), (Loss(NOT_JUDGED), Loss(PLANTED, "Missed")))
    assert clean == Item(
        Annotation("a", LYON, Critique("No errors marked."), {"rater": "r1"}), (Loss(PLANTED, "Missed"),)
    )
    error = {"side": "target", "category": "Found", "severity": "HOTW-test"}
    (told,) = items(tmp_path, {"source": "a", "target": LYON, "ratings": {"r1": [error]}})
    assert told == planted._replace(losses=(Loss(NOT_JUDGED), Loss(PLANTED, "Found")))


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("I live in <v>Lyon. </v>", (10, 15)),
        (" I live in <v>Lyon.</v>", (10, 15)),
        ("I  live <v> in</v> Lyon.", (7, 9)),
        ("I live in\u00a0<v>Lyon</v>.", (10, 14)),
        ("I<v>  </v>live in Lyon.", None),  # the mark of a blank that the other row lacks
    ],
)
def test_rows_of_one_segment_may_differ_in_white_space(
    tmp_path: Path, target: str, place: tuple[int, int] | None
) -> None:
    rows = [("A", "d", "1", "1", "r1", "a", text, "Style", "Minor") for text in ("<v>I</v> live in Lyon.", target)]
    (read,) = read_items(table(tmp_path, rows), "mqm")
    spans = (Span(0, 1, "negative"), *([Span(*place, "negative")] if place else []))
    assert isinstance(read.made, Annotation)
    assert (read.made.response, read.made.critique.spans) == (LYON, spans)
    assert [loss.reason for loss in read.losses] == ([] if place else [NO_PLACE])


def test_cells_of_a_table_of_mqm_may_be_quoted_as_in_csv(tmp_path: Path) -> None:
    """As newstest2020/ende/mqm_newstest2020_ende.source-errors.tsv of github google/wmt-mqm-human-evaluation."""
    source, target = '"He called it ""late""."', '"Er nannte es <v>""spät""</v>."'
    (read,) = read_items(table(tmp_path, [("A", "d", "1", "1", "r1", source, target, "Style", "Minor")]), "mqm")
    words = 'Style (Minor): "\\"spät\\""'
    said = Critique(words, (Span(13, 19, "negative"),))
    assert read.made == Annotation('He called it "late".', 'Er nannte es "spät".', said)


def test_the_spans_of_mqm_say_category_severity_and_rater(tmp_path: Path) -> None:
    first, _ = items(tmp_path, mqm(start=10, end=14, category="Accuracy", severity="major"))
    said = {"category": "Accuracy", "severity": "major", "rater": "r1", "source": "mqm"}
    assert isinstance(first.made, Annotation)
    assert [span.stated for span in first.made.critique.spans] == [
        {"start": 10, "end": 14, "label": "negative", **said}
    ]
    (bare, _) = items(tmp_path, mqm(start=10, end=14, category=""))
    assert isinstance(bare.made, Annotation)
    (span,) = bare.made.critique.spans
    assert (span.category, span.severity, span.rater) == (None, None, "r1")


def test_all_of_mqm_has_its_categories_severities_and_raters() -> None:
    path = SHARED / "data" / "mqm_ted_ende" / "segments.jsonl"
    if not path.exists():
        pytest.skip("needs ../shared/data/mqm_ted_ende, which is not part of the project")
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    marked = Counter(
        (rater, error["category"], error["severity"], error["start"], error["end"])
        for record in records
        for rater, errors in record["ratings"].items()
        for error in errors
        if error["start"] is not None and error["side"] == "target"
    )
    read = Counter(
        (span.rater, span.category, span.severity, span.start, span.end)
        for made in read_source(path, format="mqm")
        if isinstance(made, Annotation)
        for span in made.critique.spans
    )
    assert (read.total(), (marked - read).total(), (read - marked).total()) == (800, 1, 0)  # one was marked twice
