"""Human feedback of Fine-Grained RLHF (arXiv 2306.01693, qa-feedback) → `Critique`.

An error is a range of "prediction 1" with a type and an optional explanation: it becomes a negative span and a line of
feedback. Missing information refers to sentences of the passages and not to the response: it becomes a line of feedback
without a span. Passages count from 1; sentence 0 of a passage is its title.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from text2grad.feedback.record_files import Object, bad_record, required_text
from text2grad.types import Critique, Span

_QUOTE_CHARS = 90


def read_qa_record(record: Object, where: str) -> tuple[str, str, Critique]:
    """Return the question, the prediction and the human feedback of a record.

    Raises:
        DataError: if a part is missing or has another type, or an error does not lie in the prediction.

    Example:
        >>> error = {"error type": "Irrelevant", "start": 0, "end": 5, "explanation": ""}
        >>> feedback = {"errors": [error], "missing-info": []}
        >>> record = {"question": "Hi", "prediction 1": "Hello there", "passages": [], "feedback": feedback}
        >>> read_qa_record(record, "feedback.json: record 1")[2].feedback
        'Irrelevant: "Hello"'
    """
    question, response = (required_text(record, key, where) for key in ("question", "prediction 1"))
    try:
        return question, response, _critique(record, response)
    except (KeyError, TypeError, AttributeError) as error:
        raise bad_record(where, f"not in the form of qa_feedback ({type(error).__name__}: {error})") from error
    except ValueError as error:
        raise bad_record(where, str(error)) from error


def _critique(record: Object, response: str) -> Critique:
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
    """Return the explanation of an error: a repeated text, or the sentences that the error contradicts."""
    if not explanation.strip():
        return ""
    if not explanation.startswith("{"):
        return f' – said before: "{_short(explanation)}"'
    return f" – see {_cited(json.loads(explanation), passages)}"


def _cited(place: Mapping[str, Any], passages: Sequence[Sequence[str]]) -> str:
    """Quote sentences of a passage; if the passage lacks them, give their numbers."""
    number, sentences = place["passage_id"], place["sentence_id"]
    passage = passages[number - 1] if 0 < number <= len(passages) else []
    if not sentences or not all(0 <= sentence < len(passage) for sentence in sentences):
        return f"passage {number}, sentence {', '.join(map(str, sentences))}"
    return f'"{_short(" ".join(passage[sentence] for sentence in sentences))}" ({passage[0]})'


def _short(text: str) -> str:
    """Return a text on one line, shortened at a word boundary."""
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE_CHARS else text[:_QUOTE_CHARS].rsplit(" ", 1)[0] + " …"
