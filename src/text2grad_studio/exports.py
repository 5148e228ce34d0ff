"""Marks → files to share: one HTML page, made by the reports' own page, that needs neither server nor network."""

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from text2grad.feedback import critique_to_json
from text2grad.runs.reports import rollouts_page
from text2grad.types import Conversation
from text2grad_studio.marks import Marked

if TYPE_CHECKING:
    from text2grad_studio.session import Session


def page_of_marks(session: "Session", rater: str) -> str:
    """Return a page of the responses that a rater marked, with the marks as critiques and colours.

    Raises:
        DataError: if the text of a marked response cannot be read.
    """
    records, marked = list[dict[str, Any]](), session.marks.whole(rater)
    for marks in sorted(marked.values(), key=lambda marks: -marks.at):
        if not marks.empty:
            records.append({"prompt": marks.opened["prompt"], **_marked(marks, rater)})
    spans = sum(len(marks.spans) for marks in marked.values())
    summary = [("responses", str(len(records))), ("marked spans", str(spans)), ("rater", rater)]
    intro = "Responses of a language model with the words that a person marked, and the reasons."
    return rollouts_page("Marked responses", records, intro=intro, summary=summary)


def page_of_response(session: "Session", rater: str, run: int, number: int, item: str = "") -> str:
    """Return a page of one response with all its numbers, and beside it the rater's marks on it.

    Raises:
        DataError: if the run has no such response, the digest belongs to another response, or the text of the marked
            response cannot be read.
    """
    record = session.rollout(run, number, item)
    step, row = record["place"]
    where = f"{record['source']}, {'' if step is None else f'step {step}, '}response {row + 1}"
    shown = {key: value for key, value in record.items() if key != "step"}
    spans = record.get("critique", {}).get("spans", [])
    if spans and not record.get("offsets"):  # no tokens to colour
        shown |= {"unit": "part"} | _parts(record["response"], spans)
    marked = session.marks.whole(rater, [record["item"]]).get(record["item"])
    if marked is not None and not marked.empty:
        shown |= {"by": "The run", "beside": [{"by": f"Marked by {rater}", **_marked(marked, rater)}]}
    return rollouts_page("A response", [shown], intro=where)


def _marked(marks: Marked, rater: str) -> dict[str, Any]:
    """Return the record of a marked response, with the marks as critique and colours."""
    response, turns = marks.response, marks.opened.get("turns")
    record = {"response": response, "critique": critique_to_json(marks.critique_of(rater)), "unit": "part"}
    return {**record, **({"turns": turns} if turns else {}), **_parts(response, list(marks.spans.values()))}


def _parts(response: str, spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response cut where a mark or a turn begins or ends, with 1, −1 or 0 for each part."""
    starts = response.starts() if isinstance(response, Conversation) else dict[int, int]()
    ranges = [(at + s["start"], at + s["end"], _sign(s)) for s in spans for at in [starts.get(s.get("turn", -1), 0)]]
    places = [0, len(response), *starts.values(), *(place for start, end, _ in ranges for place in (start, end))]
    offsets = list(pairwise(sorted({*places})))
    delta = [
        max(-1.0, min(1.0, sum(sign for first, last, sign in ranges if first <= start and end <= last)))
        for start, end in offsets
    ]
    return {"offsets": offsets, "delta": delta}


def _sign(span: dict[str, Any]) -> float:
    return 1.0 if span["label"] == "positive" else -1.0


def preferred_name(rater: str, form: str) -> str:
    """Return the name of a downloaded file."""
    return f"{re.sub(r'[^a-zA-Z0-9_-]', '-', rater)}-{form}"
