"""Words of answers: where one has the words of another, and which are new in it. Case and space do not matter."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

WORD = re.compile(r"\w+|[^\w\s]+")


def in_words(text: str) -> str:
    """Return the words of a text, in which those of another are looked for; case and space do not matter."""
    return f" {' '.join(_words(text)[1])} "


def places_of(quote: str, text: str) -> list[tuple[int, int]]:
    """Return the character ranges where a text has the words of a quote.

    Example:
        >>> places_of("one", "None, or ONE: one.")
        [(9, 12), (14, 17)]
    """
    (_, wanted), (ranges, words) = _words(quote), _words(text)
    starts = [at for at in range(len(words)) if wanted and words[at : at + len(wanted)] == wanted]
    return [(ranges[at][0], ranges[at + len(wanted) - 1][1]) for at in starts]


def comment_of(feedback: str, quotes: Iterable[str]) -> str:
    r"""Return feedback without the notes on quotes, which begin a line each; these if there is nothing else.

    Example:
        >>> comment_of('Be kind.\n"a\nb": rude\nAlways.', ["a\nb"])
        'Be kind.\nAlways.'
    """
    notes = "|".join(re.escape(f'"{quote}"') for quote in quotes)
    words = re.sub(rf"^(?:{notes})[^\n]*\n?", "", feedback, flags=re.MULTILINE) if notes else feedback
    return words.strip() or feedback


def new_words(old: str, new: str) -> list[tuple[int, int]]:
    """Return the character ranges of a text's words that difflib does not match with those of an older one.

    Example:
        >>> new_words("Open the directory.", "Now open the folder.")
        [(0, 3), (13, 19)]
    """
    (_, before), (ranges, after) = _words(old), _words(new)
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] in ("replace", "insert")]
    return [(ranges[first][0], ranges[last - 1][1]) for _, _, _, first, last in changed]


def _words(text: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the character range of each word of a text, and the word in lower case, in which it may be longer."""
    words = list(WORD.finditer(text))
    return [word.span() for word in words], [word.group().lower() for word in words]
