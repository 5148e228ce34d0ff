"""Readers of feedback: what each form becomes, what is lost and why, and every refusal word for word."""

import csv
import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loss_account import Account, account_for
from places import SHARED
from text2grad.errors import ConfigError, DataError
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.feedback.sources.base import IGNORED, NO_PLACE, NO_PROMPT, NOT_JUDGED, WORDS_ONLY, Item, Loss, Options
from text2grad.feedback.sources.registry import read_items, read_source
from text2grad.feedback.sources.table import CHAT_JOINED, NO_LABEL, NO_QUOTE, NO_WORDS, REJECTED, UNREADABLE
from text2grad.types import Critique, Example, Span

SHARED_DATA = SHARED / "data"
LYON = "I live in Lyon."
NO = Span(10, 14, "negative")
WAY_OUT = ". Mend or remove the record"
ADDED = "text that the better response adds: it has no place in this one"


def shared(name: str) -> Path:
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"needs ../shared/data/{name}, which is not part of the project")
    return path


def written(tmp_path: Path, *records: Any, name: str = "in.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def items(tmp_path: Path, format: str, *records: Any, **options: Any) -> list[Item]:
    return [item._replace(where="") for item in read_items(written(tmp_path, *records), format, Options(**options))]


def refusal(tmp_path: Path, format: str, *records: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        items(tmp_path, format, *records, **options)
    return str(caught.value).replace(str(tmp_path), "DIR")


def account(name: str, format: str, **options: Any) -> Account:
    return account_for(read_items(shared(name), format, Options(**options)))


def test_the_human_feedback_of_fine_grained_rlhf_is_imported_whole() -> None:
    path = shared("qa_feedback/feedback.json")
    marked = missing = 0
    for record in json.loads(path.read_text("utf-8")):
        marked += len(record["feedback"]["errors"])
        missing += len(record["feedback"]["missing-info"])
    found = account("qa_feedback/feedback.json", "qa_feedback")
    assert (found.annotations, found.examples, found.spans) == (400, 0, Counter(negative=marked))
    assert found.losses == {NO_PLACE: missing}
    assert (marked, missing) == (1110, 659)


def qa(errors: list[Any], missing: list[Any]) -> dict[str, Any]:
    feedback = {"errors": errors, "missing-info": missing}
    return {"question": "Where?", "passages": [["T", "One."]], "prediction 1": LYON, "feedback": feedback}


def test_a_missing_fact_is_a_loss_and_can_be_charged_to_the_outcome(tmp_path: Path) -> None:
    error = {"error type": "Wrong", "start": 10, "end": 14, "explanation": ""}
    missing = {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1]}
    words = 'Wrong: "Lyon"\nMissing-Answer: "One." (T)\nMissing-Answer: "One." (T)'
    path = written(tmp_path, qa([error], [missing, missing]), name="qa.json")
    (plain,) = read_source(path, format="qa_feedback")
    assert plain == Annotation("Where?", LYON, Critique(words, (NO,)))
    (charged,) = read_items(path, "qa_feedback", Options(missing_outcome=-0.25))
    assert charged.made == Annotation("Where?", LYON, Critique(words, (NO,), -0.5))  # 2 · −0.25
    assert charged.losses == (Loss(NO_PLACE, 'Missing-Answer: "One." (T)'),) * 2
    (no_fault,) = read_items(
        written(tmp_path, qa([error], []), name="b.json"), "qa_feedback", Options(missing_outcome=-1)
    )
    assert isinstance(no_fault.made, Annotation)
    assert no_fault.made.critique.outcome is None


QA_RECORD: dict[str, Any] = {
    "question": "Who sang it?",
    "prediction 1": "Ann sang it. Ann sang it twice.",
    "passages": [["Songs", "Bob sang it.", "It was long."], ["Bob", "A singer."]],
    "feedback": {
        "errors": [
            {"error type": "Redundant", "start": 13, "end": 31, "explanation": "Ann sang it. "},
            {
                "error type": "Wrong-Grounding",
                "start": 0,
                "end": 3,
                "explanation": '{"passage_id":1,"sentence_id":[1]}',
            },
        ],
        "missing-info": [
            {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1, 2]},
            {"error type": "Missing-Major-Auxiliary", "passage_id": 2, "sentence_id": [1]},
            {"error type": "Missing-Answer", "passage_id": 2, "sentence_id": [4]},
            {"error type": "Missing-Answer", "passage_id": 0, "sentence_id": [1]},
        ],
    },
}


def people(path: Path) -> list[Annotation]:
    return [one for one in read_source(path, format="qa_feedback") if isinstance(one, Annotation)]


