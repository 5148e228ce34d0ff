"""Responses with their critiques, in memory and on disk: phase 1 writes them, phase 2 reads them.

A file is JSON lines. `critique_to_json` writes every critique, of annotations, rollouts and cached answers; each field
always has the same type, so that `datasets` loads the file:

    {"prompt": ..., "response": ..., "critique": {"feedback": ..., "spans": [{"start": 10, "end": 14, "label":
     "negative"}, ...], "outcome": ..., "status": ..., "unmatched": [...]}}

A span also has "turn", "reason", "category", "severity", "weight", "rater" and "source", where they are known.
A line may also have "rater", who judged, and "seconds", the time that it took.

`critique_from_json` reads it, and what people and models write: quotes under any key that `critique_text` knows
("good_spans", "poor_spans", ...) instead of, or beside, spans; the text that a critic wrote; in a line of a file, the
parts of the critique beside "response".

A span of a conversation has its "turn", an index into "turns", which stand beside the response: {"role": ..., "text":
..., "sampled": true, ...} with the fields of `Turn`. "response" is then what the policy wrote, turn after turn.

"ids", the sampled token ids, are optional. "prompt" may be missing where only tokens are wanted; an annotation has
one, which may be empty. An unparsable critique is no error: its status is recorded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, get_args

from text2grad.errors import AlignmentError, DataError
from text2grad.feedback.critique_text import parse_critique_object
from text2grad.feedback.examples import is_prompt
from text2grad.feedback.lenient_json import number_of
from text2grad.feedback.quotes import QUOTE_KEYS, is_finite, place_of, said_about
from text2grad.feedback.record_files import (
    Entry,
    Object,
    bad_record,
    is_text,
    keys_of,
    optional,
    read_each,
    read_lines,
    refuse_half_pairs,
    shown,
)
from text2grad.feedback.spans import Match, critique_from_text, locate_critique, stands_at
from text2grad.feedback.turns import content_of, in_turns, sampled_texts, turns_to_json, with_thoughts, without_thoughts
from text2grad.files import appended_records, json_lines, readable, to_json, write_files
from text2grad.progress import note
from text2grad.types import LABELS, Conversation, Critique, Example, Span, Status, Turn

QUOTES = ("good_spans", "poor_spans", "positive", "negative", "positive_spans", "bad_spans", "negative_spans")
"""Lists of quotes that may stand beside the response."""

BESIDE = ("feedback", "spans", *QUOTES, "outcome")  # parts of a critique that may stand beside the response
TOMBSTONES = "withdrawn.jsonl"  # beside annotations: {"mark": its name, "rater": ..., "at": nanoseconds, "reason": ...}

_TURN = '{"role": ..., "text": ..., "sampled": ..., ...}'
_SPAN = 'a span is [start, end, "positive" or "negative"]'
_WANTED = '"critique" must be a critic\'s text or an object of "feedback" and spans'


class Annotation(NamedTuple):
    """A response and its critique; `line` has further keys of its line in a file, or a chat in place of the prompt."""

    prompt: str
    response: str
    critique: Critique
    line: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CritiqueRecord:
    """A response and its critique as read from a file.

    Attributes:
        number: the line of a JSONL file, or the position in a JSON list; both count from 1.
        where: file and number, for messages.
        prompt: the prompt; empty if the file has none.
        response: the text that the critique is about.
        critique: the critique; its spans count characters of `response`.
        ids: the sampled token ids, if the file has them.
        rater: who judged, by the "rater" of the line, or of the spans if they name one alone.
        seconds: the time of the answer, by the "seconds" of the line.
    """

    number: int
    where: str
    prompt: str
    response: str
    critique: Critique
    ids: tuple[int, ...] | None = None
    rater: str | None = None
    seconds: float | None = None


def critique_to_json(critique: Critique) -> dict[str, Any]:
    """Return a critique as JSON data."""
    return {
        "feedback": critique.feedback,
        "spans": [span.stated for span in critique.spans],
        "outcome": critique.outcome,
        "status": critique.status,
        "unmatched": list(critique.unmatched),
    }


def critique_from_json(given: Any, response: str, *, where: str, match: Match = "exact") -> Critique:
    """Return the critique that JSON data holds; for the data of `critique_to_json`, an equal critique.

    Args:
        given: a critique in any form of the module's docstring.
        response: the response that it is about.
        where: file and number, for messages.
        match: how quotes are found in the response, as in `locate_spans`.

    Raises:
        DataError: if it is no critique, or a span ends after the response.
    """
    if isinstance(given, str):
        return critique_from_text(given, response, match=match)
    if not isinstance(given, dict) or not given:
        raise bad_record(where, f"{_WANTED}; got {shown(given)}")
    _refuse_lost_values(given, where)
    try:
        return _critique(given, response, where, match)
    except AlignmentError as error:  # of a weight
        raise bad_record(where, str(error)) from error


def _critique(given: Object, response: str, where: str, match: Match) -> Critique:
    """Return the critique of an object, as `critique_from_json`."""
    spans = given.get("spans")
    if not isinstance(spans, list) or not all(map(_is_offsets, spans)):
        return locate_critique(parse_critique_object(given), response, match=match)
    others = {key: value for key, value in given.items() if key not in ("spans", "status", "unmatched")}
    read = locate_critique(parse_critique_object(others), response, match=match) if others else Critique("")
    known = get_args(Status)
    status = optional(given, "status", where, known.__contains__, f"is one of {', '.join(known)},", "ok")
    unmatched = optional(given, "unmatched", where, _are_texts, "is a list of quotes,", [])
    own = tuple(_span(span, response, where) for span in spans)
    return Critique(read.feedback, (*own, *read.spans), read.outcome, status, (*unmatched, *read.unmatched))


def write_annotations(path: Path, annotations: Sequence[Annotation]) -> None:
    """Write annotations as JSON lines, atomically, without marks that were withdrawn from this directory.

    Raises:
        DataError: if the file cannot be written.
    """
    gone, records = read_tombstones(path.parent), list(map(annotation_to_json, annotations))
    back = set[str]().union(*(take_marks(record, lambda mark, _: mark in gone) for record in records if gone))
    write_files(path.parent, {path.name: json_lines(records)})
    if back:
        note(f"{path}: {len(back)} marks are left out, which were withdrawn ({path.parent / TOMBSTONES})", warning=True)


def read_tombstones(directory: Path) -> dict[str, dict[str, Any]]:
    """Return what is left of the marks that were withdrawn from a directory, by their names."""
    with readable(directory / TOMBSTONES, "Put back a copy of it"):
        return {stone["mark"]: stone for stone in appended_records(directory / TOMBSTONES)}


def item_of(prompt: str, response: str) -> str:
    """Return the digest by which marks know a response: equal texts and turns have equal marks, in any run."""
    return sha256(f"{prompt}\0{content_of(response)}".encode("utf-8", "backslashreplace")).hexdigest()[:20]


def mark_of(item: str, span: Mapping[str, Any]) -> str:
    """Return the name of a mark, the same in all files and stores: a digest of response, rater, place and label."""
    about = [span.get(key) for key in ("rater", "turn", "start", "end", "label")]
    return sha256(to_json([item, *about])).hexdigest()[:16]


def take_marks(record: Object, goes: Callable[[str, Object], bool]) -> set[str]:
    """Take the marks that go, by name and span, out of a record of `annotation_to_json`, in place; return their names.

    The words of its critique, which may speak of them, go with the first, and all that it says with the last mark.
    """
    critique, item = record["critique"], str(record.get("key"))[:20]  # the keys of a critic's cache are such digests
    if isinstance(record.get("prompt"), str | list) and "response" in record:
        item = item_of(Example(record["prompt"]).prompt_text, response_of(record, "a record with marks"))
    named = [(mark_of(item, span), span) for span in critique["spans"]]
    taken = {mark for mark, span in named if goes(mark, span)}
    if taken:
        critique |= {"feedback": "", "unmatched": [], "spans": [span for mark, span in named if mark not in taken]}
    if taken and not critique["spans"]:
        critique |= {"outcome": None, "status": "withdrawn"}
    return taken


def annotation_to_json(annotation: Annotation) -> dict[str, Any]:
    """Return an annotation as JSON data; `read_critique_records` reads it."""
    turns = {"turns": turns} if (turns := turns_to_json(annotation.response)) else {}
    own = {"prompt": annotation.prompt, "response": annotation.response, **turns}
    return {**own, "critique": critique_to_json(annotation.critique), **(annotation.line or {})}


def read_annotations(path: str | Path, *, to_encode: bool = False, prompt_end: str | None = None) -> list[Annotation]:
    """Return the annotations of a file.

    Args:
        path: the file.
        to_encode: the texts are for a tokenizer; halves of surrogate pairs are refused.
        prompt_end: as in `without_thoughts`, by which the annotations lose thoughts and spans in them.

    Raises:
        DataError: if the file cannot be read or has no records, or a line is no annotation; a prompt may be empty, but
            not missing.
    """
    annotations = []
    for record in read_critique_records(path, require_prompt=True):
        if to_encode:
            whole = record.response.text if isinstance(record.response, Conversation) else record.response
            texts = {"prompt": record.prompt, "response": whole, "feedback": record.critique.feedback}
            refuse_half_pairs(record.where, **texts)
        response, critique = without_thoughts(record.response, prompt_end), record.critique
        if response is not record.response:
            own = in_turns(record.response, critique.spans)[0]
            critique = replace(critique, spans=tuple(with_thoughts(own, record.response, prompt_end, back=True)))
        annotations.append(Annotation(record.prompt, response, critique))
    return annotations


def read_critique_records(
    path: str | Path,
    *,
    match: Match = "exact",
    limit: int | None = None,
    require_prompt: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
) -> Iterator[CritiqueRecord]:
    """Return the responses and critiques of a file, one by one.

    Args:
        path: the file.
        match: how quotes are found in the response, as in `locate_spans`.
        limit: the maximum number of records to read.
        require_prompt: a record without "prompt" cannot be used; otherwise its prompt is empty.
        on_bad: called with the error of each record that cannot be used; without it, the first error is raised.

    Raises:
        DataError: if the file cannot be read or has no records, or a record cannot be used.
    """

    def read(entry: Entry, given: Object) -> CritiqueRecord:
        if require_prompt and "prompt" not in given:
            raise bad_record(entry.where, f'there is no "prompt", which may be empty; the record has {keys_of(given)}')
        return parse_record(entry.where, given, number=entry.number, match=match)

    return read_each(path, read_lines(Path(path)), read, limit=limit, on_bad=on_bad)


def parse_record(where: str, record: Object, *, number: int = 0, match: Match = "exact") -> CritiqueRecord:
    """Return the record that a JSON object holds, with each span once and in order.

    Raises:
        DataError: if it cannot be used.
    """
    response = response_of(record, where)
    prompt = optional(record, "prompt", where, is_prompt, "is text or a list of chat messages,", "")
    if (given := record.get("critique")) is None:
        given = {key: record[key] for key in BESIDE if key in record}
        if not given:
            raise bad_record(where, f"{_WANTED}; the record has {keys_of(record)}")
    critique = critique_from_json(given, response, where=where, match=match)
    critique = replace(critique, spans=tuple(sorted(set(critique.spans))))
    ids = optional(record, "ids", where, _are_ids, "is a list of token ids,")
    ids = None if ids is None else tuple(ids)
    named: set[str | None] = {str(record["rater"])} if record.get("rater") else {span.rater for span in critique.spans}
    rater, seconds = named.pop() if len(named) == 1 else None, number_of(record.get("seconds"))
    about = rater, seconds if is_finite(seconds) else None
    return CritiqueRecord(number, where, Example(prompt).prompt_text, response, critique, ids, *about)


STORES: list[Callable[[Path], Iterable[Object]]] = []
"""Readers of directories, which other packages add; each yields lines of annotations, none of another's directory."""


