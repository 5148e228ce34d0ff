r"""A marked answer and another answer to the same prompt → positive spans, where the other departs from the marks.

    marked       To undo it, you can use `git reset`.        "To undo it, you can use": negative
    alternative  Use `git reset`.                            "Use": positive, since it stands in place of the mark

Words are compared by difflib. Words of the alternative that replace others than the marked ones get no span, since the
comment does not speak of them.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from text2grad.types import Critique, Span

WORD = re.compile(r"\w+|[^\w\s]+")


def in_words(text: str) -> str:
    """Return the words of a text, in which those of another are looked for; case and space do not matter."""
    return f" {' '.join(WORD.findall(text.lower()))} "


def departing(response: str, marks: Sequence[Span], alternative: str) -> Critique | None:
    """Return the critique of an alternative: positive where it departs from the marked words; None if it keeps any.

    Where nothing stands in place of marked words, the word behind them is positive, or, at the end of the alternative,
    the end itself: an outcome of 1 on the last token. Only negative marks count.

    Example:
        >>> marks = [Span(9, 19, "negative")]
        >>> departing("Open the directory.", marks, "Open the folder.").spans
        (Span(start=9, end=15, label='positive'),)
        >>> departing("Open the directory.", marks, "Go to the directory.") is None
        True
    """
    marks = [mark for mark in marks if mark.label == "negative"]
    ours, theirs = (list(WORD.finditer(text)) for text in (response, alternative))
    said = in_words(alternative)
    if any(in_words(response[mark.start : mark.end]) in said for mark in marks):
        return None
    marked = [any(mark.start < word.end() and word.start() < mark.end for mark in marks) for word in ours] + [False]
    spans, ends = list[Span](), False
    old, new = ([word.group() for word in words] for words in (ours, theirs))
    for kind, start, stop, begin, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal" or not any(marked[start : max(stop, start + 1)]):  # also what is put before a marked word
            continue
        if begin < len(theirs):
            spans.append(Span(theirs[begin].start(), theirs[max(end, begin + 1) - 1].end(), "positive"))
        ends = ends or begin == len(theirs)
    return Critique("", tuple(spans), 1.0 if ends else None) if spans or ends else None
