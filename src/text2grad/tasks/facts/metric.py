"""The metric of facts: the claims of an answer, found by patterns, against the true facts.

    precision = right / claimed,  recall = right / facts,  F1 = 2 · right / (claimed + facts)

A claim counts each time it is made, so a repeated or superfluous claim costs precision; a fact that is left out costs
recall. A vague filler claims nothing. The metric shares no code with the critic, which never sees it.
"""

import re
from collections.abc import Iterable, Mapping

from text2grad.tasks.base import split_words


class ClaimMetric:
    r"""Finds claims with one pattern for each slot, anywhere in the answer.

    Example:
        >>> metric = ClaimMetric({"what": r"\bteaches (chess|yoga)\b", "when": r"\bon (Monday|Friday)\b"})
        >>> metric.claims("Ann teaches chess on Friday .")
        [('what', 'chess'), ('when', 'friday')]
        >>> metric.scores({"what": "chess", "when": "Monday"}, "Ann teaches chess on Friday.")
        {'f1': 0.5, 'precision': 0.5, 'recall': 0.5}
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        """Compile the patterns: slot → regular expression whose only group is the claimed value."""
        self._patterns = {slot: re.compile(pattern, re.IGNORECASE) for slot, pattern in patterns.items()}

    def claims(self, response: str) -> list[tuple[str, str]]:
        """Return every claim of an answer as (slot, value in lower case)."""
        text = " ".join(split_words(response))
        return [(slot, value.lower()) for slot, pattern in self._patterns.items() for value in pattern.findall(text)]

    def scores(self, facts: Mapping[str, str], response: str) -> dict[str, float]:
        """Return F1, precision and recall of an answer's claims, each in [0, 1]."""
        return self.scores_of_parts([(facts, response)])

    def scores_of_parts(self, parts: Iterable[tuple[Mapping[str, str], str]]) -> dict[str, float]:
        r"""Return F1, precision and recall of all claims of an answer, each part of it judged by facts of its own.

        Example:
            >>> metric = ClaimMetric({"when": r"\bon (Monday|Friday)\b"})
            >>> parts = [({"when": "Monday"}, "on Friday"), ({"when": "Friday"}, "on Friday"), ({}, "on Friday")]
            >>> metric.scores_of_parts(parts)["recall"]
            0.5
        """
        stated, true, right = 0, 0, 0
        for facts, text in parts:
            claims = self.claims(text)
            stated, true = stated + len(claims), true + len(facts)
            right += len({(slot, value.lower()) for slot, value in facts.items()} & set(claims))
        return {
            "f1": 2 * right / (stated + true),
            "precision": right / stated if stated else 0.0,
            "recall": right / true,
        }
