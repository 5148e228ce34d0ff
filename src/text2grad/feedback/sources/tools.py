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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from text2grad.feedback.quotes import place_of
from text2grad.feedback.record_files import Object, keys_of, shown
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import IGNORED, NO_PROMPT, Draft, Item, Loss, Meaning, Row, quoted, unjudged
from text2grad.feedback.spans import readings, stands_at
from text2grad.types import Example, Span

SKIPPED = "annotations that their annotator skipped"
UNSUBMITTED = "answers that nobody submitted: drafts, or discarded"
GUESSED = "guesses of a model: not what a person said"
OTHER_TEXT = "regions of another text than the response"
UNKNOWN_TEXT = "regions of a text that nothing tells: give each Text tag the name of the field that it shows"
UNCLEAR = "spans behind a character that a browser counts as two, an emoji, say: Argilla does not tell their place"


def _mark(draft: Draft, label: str, place: Span, meaning: Meaning, note: str = "") -> None:
    """Add a marked text as a span, whose category is its label, and a line: `Error: "Lyon" – She lives in Nice.`."""
    line = f"{label}: {quoted(draft.response[place.start : place.end])}{f' – {note}' if note else ''}"
    if meaning == "ignore":
        draft.lose(IGNORED, line)
    else:
        draft.mark(place, label, meaning, note)
        draft.lines.append(line)


def _empty_draft(texts: Row, **about: Any) -> Draft:
    return Draft(texts.words("prompt"), texts.first("response", "text"), **about)


def _items(texts: Row, drafts: Sequence[Draft], losses: list[Loss]) -> Iterator[Item]:
    """Yield the annotations of a response, the first with all other losses of the record; without any, an example."""
    no_prompt = [Loss(NO_PROMPT, keys_of(texts.record))] if texts.get("prompt") is None else []
    empty = _empty_draft(texts)
    items = [draft.item() for draft in drafts] or [unjudged(empty.prompt, empty.response)]
    first, *rest = sorted(items, key=lambda item: isinstance(item.made, Example))  # annotations first
    others = [item for item in rest if isinstance(item.made, Example)]
    unread = [loss for item in others for loss in item.losses[1:]]  # without that nobody judged it
    yield first._replace(losses=(*first.losses, *no_prompt, *losses, *unread))
    yield from (item for item in rest if isinstance(item.made, Annotation))


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
    other_tags = _tags_of_others(task, kept)
    yield from _items(task, [_regions(task, annotation, other_tags) for annotation in kept], losses)


def _objects(row: Row, values: Any) -> list[Object]:
    """Return a list after checking that it holds JSON objects only."""
    return [row.inner(value, "each of the annotations and results").record for value in values or []]


def _tags_of_others(task: Row, annotations: Sequence[Object]) -> dict[str, str]:
    """Return the tags of a task whose regions are not of the response, each with the reason.

    A tag named like a field is of this field. If none is named like the response, the only other tag is of it, or those
    whose regions quote the response and no other field; if there are none, nothing tells.
    """
    response = _empty_draft(task).response
    fields = {name: text for name, text in task.record.items() if isinstance(text, str)}
    regions = dict[str, list[Object]]()
    for result in (result for annotation in annotations for result in _objects(task, annotation.get("result"))):
        if (tag := result.get("to_name")) is not None:
            marked = [result.get("value") or {}] if result.get("type") == "labels" else []
            regions.setdefault(str(tag), []).extend(marked)

    def quotes(tag: str, text: str) -> bool:
        quoted = [(value["text"], place_of(value)) for value in regions[tag] if isinstance(value.get("text"), str)]
        return all(stands_at(text, quote, *place) for quote, place in quoted if place)

    others = {text for text in fields.values() if text != response}
    here = {tag for tag in regions if quotes(tag, response)}
    elsewhere = {tag for tag in regions if any(quotes(tag, text) for text in others)}
    strange = regions.keys() - fields
    mine = {tag for tag in regions if fields.get(tag) == response}
    if not mine:
        mine = strange & here - elsewhere if len(strange) > 1 else strange - (elsewhere - here)
    told = here - fields.keys() if not mine else set()
    return {tag: UNKNOWN_TEXT if tag in told else OTHER_TEXT for tag in regions.keys() - mine}