def qa_file(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "feedback.json"
    path.write_text(json.dumps(list(records)))
    return path


def test_human_errors_become_negative_spans_and_what_is_missing_stays_in_words(tmp_path: Path) -> None:
    path = qa_file(tmp_path, QA_RECORD)
    (judged,) = people(path)
    assert judged.prompt == "Who sang it?"
    assert judged.response == "Ann sang it. Ann sang it twice."
    assert judged.critique.spans == (Span(0, 3, "negative"), Span(13, 31, "negative"))
    assert judged.critique.feedback.split("\n") == [
        'Redundant: "Ann sang it twice." – said before: "Ann sang it."',
        'Wrong-Grounding: "Ann" – see "Bob sang it." (Songs)',
        'Missing-Answer: "Bob sang it. It was long." (Songs)',
        'Missing-Major-Auxiliary: "A singer." (Bob)',
        "Missing-Answer: passage 2, sentence 4",
        "Missing-Answer: passage 0, sentence 1",
    ]


def test_long_quotes_in_the_words_are_cut_at_a_word(tmp_path: Path) -> None:
    error = {"error type": "Irrelevant", "start": 0, "end": 200, "explanation": " "}
    record = {**QA_RECORD, "prediction 1": "words " * 40, "feedback": {"errors": [error], "missing-info": []}}
    (judged,) = people(qa_file(tmp_path, record))
    assert judged.critique.feedback == f'Irrelevant: "{"words " * 15}…"'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": 3}, '"question" must be a text; got 3'),
        ({"feedback": {"errors": []}}, "not in the form of qa_feedback (KeyError: 'missing-info')"),
        (
            {"feedback": []},
            "not in the form of qa_feedback (TypeError: list indices must be integers or slices, not str)",
        ),
        (
            {"feedback": {"errors": [{"start": 3, "end": 32}], "missing-info": []}},
            "span [3, 32] does not lie in the response, which has 31 characters",
        ),
        (
            {"feedback": {"errors": [{"start": 3, "end": 3}], "missing-info": []}},
            "span [3, 3] does not lie in the response, which has 31 characters",
        ),
    ],
)
def test_a_human_record_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = qa_file(tmp_path, QA_RECORD, {**QA_RECORD, **change})
    with pytest.raises(DataError) as caught:
        people(path)
    assert str(caught.value) == f"{path}: record 2: {message}{WAY_OUT}"


def test_all_human_feedback_is_read_and_each_error_is_one_span_of_its_prediction() -> None:
    path = shared("qa_feedback/feedback.json")
    raw = json.loads(path.read_text())
    read = people(path)
    assert len(read) == len(raw) == 400
    kinds: Counter[str] = Counter()
    for judged, record in zip(read, raw, strict=True):
        errors = record["feedback"]["errors"]
        assert judged.response == record["prediction 1"]
        assert {(span.start, span.end) for span in judged.critique.spans} == {(e["start"], e["end"]) for e in errors}
        words = judged.critique.feedback.split("\n")
        assert len(words) == max(1, len(errors) + len(record["feedback"]["missing-info"]))
        kinds.update(line.split(":")[0] for line in words)
    assert kinds["Irrelevant"] == 746
    assert kinds["Missing-Answer"] == 191
    assert kinds["No errors marked."] == 5


def region(start: int, end: int, label: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "labels": [label], **({} if text is None else {"text": text})}
    return {"type": "labels", "from_name": "label", "to_name": "text", "value": value, **more}


def task(*results: dict[str, Any], text: str = LYON, **more: Any) -> dict[str, Any]:
    return {"id": 7, "data": {"prompt": "Where?", "text": text}, "annotations": [{"result": list(results), **more}]}


def test_label_studio_regions_become_spans_and_notes_become_words(tmp_path: Path) -> None:
    note = {"type": "textarea", "id": "a", "value": {"text": ["She lives in Nice."]}}
    overall = {"type": "textarea", "id": "z", "value": {"text": ["Short.", "Clear."]}}
    stars = {"type": "rating", "value": {"rating": 2}}
    (found,) = items(
        tmp_path,
        "label_studio",
        task(
            region(10, 14, "Hallucination", "Lyon", id="a"),
            note,
            overall,
            region(0, 1, "Good", meta={"text": ["I see"]}),
            region(2, 6, "Topic"),
            stars,
        ),
        labels={"Hallucination": "negative", "Topic": "ignore"},
    )
    words = 'Hallucination: "Lyon" – She lives in Nice.\nGood: "I" – I see\nShort.\nClear.'
    assert found == Item(
        Annotation("Where?", LYON, Critique(words, (Span(0, 1, "positive"), NO))),
        (
            Loss("answers that are neither labels of the text nor words", 'rating: {"rating": 2}'),
            Loss("labels that are told to be ignored", 'Topic: "live"'),
        ),
    )


def test_label_studio_offsets_in_utf16_are_seen_by_their_text(tmp_path: Path) -> None:
    # "😀 " is two characters, and three units of UTF-16; what is quoted tells which is meant.
    text = "😀 in Lyon 😀!"
    for start, end, quote in ((6, 10, "Lyon"), (5, 9, "Lyon"), (11, 13, "😀")):
        (found,) = items(tmp_path, "label_studio", task(region(start, end, "bad", quote), text=text))
        assert isinstance(found.made, Annotation)
        (span,) = found.made.critique.spans
        assert text[span.start : span.end] == quote
    assert refusal(tmp_path, "label_studio", task(region(7, 11, "bad", "Lyon"), text=text)) == (
        f'DIR/in.jsonl:1: region [7, 11] quotes "Lyon", which is not what stands there{WAY_OUT}'
    )


def test_label_studio_tasks_without_an_annotation_are_examples(tmp_path: Path) -> None:
    skipped = Loss("annotations that their annotator skipped")
    example = Example("Where?", meta={"response": LYON})
    assert items(tmp_path, "label_studio", task(was_cancelled=True)) == [Item(example, (Loss(NOT_JUDGED), skipped))]


def test_a_skipped_annotation_is_lost_once_and_a_place_is_one_span_whatever_its_labels_are(tmp_path: Path) -> None:
    twice = region(10, 14, "bad")
    twice["value"]["labels"] = [" bad ", "Good"]  # what is told goes before what is plain
    record = task(twice) | {"annotations": [{"result": [twice]}, {"result": []}, {"was_cancelled": True}]}
    first, second = items(tmp_path, "label_studio", record, labels={"Good": "negative"})
    assert isinstance(first.made, Annotation)
    assert first.made.critique.spans == (NO,)
    assert (first.losses, second.losses) == ((Loss("annotations that their annotator skipped"),), ())


