"""Exports of annotation tools: Label Studio and Argilla.

label_studio  "Export → JSON": tasks with "data" and "annotations". Regions of `Labels` over the response become
              spans, by the meaning of their labels; notes on regions, `TextArea`s and `Choices` become feedback.
argilla       Argilla 2, `dataset.records.to_datasets()`: answers to a span question become spans, texts feedback.

Each annotator has an annotation. `labels` gives the meaning of a label, unless it has a known name (`PLAIN_LABELS`).
Predictions of a model and answers that nobody submitted are losses.

Label Studio counts code points, as Python does; older versions counted UTF-16 units, as browsers do. The quoted text in
the export shows which. It is the text on the screen: a line break is a backslash and an n, several spaces are one.
Argilla's page counts UTF-16 units, its Python client counts code points, and the export has no quoted text: if the two
counts differ, the place of a span is unknown.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from text2grad.feedback.record_files import Object, keys_of, shown
from text2grad.feedback.sources.base import NO_PROMPT, Draft, Item, Loss, Meaning, Row, quoted, unjudged
from text2grad.types import Span

PLAIN_LABELS: dict[str, Meaning] = {
    **dict.fromkeys(("good", "positive", "correct", "right", "+"), "positive"),
    **dict.fromkeys(("poor", "bad", "negative", "wrong", "incorrect", "error", "-"), "negative"),
}
IGNORED = "labels that are told to be ignored"
SKIPPED = "annotations that their annotator skipped"
UNSUBMITTED = "answers that nobody submitted: drafts, or discarded"
GUESSED = "guesses of a model: not what a person said"
UNCLEAR = "spans behind a character that a browser counts as two, an emoji, say: Argilla does not tell their place"


def _mark(draft: Draft, label: str, place: Span, meaning: Meaning, note: str = "") -> None:
    """Add a marked text as a span and a line: `Error: "Lyon" – She lives in Nice.`."""
    line = f"{label}: {quoted(draft.response[place.start : place.end])}" + (f" – {note}" if note else "")
    if meaning == "ignore":
        draft.lose(IGNORED, line)
    else:
        draft.spans.append(Span(place.start, place.end, meaning))
        draft.lines.append(line)


def _meaning(row: Row, label: str) -> Meaning:
    """Return what a label means."""
    meaning: Meaning | None = row.options.meaning(label, PLAIN_LABELS)
    if meaning is None:
        raise row.bad(
            f"nobody said what the label {quoted(label)} means; say --label {quoted(label + '=negative')}, =positive "
            "or =ignore"
        )
    return meaning


def _empty_draft(texts: Row) -> Draft:
    return Draft(texts.words("prompt"), texts.first("response", "text"))


def _items(texts: Row, drafts: Sequence[Draft], losses: list[Loss]) -> Iterator[Item]:
    """Yield each annotation of a response, the first with the losses of the whole record; without any, an example."""
    losses = ([Loss(NO_PROMPT, keys_of(texts.record))] if texts.get("prompt") is None else []) + losses
    if not drafts:
        empty = _empty_draft(texts)
        yield unjudged(empty.prompt, empty.response, *losses)
    for draft in drafts:
        yield draft.item(*losses)
        losses = []


def read_label_studio(row: Row) -> Iterator[Item]:
    """Yield the annotation of each annotator of one task."""
    data = row.record.get("data")
    if not isinstance(data, dict):
        raise row.bad('a task has "data" and "annotations"; export as JSON, not as JSON-MIN or CSV')
    task = Row(row.where, data, row.options)
    annotations = _objects(row, row.listed("annotations"))
    kept = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    losses = [Loss(SKIPPED)] * (len(annotations) - len(kept))
    losses += [Loss(UNSUBMITTED)] * len(row.record.get("drafts") or [])
    losses += [Loss(GUESSED)] * len(row.record.get("predictions") or [])
    yield from _items(task, [_regions(task, annotation) for annotation in kept], losses)


def _objects(row: Row, values: Any) -> list[Object]:
    """Return a list after checking that it holds JSON objects only."""
    return [row.inner(value, "each of the annotations and results").record for value in values or []]


def _regions(task: Row, annotation: Object) -> Draft:
    """Return the annotation of one annotator."""
    draft = _empty_draft(task)
    regions, notes = list[Object](), dict[Any, list[str]]()
    for result in _objects(task, annotation.get("result")):
        kind, value, name = result.get("type"), result.get("value") or {}, str(result.get("to_name"))
        said = _texts(value.get("text")) if kind == "textarea" else []
        if kind == "choices":
            said = [f"{result.get('from_name')}: {', '.join(_texts(value.get('choices')))}"]
        notes.setdefault(result.get("id"), []).extend(said)
        other = task.record.get(name)
        if kind == "labels" and isinstance(other, str) and other != draft.response:
            draft.lose("regions of another text than the response", f"{name}: {shown(value.get('text'))}")
        elif kind == "labels" and not value.get("labels"):
            draft.lose("regions without a label", shown(value.get("text")))
        elif kind == "labels":
            regions.append(result)
        elif kind not in ("textarea", "choices"):
            draft.lose("answers that are neither labels of the text nor words", f"{kind}: {shown(value)}")
    marks = {region.get("id") for region in regions} - {None}
    for region in regions:
        said = notes[region.get("id")] if region.get("id") in marks else []
        note = " ".join([*_texts((region.get("meta") or {}).get("text")), *said]).strip()
        for label in region["value"]["labels"]:
            _mark(draft, label, _place(task, region["value"], draft.response), _meaning(task, label), note)
    draft.lines.extend(text for name, said in notes.items() if name not in marks for text in said)
    return draft


def _texts(value: Any) -> list[str]:
    """Return the texts of one text or of a list."""
    return [value] if isinstance(value, str) else [text for text in value or [] if isinstance(text, str)]


def _place(row: Row, value: Object, response: str) -> Span:
    """Return the span of a region, checked against its quoted text."""
    start: Any = value.get("start")
    end: Any = value.get("end")
    quote = value.get("text")
    if not isinstance(quote, str) or not _is_place(start, end):
        return row.span(start, end, "negative", response)

    def without_space(text: str) -> str:  # Label Studio quotes a line break as a backslash and an n
        return "".join(text.replace("\\n", "").split())

    for same in (str, without_space):
        for first, last in _readings(response, start, end):
            if same(response[first:last]) == same(quote):
                return row.span(first, last, "negative", response)
    raise row.bad(f"region [{shown(start)}, {shown(end)}] quotes {shown(quote)}, which is not what stands there")


def _is_place(start: Any, end: Any) -> bool:
    return type(start) is type(end) is int and 0 <= start <= end


def _readings(response: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return a range in code points, read as code points and read as UTF-16 units."""
    units = response.encode("utf-16-le", "surrogatepass")
    first, last = (len(units[: 2 * place].decode("utf-16-le", "surrogatepass")) for place in (start, end))
    return [(start, end), (first, last)]


