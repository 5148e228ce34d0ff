"""Annotations and predictions → pairs of critiques of the same response; a response without a partner is an error.

The predictions are those of a file, or of a critic (`CachedCritic`).

critic.json   the critic that wrote the critiques of a directory; another critic is refused there
"""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.config import Recipe, digest_of
from text2grad.critics.servers import Comparison
from text2grad.errors import DataError
from text2grad.feedback import CritiqueRecord, Match, read_critique_records, read_examples, refuse_half_pairs
from text2grad.files import claim
from text2grad.reward_models import critique_target
from text2grad.runs.prompts import world_of
from text2grad.types import Critique


class Pair(NamedTuple):
    """A response with the critiques of a critic (predicted) and of an annotator (true).

    `where` is file and line of the annotation. The spans of the critiques count characters of the response.
    """

    where: str
    prompt: str
    response: str
    predicted: Critique
    true: Critique


def read_truth(path: Path, *, limit: int | None = None, to_encode: bool = False) -> list[CritiqueRecord]:
    """Return the annotations of a file, the truth; with `to_encode`, for a model that encodes prompts and responses.

    Raises:
        DataError: if the file cannot be read or is empty, holds a critique with a failed status, or a text that no
            model can encode.
    """
    annotations = list(read_critique_records(path, limit=limit))
    for record in annotations if to_encode else ():
        refuse_half_pairs(record.where, prompt=record.prompt, response=record.response)
    if failed := [record for record in annotations if record.critique.failed]:
        raise DataError(
            f'{failed[0].where}: the annotation has status "{failed[0].critique.status}" and cannot be compared with '
            f"a prediction; {len(failed):,} of {len(annotations):,} annotations have no critique. Leave these lines out"
        )
    return annotations


def read_predictions(
    path: Path, truth: Sequence[CritiqueRecord], *, match: Match = "exact", whole: bool = True
) -> list[Pair]:
    """Pair annotations with the predictions in a file.

    Args:
        path: JSONL with a prompt, a response and a critique in each line, in any order.
        truth: the annotations. If a response is annotated twice, the first prediction is paired with the first
            annotation; a single prediction is paired with both.
        match: how quotes are located in the response.
        whole: True refuses predictions of responses without annotation.

    Raises:
        DataError: if a response has no prediction, or a prediction has no annotation.
    """
    waiting: dict[tuple[str, str], list[CritiqueRecord]] = defaultdict(list)
    for record in read_critique_records(path, match=match):
        waiting[record.prompt, record.response].append(record)
    known = {(record.prompt, record.response) for record in truth}
    if missing := [record for record in truth if (record.prompt, record.response) not in waiting]:
        raise DataError(
            f"{path} has no prediction for {len(missing):,} of {len(truth):,} annotated responses; the first is "
            f"{missing[0].where}: {missing[0].response[:60]!r}. Prompt and response must be equal, character by "
            "character. Add predictions for these responses, or evaluate only annotations with a prediction"
        )
    extra = [record for key, records in waiting.items() if key not in known for record in records]
    if extra and whole:
        raise DataError(
            f"{path} holds {len(extra):,} predictions for responses without annotation; the first is "
            f"{extra[0].where}: {extra[0].response[:60]!r}. Leave them out, or add their annotations"
        )
    theirs = [waiting[record.prompt, record.response] for record in truth]
    return paired(truth, [records.pop(0).critique if len(records) > 1 else records[0].critique for records in theirs])


def paired(truth: Sequence[CritiqueRecord], predicted: Iterable[Critique]) -> list[Pair]:
    """Pair annotations with critiques in the same order."""
    pairs = zip(truth, predicted, strict=True)
    return [Pair(record.where, record.prompt, record.response, critique, record.critique) for record, critique in pairs]


def identity_of(critic: Any, name: str, recipe: Recipe) -> dict[str, Any]:
    """Return what decides a critic's answers: its name, its settings, and the files in which it is defined."""
    path, form = Path(name), getattr(critic, "format", None)
    with suppress(OSError, TypeError):  # of what is defined in no file
        path = path if path.is_dir() else Path(inspect.getfile(critic if inspect.isfunction(critic) else type(critic)))
    return {
        "critic": name,
        "truths": world_of(recipe)[0].truths,
        "match": recipe.critic.match,
        "format": asdict(form) if form else None,
        "files": digest_of(path) if path.exists() else "",
    }


def check_identity(out: Path, identity: Mapping[str, Any]) -> None:
    """Create a directory of critiques, or check that an existing directory belongs to the same critic.

    Raises:
        ConfigError: if the directory holds critiques of another critic, or cannot be written.
    """
    way_out = f"remove {out / 'critic.json'} and the critiques beside it to run the critic again"
    claim(out / "critic.json", identity, holds="critiques of another critic", way_out=way_out)


def read_comparisons(first: Path, second: Path, *, limit: int | None = None) -> list[Comparison]:
    """Return the pairs of texts about the same prompts in two files.

    Args:
        first: JSONL of critiques if its first record has a critique, else of responses with "prompt" and "response".
        second: the same about the same prompts, in any order.
        limit: number of pairs, in the order of `first`.

    Raises:
        DataError: if a file cannot be read, or the files are not about the same prompts.
    """
    example = next(iter(read_examples(first)), None)
    if example is not None and "critique" in example.meta:
        truth = list(read_critique_records(first, limit=limit))
        pairs = read_predictions(second, truth, whole=limit is None)
        return [
            Comparison(p.prompt, p.response, *(critique_target(said, p.response) for said in (p.true, p.predicted)))
            for p in pairs
        ]
    sides = [_responses(path) for path in (first, second)]
    if differing := list(sides[0].keys() ^ sides[1].keys()):
        raise DataError(
            f"{first} and {second} do not answer the same prompts: {len(differing):,} prompts occur in "
            f"one file only, such as {min(differing)[:60]!r}. Give two files of responses to the same prompts"
        )
    prompts = list(sides[0])[:limit]
    return [Comparison(prompt, None, sides[0][prompt], sides[1][prompt]) for prompt in prompts]


def _responses(path: Path) -> dict[str, str]:
    """Return the response to each prompt in a file."""
    responses: dict[str, str] = {}
    for example in read_examples(path):
        response = example.meta.get("response")
        if not isinstance(response, str):
            raise DataError(f'{path}: each line needs the texts "prompt" and "response"')
        if responses.setdefault(example.prompt_text, response) != response:
            raise DataError(
                f"{path}: the prompt {example.prompt_text[:60]!r} has two responses. Leave one of them out, so that "
                "each prompt is judged once"
            )
    return responses