def test_labels_of_unknown_meaning_and_other_exports_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "label_studio", task(region(0, 1, "Odd"))) == (
        'DIR/in.jsonl:1: nobody said what the label "Odd" means; say --label "Odd=negative", =positive or =ignore'
        f"{WAY_OUT}"
    )
    assert refusal(tmp_path, "label_studio", {"text": LYON, "label": []}) == (
        f'DIR/in.jsonl:1: a task has "data" and "annotations"; export as JSON, not as JSON-MIN or CSV{WAY_OUT}'
    )
    assert refusal(tmp_path, "argilla", {"text": LYON}) == (
        'DIR/in.jsonl:1: a record of Argilla 2 has columns like "span.responses"; export with '
        f"records.to_datasets().to_parquet(){WAY_OUT}"
    )


def test_columns_of_any_name_are_mapped(tmp_path: Path) -> None:
    columns = {"response": "answer", "feedback": "comment", "poor_spans": "bad", "prompt": "response"}
    record = {"answer": LYON, "comment": "No.", "bad": ["Lyon", "Nice"], "response": "Where?", "note": 1}
    (found,) = items(tmp_path, "table", record, columns=columns)
    assert found == Item(
        Annotation("Where?", LYON, Critique("No.", (NO,), unmatched=("Nice",))),
        (Loss("quotes that the response does not contain: no span", "Nice"),),
        unread=("note",),
    )


def test_our_own_jsonl_needs_no_mapping(tmp_path: Path) -> None:
    annotations = [
        Annotation("Where?", LYON, Critique("No.", (NO,), -1.0, "repaired", ("Nice",))),
        Annotation("", "a", Critique("", status="timed_out")),
    ]
    write_annotations(tmp_path / "own.jsonl", annotations)
    assert read_source(tmp_path / "own.jsonl") == annotations


def test_words_of_a_table_are_grounded_by_a_refinement(tmp_path: Path) -> None:
    record = {"prompt": "", "response": LYON, "feedback": "Wrong city."}
    mended, added, words = items(
        tmp_path,
        "table",
        {**record, "refinement": "I live in Nice."},
        {**record, "refinement": "I live in Lyon. Yes."},
        record,
    )
    assert added.losses == (Loss(ADDED), Loss(WORDS_ONLY))
    assert mended == Item(Annotation("", LYON, Critique("Wrong city.", (NO,))))
    assert words == Item(Annotation("", LYON, Critique("Wrong city.")), (Loss(WORDS_ONLY),))


def test_a_table_without_feedback_holds_examples(tmp_path: Path) -> None:
    plain, answered = items(
        tmp_path,
        "table",
        {"prompt": "Q", "reference": "A", "tests": "assert", "id": 3},
        {"prompt": "Q", "response": "R"},
    )
    assert plain == Item(Example("Q", "A", "assert", {"id": 3}))
    assert answered == Item(Example("Q", meta={"response": "R"}), (Loss(NOT_JUDGED),))


def test_feedback_without_a_prompt_is_refused_and_an_empty_prompt_is_read(tmp_path: Path) -> None:
    record = {"question": "Where?", "response": LYON, "poor_spans": ["Lyon"]}
    words = (
        f'DIR/in.jsonl:1: there is no "prompt"; the record has the keys {{}}"question", "response", "poor_spans". Say '
        f"which column it is with --column prompt=NAME, or add an empty one{WAY_OUT}"
    )
    assert refusal(tmp_path, "table", record) == words.format("")
    assert refusal(tmp_path, "table", {"prompt": None, **record}) == words.format('"prompt", ')
    expected = Annotation("", LYON, Critique("", (NO,)))
    assert [one.made for one in items(tmp_path, "table", {**record, "prompt": ""})] == [expected]
    (mapped,) = items(tmp_path, "table", record, columns={"prompt": "question"})
    assert mapped.made == expected._replace(prompt="Where?")
    path = tmp_path / "empty.csv"
    path.write_text(f'prompt,response,poor_spans\n,{LYON},"[""Lyon""]"\n')
    assert read_source(path) == [expected]


@pytest.mark.parametrize(
    ("chat", "losses"),
    [
        ([{"role": "user", "content": "Where?"}], ()),
        ([{"role": "system", "content": "Where?"}], (Loss(CHAT_JOINED),)),
        ([{"role": "user", "content": "Wh"}, {"role": "assistant", "content": "ere?"}], (Loss(CHAT_JOINED),)),
    ],
)
def test_chats_of_more_than_a_users_text_are_joined_and_counted(
    tmp_path: Path, chat: list[dict[str, str]], losses: tuple[Loss, ...]
) -> None:
    record = {"prompt": chat, "response": LYON, "feedback": "No."}
    unmarked = {"prompt": chat, "response": LYON, "spans": []}
    words, quoted, empty = items(tmp_path, "table", record, {**record, "poor_spans": ["Lyon"]}, unmarked)
    assert (words.losses, quoted.losses, empty.losses) == ((*losses, Loss(WORDS_ONLY)), losses, losses)
    assert isinstance(empty.made, Annotation)
    prompt = "Where?" if len(chat) == 1 else "<user>\nWh\n</user>\n\n<assistant>\nere?\n</assistant>"
    assert quoted.made == Annotation(prompt, LYON, Critique("No.", (NO,)))


