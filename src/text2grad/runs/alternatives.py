"""A marked answer and another answer to the same prompt: whether this keeps marked words, and its new words.

Words are compared whatever their case; the new ones are found by difflib.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from text2grad.types import Span

WORD = re.compile(r"\w+|[^\w\s]+")


def keeps_mark(response: str, marks: Sequence[Span], alternative: str) -> bool:
    """Return whether the marked words of a response stand in an alternative, as words and in their order.

    Example:
        >>> keeps_mark("Open the directory.", [Span(9, 18, "negative")], "Go to the Directory.")
        True
    """
    texts = alternative, *(response[mark.start : mark.end] for mark in marks if mark.label == "negative")
    said, *quotes = (f" {' '.join(WORD.findall(text.lower()))} " for text in texts)
    return any(quote in said for quote in quotes)


def new_words(old: str, new: str) -> tuple[Span, ...]:
    """Return positive spans on the words of `new` that stand in place of others in `old`, or between them.

    Example:
        >>> new_words("Open the directory.", "Open the folder.")
        (Span(start=9, end=15, label='positive'),)
    """
    theirs = list(WORD.finditer(new))
    words = WORD.findall(old), [word.group() for word in theirs]
    changes = SequenceMatcher(None, *words, autojunk=False).get_opcodes()
    places = [(begin, end) for kind, _, _, begin, end in changes if kind != "equal" and begin < end]
    return tuple(Span(theirs[begin].start(), theirs[end - 1].end(), "positive") for begin, end in places)
