"""Translation errors that professional raters marked (MQM, arXiv 2104.14478), `python -m evidence feedback import mqm`.

A record has "source", "target" and "ratings": {rater: [{"side", "start", "end", "category", "severity"}]}. One
annotation per rater; errors marked in the source have no span.
"""

from collections.abc import Iterator

from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import MARKED_TWICE, NO_PLACE, Item, Loss, Row, Source, critique, quoted, unjudged
from text2grad.types import Span

_SIDES = ("source", "target")


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
        yield Item(Annotation(source, target, critique(lines, spans)), tuple(losses))


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


SOURCE = Source("MQM: translation errors by professional raters", read_mqm)