@pytest.mark.parametrize("key", ["good_spans", "poor_spans", "bad_spans", "positive"])
def test_entries_of_quotes_that_are_none_are_losses(tmp_path: Path, key: str) -> None:
    record = {"prompt": "Where?", "response": "The end is in Lyon.", "feedback": "No."}
    label = "positive" if key in ("good_spans", "positive") else "negative"
    lost: list[tuple[Any, list[str]]] = [
        ([[8, 17]], ["[8, 17]"]),
        ([{"end": 17}], ['{"end": 17}']),
        ([1150, None], ["1150", "null"]),
        (5, ["5"]),
    ]
    for value, shown in lost:
        losses = tuple(Loss(NO_QUOTE, f"{key}: {entry}") for entry in shown)
        for form in ({**record, key: value}, {**record, "critique": {"feedback": "No.", key: value}}):
            form |= {"feedback": None} if "critique" in form else {}
            (found,) = items(tmp_path, "table", form)
            assert found == Item(Annotation("Where?", record["response"], Critique("No.")), losses)
    mixed = [["Lyon", "wrong"], 7, {"end": "why"}, {"quote": "The", "start": 0}, {"is": "why"}]
    (found,) = items(tmp_path, "table", {**record, key: mixed})
    spans = (Span(0, 3, label), Span(8, 10, label), Span(14, 18, label))  # type: ignore[arg-type]
    assert isinstance(found.made, Annotation)
    assert found.made.critique.spans == spans
    assert [loss.detail for loss in found.losses] == [f"{key}: 7", f'{key}: {{"end": "why"}}']
    for nothing in ([], {}, "none", [" "], {"The": "why", "is": "why"}):
        (found,) = items(tmp_path, "table", {**record, key: nothing})
        assert found.losses == ()
    for place in ({"start": 8, "end": 17}, {"start": "8", "end": "17"}, {"s": 8, "e": 17}):
        for value in (place, [place]):
            (found,) = items(tmp_path, "table", {**record, key: value})
            assert found.losses == ()
            assert isinstance(found.made, Annotation)
            assert found.made.critique == Critique("No.", (Span(8, 17, label),))  # type: ignore[arg-type]


def test_entries_of_spans_without_a_quote_or_a_label_are_losses(tmp_path: Path) -> None:
    record = {"prompt": "Where?", "response": LYON, "spans": [["Lyon", "negative"], "live", ["I", "neutral"], None]}
    (found,) = items(tmp_path, "table", record)
    lost = ('"live"', '["I", "neutral"]', "null")
    assert found.made == Annotation("Where?", LYON, Critique("", (NO,)))
    assert found.losses == tuple(Loss(NO_LABEL, f"spans: {entry}") for entry in lost)


@pytest.mark.parametrize(
    "entry",
    [
        [10, 14, "Hallucination"],  # doccano 1.8, JSONL
        {"id": 0, "label": "Hallucination", "start_offset": 10, "end_offset": 14},  # the same with relations
        {"start": 10, "end": 14, "token_start": 3, "token_end": 3, "label": "HALLUCINATION"},  # Prodigy
        {"start": 10, "end": 14, "text": "Lyon", "labels": ["Hallucination"]},  # Label Studio, CSV and JSON-MIN
        {"text": "Lyon", "start": 10, "end": 14, "severity": "Hallucination", "confidence": 0.4},  # XCOMET's keys
        ["Lyon", "hallucination"],
        ["Lyon", 10, 14, "Hallucination"],
        {"span": "Lyon", "label": "Hallucination", "score": 0.9},
    ],
)
def test_labels_of_a_table_have_the_meaning_that_is_given(tmp_path: Path, entry: Any) -> None:
    record = {"prompt": "Where?", "response": LYON, "spans": [entry, [0, 1, "positive"]]}

    def read(**labels: Any) -> Item:
        (item,) = items(tmp_path, "table", record, labels=labels)
        return item

    spans = (Span(0, 1, "positive"), NO)
    assert read(Hallucination="negative") == Item(Annotation("Where?", LYON, Critique("", spans)))
    ignored = read(hallucination="ignore")
    assert ignored.made == Annotation("Where?", LYON, Critique("", spans[:1]))
    assert [loss.reason for loss in ignored.losses] == [IGNORED]
    path = tmp_path / "in.csv"  # as cells of pandas, which prints the lists of Python
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, record)
        table.writeheader()
        table.writerow({**record, "spans": str(record["spans"])})
    assert read_source(path, labels={"Hallucination": "negative"}) == [Annotation("Where?", LYON, Critique("", spans))]
    if "Lyon" in str(entry):
        told = read()
        assert told.made == ignored.made
        assert [loss.reason for loss in told.losses] == [NO_LABEL]
        (alone,) = items(tmp_path, "table", {**record, "spans": [entry]})
        assert alone.made == Example("Where?", meta={"response": LYON})
        assert [loss.reason for loss in alone.losses] == [NO_LABEL, NOT_JUDGED]
    else:
        said = refusal(tmp_path, "table", record)
        assert re.search(r'nobody said what the label "\w+" means; say --label "\w+=negative", =positive or =i', said)


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        (
            {"spans": [{"start": 10, "end": 14, "labels": []}]},
            NO_LABEL,
            'spans: {"start": 10, "end": 14, "labels": []}',
        ),
        ({"feedback": {"tone": 1}}, NO_WORDS, '{"tone": 1}'),
        ({"feedback": [5]}, NO_WORDS, "[5]"),
        ({"feedback": " "}, NO_WORDS, '" "'),
    ],
)
def test_marks_without_a_label_and_feedback_without_a_word_are_no_judgement(
    tmp_path: Path, record: dict[str, Any], reason: str, detail: str
) -> None:
    (item,) = items(tmp_path, "table", {"prompt": "Where?", "response": LYON, **record})
    assert item == Item(Example("Where?", meta={"response": LYON}), (Loss(reason, detail), Loss(NOT_JUDGED)))