def read_store(directory: Path) -> list[CritiqueRecord]:
    """Return what raters said in a directory that one of `STORES` knows, such as the studio's; nothing of others.

    Raises:
        DataError: if its marks cannot be read.
    """
    return [parse_record(str(directory), line) for read in STORES for line in read(directory)]


def response_of(record: Mapping[str, Any], where: str) -> str:
    """Return the response of a record, a `Conversation` if it has turns.

    Raises:
        DataError: if it has no response, or others than its turns say.
    """
    if "response" not in record:
        raise bad_record(where, f'"response" must be a text; the record has {keys_of(record)}')
    response: str = optional(record, "response", where, is_text, "must be a text;")
    if not (given := record.get("turns")):
        return response
    try:
        whole = Conversation([Turn(**{**turn, "tool_calls": tuple(turn.get("tool_calls") or ())}) for turn in given])
        said = [turn.role + turn.thought + turn.name for turn in whole.turns]
        calls = [call for turn in whole.turns for call in turn.tool_calls]
        if whole.text and whole == response and all(map(is_text, said)) and all(isinstance(c, dict) for c in calls):
            return whole
    except (AttributeError, TypeError):
        pass
    raise bad_record(where, f'"turns" is a list of {_TURN}, and "response" is what is sampled; got {shown(given)}')


