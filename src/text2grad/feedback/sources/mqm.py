"""MQM: translation errors that professional raters marked (arXiv 2104.14478).

A source has JSON with offsets ("source", "target", "ratings": {rater: [{"side", "start", "end", "category",
"severity"}]}) or is the published table, where <v>…</v> marks the error and each row is one error. One annotation per
rater; errors marked in the source have no span. Rows of the severity `HOTW-test` are tests of the rater's attention,
by errors planted in another text, and are left out.
"""

import re
from collections.abc import Iterator

from text2grad.errors import DataError
from text2grad.feedback.record_files import Entry, Object, bad_record, keys_of
from text2grad.feedback.sources.base import Draft, Item, Row, quoted, unjudged
from text2grad.types import Span

_SIDES = ("source", "target")
_SEGMENT = ("system", "doc", "doc_id", "docSegId", "seg_id", "globalSegId", "rater")
_NO_ERROR = ("no-error", "no error")
PLANTED = "tests of the rater's attention (HOTW): their error is not in this text"
_BARE = re.compile(r"\s+|</?v>")  # without it two texts that name no segment are told apart
_MARKED = re.compile(r"(.*?)(?:<v>(.*?)</v>|\Z)", re.DOTALL)


def read_mqm(row: Row) -> Iterator[Item]:
    """Yield the annotation of each rater of one translation."""
    source, target = row.text("source"), row.text("target")
    ratings = row.get("ratings")
    if not isinstance(ratings, dict) or not all(isinstance(errors, list) for errors in ratings.values()):
        raise row.bad(f'"{row.name("ratings")}" must map each rater to a list of errors')
    if not ratings:
        yield unjudged(source, target)
    for rater, errors in ratings.items():
        draft = Draft(source, target, rater=rater)
        for error in errors:
            severity = str(error.get("severity")).lower() if isinstance(error, dict) else ""
            if severity.startswith("hotw"):
                draft.lose(PLANTED, str(error.get("category")))
            elif severity in _NO_ERROR and error.get("start") is None:
                draft.lines.append("")
            else:
                draft.blame(*_translation_error(row, error, source, target, rater))
        yield draft.item()


def _translation_error(row: Row, error: object, source: str, target: str, rater: str) -> tuple[str, Span | None]:
    """Return an error in words, and its span in the target; None if it has no span there."""
    if not isinstance(error, dict) or error.get("side") not in _SIDES:
        raise row.bad('an error is an object with a "side", which is "source" or "target"')
    kind = f"{error.get('category') or 'Error'} ({error.get('severity') or 'no severity'})"
    if error.get("start") is None:
        return kind, None
    text = source if error["side"] == "source" else target
    about = {"category": error.get("category"), "severity": error.get("severity"), "rater": rater}
    place = row.span(error["start"], error.get("end"), "negative", text, **about)
    quote = quoted(text[place.start : place.end])
    return (f"{kind}: {quote}", place) if error["side"] == "target" else (f"{kind}, of the source: {quote}", None)


def gather_mqm(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield one record per segment and rater of a table with one row per error, where the first row stands.

    Other records are unchanged. Rows that contradict each other yield their error as the record.
    """
    groups = dict[tuple[object, ...], list[Entry]]()
    for entry in entries:
        is_row = isinstance(entry.record, dict) and "rater" in entry.record
        named = tuple(str(entry.record.get(key) or "") for key in _SEGMENT) if is_row else (entry.where,)
        texts = [] if any(named[:-1]) or not is_row else [_BARE.sub("", str(entry.record.get(side))) for side in _SIDES]
        groups.setdefault((*named, *texts), []).append(entry)
    for key, rows in groups.items():
        try:
            record: object = _segment(rows) if len(key) > 1 else rows[0].record
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
            if "".join(text.split()) != "".join(first[side].split()):
                raise bad_record(row.where, f'"{side}" is another text than in the row before, for the same segment')
            moved = [_moved(place, text, first[side]) for place in marked]
            places += [{"side": side, "start": start, "end": end} for start, end in moved if start < end]
        errors += [{**kind, **place} for place in places or [{"side": "target"}]]
    return {**first, "ratings": {rows[0].record["rater"]: errors}}


def _moved(place: tuple[int, int], text: str, other: str) -> tuple[int, int]:
    """Return a range in another text that differs in white space alone; if they differ, without that at its ends."""
    if text == other:
        return place
    visible = [place for place, character in enumerate(other) if not character.isspace()]
    first, last = (len("".join(text[:bound].split())) for bound in place)
    return (visible[first], visible[last - 1] + 1) if first < last else (0, 0)


def _unmarked(row: Entry, side: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its marks, and the marked ranges."""
    if not isinstance(row.record.get(side), str):
        raise bad_record(row.where, f'"{side}" must be a text; the record has {keys_of(row.record)}')
    text, places = "", []
    for before, marked in _MARKED.findall(row.record[side]):
        text += before + marked
        places += [(len(text) - len(marked), len(text))] if marked else []
    return text, places