def test_letters_of_two_parts_are_the_same_label(tmp_path: Path) -> None:
    """A keyboard of macOS writes ö as o and a mark above it."""
    record = {"prompt": "Where?", "response": LYON, "outcome": "scho\u0308n"}
    (item,) = items(tmp_path, "table", record, labels={"sch\xf6n": 1.0})
    assert item.made == Annotation("Where?", LYON, Critique("", (), 1.0))


def test_labels_of_spans_leave_a_number_as_the_outcome(tmp_path: Path) -> None:
    record = {"prompt": "Where?", "response": LYON, "spans": [[10, 14, "Odd"]], "outcome": "−0.5"}
    (item,) = items(tmp_path, "table", record, labels={"Odd": "negative"})
    assert item.made == Annotation("Where?", LYON, Critique("", (NO,), -0.5))


def test_labels_of_a_map_of_quotes_have_the_meaning_that_is_given(tmp_path: Path) -> None:
    record = {"prompt": "Where?", "response": LYON, "spans": {"Lyon": "Hallucination", "I": "−1", "live": "Topic"}}
    (item,) = items(tmp_path, "table", record, labels={"hallucination": "negative"})
    assert item.made == Annotation("Where?", LYON, Critique("", (Span(0, 1, "negative"), NO)))
    assert item.losses == (Loss(NO_LABEL, 'spans: ["live", "Topic"]'),)


@pytest.mark.parametrize(("answer", "judged"), [("accept", True), ("reject", False), ("ignore", False)])
def test_records_that_prodigy_rejects_are_no_annotations(tmp_path: Path, answer: str, judged: bool) -> None:
    """The form of Prodigy's `db-out`, by its documentation."""
    spans = [{"start": 10, "end": 14, "token_start": 3, "token_end": 3, "label": "negative"}]
    record = {"prompt": "Where?", "text": LYON, "spans": spans, "answer": answer}
    (read,) = items(tmp_path, "table", record, columns={"response": "text"})
    if judged:
        assert read == Item(Annotation("Where?", LYON, Critique("", (NO,))))
    else:
        assert read.made == Example("Where?", meta={"answer": answer, "response": LYON})
        assert read.losses == (Loss(REJECTED, answer), Loss(NOT_JUDGED))
    own = {"prompt": "Accept or reject?", "answer": answer, "feedback": "No."}  # a column of the user's
    (mapped,) = items(tmp_path, "table", own, columns={"response": "answer"})
    assert mapped.made == Annotation("Accept or reject?", answer, Critique("No."))


@pytest.mark.parametrize(
    "spans", [{"start": 10, "end": 14, "label": "negative"}, {"start": [10], "end": [14], "label": ["negative"]}]
)
def test_offsets_outside_a_list_are_refused(tmp_path: Path, spans: dict[str, object]) -> None:
    record = {"prompt": "Where?", "response": LYON, "spans": spans}
    wanted = f'"spans" is a list, and a span is [start, end, "positive" or "negative"]; got {json.dumps(spans)}'
    with pytest.raises(DataError, match=re.escape(wanted)):
        items(tmp_path, "table", record)
    (found,) = items(tmp_path, "table", {**record, "spans": {"start": "negative", "Lyon": "negative"}})
    assert isinstance(found.made, Annotation)
    assert found.made.critique == Critique("", (NO,), unmatched=("start",))


def test_columns_that_an_annotation_cannot_hold_are_named(tmp_path: Path) -> None:
    record = {"prompt": "Where?", "response": LYON, "good_spans": ["I"], "bad_spans": ["Lyon"], "rating": 2, "id": None}
    (quoted,) = items(tmp_path, "table", record)
    spans = (Span(0, 1, "positive"), NO)
    assert quoted == Item(Annotation("Where?", LYON, Critique("", spans)), unread=("rating",))
    told = {"prompt": "Where?", "answer": LYON, "refinement": "I live in Nice.", "feedback": "No."}
    words, beside, whole = items(
        tmp_path, "table", told, {**told, "outcome": 1}, {**told, "critique": "No."}, columns={"response": "answer"}
    )
    assert [one.unread for one in (words, beside, whole)] == [(), (), ("refinement", "feedback")]
    assert account_for([quoted, whole]).unread == {"rating", "refinement", "feedback"}


def test_records_of_tools_without_a_prompt_are_counted_with_their_fields(tmp_path: Path) -> None:
    record = {"data": {"question": "Where?", "text": LYON}, "annotations": [{"result": []}, {"result": []}]}
    first, second = items(tmp_path, "label_studio", record)
    assert (first.losses, second.losses) == ((Loss(NO_PROMPT, 'the keys "question", "text"'),), ())
    mapped = items(tmp_path, "label_studio", record, columns={"prompt": "question"})
    assert [one.losses for one in mapped] == [(), ()]
    flat = {"text": LYON, "q": "Where?", "span.responses": None}
    lost = Loss(NO_PROMPT, 'the keys "text", "q", "span.responses"')
    assert items(tmp_path, "argilla", flat)[0].losses == (Loss(NOT_JUDGED), lost)


