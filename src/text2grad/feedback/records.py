"""Files of responses and critiques -> `CritiqueRecord` records: what `text2grad align` reads.

Two forms are known:

jsonl        one JSON object per line: "response", and either "critique" or the parts of one beside it. A critique
             is the text that a critic wrote, or an object of "feedback" and quotes ("good_spans", "poor_spans" or
             any key that `critique_text` knows) or of offsets ("spans": [[start, end, "negative"], ...]). "prompt"
             and "ids", the sampled token ids, are optional. The rollouts of a run are such files.
qa_feedback  the JSON list of Fine-Grained RLHF (arXiv 2306.01693): errors are offsets of "prediction 1", and become
             negative spans; what is missing has no span, and stays in words.

A record that cannot be used raises `DataError` with the file, the line and the way out, or is handed to `on_bad`. A
critique that cannot be read is no such record: its status says so, and it is counted.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from text2grad.errors import DataError, check_known
from text2grad.feedback.qa_feedback import qa_critique
from text2grad.feedback.record_files import Object, bad_record, json_object, keys_of, read_lines, read_list, shown
from text2grad.feedback.spans import Match, critique_from_text
from text2grad.types import LABELS, Critique, Example, Span, Status

Form = Literal["jsonl", "qa_feedback"]

BESIDE = ("feedback", "spans", "good_spans", "poor_spans", "positive", "negative", "outcome")


@dataclass(frozen=True, slots=True)
class CritiqueRecord:
    """A response and its critique, as a file gives them.

    Attributes:
        number: the line of a JSONL file, or the place in a JSON list; both count from 1.
        where: file and number, for messages.
        prompt: what was asked; empty where the file does not say.
        response: the text that the critique is about, and that its spans count characters of.
        critique: the critique.
        ids: the sampled token ids, where the file has them.
    """

    number: int
    where: str
    prompt: str
    response: str
    critique: Critique
    ids: tuple[int, ...] | None = None


def critique_record(critique: Critique) -> dict[str, Any]:
    """Return a critique as JSON data; `read_critique_records` reads it."""
    return {
        "feedback": critique.feedback,
        "spans": [[span.start, span.end, span.label] for span in critique.spans],
        "outcome": critique.outcome,
        "status": critique.status,
        "unmatched": list(critique.unmatched),
    }


def read_critique_records(
    path: str | Path,
    *,
    form: Form = "jsonl",
    match: Match = "exact",
    limit: int | None = None,
    on_bad: Callable[[DataError], None] | None = None,
) -> Iterator[CritiqueRecord]:
    """Yield the responses and critiques of a file.

    Args:
        path: the file.
        form: one of those of the module's docstring.
        match: how quotes are found in the response, as in `locate_spans`.
        limit: read at most so many records.
        on_bad: is given the error of each record that cannot be used; without it the first one is raised.

    Raises:
        DataError: if the file cannot be read or has no records, or one of them cannot be used.
    """
    check_known("format", form, get_args(Form))
    entries = read_lines(Path(path)) if form == "jsonl" else read_list(Path(path))
    number = 0
    for number, where, record in islice(entries, limit):
        try:
            judged = parse_record(number, where, record, form, match)
        except DataError as error:
            if on_bad is None:
                raise
            on_bad(error)
        else:
            yield judged
    if not number:
        raise DataError(f"{path} has no records")


def parse_record(number: int, where: str, record: Any, form: Form, match: Match) -> CritiqueRecord:
    """Return one record of a file.

    Raises:
        DataError: if it cannot be used.
    """
    record = json_object(record, where)
    if form == "qa_feedback":
        prompt, response = _text(record, "question", where), _text(record, "prediction 1", where)
        return CritiqueRecord(number, where, prompt, response, _qa(record, response, where))
    response = _text(record, "response", where)
    return CritiqueRecord(
        number, where, _prompt(record, where), response, _critique(record, response, where, match), _ids(record, where)
    )


def _qa(record: Object, response: str, where: str) -> Critique:
    """Read a record's human feedback."""
    try:
        return qa_critique(record, response)
    except (KeyError, TypeError, AttributeError) as error:
        raise bad_record(where, f"not in the form of qa_feedback ({type(error).__name__}: {error})") from error
    except ValueError as error:
        raise bad_record(where, str(error)) from error


