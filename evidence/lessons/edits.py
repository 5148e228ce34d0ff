"""A marked answer → the answer as an editor would leave it, who knows of a lesson what its program knows.

begin      the marked words cut, and the first letter made a capital
sentence   the marked words cut, so that the first sentence stays; nothing where it has no end
unknown    the words of the passage that answer, or "I don't know."
folder     "folder" in place of "directory"
"""

import re
from collections.abc import Callable, Mapping, Sequence

from text2grad.tasks import Lesson
from text2grad.types import Example, Span


def cut(response: str, spans: Sequence[Span]) -> str:
    """Return a response without the words of some spans."""
    return "".join(c for place, c in enumerate(response) if not any(s.start <= place < s.end for s in spans))


def begin(example: Example, response: str, spans: Sequence[Span]) -> str:
    """Return the rest, from its first word, with a capital letter."""
    rest = cut(response, spans).lstrip(" \n,;:")
    return rest[:1].upper() + rest[1:]


def sentence(example: Example, response: str, spans: Sequence[Span]) -> str:
    """Return the first sentence, or nothing if it has no end."""
    first = cut(response, spans).strip()
    return first if first.endswith((".", "!", "`")) else ""


def unknown(example: Example, response: str, spans: Sequence[Span]) -> str:
    """Return the right answer."""
    return example.reference or "I don't know."


def folder(example: Example, response: str, spans: Sequence[Span]) -> str:
    """Return the response with the house's word, in the case of the other."""

    def house(match: re.Match[str]) -> str:
        word = "folders" if match[0].lower().endswith("ies") else "folder"
        return word.upper() if match[0].isupper() else word.capitalize() if match[0][0].isupper() else word

    return re.sub("director(?:y|ies)", house, response, flags=re.IGNORECASE)


EDITS: Mapping[str, Callable[[Example, str, Sequence[Span]], str]] = {
    "begin": begin,
    "sentence": sentence,
    "unknown": unknown,
    "folder": folder,
}
"""Name of a lesson → the edit of an answer with its marks."""

KEEPS_END = frozenset({"begin", "folder"})
"""The lessons whose edits end as the marked answer does: where the length limit ended it, so do they."""


def edited(name: str, lesson: Lesson, example: Example, response: str) -> str:
    """Return the edited answer, without a mark of the lesson's program; "" if no word is left.

    Example:
        >>> from text2grad.tasks import ready_lesson
        >>> edited("begin", ready_lesson("begin"), Example("How?"), "To do it, you can use the `rm` command.")
        '`rm` command.'
    """
    while response and (spans := lesson.critique(example, response).spans):
        response = EDITS[name](example, response, spans)
    return response if re.search(r"\w", response) else ""