def test_cells_of_a_text_table_stand_for_values_and_empty_ones_for_nothing(tmp_path: Path) -> None:
    record = {"prompt": "Where?", "response": LYON}
    number, empty, cut_off = items(
        tmp_path,
        "table",
        {**record, "feedback": "No.", "outcome": "-0.5", "spans": '[[10, 14, "negative"]]'},
        {**record, "feedback": "", "outcome": ""},
        {**record, "feedback": '{"good_spans": ["I'},
    )
    assert number == Item(Annotation("Where?", LYON, Critique("No.", (NO,), -0.5)))
    assert empty == Item(Example("Where?", meta={"response": LYON}), (Loss(NOT_JUDGED),))
    assert cut_off.made == Annotation("Where?", LYON, Critique('{"good_spans": ["I'))  # words, whatever they look like
    (written,) = items(tmp_path, "table", {**record, "critique": "{'poor_spans': ['Lyon']}"})  # by a critic
    assert written == Item(Annotation("Where?", LYON, Critique("", (NO,), status="repaired")))
    (unreadable,) = items(tmp_path, "table", {**record, "critique": "no JSON"})
    assert [reason for reason, _ in unreadable.losses] == [UNREADABLE]
    (mapped,) = items(tmp_path, "table", {"question": "Q", "id": 3}, columns={"prompt": "question"})
    assert mapped == Item(Example("Q", meta={"id": 3}))


def test_a_prompt_of_a_text_table_is_a_chat_only_where_its_json_is_one(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Where?"}]
    texts = ("[1, 2, 3]", '{"a": 1}', "[]", '[{"role": "user"}]', "[cut")
    found = items(tmp_path, "table", *({"prompt": text} for text in texts), {"prompt": json.dumps(chat)})
    assert [item.made for item in found] == [*map(Example, texts), Example(chat)]
    record = {"prompt": "[1, 2, 3]", "response": LYON, "feedback": "No."}
    (judged,) = items(tmp_path, "table", record)
    assert judged.made == Annotation("[1, 2, 3]", LYON, Critique("No."))


RECORD = {
    "prompt": "Where?",
    "response": LYON,
    "feedback": "No, not\nLyon.",
    "spans": [[10, 14, "negative"]],
    "outcome": -0.5,
}
ANNOTATION = Annotation("Where?", LYON, Critique("No, not\nLyon.", (NO,), -0.5))


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "lines.json", "a.jsonl.gz", "a.json.gz", "a.csv", "a.parquet", "dir"]
)
def test_one_annotation_in_every_kind_of_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("lines"):
        path.write_text(json.dumps(RECORD) + "\n\n" + json.dumps(RECORD) + "\n")
    elif name.endswith("l"):
        path.write_text("\ufeff" + json.dumps(RECORD) + "\n")
    elif name.endswith("gz"):
        with gzip.open(path, "wt") as file:
            file.write(json.dumps(RECORD) if "jsonl" in name else json.dumps([RECORD], indent=1))
    elif name.endswith("json"):
        path.write_text(json.dumps([RECORD]))
    elif name.endswith("csv"):
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, RECORD)
            table.writeheader()
            table.writerow({**RECORD, "spans": f" {json.dumps(RECORD['spans'])}"})
    else:
        datasets = pytest.importorskip("datasets")
        span = {"start": 10, "end": 14, "label": "negative"}
        made = datasets.Dataset.from_list([{**RECORD, "spans": [span]}])
        made.to_parquet(path) if name.endswith("parquet") else made.save_to_disk(path)
    assert read_source(path)[-1] == ANNOTATION


def test_a_data_set_of_several_parts_is_read_by_the_name_of_one(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"a": datasets.Dataset.from_list([{"prompt": "Q"}]), "b": datasets.Dataset.from_list([{"prompt": "R"}])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "d")
    assert read_source(tmp_path / "d", split="b") == [Example("R")]
    with pytest.raises(DataError) as caught:
        read_source(tmp_path / "d")
    assert str(caught.value) == f"the data set {tmp_path / 'd'} has no split 'train'; it has a, b"


def test_a_split_of_a_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, RECORD)
    with pytest.raises(ConfigError) as caught:
        read_source(path, split="dev")
    way_out = "leave the split out, or give a directory or a data set"
    assert str(caught.value) == f"{path} is a file, which has no split 'dev'; {way_out}"
    assert read_source(path, split="train") == [ANNOTATION]


def test_rows_of_another_length_are_handed_over_and_the_next_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ragged.csv"
    path.write_text("prompt,reference\nA,B\nA\nA,B,C\nD,E\n")
    bad: list[str] = []
    found = list(read_items(path, "table", on_bad=lambda error: bad.append(str(error))))
    assert [one.made for one in found] == [Example("A", "B"), Example("D", "E")]
    why = f"a row of another length than the header, which has 2 columns{WAY_OUT}"
    assert bad == [f"{path}:3: {why}", f"{path}:4: {why}"]


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    cases = {
        "gone.jsonl": "cannot read DIR/gone.jsonl: No such file or directory",
        "gone.parquet": "cannot read DIR/gone.parquet: No such file or directory",
        "short.csv": f"DIR/short.csv:2: a row of another length than the header, which has 2 columns{WAY_OUT}",
        "broken.json": "DIR/broken.json: not JSON: Expecting value at character 1",
        "empty.jsonl": "DIR/empty.jsonl has no records",
        "list.jsonl": f"DIR/list.jsonl:1: a record is a JSON object, got list{WAY_OUT}",
        "broken.gz": "DIR/broken.gz:1: not JSON: Expecting value at character 1. Mend or remove the record",
    }
    for name, text in {
        "short.csv": "a,b\n1\n",
        "broken.json": "no",
        "empty.jsonl": "\n",
        "list.jsonl": "[]",
        "broken.gz": "no",
    }.items():
        (tmp_path / name).write_text(text)
    for name, message in cases.items():
        with pytest.raises(DataError) as caught:
            read_source(tmp_path / name)
        assert str(caught.value).replace(str(tmp_path), "DIR") == message


