r"""Feedback of people: Fine-Grained RLHF and MQM; words with a better response.

qa_feedback   Fine-Grained RLHF (arXiv 2306.01693): errors as ranges of "prediction 1", with a type and an optional
              explanation. Missing information refers to sentences of the passages: a line of feedback without a span.
              Passages count from 1; sentence 0 of a passage is its title.
mqm           Translation errors (arXiv 2104.14478), as JSON with offsets ("source", "target", "ratings": {rater:
              [{"side", "start", "end", "category", "severity"}]}) or as the published table, where <v>…</v> marks the
              error and each row is one error. One annotation per rater; errors marked in the source have no span.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from text2grad.errors import DataError
from text2grad.feedback.record_files import Entry, Object, bad_record, keys_of
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import NO_PLACE, WORDS_ONLY, Item, Loss, Row, critique, quoted, unjudged
from text2grad.feedback.sources.changes import changed_spans
from text2grad.types import Critique, Span

MARKED_TWICE = "marked twice at the same place: one span, both in words"
_SIDES = ("source", "target")
_SEGMENT = ("system", "doc", "doc_id", "docSegId", "seg_id", "globalSegId", "rater")
_QUOTE_CHARS = 90
_MARKED = re.compile(r"(.*?)(?:<v>(.*?)</v>|\Z)", re.DOTALL)


def read_qa_feedback(row: Row) -> Iterator[Item]:
    """Yield the human feedback on one answer."""
    question, prediction = row.text("question"), row.text("prediction 1")
    try:
        feedback, passages = row.record["feedback"], row.record["passages"]
        lines, spans, missing = list[str](), list[Span](), feedback["missing-info"]
        for error in feedback["errors"]:
            spans.append(row.span(error["start"], error["end"], "negative", prediction))
            quote = _shortened(prediction[error["start"] : error["end"]])
            lines.append(f'{error["error type"]}: "{quote}"{_reason(error["explanation"], passages)}')
        lines += [f"{fact['error type']}: {_cited(fact, passages)}" for fact in missing]
        losses = [Loss(NO_PLACE, fact["error type"]) for fact in missing]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise row.bad(f"not in the form of qa_feedback ({type(error).__name__}: {error})") from error
    losses += [Loss(MARKED_TWICE)] * (len(spans) - len(set(spans)))
    yield Item(Annotation(question, prediction, critique(lines, spans)), tuple(losses), len(missing))


def _reason(explanation: str, passages: Sequence[Sequence[str]]) -> str:
    """Return the explanation of an error: a repeated text, or the sentences that the error contradicts."""
    if not explanation.strip():
        return ""
    if not explanation.startswith("{"):
        return f' – said before: "{_shortened(explanation)}"'
    return f" – see {_cited(json.loads(explanation), passages)}"


def _cited(place: Mapping[str, Any], passages: Sequence[Sequence[str]]) -> str:
    """Quote sentences of a passage; if the passage lacks them, give their numbers."""
    number, sentences = place["passage_id"], place["sentence_id"]
    passage = passages[number - 1] if 0 < number <= len(passages) else []
    if not sentences or not all(0 <= sentence < len(passage) for sentence in sentences):
        return f"passage {number}, sentence {', '.join(map(str, sentences))}"
    return f'"{_shortened(" ".join(passage[sentence] for sentence in sentences))}" ({passage[0]})'


def _shortened(text: str) -> str:
    """Return a text on one line, shortened at a word boundary."""
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE_CHARS else text[:_QUOTE_CHARS].rsplit(" ", 1)[0] + " …"


def read_mqm(row: Row) -> Iterator[Item]:
    """Yield the annotation of each rater of one translation."""
    source, target = row.text("source"), row.text("target")
    ratings = row.get("ratings")
    if not isinstance(ratings, dict) or not all(isinstance(errors, list) for errors in ratings.values()):
        raise row.bad(f'"{row.name("ratings")}" must map each rater to a list of errors')
    if not ratings:
        yield unjudged(source, target)
    for errors in ratings.values():
        lines, spans, losses = [], [], []
        for error in errors:
            line, span = _translation_error(row, error, source, target)
            lines.append(line)
            if span is None:
                losses.append(Loss(NO_PLACE, line))
            elif span in spans:
                losses.append(Loss(MARKED_TWICE, line))
            else:
                spans.append(span)
        missing = sum(loss.reason == NO_PLACE for loss in losses)
        yield Item(Annotation(source, target, critique(lines, spans)), tuple(losses), missing)


def _translation_error(row: Row, error: object, source: str, target: str) -> tuple[str, Span | None]:
    """Return an error in words, and its span in the target; None if it has no span there."""
    if not isinstance(error, dict) or error.get("side") not in _SIDES:
        raise row.bad('an error is an object with a "side", which is "source" or "target"')
    kind = f"{error.get('category') or 'Error'} ({error.get('severity') or 'no severity'})"
    if error.get("start") is None:
        return kind, None
    text = source if error["side"] == "source" else target
    place = row.span(error["start"], error.get("end"), "negative", text)
    quote = quoted(text[place.start : place.end])
    return (f"{kind}: {quote}", place) if error["side"] == "target" else (f"{kind}, of the source: {quote}", None)


def gather_mqm(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield one record per segment and rater of a table with one row per error; other records unchanged.

    Rows that contradict each other yield their error as the record.
    """

    def segment(entry: Entry) -> tuple[object, ...]:
        is_row = isinstance(entry.record, dict) and "rater" in entry.record
        return tuple(entry.record.get(key) for key in _SEGMENT) if is_row else ()

    for shared, group in groupby(entries, key=segment):
        if not shared:
            yield from group
            continue
        rows = list(group)
        try:
            record: object = _segment(rows)
        except DataError as error:
            record = error
        yield rows[0]._replace(record=record)


def _segment(rows: list[Entry]) -> Object:
    """Return the rows of one segment and rater as one record."""
    errors: list[Object] = []
    first = {side: _unmarked(rows[0], side)[0] for side in _SIDES}
    for row in rows:
        kind = {key: row.record.get(key) for key in ("category", "severity")}
        places: list[Object] = []
        for side in _SIDES:
            text, marked = _unmarked(row, side)
            if text != first[side]:
                raise bad_record(row.where, f'"{side}" is another text than in the row before, for the same segment')
            places += [{"side": side, "start": start, "end": end} for start, end in marked]
        if not places and str(kind["severity"]).lower() not in ("no-error", "no error"):
            places = [{"side": "target"}]
        errors += [{**kind, **place} for place in places]
    return {**first, "ratings": {rows[0].record["rater"]: errors}}


def _unmarked(row: Entry, side: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks, and the marked ranges."""
    if not isinstance(row.record.get(side), str):
        raise bad_record(row.where, f'"{side}" must be a text; the record has {keys_of(row.record)}')
    text, places = "", []
    for before, marked in _MARKED.findall(row.record[side]):
        text += before + marked
        places += [(len(text) - len(marked), len(text))] if marked else []
    return text, places


def grounded(prompt: str, response: str, feedback: str, better: str) -> Item:
    """Return feedback in words as an annotation; the changes of a better response ("" for none) become spans."""
    if not better:
        return Item(Annotation(prompt, response, Critique(feedback)), (Loss(WORDS_ONLY),))
    changes = changed_spans(response, better)
    losses = [Loss("text that the better response adds: it has no place in this one")] * changes.added
    losses += [] if changes.spans else [Loss(WORDS_ONLY)]
    return Item(Annotation(prompt, response, Critique(feedback, changes.spans)), tuple(losses), changes.added)
