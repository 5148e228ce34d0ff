"""Exports of annotation tools: Label Studio and Argilla.

label_studio  "Export → JSON": tasks with "data" and "annotations". Regions of `Labels` over the response become
              spans, by what the labels mean; notes on regions and `TextArea`s are the words. One annotation per
              annotator.
argilla       `dataset.records.to_json(...)` of Argilla 2: "fields" and "responses" per question. Answers to a span
              question become spans, texts the words, one annotation per user. Suggestions are no feedback.

What a label means is told (`labels`), or plain from its name: good, positive, correct, …; poor, negative, error, ….
Offsets that count UTF-16 units, as a browser does, are seen by the text that the export quotes, and converted.
"""

from collections.abc import Iterator
from typing import Any

from text2grad.annotations import Annotation
from text2grad.record_files import Object, shown
from text2grad.sources.base import Item, Loss, Meaning, Row, critique, quoted, unjudged
from text2grad.types import Span

PLAIN_LABELS: dict[str, Meaning] = {
    **dict.fromkeys(("good", "positive", "correct", "right", "+"), "positive"),
    **dict.fromkeys(("poor", "bad", "negative", "wrong", "incorrect", "error", "-"), "negative"),
}
IGNORED = "labels that are told to be ignored"


def read_label_studio(row: Row) -> Iterator[Item]:
    """Yield each annotator's regions and words on one task."""
    data = row.record.get("data")
    if not isinstance(data, dict):
        raise row.bad('a task has "data" and "annotations"; export as JSON, not as JSON-MIN or CSV')
    task = Row(row.number, row.where, data, row.options)
    response, prompt = task.first("response", "text"), task.words("prompt")
    annotations = row.listed("annotations")
    kept = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    cancelled = [Loss("annotations that their annotator skipped")] * (len(annotations) - len(kept))
    if not kept:
        yield unjudged(prompt, response, *cancelled)
    for annotation in kept:
        lines, spans, losses = _regions(row, annotation.get("result") or [], response)
        yield Item(Annotation(prompt, response, critique(lines, spans)), (*cancelled, *losses))
        cancelled = []


def _regions(row: Row, results: list[Object], response: str) -> tuple[list[str], list[Span], list[Loss]]:
    """Return what one annotator marked and wrote."""
    lines: list[str] = []
    spans: list[Span] = []
    losses: list[Loss] = []
    notes = {result.get("id"): _note(result) for result in results if result.get("type") == "textarea"}
    places = {result.get("id") for result in results if result.get("type") == "labels"}
    for result in results:
        kind, value = result.get("type"), result.get("value") or {}
        if kind == "labels":
            span = _place(row, value, response)
            note = " ".join([*_texts((result.get("meta") or {}).get("text")), notes.get(result.get("id"), "")]).strip()
            for label in value.get("labels") or [""]:
                meaning = label_meaning(row, label)
                if meaning == "ignore":
                    losses.append(Loss(IGNORED, label))
                    continue
                spans.append(Span(span.start, span.end, meaning))
                lines.append(marked(label, response[span.start : span.end], note))
        elif kind == "textarea":
            lines += [] if result.get("id") in places else [_note(result)]
        else:
            losses.append(Loss("answers that are neither labels of the text nor words", f"{kind}: {shown(value)}"))
    return lines, spans, losses


def _note(result: Object) -> str:
    """Return what was written in a text area."""
    return "\n".join(_texts((result.get("value") or {}).get("text")))


def _texts(value: Any) -> list[str]:
    """Return texts that come as one or as a list."""
    return [value] if isinstance(value, str) else [text for text in value or [] if isinstance(text, str)]


def _place(row: Row, value: Object, response: str) -> Span:
    """Return the place of a region, checked against the text that the export quotes."""
    start, end, quote = value.get("start"), value.get("end"), value.get("text")
    if not isinstance(quote, str) or (type(start) is type(end) is int and response[start:end] == quote):
        return row.span(start, end, "negative", response)
    if type(start) is type(end) is int:
        units = response.encode("utf-16-le", "surrogatepass")
        before, inside = units[: 2 * start], units[2 * start : 2 * end]
        if inside == quote.encode("utf-16-le", "surrogatepass"):
            begin = len(before.decode("utf-16-le", "surrogatepass"))
            return row.span(begin, begin + len(quote), "negative", response)
    raise row.bad(f"region [{shown(start)}, {shown(end)}] quotes {shown(quote)}, which is not what stands there")


def read_argilla(row: Row) -> Iterator[Item]:
    """Yield each user's answers on one record."""
    fields, responses = row.record.get("fields"), row.record.get("responses")
    if not isinstance(fields, dict) or not isinstance(responses, dict | None):
        raise row.bad('a record of Argilla 2 has "fields" and "responses" as objects; export with records.to_json()')
    texts = Row(row.number, row.where, fields, row.options)
    response, prompt = texts.first("response", "text"), texts.words("prompt")
    by_user: dict[Any, list[tuple[str, Any]]] = {}
    for question, answers in (responses or {}).items():
        for answer in answers:
            by_user.setdefault(answer.get("user_id"), []).append((question, answer.get("value")))
    if not by_user:
        yield unjudged(prompt, response)
    for answers in by_user.values():
        lines, spans, losses = _answers(row, answers, response)
        yield Item(Annotation(prompt, response, critique(lines, spans)), tuple(losses))


def _answers(row: Row, answers: list[tuple[str, Any]], response: str) -> tuple[list[str], list[Span], list[Loss]]:
    """Return what one user marked and wrote."""
    lines: list[str] = []
    spans: list[Span] = []
    losses: list[Loss] = []
    for question, value in answers:
        if isinstance(value, str):
            lines.append(value.strip())
        elif isinstance(value, list) and all(isinstance(entry, dict) and "start" in entry for entry in value):
            for entry in value:
                label = str(entry.get("label"))
                meaning = label_meaning(row, label)
                if meaning == "ignore":
                    losses.append(Loss(IGNORED, label))
                    continue
                spans.append(row.span(entry["start"], entry.get("end"), meaning, response))
                lines.append(marked(label, response[spans[-1].start : spans[-1].end], ""))
        else:
            losses.append(Loss("answers that are neither spans nor words", f"{question}: {shown(value)}"))
    return lines, spans, losses


def label_meaning(row: Row, label: str) -> Meaning:
    """Return what a label means, told or plain from its name."""
    told = row.options.labels.get(label) or PLAIN_LABELS.get(label.strip().lower())
    if told is None:
        raise row.bad(
            f"nobody said what the label {quoted(label)} means; say --label {quoted(label + '=negative')}, =positive "
            "or =ignore"
        )
    return told


def marked(label: str, text: str, note: str) -> str:
    """Return a mark in words.

    Example:
        >>> marked("Error", "Lyon", "She lives in Nice.")
        'Error: "Lyon" – She lives in Nice.'
    """
    return f"{label}: {quoted(text)}" + (f" – {note}" if note else "")