@pytest.mark.parametrize(
    ("record", "columns", "message"),
    [
        (
            {"reply": "a"},
            {"response": "answer"},
            'there is no column "answer" for "response"; the record has the keys "reply"',
        ),
        (
            {"reply": "a"},
            {},
            'there is neither a "response" with feedback nor a "prompt"; the record has the keys "reply". Say which '
            "columns they are with --column prompt=NAME --column response=NAME --column feedback=NAME",
        ),
        ({"prompt": "a", "response": 3, "feedback": "a"}, {}, '"response" must be a text; got 3'),
        ({"prompt": "a", "response": "a", "feedback": "a", "refinement": 3}, {}, '"refinement" must be a text'),
        ({"prompt": "a", "tests": ["assert"]}, {}, '"tests" must be a text'),
        ({"prompt": 3}, {}, '"prompt" must be a text or a chat'),
        (
            {"prompt": "a", "response": "abc", "spans": [[1, 4, "negative"]]},
            {},
            'span [1, 4, "negative"] does not lie in the response, which has 3 characters',
        ),
    ],
)
def test_records_that_cannot_be_used_are_refused(
    tmp_path: Path, record: dict[str, Any], columns: dict[str, str], message: str
) -> None:
    assert refusal(tmp_path, "table", record, columns=columns) == f"DIR/in.jsonl:1: {message}{WAY_OUT}"


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        (
            "tabel",
            {},
            "format has no value 'tabel'. Did you mean \"table\"? Known values: table, qa_feedback, mqm, label_studio",
        ),
        (
            "qa_feedback",
            {"columns": {"a": "b"}},
            "format \"qa_feedback\" has columns of its own and takes no column mapping, got 'a'",
        ),
        (
            "table",
            {"columns": {"respnse": "b"}},
            "column has no value 'respnse'. Did you mean \"response\"? Known values: ",
        ),
        (
            "qa_feedback",
            {"labels": {"a": "negative"}},
            "format \"qa_feedback\" has no labels to give a meaning to, got 'a'",
        ),
    ],
)
def test_settings_that_a_source_does_not_have_are_refused(
    tmp_path: Path, format: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        list(read_items(written(tmp_path, {"prompt": "a"}), format, Options(**options)))
    assert str(caught.value).startswith(message)


def test_bad_records_are_handed_over_and_an_account_names_the_first_losses(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "Q", "response": "R"}, {}, *[{"prompt": "Q", "response": "R"}] * 4)
    bad: list[str] = []
    found = list(read_items(path, "table", on_bad=lambda error: bad.append(str(error))))
    assert [one.where for one in found] == [f"{path}:{number}" for number in (1, 3, 4, 5, 6)]
    assert len(bad) == 1
    assert bad[0].startswith(f"{path}:2: there is neither")
    told = account_for([*found, Item(ANNOTATION, (Loss("odd", "3"),), where="x")])
    assert (told.annotations, told.examples, told.spans) == (1, 5, Counter(negative=1))
    assert told.losses == {NOT_JUDGED: 5, "odd": 1}


# What the spans say.


def stated(made: Annotation | Example) -> list[dict[str, Any]]:
    assert isinstance(made, Annotation)
    return [span.stated for span in made.critique.spans]


def test_spans_of_fine_grained_rlhf_say_type_and_explanation(tmp_path: Path) -> None:
    (judged,) = people(qa_file(tmp_path, QA_RECORD))

    def of(kind: str, reason: str) -> dict[str, str]:
        return {"label": "negative", "reason": reason, "category": kind, "source": "qa_feedback"}

    assert stated(judged) == [
        {"start": 0, "end": 3, **of("Wrong-Grounding", 'see "Bob sang it." (Songs)')},
        {"start": 13, "end": 31, **of("Redundant", 'said before: "Ann sang it."')},
    ]


def test_all_spans_of_fine_grained_rlhf_have_their_type() -> None:
    path = shared("qa_feedback/feedback.json")
    errors = [e for record in json.loads(path.read_text("utf-8")) for e in record["feedback"]["errors"]]
    spans = [span for made in people(path) for span in made.critique.spans]
    assert Counter(span.category for span in spans) == Counter(error["error type"] for error in errors)
    assert sum(span.reason is not None for span in spans) == sum(bool(e["explanation"].strip()) for e in errors)


@pytest.mark.parametrize(
    ("entry", "more"),
    [
        ([10, 14, "Fact"], {"category": "Fact"}),
        (["Lyon", "Fact"], {"category": "Fact"}),
        (["Lyon", 10, 14, "Fact"], {"category": "Fact"}),
        ({"start": 10, "end": 14, "labels": ["Fact"]}, {"category": "Fact"}),
        ({"start": 10, "end": 14, "label": "Fact", "category": "Place"}, {"category": "Place"}),
        ({"text": "Lyon", "start": 10, "end": 14, "severity": "Fact", "confidence": 1}, {"severity": "Fact"}),  # XCOMET
        ({"start": 10, "end": 14, "label": "bad", "rater": "bob", "weight": 0.5}, {"rater": "bob", "weight": 0.5}),
        ([10, 14, "negative"], {}),
    ],
)  # fmt: skip
def test_spans_of_a_table_say_what_their_entries_say(tmp_path: Path, entry: Any, more: dict[str, Any]) -> None:
    record = {"prompt": "Where?", "response": LYON, "spans": [entry]}
    (item,) = items(tmp_path, "table", record, labels={"Fact": "negative"})
    assert stated(item.made) == [{"start": 10, "end": 14, "label": "negative", **more}]
    assert item.losses == ()


