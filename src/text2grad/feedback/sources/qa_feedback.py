"""Feedback of people in Fine-Grained RLHF (arXiv 2306.01693).

Errors are ranges of "prediction 1", with a type and an optional explanation. Missing information refers to sentences of
the passages: a line of feedback without a span. Passages count from 1; sentence 0 of a passage is its title.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from text2grad.feedback.sources.base import Draft, Item, Row

_QUOTE_CHARS = 90


def read_qa_feedback(row: Row) -> Iterator[Item]:
    """Yield the human feedback on one answer."""
    prediction = row.text("prediction 1")
    draft = Draft(row.text("question"), prediction)
    try:
        feedback, passages = row.record["feedback"], row.record["passages"]
        missing = feedback["missing-info"]
        for error in feedback["errors"]:
            place = row.span(error["start"], error["end"], "negative", prediction)
            quote = _shortened(prediction[place.start : place.end])
            kind, reason = error["error type"], _reason(error["explanation"], passages)
            line = f'{kind}: "{quote}"{f" – {reason}" if reason else ""}'
            draft.blame(line, replace(place, category=kind, reason=reason or None))
        for fact in missing:
            draft.blame(f"{fact['error type']}: {_cited(fact, passages)}", None)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise row.bad(f"not in the form of qa_feedback ({type(error).__name__}: {error})") from error
    yield draft.item()


def _reason(explanation: str, passages: Sequence[Sequence[str]]) -> str:
    """Return the explanation of an error: a repeated text, or the sentences that the error contradicts."""
    if not explanation.strip():
        return ""
    if not explanation.startswith("{"):
        return f'said before: "{_shortened(explanation)}"'
    return f"see {_cited(json.loads(explanation), passages)}"


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
