"""The metrics of grounded answers, by an extractor that shares nothing with the critic's.

The critic joins capitalized words to names and reads clauses; this extractor goes word by word, and a dictionary
(pyspellchecker) decides about words at the beginning of a sentence. Names count by word: a name is a word with a
capital letter that is no first word of a sentence, or that no dictionary has. Numbers are digits. Either is supported
if passage or question has the same letters or digits.
"""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from evidence.tasks.grounded.passage import passage_and_question
from evidence.tasks.stories.words import is_english
from text2grad.types import Example

_PIECE = re.compile(r"[A-Za-zÀ-ɏ]+|[0-9]+|[.!?:\n]")
RUN = 5
_SHORT_LETTERS = 3  # longest word that carries no content in recall, such as "the"


class Reading(NamedTuple):
    """The names and numbers of an answer."""

    unsupported: int
    all: int
    recall: float | None  # None if the gold answer has no word that could be found
    words: int
    copied: float  # share of words in runs of `RUN` words or more that the passage has in this order
    f1: float | None  # overlap with the gold answer's words, as in SQuAD; None without a gold answer


def read_grounded(example: Example, response: str) -> Reading:
    """Return the counts of one answer, and its recall of the gold answer.

    Recall is the share of the gold answer's numbers and words of four letters or more that the answer has. Only words
    that the passage has and the question has not are asked for. Without a gold answer, as for a summary, the passage
    takes its place.

    Example:
        >>> meta = {"passage": "Ana Ruiz drew 22 arches in ink.", "question": "Who drew them?"}
        >>> read_grounded(Example("...", "Ana Ruiz, in ink.", meta=meta), "Ana Ruiz drew 24 arches for Lyon.")
        Reading(unsupported=2, all=3, recall=1.0, words=7, copied=0.0, f1=0.36363636363636365)
    """
    passage, question = passage_and_question(example)
    given = _set(f"{passage} {question}")
    found = _names_and_numbers(response)
    gold = {w for w in _set(example.reference or passage) if len(w) > _SHORT_LETTERS or w.isdigit()}
    gold = (gold & _set(passage)) - _set(question)
    recall = len(gold & _set(response)) / len(gold) if gold else None
    unsupported = sum(name not in given for name in found)
    words = _words(response)
    f1 = _f1(words, _words(example.reference)) if example.reference else None
    return Reading(unsupported, len(found), recall, len(response.split()), _copied(words, _words(passage)), f1)


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
        copied_share: mean share of words in runs of `RUN` words or more that the passage has (`copied` of one answer).
        f1: mean over the answers that have a gold answer.
    """
    readings = [read_grounded(example, response) for example, response in zip(examples, responses, strict=True)]
    each = [
        {
            "unsupported_share": one.unsupported / max(one.all, 1),
            "unsupported": float(one.unsupported),
            "names_and_numbers": float(one.all),
            **({} if one.recall is None else {"recall": one.recall}),
            **({} if one.f1 is None else {"f1": one.f1}),
            "words": float(one.words),
            "copied": one.copied,
        }
        for one in readings
    ]
    recalls = [reading.recall for reading in readings if reading.recall is not None]
    f1 = [reading.f1 for reading in readings if reading.f1 is not None]
    return {
        "unsupported_share": sum(one.unsupported for one in readings) / max(sum(one.all for one in readings), 1),
        "answers_with_unsupported": fmean(one.unsupported > 0 for one in readings),
        "unsupported": fmean(one.unsupported for one in readings),
        "names_and_numbers": fmean(one.all for one in readings),
        "recall": fmean(recalls) if recalls else 0.0,
        "mean_words": fmean(one.words for one in readings),
        "copied_share": fmean(reading.copied for reading in readings),
        "f1": fmean(f1) if f1 else 0.0,
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


def _words(text: str) -> list[str]:
    """Return the words and numbers of a text in small letters."""
    return [piece.casefold() for piece in _PIECE.findall(text) if piece not in ".!?:\n"]


def _copied(words: Sequence[str], passage: Sequence[str]) -> float:
    """Return the share of words that stand in runs of `RUN` words or more that the passage has in the same order."""
    runs = {tuple(passage[start : start + RUN]) for start in range(len(passage) - RUN + 1)}
    inside = {
        start + offset
        for start in range(len(words) - RUN + 1)
        if tuple(words[start : start + RUN]) in runs
        for offset in range(RUN)
    }
    return len(inside) / max(len(words), 1)


def _f1(words: Sequence[str], gold: Sequence[str]) -> float:
    """Return 2 · shared / all of two bags of words, without articles."""
    said, wanted = (Counter(word for word in bag if word not in ("a", "an", "the")) for bag in (words, gold))
    return 2 * (said & wanted).total() / max(said.total() + wanted.total(), 1)