def _regions(task: Row, annotation: Object, other_tags: Mapping[str, str]) -> Draft:
    """Return the annotation of one annotator."""
    regions, notes, severities = list[Object](), dict[Any, list[str]](), dict[Any, str]()
    who = annotation.get("completed_by")
    rater = who.get("email") or who.get("id") if isinstance(who, dict) else who
    draft = _empty_draft(task, rater=rater, seconds=annotation.get("lead_time"))
    for result in _objects(task, annotation.get("result")):
        kind, value, name = result.get("type"), result.get("value") or {}, str(result.get("to_name"))
        said = [text for text in _texts(value.get("text")) if text.strip()] if kind == "textarea" else []
        if kind == "choices" and (chosen := _texts(value.get("choices"))):
            said = [f"{result.get('from_name')}: {', '.join(chosen)}"]
            severities |= {result.get("id"): chosen[0]} if result.get("from_name") == "severity" else {}
        notes.setdefault(result.get("id"), []).extend(said)
        if kind == "labels" and name in other_tags:
            draft.lose(other_tags[name], f"{name}: {shown(value.get('text'))}")
        elif kind == "labels" and not value.get("labels"):
            draft.lose("regions without a label", shown(value.get("text")))
        elif kind == "labels":
            regions.append(result)
        elif not said:
            draft.lose("answers that are neither labels of the text nor words", f"{kind}: {shown(value)}")
    marks = {region.get("id") for region in regions} - {None}
    for region in regions:
        said = notes[region.get("id")] if region.get("id") in marks else []
        about = {"rater": rater, "severity": severities.get(region.get("id") or "")}
        place = _place(task, region["value"], draft.response, **about)
        note = " ".join([*_texts((region.get("meta") or {}).get("text")), *said]).strip()
        for label in region["value"]["labels"]:
            _mark(draft, label, place, task.meaning(label), note)
    draft.lines.extend(text for name, said in notes.items() if name not in marks for text in said)
    return draft


def _texts(value: Any) -> list[str]:
    """Return the texts of one text or of a list."""
    return [value] if isinstance(value, str) else [text for text in value or [] if isinstance(text, str)]


def _place(row: Row, value: Object, response: str, **about: Any) -> Span:
    """Return the span of a region, checked against its quoted text, with what is said about it."""
    quote, place = value.get("text"), place_of(value)
    if not isinstance(quote, str) or place is None:
        return row.span(value.get("start"), value.get("end"), "negative", response, **about)
    if (stands := stands_at(response, quote, *place)) is None:
        raise row.bad(f"region {list(place)} quotes {shown(quote)}, which is not what stands there")
    return row.span(*stands, "negative", response, **about)


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
                draft = drafts.setdefault(user, _empty_draft(row, rater=user))
                _answer(row, draft, name.removesuffix(".responses"), value, user)
    yield from _items(row, list(drafts.values()), losses)


def _answer(row: Row, draft: Draft, question: str, value: Any, user: Any) -> None:
    """Add an answer to the annotation of its user."""
    if isinstance(value, str) and value.strip():
        draft.lines.append(value.strip())
    elif isinstance(value, list) and all(isinstance(entry, dict) and "start" in entry for entry in value):
        draft.lines.extend([] if value else [""])
        for entry in value:
            label, start, end, place = str(entry.get("label")), entry["start"], entry.get("end"), place_of(entry)
            if (meaning := row.meaning(label)) == "ignore":
                draft.lose(IGNORED, f"{label} [{start}, {end}]")
            elif place and len(set(readings(draft.response, *place))) > 1:
                draft.lose(UNCLEAR, f"{label} [{start}, {end}]")
            else:
                _mark(draft, label, row.span(start, end, meaning, draft.response, rater=user), meaning)
    else:
        draft.lose("answers that are neither spans nor words", f"{question}: {shown(value)}")
