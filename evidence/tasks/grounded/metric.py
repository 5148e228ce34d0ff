"""The metrics of grounded answers, by an extractor that shares nothing with the critic's.

The critic joins capitalized words to names and reads clauses; this extractor goes word by word, and a dictionary
(pyspellchecker) decides about words at the beginning of a sentence. Names count by word: a name is a word with a
capital letter that is no first word of a sentence, or that no dictionary has. Numbers are digits. Either is supported
if passage or question has the same letters or digits.
"""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from evidence.tasks.grounded.passage import passage_and_question
from evidence.tasks.stories.words import is_english
from text2grad.types import Example

_PIECE = re.compile(r"[A-Za-zÀ-ɏ]+|[0-9]+|[.!?:\n]")
_SHORT_LETTERS = 3  # longest word that carries no content in recall, such as "the"


class Reading(NamedTuple):
    """The names and numbers of an answer."""

    unsupported: int
    all: int
    recall: float | None  # None if the gold answer has no word that could be found
    words: int


def read_grounded(example: Example, response: str) -> Reading:
    """Return the counts of one answer, and its recall of the gold answer.

    Recall is the share of the gold answer's numbers and words of four letters or more that the answer has. Only words
    that the passage has and the question has not are asked for. Without a gold answer, as for a summary, the passage
    takes its place.

    Example:
        >>> meta = {"passage": "Ana Ruiz drew 22 arches in ink.", "question": "Who drew them?"}
        >>> read_grounded(Example("...", "Ana Ruiz, in ink.", meta=meta), "Ana Ruiz drew 24 arches for Lyon.")
        Reading(unsupported=2, all=3, recall=1.0, words=7)
    """
    passage, question = passage_and_question(example)
    given = _set(f"{passage} {question}")
    found = _names_and_numbers(response)
    gold = {w for w in _set(example.reference or passage) if len(w) > _SHORT_LETTERS or w.isdigit()}
    gold = (gold & _set(passage)) - _set(question)
    recall = len(gold & _set(response)) / len(gold) if gold else None
    return Reading(sum(one not in given for one in found), len(found), recall, len(response.split()))


def grounded_metrics(
    examples: Sequence[Example], responses: Sequence[str]
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return the metrics of a set of answers, and of each answer.

    Args:
        examples: with `passage` and `question` in `meta`, and a gold answer where there is one.
        responses: one per example.

    Returns:
        unsupported_share: unsupported names and numbers / all names and numbers, over the whole set or of one answer.
        answers_with_unsupported: answers with at least one (of a set).
        unsupported: unsupported names and numbers per answer.
        names_and_numbers: all of them per answer.
        recall: mean recall over the answers that have one.
        mean_words: words per answer (`words` of one answer).
    """
    readings = [read_grounded(example, response) for example, response in zip(examples, responses, strict=True)]
    each = [
        {
            "unsupported_share": one.unsupported / max(one.all, 1),
            "unsupported": float(one.unsupported),
            "names_and_numbers": float(one.all),
            **({} if one.recall is None else {"recall": one.recall}),
            "words": float(one.words),
        }
        for one in readings
    ]
    recalls = [one.recall for one in readings if one.recall is not None]
    return {
        "unsupported_share": sum(one.unsupported for one in readings) / max(sum(one.all for one in readings), 1),
        "answers_with_unsupported": fmean(one.unsupported > 0 for one in readings),
        "unsupported": fmean(one.unsupported for one in readings),
        "names_and_numbers": fmean(one.all for one in readings),
        "recall": fmean(recalls) if recalls else 0.0,
        "mean_words": fmean(one.words for one in readings),
    }, each


def _names_and_numbers(text: str) -> list[str]:
    found, begins = [], True
    for match in _PIECE.finditer(text):
        piece = match.group()
        if piece in ".!?:\n":
            begins = True
            continue
        if piece.isdigit() or _is_name(piece, begins):
            found.append(piece.casefold())
        begins = False
    return found


def _is_name(word: str, begins: bool) -> bool:
    if not word[0].isupper() or len(word) == 1:
        return False
    return not is_english(word) if begins else True


def _set(text: str) -> set[str]:
    return {match.group().casefold() for match in _PIECE.finditer(text) if match.group() not in ".!?:\n"}