def test_columns_of_a_record_hold_for_all_its_spans_that_say_nothing_else(tmp_path: Path) -> None:
    spans = [[0, 1, "positive"], {"start": 10, "end": 14, "label": "negative", "rater": "bob"}]
    record = {
        "prompt": "Where?",
        "response": LYON,
        "spans": spans,
        "rater": 7,
        "severity": "minor",
        "category": "travel",
    }
    (plain,) = items(tmp_path, "table", record)
    assert stated(plain.made) == [
        {"start": 0, "end": 1, "label": "positive", "severity": "minor", "rater": "7"},
        {"start": 10, "end": 14, "label": "negative", "severity": "minor", "rater": "bob"},
    ]
    assert plain.unread == ("category",)  # perhaps of the prompt, as nobody says what it is of
    (mapped,) = items(tmp_path, "table", record, columns={"category": "category", "rater": "severity"})
    assert [entry["category"] for entry in stated(mapped.made)] == ["travel"] * 2
    assert [entry["rater"] for entry in stated(mapped.made)] == ["minor", "bob"]
    (unmarked,) = items(tmp_path, "table", {**record, "spans": [], "seconds": 2.5})
    assert unmarked.unread == ("severity", "category")
    assert isinstance(unmarked.made, Annotation)
    assert unmarked.made.line == {"seconds": 2.5, "rater": 7}  # no span says who marked nothing


def test_the_span_annotations_of_wmt_are_a_table(tmp_path: Path) -> None:
    """Keys as in `wmt24_esa.jsonl` of github wmt-conference/ErrorSpanAnnotation; an omission has no place."""
    marks = [
        {"start_i": 10, "end_i": 14, "severity": "major"},
        {"start_i": 0, "end_i": 1, "severity": "minor"},
        {"start_i": "missing", "end_i": "missing", "severity": "minor"},
    ]
    record = {"src": "Wo?", "tgt": LYON, "esa_spans": marks, "esa_score": 70, "annotator": "ann"}
    columns = {"prompt": "src", "response": "tgt", "spans": "esa_spans", "outcome": "esa_score", "rater": "annotator"}
    (item,) = items(tmp_path, "table", record, columns=columns, labels={"major": "negative", "minor": "negative"})
    assert stated(item.made) == [
        {"start": 0, "end": 1, "label": "negative", "severity": "minor", "rater": "ann"},
        {"start": 10, "end": 14, "label": "negative", "severity": "major", "rater": "ann"},
    ]
    assert isinstance(item.made, Annotation)
    assert item.made.critique.outcome == 70.0
    assert [loss.reason for loss in item.losses] == [NO_LABEL]


def test_marks_of_experts_on_long_answers_are_a_table(tmp_path: Path) -> None:
    """HaluQuestQA, with the marks of each answer in a record: aspect, reason and rater of every mark are kept."""
    records = [json.loads(line) for line in shared("haluquestqa/answers.jsonl").read_text("utf-8").splitlines()]
    aspects = ("factuality", "irrelevance", "incomplete_ans")
    labels = {**dict.fromkeys(aspects, "negative"), "reference_example": "positive"}
    lines, marks = list[dict[str, Any]](), list[dict[str, Any]]()
    for record in records[:60]:
        for side in ("answer1", "answer2"):
            own = [
                m for m in record["annotations"] if m["target"] == side and m.get("match") in ("exact", "normalised")
            ]
            places = {(m["start"], m["end"], labels[m["aspect"]]): m for m in reversed(own)}
            marks += places.values()  # of marks at one place the first
            spans = [{**m, "span": m["span_text"], "label": m["aspect"]} for m in own]
            line = {"prompt": record["question"], "response": record[side], "spans": spans}
            lines += [{**line, "annotator": record["annotator"]}] if spans else []
    found = items(tmp_path, "table", *lines, columns={"rater": "annotator"}, labels=labels)
    spans = [span for item in found if isinstance(item.made, Annotation) for span in item.made.critique.spans]
    read = {(span.category, span.reason) for span in spans}
    assert len(spans) > 100
    assert read == {(mark["aspect"], mark["reason"]) for mark in marks if mark["reason"].strip()}
    assert {span.rater for span in spans} <= {record["annotator"] for record in records}


def test_reasons_and_annotators_of_faithbench_are_read_as_a_table(tmp_path: Path) -> None:
    path = shared("faithbench/samples.jsonl")
    columns = {"prompt": "source", "response": "summary", "spans": "annotations"}
    labels = {"Unwanted": "negative", "Unwanted.Intrinsic": "negative", "Unwanted.Extrinsic": "negative"}
    options = Options(columns, labels | dict.fromkeys(("Benign", "Questionable"), "ignore"))
    spans = [s for item in read_items(path, "table", options) if isinstance(item.made, Annotation)
             for s in item.made.critique.spans]  # fmt: skip
    marks = [m for line in path.read_text("utf-8").splitlines() for m in json.loads(line)["annotations"]]
    known = {(m["start"], m["end"], m["annotator"], m["note"] or None) for m in marks}
    assert len(spans) > 500
    assert {(s.start, s.end, s.rater, s.reason) for s in spans} <= known
    assert {s.category for s in spans} == set(labels)
