"""Exports of annotation tools: Label Studio and Argilla.

label_studio  "Export → JSON": tasks with "data" and "annotations". Regions of `Labels` over the response become
              spans, by the meaning of their labels; notes on regions, `TextArea`s and `Choices` become feedback. One
              annotation per annotator.
argilla       Argilla 2, `dataset.records.to_datasets()`: answers to a span question become spans, texts become
              feedback. One annotation per user.

`labels` gives the meaning of a label, unless it has a known name: good, positive, correct, …; poor, negative, error, ….
Predictions of a model and answers that nobody submitted are losses.

Label Studio counts code points, as Python does; older versions counted UTF-16 units, as browsers do. The quoted text in
the export shows which. It is the text on the screen: a line break is a backslash and an n, several spaces are one.
Argilla's page counts UTF-16 units, its Python client counts code points, and the export has no quoted text: if the two
counts differ, the place of a span is unknown.
"""

from collections.abc import Iterator
from typing import Any

from text2grad.feedback.record_files import Object, keys_of, shown
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import NO_PROMPT, Item, Loss, Meaning, Row, critique, quoted, unjudged
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


def read_label_studio(row: Row) -> Iterator[Item]:
    """Yield the annotation of each annotator of one task."""
    data = row.record.get("data")
    if not isinstance(data, dict):
        raise row.bad('a task has "data" and "annotations"; export as JSON, not as JSON-MIN or CSV')
    task = Row(row.where, data, row.options)
    response, prompt = task.first("response", "text"), task.words("prompt")
    annotations = _objects(row, row.listed("annotations"))
    kept = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    unused = _prompt_losses(task) + [Loss(SKIPPED)] * (len(annotations) - len(kept))
    unused += [Loss(UNSUBMITTED)] * len(row.record.get("drafts") or [])
    unused += [Loss(GUESSED)] * len(row.record.get("predictions") or [])
    if not kept:
        yield unjudged(prompt, response, *unused)
    for annotation in kept:
        lines, spans, losses = _regions(row, _objects(row, annotation.get("result") or []), data, response)
        yield Item(Annotation(prompt, response, critique(lines, spans)), (*unused, *losses))
        unused = []


def _prompt_losses(texts: Row) -> list[Loss]:
    """Return the loss of texts without a prompt."""
    return [Loss(NO_PROMPT, keys_of(texts.record))] if texts.get("prompt") is None else []


def _objects(row: Row, values: list[Any]) -> list[Object]:
    """Return a list after checking that it holds JSON objects only."""
    for value in values:
        if not isinstance(value, dict):
            raise row.bad(f"annotations, results and answers are objects, got {shown(value)}")
    return values


def _regions(row: Row, results: list[Object], data: Object, response: str) -> tuple[list[str], list[Span], list[Loss]]:
    """Return the feedback lines, spans and losses of one annotator."""
    lines, spans, losses = list[str](), list[Span](), list[Loss]()
    regions, notes = list[Object](), dict[Any, list[str]]()
    for result in results:
        kind, value, other = result.get("type"), result.get("value") or {}, data.get(str(result.get("to_name")))
        said = _texts(value.get("text")) if kind == "textarea" else []
        if kind == "choices":
            said = [f"{result.get('from_name')}: {', '.join(_texts(value.get('choices')))}"]
        notes.setdefault(result.get("id"), []).extend(said)
        if kind == "labels" and isinstance(other, str) and other != response:
            text = f"{result['to_name']}: {shown(value.get('text'))}"
            losses.append(Loss("regions of another text than the response", text))
        elif kind == "labels" and not value.get("labels"):
            losses.append(Loss("regions without a label", shown(value.get("text"))))
        elif kind == "labels":
            regions.append(result)
        elif kind not in ("textarea", "choices"):
            losses.append(Loss("answers that are neither labels of the text nor words", f"{kind}: {shown(value)}"))
    marks = {region.get("id") for region in regions} - {None}
    for region in regions:
        span = _place(row, region["value"], response)
        said = notes[region.get("id")] if region.get("id") in marks else []
        note = " ".join([*_texts((region.get("meta") or {}).get("text")), *said]).strip()
        for label in region["value"]["labels"]:
            line, meaning = _marked(label, response[span.start : span.end], note), _meaning_of(row, label)
            if meaning == "ignore":
                losses.append(Loss(IGNORED, line))
                continue
            spans.append(Span(span.start, span.end, meaning))
            lines.append(line)
    return lines + [text for name, said in notes.items() if name not in marks for text in said], spans, losses


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
    answers, unused = _submitted(row)
    response, prompt = row.first("response", "text"), row.words("prompt")
    unused = _prompt_losses(row) + unused
    if not answers:
        yield unjudged(prompt, response, *unused)
    for given in answers.values():
        lines, spans, losses = _answers(row, given, response)
        yield Item(Annotation(prompt, response, critique(lines, spans)), (*unused, *losses))
        unused = []


def _submitted(row: Row) -> tuple[dict[Any, list[tuple[str, Any]]], list[Loss]]:
    """Return the submitted answers of each user, as question and value, and the losses of the record."""
    record, answers = row.record, dict[Any, list[tuple[str, Any]]]()
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
                answers.setdefault(user, []).append((name.removesuffix(".responses"), value))
    return answers, losses


def _answers(row: Row, answers: list[tuple[str, Any]], response: str) -> tuple[list[str], list[Span], list[Loss]]:
    """Return the feedback lines, spans and losses of one user."""
    lines, spans, losses = list[str](), list[Span](), list[Loss]()
    for question, value in answers:
        if isinstance(value, str):
            lines.append(value.strip())
        elif isinstance(value, list) and all(isinstance(entry, dict) and "start" in entry for entry in value):
            for entry in value:
                label, start, end = str(entry.get("label")), entry["start"], entry.get("end")
                meaning = _meaning_of(row, label)
                if meaning == "ignore":
                    losses.append(Loss(IGNORED, label))
                elif _is_place(start, end) and len(set(_readings(response, start, end))) > 1:
                    losses.append(Loss(UNCLEAR, f"{label} [{start}, {end}]"))
                else:
                    spans.append(row.span(start, end, meaning, response))
                    lines.append(_marked(label, response[start:end], ""))
        else:
            losses.append(Loss("answers that are neither spans nor words", f"{question}: {shown(value)}"))
    return lines, spans, losses


def _meaning_of(row: Row, label: str) -> Meaning:
    """Return the meaning of a label: given by the user, or known by its name."""
    meaning = row.options.meaning(label, PLAIN_LABELS)
    if meaning is None:
        raise row.bad(
            f"nobody said what the label {quoted(label)} means; say --label {quoted(label + '=negative')}, =positive "
            "or =ignore"
        )
    return meaning


def _marked(label: str, text: str, note: str) -> str:
    """Return a marked text as a line of feedback: `Error: "Lyon" – She lives in Nice.`."""
    return f"{label}: {quoted(text)}" + (f" – {note}" if note else "")