def read_argilla(row: Row) -> Iterator[Item]:
    """Yield the annotation of each user of one record."""
    record, drafts = row.record, dict[Any, Draft]()
    losses = [Loss(GUESSED, name) for name in record if name.endswith(".suggestion") and record[name] is not None]
    names = [name for name in record if name.endswith(".responses")]
    if not names:
        raise row.bad(
            'a record of Argilla 2 has columns like "span.responses"; export with records.to_datasets().to_parquet()'
        )
    for name in names:
        values, users, statuses = (record.get(name + part) or [] for part in ("", ".users", ".status"))
        if not len(values) == len(users) == len(statuses):
            raise row.bad(f"{quoted(name)} has {len(values)} answers of {len(users)} users, {len(statuses)} statuses")
        for value, user, status in zip(values, users, statuses, strict=True):
            if status in ("draft", "discarded"):
                losses.append(Loss(UNSUBMITTED, f"{status}: {shown(value)}"))
            else:
                _answer(row, drafts.setdefault(user, _empty_draft(row)), name.removesuffix(".responses"), value)
    yield from _items(row, list(drafts.values()), losses)


def _answer(row: Row, draft: Draft, question: str, value: Any) -> None:
    """Add an answer to the annotation of its user."""
    if isinstance(value, str):
        draft.lines.append(value.strip())
    elif isinstance(value, list) and all(isinstance(entry, dict) and "start" in entry for entry in value):
        for entry in value:
            label, start, end = str(entry.get("label")), entry["start"], entry.get("end")
            if (meaning := _meaning(row, label)) == "ignore":
                draft.lose(IGNORED, f"{label} [{start}, {end}]")
            elif _is_place(start, end) and len(set(_readings(draft.response, start, end))) > 1:
                draft.lose(UNCLEAR, f"{label} [{start}, {end}]")
            else:
                _mark(draft, label, row.span(start, end, meaning, draft.response), meaning)
    else:
        draft.lose("answers that are neither spans nor words", f"{question}: {shown(value)}")
