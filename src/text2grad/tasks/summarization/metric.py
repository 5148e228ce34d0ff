"""The metrics of summaries: the patterns of claimed facts, and ROUGE-L against the reference."""

from collections.abc import Sequence

from text2grad.tasks.base import split_words
from text2grad.tasks.facts import ClaimMetric
from text2grad.tasks.summarization.world import CAUSES, DAYS, FIRST_NAMES, LAST_NAMES, OBJECTS, PLACES, VERBS


def _any(words: Sequence[str]) -> str:
    return "(?:" + "|".join(words) + ")"


METRIC = ClaimMetric(
    {
        "who": rf"\b({_any(FIRST_NAMES)} {_any(LAST_NAMES)})(?= {_any(VERBS)}\b)",
        "did": rf"\b({_any(VERBS)})\b",
        "what": rf"\b{_any(VERBS)} the ({_any(OBJECTS)})\b",
        "where": rf"\bat the ({_any(PLACES)})\b",
        "when": rf"\bon ({_any(DAYS)})\b",
        "why": rf"\bbecause of the ({_any(CAUSES)})\b",
    }
)


def rouge_l(reference: str, response: str) -> float:
    """Return the F1 of the longest common subsequence of words, in [0, 1]; case and punctuation do not count.

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