def _refuse_lost_values(given: Object, where: str) -> None:
    """Refuse numbers as feedback, outcomes that are no numbers, and broken offsets, which the tolerant parser drops."""
    optional(given, "feedback", where, lambda text: not isinstance(text, int | float), "is a text,")
    optional(given, "outcome", where, lambda n: n is None or is_finite(number_of(n)), "is a finite number or null,")
    spans = given.get("spans")
    if isinstance(spans, dict) and isinstance(spans.get("start"), int | float | list):  # one, or columns of `datasets`
        raise bad_record(where, f'"spans" is a list, and {_SPAN}; got {shown(spans)}')
    entries = spans if isinstance(spans, list) else []
    if broken := [entry for entry in entries if means_offsets(entry) and not _is_offsets(entry)]:
        raise bad_record(where, f"{_SPAN} with whole numbers, got {shown(broken[0])}")


def means_offsets(entry: Any) -> bool:
    """Return True if an entry of "spans" has bounds, whole numbers or not, and no quote."""
    if isinstance(entry, dict):
        bounds = place_of(entry) or {"start", "end"} & entry.keys()
        return bool(bounds) and _quote(entry) is None
    return isinstance(entry, list) and bool(entry) and isinstance(entry[0], int | float)


def _is_offsets(entry: Any) -> bool:
    """Return True if an entry of "spans" holds offsets, alone or as an object with a quote."""
    return place_of(entry) is not None and (isinstance(entry, dict) or not isinstance(entry[0], str))


