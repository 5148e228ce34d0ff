"""Words of answers: where one has the words of another, and which are new in it. Case and space do not matter."""

import re
from difflib import SequenceMatcher

WORD = re.compile(r"\w+|[^\w\s]+")


def in_words(text: str) -> str:
    """Return the words of a text, in which those of another are looked for; case and space do not matter."""
    return f" {' '.join(WORD.findall(text.lower()))} "


def places_of(quote: str, text: str) -> list[tuple[int, int]]:
    """Return the character ranges where a text has the words of a quote.

    Example:
        >>> places_of("one", "None, or ONE: one.")
        [(9, 12), (14, 17)]
    """
    wanted, words = in_words(quote).split(), list(WORD.finditer(text))
    said = [word.group().lower() for word in words]
    starts = [at for at in range(len(words)) if wanted and said[at : at + len(wanted)] == wanted]
    return [(words[at].start(), words[at + len(wanted) - 1].end()) for at in starts]


def new_words(old: str, new: str) -> list[tuple[int, int]]:
    """Return the character ranges of a text's words that difflib does not match with those of an older one.

    Example:
        >>> new_words("Open the directory.", "Now open the folder.")
        [(0, 3), (13, 19)]
    """
    words = list(WORD.finditer(new))
    before, after = (in_words(text).split() for text in (old, new))
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [block for block in blocks if block[0] in ("replace", "insert")]
    return [(words[first].start(), words[last - 1].end()) for _, _, _, first, last in changed]
