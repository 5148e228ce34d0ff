"""Responses with what a critic says of them: what phase 1 makes and phase 2 learns from (section 3.3).

On disk an annotation is a line of JSON, which `text2grad align` reads, too:

    {"prompt": ..., "response": ..., "critique": {"feedback": ..., "spans": [{"start", "end", "label"}, ...], ...}}

Every field has one type always, so that `datasets` loads the file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.feedback.critic import Critic, ask
from text2grad.feedback.records import critique_record, read_critique_records
from text2grad.feedback.spans import Match
from text2grad.files import write_records
from text2grad.types import Critique, Example


class Annotation(NamedTuple):
    """One response and its critique."""

    prompt: str
    response: str
    critique: Critique


def annotate(
    critic: Critic, examples: Sequence[Example], responses: Sequence[str], *, match: Match = "exact"
) -> list[Annotation]:
    """Return a critic's annotations of some responses, one each.

    Raises:
        CriticError: if the critic fails.
    """
    critiques = ask(critic, examples, responses, match=match)
    return [
        Annotation(example.prompt_text, response, critique)
        for example, response, critique in zip(examples, responses, critiques, strict=True)
    ]


def write_annotations(path: Path, annotations: Sequence[Annotation]) -> None:
    """Write annotations, whole or not at all."""
    write_records(path, map(annotation_record, annotations))


def annotation_record(annotation: Annotation) -> dict[str, Any]:
    """Return an annotation as JSON data; `read_critique_records` reads it."""
    spans = [{"start": span.start, "end": span.end, "label": span.label} for span in annotation.critique.spans]
    critique = {**critique_record(annotation.critique), "spans": spans}
    return {"prompt": annotation.prompt, "response": annotation.response, "critique": critique}


def read_annotations(path: str | Path) -> list[Annotation]:
    """Return the annotations of a file.

    Raises:
        DataError: if it cannot be read, or a line is no annotation.
    """
    return [Annotation(one.prompt, one.response, one.critique) for one in read_critique_records(path)]
