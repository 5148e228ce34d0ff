"""Human feedback of Fine-Grained RLHF (arXiv 2306.01693, qa-feedback) -> `Critique`.

An error is a range of "prediction 1" with a type and sometimes an explanation: it becomes a negative span and a line
of feedback. Missing information is a sentence of the passages: it has no place in the response, so it becomes a line
of feedback and no span. Passages count from 1; sentence 0 of a passage is its title.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from text2grad.types import Critique, Span

_QUOTE_CHARS = 90


def qa_critique(record: Mapping[str, Any], response: str) -> Critique:
    """Return the human feedback of one record as a critique.

    Args:
        record: with "feedback" and "passages".
        response: its "prediction 1", whose characters the errors count.

    Raises:
        ValueError: if an error does not lie in the response.
        KeyError: if the record lacks a part; TypeError or AttributeError if a part has another type.

    Example:
        >>> error = {"error type": "Irrelevant", "start": 0, "end": 5, "explanation": ""}
        >>> record = {"passages": [], "feedback": {"errors": [error], "missing-info": []}}
        >>> qa_critique(record, "Hello there").feedback
        'Irrelevant: "Hello"'
    """
    feedback, passages = record["feedback"], record["passages"]
    lines, spans = [], set()
    for error in feedback["errors"]:
        start, end = error["start"], error["end"]
        if not (type(start) is type(end) is int and 0 <= start < end <= len(response)):
            raise ValueError(
                f"error [{start!r}, {end!r}] does not lie in the prediction, which has {len(response)} characters"
            )
        spans.add(Span(start, end, "negative"))
        lines.append(f'{error["error type"]}: "{_short(response[start:end])}"{_reason(error["explanation"], passages)}')
    lines += [f"{missing['error type']}: {_cited(missing, passages)}" for missing in feedback["missing-info"]]
    return Critique("\n".join(lines) or "No errors marked.", tuple(sorted(spans)))


def _reason(explanation: str, passages: Sequence[Sequence[str]]) -> str:
    """Return why a place is wrong: words, or the place of the passages that it contradicts."""
    if not explanation.strip():
        return ""
    if not explanation.startswith("{"):
        return f' – said before: "{_short(explanation)}"'
    return f" – see {_cited(json.loads(explanation), passages)}"


def _cited(place: Mapping[str, Any], passages: Sequence[Sequence[str]]) -> str:
    """Quote sentences of a passage, or name them where there are none such."""
    number, sentences = place["passage_id"], place["sentence_id"]
    passage = passages[number - 1] if 0 < number <= len(passages) else []
    if not sentences or not all(0 <= sentence < len(passage) for sentence in sentences):
        return f"passage {number}, sentence {', '.join(map(str, sentences))}"
    return f'"{_short(" ".join(passage[sentence] for sentence in sentences))}" ({passage[0]})'


def _short(text: str) -> str:
    """Return a text on one line, cut at a word where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE_CHARS else text[:_QUOTE_CHARS].rsplit(" ", 1)[0] + " …"
