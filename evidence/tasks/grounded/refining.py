"""A critique of a grounded answer → the answer without the sentences that it blames."""

from evidence.tasks.grounded.sentences import sentence_ranges
from text2grad.types import Critique


def refine_grounded(response: str, critique: Critique) -> str:
    """Return the answer without blamed sentences; an answer of blamed sentences alone stays as it is.

    Example:
        >>> from text2grad.types import Span
        >>> refine_grounded("It is in Lyon. It is old.", Critique("", (Span(9, 13, "negative"),)))
        'It is old.'
    """
    faults = [span for span in critique.spans if span.label == "negative"]
    kept = [
        response[start:end]
        for start, end in sentence_ranges(response)
        if not any(span.start < end and start < span.end for span in faults)
    ]
    return " ".join(kept) or response
