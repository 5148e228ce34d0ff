r"""A response and a corrected response → the changed parts of the response as negative spans.

This gives spans to feedback in words whose author also corrected the response. difflib compares words, signs, and line
breaks with the indentation after them; it ignores white space within a line. Text that the corrected response only adds
has no place in the response; it is counted.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from text2grad.feedback.words import words_of
from text2grad.types import Span

_BREAK = re.compile(r"(?:[ \t\r]*\n)+(?P<indent>[ \t]*)(?=\S)")


class Changes(NamedTuple):
    """The changes of a corrected response.

    Attributes:
        spans: the changed or deleted parts of the response, negative, in order.
        added: the number of added pieces of text.
    """

    spans: tuple[Span, ...]
    added: int


class _Piece(NamedTuple):
    key: str
    start: int
    end: int


def changed_spans(response: str, better: str) -> Changes:
    r"""Return the changes of a corrected response.

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
    """Split a text into words, signs, and line breaks with the indentation after them."""
    breaks = _BREAK.finditer("\n" + text)  # so that the first line has an indentation too
    pieces = [_Piece("\n" + match["indent"], max(match.start() - 1, 0), match.end() - 1) for match in breaks]
    pieces += [_Piece(text[start:end], start, end) for start, end in words_of(text)]
    return sorted(pieces, key=lambda piece: (piece.start, piece.end))


def _span(response: str, pieces: Sequence[_Piece], begin: int, end: int) -> Span:
    """Return the span of some pieces, without white space around it; a changed indentation marks the next word."""
    start, stop = pieces[begin].start, pieces[end - 1].end
    if not response[start:stop].strip():
        return Span(pieces[begin].end, pieces[min(end, len(pieces) - 1)].end, "negative")
    text = response[start:stop]
    return Span(start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip()), "negative")