def _prompt(record: Object, where: str) -> str:
    """Return the prompt as text; chat messages are joined."""
    prompt = record.get("prompt", "")
    if isinstance(prompt, list) and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in prompt):
        return Example(prompt).prompt_text
    if not isinstance(prompt, str):
        raise bad_record(where, f'"prompt" is text or a list of chat messages, got {shown(prompt)}')
    return prompt


def _text(record: Object, key: str, where: str) -> str:
    """Return a text that a record must have."""
    if not isinstance(record.get(key), str):
        got = f"got {shown(record[key])}" if key in record else f"the record has {keys_of(record)}"
        raise bad_record(where, f'"{key}" must be a text; {got}')
    return str(record[key])


def _ids(record: Object, where: str) -> tuple[int, ...] | None:
    """Return the sampled ids, where there are some."""
    ids = record.get("ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise bad_record(where, f'"ids" is a list of token ids, got {shown(ids)}')
    return tuple(ids)


def _critique(record: Object, response: str, where: str, match: Match) -> Critique:
    """Return the critique of a record, whichever way it is given."""
    given = record.get("critique")
    if given is None:
        given = {key: record[key] for key in BESIDE if key in record}
    if isinstance(given, str):
        return critique_from_text(given, response, match=match)
    if not isinstance(given, dict) or not given:
        got = f"got {shown(given)}" if given else f"the record has {keys_of(record)}"
        raise bad_record(where, f'"critique" must be a critic\'s text or an object of "feedback" and spans; {got}')
    spans = given.get("spans")
    if not isinstance(spans, list) or not all(map(_is_offsets, spans)):
        return critique_from_text(json.dumps(given), response, match=match)
    words = {key: value for key, value in given.items() if key not in ("spans", "status", "unmatched")}
    read = critique_from_text(json.dumps(words), response, match=match) if words else Critique("")
    return Critique(
        feedback=read.feedback,
        spans=tuple(sorted({*read.spans, *(_span(span, response, where) for span in spans)})),
        outcome=read.outcome,
        status=_status(given, where),
        unmatched=(*_unmatched(given, where), *read.unmatched),
    )


def _is_offsets(entry: Any) -> bool:
    """Tell offsets from quotes among the entries of "spans"."""
    bounds = (entry.get("start"), entry.get("end")) if isinstance(entry, dict) else entry
    return isinstance(bounds, list | tuple) and len(bounds) >= 2 and all(type(x) is int for x in bounds[:2])


def _span(entry: Any, response: str, where: str) -> Span:
    """Return one span that is given as offsets."""
    parts: list[Any] = [entry.get(key) for key in ("start", "end", "label")] if isinstance(entry, dict) else entry
    if len(parts) != 3 or parts[2] not in LABELS:
        raise bad_record(where, f'a span is [start, end, "positive" or "negative"], got {shown(entry)}')
    start, end, label = parts
    if not 0 <= start <= end <= len(response):
        raise bad_record(
            where, f"span {shown(parts)} does not lie in the response, which has {len(response)} characters"
        )
    return Span(start, end, label)


def _status(given: Object, where: str) -> Status:
    """Return how the critique was read, if that is known."""
    status: Status = given.get("status", "ok")
    if status not in get_args(Status):
        raise bad_record(where, f'"status" is one of {", ".join(get_args(Status))}, got {shown(status)}')
    return status


def _unmatched(given: Object, where: str) -> list[str]:
    """Return the quotes that were not found when the critique was read before."""
    quotes = given.get("unmatched", [])
    if not isinstance(quotes, list) or not all(isinstance(quote, str) for quote in quotes):
        raise bad_record(where, f'"unmatched" is a list of quotes, got {shown(quotes)}')
    return quotes
