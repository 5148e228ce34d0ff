r"""A response and a better one -> the places that the better one changed, as negative spans.

This grounds words that name no place, where the person who wrote them also mended the response (ILF, arXiv
2303.16749). Compared are words, signs and line breaks with their indentation, by difflib; white space within a line
does not count. What the better response only adds has no place in the first, and is counted.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from text2grad.types import Span

_PIECE = re.compile(r"(?:[ \t\r]*\n)+(?P<indent>[ \t]*)(?=\S)|\w+|[^\w\s]")


class Changes(NamedTuple):
    """What a better response changed.

    Attributes:
        spans: the places of the first that are not in the better one, negative, in order.
        added: how many pieces of text the better one only adds.
    """

    spans: tuple[Span, ...]
    added: int


class _Piece(NamedTuple):
    key: str
    start: int
    end: int


def changed_spans(response: str, better: str) -> Changes:
    r"""Return what a better response changed.

    Example:
        >>> response = "def add(a, b):\n    return a - b"
        >>> changes = changed_spans(response, "def add(a, b):\n    return a + b\n")
        >>> [response[span.start : span.end] for span in changes.spans], changes.added
        (['-'], 0)
        >>> changed_spans("Lyon.", "Lyon, on Friday.")
        Changes(spans=(), added=1)
    """
    old, new = _pieces(response), _pieces(better)
    matcher = SequenceMatcher(None, [piece.key for piece in old], [piece.key for piece in new], autojunk=False)
    spans, added = [], 0
    for tag, begin, end, _, _ in matcher.get_opcodes():
        if tag == "insert":
            added += 1
        elif tag != "equal":
            spans.append(_span(response, old, begin, end))
    return Changes(tuple(spans), added)


def _pieces(text: str) -> list[_Piece]:
    """Cut a text into words, signs and line breaks with the indentation after them."""
    found = _PIECE.finditer("\n" + text)  # the first line has an indentation, too
    return [
        _Piece(
            match[0] if match["indent"] is None else "\n" + match["indent"], max(match.start() - 1, 0), match.end() - 1
        )
        for match in found
    ]


def _span(response: str, pieces: Sequence[_Piece], begin: int, end: int) -> Span:
    """Return the place of some pieces without white space around it; a changed indentation marks the word after it."""
    start, stop = pieces[begin].start, pieces[end - 1].end
    if not response[start:stop].strip():
        return Span(pieces[begin].end, pieces[min(end, len(pieces) - 1)].end, "negative")
    text = response[start:stop]
    return Span(start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip()), "negative")
