"""Annotations and predictions -> pairs that are about the same response, or an error that says which are not."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import DataError
from text2grad.feedback import CritiqueRecord, Match, read_critique_records
from text2grad.types import Critique


class Pair(NamedTuple):
    """A response, what a critic says of it, and what the annotator says.

    Attributes:
        where: file and line of the annotation.
        prompt: what was asked.
        response: what was answered, and what the spans of both count characters of.
        predicted: the critic's critique.
        true: the annotator's.
    """

    where: str
    prompt: str
    response: str
    predicted: Critique
    true: Critique


def read_truth(path: Path, *, limit: int | None = None) -> list[CritiqueRecord]:
    """Return the annotations of a file, which are taken as the truth.

    Raises:
        DataError: if the file cannot be read or is empty, or one of its critiques could not be read when it was made.
    """
    annotations = list(read_critique_records(path, limit=limit))
    failed = [one for one in annotations if one.critique.failed]
    if failed:
        raise DataError(
            f'{failed[0].where}: the annotation has status "{failed[0].critique.status}", so it says nothing that a '
            f"critic could be compared with ({len(failed):,} of {len(annotations):,} are such). Leave these lines out"
        )
    return annotations


def read_predictions(
    path: Path, truth: Sequence[CritiqueRecord], *, match: Match = "exact", whole: bool = True
) -> list[Pair]:
    """Return the annotations with the predictions of a file.

    Args:
        path: JSONL with a prompt, a response and a critique in each line, in any order.
        truth: the annotations. Of a response that is annotated twice the first prediction goes to the first
            annotation; a single prediction goes to both.
        match: how quotes are found in the response.
        whole: True refuses predictions of responses that are not annotated.

    Raises:
        DataError: if a response has no prediction, or the other way round.
    """
    waiting: dict[tuple[str, str], deque[CritiqueRecord]] = defaultdict(deque)
    for one in read_critique_records(path, match=match):
        waiting[one.prompt, one.response].append(one)
    known = {(one.prompt, one.response) for one in truth}
    missing = [one for one in truth if (one.prompt, one.response) not in waiting]
    if missing:
        raise DataError(
            f"{path} has no prediction of {len(missing):,} of {len(truth):,} annotated responses, the first of them "
            f"{missing[0].where}: {_shown(missing[0].response)}. Predictions are matched by prompt and response, "
            "character by character; predict these too, or evaluate the annotations that have one"
        )
    extra = [one for key, ones in waiting.items() if key not in known for one in ones]
    if extra and whole:
        raise DataError(
            f"{path} holds {len(extra):,} predictions of responses that are not annotated, the first of them "
            f"{extra[0].where}: {_shown(extra[0].response)}. Leave them out, or name the annotations they belong to"
        )
    return paired(truth, (_next(waiting[one.prompt, one.response]).critique for one in truth))


def paired(truth: Sequence[CritiqueRecord], predicted: Iterable[Critique]) -> list[Pair]:
    """Return annotations with the critiques that stand in the same order."""
    pairs = zip(truth, predicted, strict=True)
    return [Pair(one.where, one.prompt, one.response, critique, one.critique) for one, critique in pairs]


def _next(waiting: deque[CritiqueRecord]) -> CritiqueRecord:
    """Take the next prediction of a response; the last one stays."""
    return waiting.popleft() if len(waiting) > 1 else waiting[0]


def _shown(text: str) -> str:
    """Return the beginning of a text on one line."""
    text = " ".join(text.split())
    return repr(text if len(text) <= 60 else text[:57] + "...")