def _span(entry: Any, response: str, where: str) -> Span:
    """Return the span of an entry with offsets, with what it says about it; a quote beside them must stand there."""
    place, quote, label, turn, about = place_of(entry), None, None, None, dict[str, Any]()
    if isinstance(entry, dict):
        quote, label, about = _quote(entry), entry.get("label"), said_about(entry)
        if (texts := sampled_texts(response)) and (turn := entry.get("turn")) is not None:
            if type(turn) is not int or turn not in texts:
                raise bad_record(where, f"a span is in turn {shown(turn)}; the policy wrote the turns {[*texts]}")
            response = texts[turn]
    elif len(entry) == 3:
        label = entry[2]
    if place is None or label not in LABELS:
        raise bad_record(where, f"{_SPAN}, got {shown(entry)}")
    span = shown([*place, label])
    if quote is not None:
        if (stands := stands_at(response, quote, *place)) is None:
            raise bad_record(where, f"span {span} quotes {shown(quote)}, which is not what stands there")
        place = stands
    if not 0 <= place[0] <= place[1] <= len(response):
        raise bad_record(where, f"span {span} does not lie in the response, which has {len(response)} characters")
    return Span(*place, label, turn, **about)


def _quote(entry: Object) -> str | None:
    return next((entry[key] for key in QUOTE_KEYS if isinstance(entry.get(key), str)), None)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _are_ids(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(type(number) is int and number >= 0 for number in value))
