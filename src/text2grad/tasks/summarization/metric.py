"""The metric: which facts a summary states, and how close its words are to the reference.

It reads facts with one pattern per slot, wherever they stand, and knows nothing of the critic, which must
never see it. Fact F1 is 2·right / (claimed + 6): every claim counts towards precision, also a repeated
one, and the six facts of the event towards recall. A vague filler claims nothing.
"""

import re
from collections.abc import Mapping, Sequence

from text2grad.tasks.base import split_words
from text2grad.tasks.summarization.world import CAUSES, DAYS, FIRST_NAMES, LAST_NAMES, OBJECTS, PLACES, VERBS


def _any(words: Sequence[str]) -> str:
    return "(?:" + "|".join(words) + ")"


_PATTERNS = {
    "who": rf"\b({_any(FIRST_NAMES)} {_any(LAST_NAMES)})(?= {_any(VERBS)}\b)",
    "did": rf"\b({_any(VERBS)})\b",
    "what": rf"\b{_any(VERBS)} the ({_any(OBJECTS)})\b",
    "where": rf"\bat the ({_any(PLACES)})\b",
    "when": rf"\bon ({_any(DAYS)})\b",
    "why": rf"\bbecause of the ({_any(CAUSES)})\b",
}
_CLAIMS = {slot: re.compile(pattern, re.IGNORECASE) for slot, pattern in _PATTERNS.items()}


def claims(response: str) -> list[tuple[str, str]]:
    """Return every fact that a response states, as (slot, value in lower case).

    Example:
        >>> claims("Maria Lopez fixed the bike somewhere on Friday .")
        [('who', 'maria lopez'), ('did', 'fixed'), ('what', 'bike'), ('when', 'friday')]
    """
    text = " ".join(split_words(response))
    return [(slot, value.lower()) for slot, pattern in _CLAIMS.items() for value in pattern.findall(text)]


def fact_f1(facts: Mapping[str, str], response: str) -> float:
    """Return the F1 of the facts a response states against the event's, in [0, 1]."""
    stated = claims(response)
    right = {(slot, value.lower()) for slot, value in facts.items()} & set(stated)
    return 2 * len(right) / (len(stated) + len(facts))


def rouge_l(reference: str, response: str) -> float:
    """Return the F1 of the longest common subsequence of words, case and punctuation aside, in [0, 1].

    Example:
        >>> round(rouge_l("the cat sat down", "the dog sat"), 3)
        0.571
    """
    left, right = _plain_words(reference), _plain_words(response)
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for j, other in enumerate(right, start=1):
            above = row[j]
            row[j] = diagonal + 1 if word == other else max(above, row[j - 1])
            diagonal = above
    return 2 * row[-1] / (len(left) + len(right)) if left or right else 0.0


def _plain_words(text: str) -> list[str]:
    return [word for word in split_words(text.lower()) if word.isalnum()]
