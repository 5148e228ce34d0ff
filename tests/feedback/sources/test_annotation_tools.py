"""Real exports of annotation tools, made from data of our own: every span at its characters, or its loss explained.

label_studio_1.23.2.json          made through the server's REST API, exported by it with all tasks
label_studio_1.23.2_by_hand.json  marked with the mouse in Chromium 156, so that the page itself counted and quoted
label_studio_1.23.2_min.json      the first record of the same project, exported as JSON-MIN
argilla_2.8.0_flat.json           records of the Python client, by its `to_list(flatten=True)`, which
                                  `to_datasets` writes

Of Label Studio's tasks and annotations only the fields that nobody reads are left out.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from places import DATA
from text2grad.errors import DataError
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import IGNORED, NOT_JUDGED, Item, Loss, Options
from text2grad.feedback.sources.registry import read_items, read_source
from text2grad.feedback.sources.tools import GUESSED, OTHER_TEXT, SKIPPED, UNCLEAR, UNKNOWN_TEXT, UNSUBMITTED
from text2grad.types import Critique, Example, Span

LYON = "I live in Lyon."
NO_WORDS = "answers that are neither labels of the text nor words"


def marks(annotation: Annotation | Example) -> list[tuple[str, str]]:
    """Return what each span covers, and its label."""
    assert isinstance(annotation, Annotation)
    return [(annotation.response[span.start : span.end], span.label) for span in annotation.critique.spans]


def one(tmp_path: Path, format: str, record: dict[str, Any]) -> Any:
    path = tmp_path / "in.json"
    path.write_text(json.dumps([record]), "utf-8")
    (found,) = read_items(path, format)
    return found._replace(where="")


def test_what_a_person_marks_in_label_studio_is_kept_at_its_characters() -> None:
    fair, emoji, rice, code, noted = read_source(DATA / "label_studio_1.23.2_by_hand.json", format="label_studio")
    assert marks(fair) == [("in Lyon", "negative")]
    assert marks(emoji) == [
        ("東京", "negative"),
        ("Lyon", "negative"),
        ("👩‍👩‍👧 See", "positive"),
        ("👍🏽", "positive"),
    ]
    assert marks(rice) == [
        ("water.\nThen add salt.\r\n  Wait  3", "negative"),
        ("Wait  3 min", "negative"),
        ("Serve cold 🍚 rice", "positive"),
    ]
    assert marks(code) == [('"a\\nb")', "positive"), ("<b>&amp;\nprint", "negative"), ("😀", "positive")]
    assert isinstance(noted, Annotation)
    assert noted.critique == Critique(
        'poor: "First, boil water.\\nThen add salt." – Too short 🍚\nFine 祭り on the whole.\noverall: poor',
        (Span(0, 33, "negative"),),  # 18 + 1 + 14; the page quotes the break behind it, too
    )


def test_all_that_label_studio_exports_is_kept_or_accounted_for() -> None:
    found = [one._replace(where="") for one in read_items(DATA / "label_studio_1.23.2.json", "label_studio")]
    fair, emoji, rice, code, skipped, empty, first, second, guessed, unseen = found
    assert fair.made == Annotation(
        "Where is the fair?",
        "The fair is in Lyon on Friday.",
        Critique(
            'poor: "in Lyon" – It is in Nice.\npoor: "Lyon on Friday"\ngood: "The fair is"\ngood: "Lyon on"\n'
            'poor: "Lyon on"\nWrong city.\nRight day.\noverall: poor',
            (
                Span(0, 11, "positive"),
                Span(12, 19, "negative"),
                Span(15, 22, "negative"),
                Span(15, 22, "positive"),
                Span(15, 29, "negative"),
            ),
        ),
    )
    assert fair.losses == (Loss(NO_WORDS, "relation: {}"),)
    # The last region was given in UTF-16 units, as older versions count; its quote tells.
    assert [text for text, _ in marks(emoji.made)] == ["東京", "in Lyon", "Lyon", "👩‍👩‍👧 See", "👍🏽"]
    assert marks(rice.made) == [("water.\nThen add salt.\r\n  Wait  3", "negative"), ("rice", "positive")]
    assert isinstance(rice.made, Annotation)
    assert rice.made.critique.feedback.endswith("\nLine one.\nLine two. 🙂")
    assert marks(code.made) == [('"a\\nb")', "positive"), ("<b>&amp;\nprint", "negative")]
    assert empty.made == Annotation("Nothing wrong?", "All is well.", Critique("No errors marked."), {"rater": "1"})
    assert (marks(first.made), marks(second.made)) == ([("green", "negative")], [("sea", "positive")])
    assert skipped.losses == (Loss(NOT_JUDGED), Loss(SKIPPED))
    assert guessed.losses == (Loss(NOT_JUDGED), Loss(GUESSED))
    assert unseen.losses == (Loss(NOT_JUDGED),)


def test_json_min_is_refused_since_it_does_not_say_which_region_a_note_is_about() -> None:
    path = DATA / "label_studio_1.23.2_min.json"
    with pytest.raises(DataError) as caught:
        read_source(path, format="label_studio")
    assert str(caught.value).startswith(
        f'{path}: record 1: a task has "data" and "annotations"; export as JSON, not as JSON-MIN or CSV. '
    )


def task(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"data": {"prompt": "Where?", "response": LYON}, "annotations": [{"result": list(results)}], **more}


def region(start: int, end: int, *labels: str, to_name: str = "response", **value: Any) -> dict[str, Any]:
    return {"type": "labels", "to_name": to_name, "value": {"start": start, "end": end, "labels": labels, **value}}


def test_regions_without_a_label_or_of_the_prompt_are_losses_and_keep_their_notes(tmp_path: Path) -> None:
    note = {"type": "textarea", "id": "a", "value": {"text": ["Which city?"]}}
    kind = {"type": "choices", "id": "b", "from_name": "kind", "value": {"choices": ["fact", "style"]}}
    prompt = {**region(0, 5, "poor", to_name="prompt", text="Where"), "id": "a"}
    found = one(tmp_path, "label_studio", task(prompt, note, region(2, 6), {**region(10, 14, "poor"), "id": "b"}, kind))
    assert found.made.critique == Critique('poor: "Lyon" – kind: fact, style\nWhich city?', (Span(10, 14, "negative"),))
    assert found.losses == (
        Loss("regions of another text than the response", 'prompt: "Where"'),
        Loss("regions without a label", "null"),
    )


def test_drafts_are_losses_and_results_that_are_no_objects_are_refused(tmp_path: Path) -> None:
    assert one(tmp_path, "label_studio", task(drafts=[{"result": []}])).losses == (Loss(UNSUBMITTED),)
    with pytest.raises(DataError, match=r"record 1: each of the annotations and results is an object, got 3\. Mend"):
        one(tmp_path, "label_studio", {**task(), "annotations": [3]})


@pytest.mark.parametrize(("start", "end", "quote"), [(10, 14, "Nice"), (9, 13, "Lyon"), (-5, -1, "Lyon")])
def test_a_region_that_quotes_other_words_is_refused(tmp_path: Path, start: int, end: int, quote: str) -> None:
    with pytest.raises(DataError, match=r"which is not what stands there|does not lie in the response"):
        one(tmp_path, "label_studio", task(region(start, end, "poor", text=quote)))


UNJUDGED = Example("Where?", meta={"response": LYON})


def answer(kind: str, **value: Any) -> dict[str, Any]:
    return {"type": kind, "from_name": kind, "to_name": "response", "value": value}


@pytest.mark.parametrize(
    "result",
    [
        answer("rating", rating=1),
        answer("number", number=-1),
        answer("taxonomy", taxonomy=[["Errors", "Wrong place"]]),
        answer("hypertextlabels", start=10, end=14, text="Lyon", hypertextlabels=["poor"]),
        answer("pairwise", selected="left"),
        answer("textarea", text=[" "]),
        answer("choices", choices=[]),
        region(10, 14, text="Lyon"),
        region(0, 5, "poor", to_name="prompt", text="Where"),
    ],
)
def test_a_judgement_that_is_not_read_is_no_annotation(tmp_path: Path, result: dict[str, Any]) -> None:
    read = one(tmp_path, "label_studio", task(result))
    assert (read.made, read.losses[0], len(read.losses)) == (UNJUDGED, Loss(NOT_JUDGED), 2)
    marked = one(tmp_path, "label_studio", task(result, region(10, 14, "poor")))
    assert marked.made.critique == Critique('poor: "Lyon"', (Span(10, 14, "negative"),))
    assert marked.losses == read.losses[1:]
    path = tmp_path / "two.json"  # of two people
    empty = {"result": []}
    path.write_text(json.dumps([{**task(result), "annotations": [{"result": [result]}, empty]}]))
    (judged,) = (item._replace(where="") for item in read_items(path, "label_studio"))
    assert judged == Item(Annotation("Where?", LYON, Critique("No errors marked.")), read.losses[1:])
    path.write_text(json.dumps([{**task(result), "annotations": [{"result": [result]}] * 2}]))
    (nobody,) = (item._replace(where="") for item in read_items(path, "label_studio"))
    assert nobody == Item(UNJUDGED, (*read.losses, read.losses[1]))


def test_marks_that_are_to_be_ignored_leave_an_annotation_without_errors(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps([task(region(10, 14, "Topic", text="Lyon"))]))
    (read,) = read_items(path, "label_studio", Options(labels={"Topic": "ignore"}))
    assert read.made == Annotation("Where?", LYON, Critique("No errors marked."))
    assert [loss.reason for loss in read.losses] == [IGNORED]


ALIKE = {"prompt": "The fair is where?", "response": "The fair is in Lyon."}
FAIR, IN_LYON, WHERE = (0, 8, "The fair"), (12, 19, "in Lyon"), (12, 17, "where")


@pytest.mark.parametrize(
    ("marks", "spans", "reasons"),
    [
        ({"t_prompt": FAIR, "t_response": IN_LYON}, [(12, 19)], [OTHER_TEXT]),
        ({"t_prompt": WHERE, "t_response": FAIR}, [], [OTHER_TEXT, UNKNOWN_TEXT]),  # "The fair" begins both
        ({"first": IN_LYON, "second": (12, 14, "in")}, [(12, 14), (12, 19)], []),  # both quote the response alone
        ({"t_prompt": FAIR, "t_response": FAIR}, [], [UNKNOWN_TEXT] * 2),
        ({"text": FAIR}, [(0, 8)], []),  # the only tag
        ({"text": WHERE}, [], [OTHER_TEXT]),
        ({"text": FAIR, "response": IN_LYON}, [(12, 19)], [OTHER_TEXT]),  # the response has its tag
        ({"text": FAIR, "prompt": FAIR}, [(0, 8)], [OTHER_TEXT]),
        ({"text": IN_LYON, "prompt": WHERE}, [(12, 19)], [OTHER_TEXT]),
    ],
)
def test_marks_of_another_text_are_no_spans(
    tmp_path: Path, marks: dict[str, Any], spans: list[Any], reasons: list[str]
) -> None:
    results = [region(start, end, "poor", to_name=tag, text=text) for tag, (start, end, text) in marks.items()]
    read = one(tmp_path, "label_studio", {"data": ALIKE, "annotations": [{"result": results}]})
    assert [loss.reason for loss in read.losses if loss.reason != NOT_JUDGED] == reasons
    assert isinstance(read.made, Annotation if spans else Example)
    if spans:
        assert [(span.start, span.end) for span in read.made.critique.spans] == spans


def test_a_quote_that_no_text_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"region \[0, 4\] quotes \"Nice\", which is not what stands there"):
        one(tmp_path, "label_studio", task(region(0, 4, "poor", to_name="text", text="Nice")))


@pytest.mark.parametrize(
    ("answers", "critique"),
    [
        ({"stars": 1}, None),
        ({"kind": ["a", "b"]}, None),
        ({"comment": " "}, None),
        ({"stars": 1, "comment": "So."}, Critique("So.")),
        ({"span": []}, Critique("No errors marked.")),
        ({"span": [], "stars": 1}, Critique("No errors marked.")),
    ],
)
def test_who_only_rated_in_argilla_marked_nothing(
    tmp_path: Path, answers: dict[str, Any], critique: Critique | None
) -> None:
    record: dict[str, Any] = {"prompt": "Where?", "response": LYON}
    for name, value in answers.items():
        parts = {"": value, ".users": "u", ".status": "submitted"}
        record |= {f"{name}.responses{part}": [given] for part, given in parts.items()}
    read = one(tmp_path, "argilla", record)
    assert read.made == (Annotation("Where?", LYON, critique, {"rater": "u"}) if critique else UNJUDGED)


ANSWERS = [
    Annotation(
        "Where is the fair?",
        "The fair is in Lyon on Friday.",
        Critique(
            'poor: "in Lyon"\ngood: "Lyon on Friday"\nWrong city.\nRight day.\npoor',
            (Span(12, 19, "negative"), Span(15, 29, "positive")),
        ),
    ),
    Annotation(
        "Where is the fair?",
        "The fair is in Lyon on Friday.",
        Critique("Fine."),
        {"rater": "00000000-0000-0000-0000-000000000002"},
    ),
    Annotation(
        "どこ？",
        "祭りは東京です。 The fair is in Lyon.",
        Critique('poor: "東京"\npoor: "Lyon"\nBoth.', (Span(3, 5, "negative"), Span(24, 28, "negative"))),
    ),
    Example("Nobody?", meta={"response": "Nobody saw this."}),
]


def test_the_flat_form_of_argilla_tells_what_was_submitted() -> None:
    found = [one._replace(where="") for one in read_items(DATA / "argilla_2.8.0_flat.json", "argilla")]
    assert [item.made for item in found] == ANSWERS
    assert [loss for item in found for loss in item.losses if loss.reason == UNSUBMITTED] == [
        Loss(UNSUBMITTED, 'discarded: [{"start": 4, "end": 8, "label": "poor"}]'),
        Loss(UNSUBMITTED, 'draft: "half a thou"'),
    ]
    assert found[-1].losses == (Loss(NOT_JUDGED), Loss(GUESSED, "span.suggestion"))


def test_the_flat_form_of_argilla_is_read_as_datasets_saves_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(json.loads((DATA / "argilla_2.8.0_flat.json").read_text("utf-8"))).to_parquet(
        tmp_path / "a.parquet"
    )
    assert read_source(tmp_path / "a.parquet", format="argilla") == ANSWERS


def test_spans_of_argilla_behind_an_emoji_are_losses_since_nothing_tells_their_unit(tmp_path: Path) -> None:
    def flat(text: str, start: int, end: int) -> Any:
        mark = [{"start": start, "end": end, "label": "poor"}]
        given = {"span.responses": [mark], "span.responses.users": ["u"], "span.responses.status": ["submitted"]}
        return one(tmp_path, "argilla", {"prompt": "", "response": text, **given})

    before = flat("Lyon 😀", 0, 4)
    assert marks(before.made) == [("Lyon", "negative")]
    behind = flat("😀 Lyon", 3, 7)  # 7 lies outside of the 6 code points: the page counts the emoji as two
    assert behind.made == Example("", meta={"response": "😀 Lyon"})
    assert behind.losses == (Loss(NOT_JUDGED), Loss(UNCLEAR, "poor [3, 7]"))
    with pytest.raises(DataError, match=r'"span\.responses" has 0 answers of 1 users, 0 statuses'):
        one(tmp_path, "argilla", {"response": "a", "span.responses": [], "span.responses.users": ["u"]})


def said(made: Annotation | Example) -> list[tuple[str | None, ...]]:
    """Return what each span says: category, severity, reason, rater and source."""
    assert isinstance(made, Annotation)
    return [(s.category, s.severity, s.reason, s.rater, s.source) for s in made.critique.spans]


def test_spans_of_label_studio_say_label_note_and_annotator() -> None:
    fair, *_ = read_source(DATA / "label_studio_1.23.2.json", format="label_studio")
    assert said(fair) == [  # poor and good say the sign alone; annotator 1
        (None, None, None, "1", "label_studio"),
        (None, None, "It is in Nice.", "1", "label_studio"),
        *[(None, None, None, "1", "label_studio")] * 3,
    ]


@pytest.mark.parametrize(
    ("who", "rater"), [({"id": 3, "email": "ann@example.org"}, "ann@example.org"), ({"id": 3}, "3"), (None, None)]
)
def test_a_choice_of_the_severity_and_a_label_of_ones_own_go_with_the_region(
    tmp_path: Path, who: Any, rater: str | None
) -> None:
    marked = {**region(10, 14, "Fact", text="Lyon"), "id": "a"}
    severity = {"type": "choices", "id": "a", "from_name": "severity", "value": {"choices": ["major"]}}
    path = tmp_path / "in.json"
    kind = {"type": "choices", "id": "a", "from_name": "kind", "value": {"choices": ["place"]}}
    record = task(marked, severity, kind, region(0, 1, "Fact"))
    record["annotations"][0]["completed_by"] = who
    path.write_text(json.dumps([record]))
    (read,) = read_source(path, format="label_studio", labels={"Fact": "negative"})
    assert said(read) == [
        ("Fact", None, None, rater, "label_studio"),
        ("Fact", "major", "severity: major kind: place", rater, "label_studio"),
    ]


def test_spans_of_argilla_say_label_and_user() -> None:
    records = json.loads((DATA / "argilla_2.8.0_flat.json").read_text("utf-8"))
    user = records[0]["span.responses.users"][0]
    first, *_ = read_source(DATA / "argilla_2.8.0_flat.json", format="argilla")
    assert said(first) == [(None, None, None, user, "argilla")] * 2
    assert [span.label for span in first.critique.spans] == ["negative", "positive"]  # type: ignore[union-attr]


def test_the_time_of_an_annotation_of_label_studio_and_who_marked_nothing_are_kept(tmp_path: Path) -> None:
    def line(*results: dict[str, Any]) -> Any:
        annotation = {"result": list(results), "completed_by": {"id": 3, "email": "ann@example.org"}, "lead_time": 12.5}
        return one(tmp_path, "label_studio", {**task(), "annotations": [annotation]}).made.line

    assert line(region(10, 14, "poor", text="Lyon")) == {"seconds": 12.5}  # the span names its rater
    assert line() == {"rater": "ann@example.org", "seconds": 12.5}
