"""The metric: which claims an answer makes, and whether it is the reference.

It reads claims with one pattern per slot, wherever they stand, and knows nothing of the critic, which must never see
it. Precision is right / claimed, recall right / asked for, F1 2·right / (claimed + asked for): a claim that nobody
asked for or that is made twice costs precision, what is left out costs recall. A vague filler claims nothing.
"""

import re
from collections.abc import Mapping

from text2grad.tasks.base import split_words
from text2grad.tasks.qa.world import FIRST_NAMES, LAST_NAMES, VALUES

_ANY = {slot: "|".join(values) for slot, values in VALUES.items()}
_PATTERNS = {
    "who": rf"\b((?:{'|'.join(FIRST_NAMES)}) (?:{'|'.join(LAST_NAMES)})) teaches\b",
    "what": rf"\bteaches ({_ANY['what']})\b",
    "where": rf"\bin ({_ANY['where']})\b",
    "when": rf"\bon ({_ANY['when']})\b",
    "price": rf"\bfor ({_ANY['price']}) euros\b",
}
_CLAIMS = {slot: re.compile(pattern, re.IGNORECASE) for slot, pattern in _PATTERNS.items()}


def claims(response: str) -> list[tuple[str, str]]:
    """Return every claim of an answer, as (slot, value in lower case).

    Example:
        >>> claims("Ann Weber teaches chess somewhere for 40 euros .")
        [('who', 'ann weber'), ('what', 'chess'), ('price', '40')]
    """
    text = " ".join(split_words(response))
    return [(slot, value.lower()) for slot, pattern in _CLAIMS.items() for value in pattern.findall(text)]


def claim_scores(facts: Mapping[str, str], response: str) -> dict[str, float]:
    """Return F1, precision and recall of an answer's claims, each in [0, 1].

    Example:
        >>> claim_scores({"who": "Ann Weber", "when": "Monday"}, "Ann Weber teaches on Friday.")
        {'claim_f1': 0.5, 'claim_precision': 0.5, 'claim_recall': 0.5}
    """
    stated = claims(response)
    right = len({(slot, value.lower()) for slot, value in facts.items()} & set(stated))
    return {
        "claim_f1": 2 * right / (len(stated) + len(facts)),
        "claim_precision": right / len(stated) if stated else 0.0,
        "claim_recall": right / len(facts),
    }
