"""Sentences of English text: where they begin and end."""

import re
from collections.abc import Iterator

_BREAK = re.compile(r"[.!?]+[\"”’')\]]*(?=\s|\Z)|\n+")
_SHORT = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|No|vs|etc|Lt|Col|Gen|Sgt|Prof|U\.S|U\.K|e\.g|i\.e)\.\Z")


def sentence_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters [start, end) of each sentence, without white space around it.

    Example:
        >>> text = "Dr. J. Lee came. He left"
        >>> [text[start:end] for start, end in sentence_ranges(text)]
        ['Dr. J. Lee came.', 'He left']
    """
    start = 0
    for stop in _BREAK.finditer(text):
        if stop.group() == "." and _SHORT.search(text, max(0, stop.start() - 12), stop.end()):
            continue
        yield from _trimmed(text, start, stop.end())
        start = stop.end()
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if piece.strip():
        yield start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
