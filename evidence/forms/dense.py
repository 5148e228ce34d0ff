"""The ablation of Appendix I.1: a label for each word of the response, without the words.

dense  {"textual_feedback": "...", "word_labels": "0 0 + + 0 -"}
"""

from collections.abc import Sequence
from typing import Any

from text2grad.reward_models.writing import LabelForm, UnusableLabelsError, check_number

SIGNS = {"+": 1, "-": -1, "0": 0}


def _between(words: Sequence[str]) -> list[str]:
    """Return the texts around the labels of words."""
    return ["", *[" "] * (len(words) - 1), '"}'] if words else ['"}']


def _read(value: Any, words: Sequence[str]) -> list[int]:
    """Return the labels of words."""
    if not isinstance(value, str):
        raise UnusableLabelsError("the labels are no text")
    signs = value.split()
    check_number("label", signs, words)
    for number, sign in enumerate(signs, start=1):
        if sign not in SIGNS:
            raise UnusableLabelsError(f"label {number} is {sign!r}, none of + - 0")
    return [SIGNS[sign] for sign in signs]


DENSE = LabelForm(
    "word_labels",
    "one label for each word and each mark of the response, in order and with spaces between: + for a good one, - for "
    "a poor one, 0 for any other",
    SIGNS,
    '"',
    _between,
    _read,
)
