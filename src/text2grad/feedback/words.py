"""Text → the character ranges of its words, in any script, and of its steps: lines, sentences or clauses."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from text2grad.errors import check_known

_SPACELESS = (  # Thai, Lao, Burmese, Khmer, Chinese, Japanese; Korean, whose particles join the noun
    r"\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff"
    r"\uff66-\uff9f\U00020000-\U0003ffff"
)
_LETTER = re.compile(rf"[^\W{_SPACELESS}]")
_RUN = re.compile(r"\w++|[^\w\s]")

_MOST_MARKS = 64  # most combining marks after a letter: bounds the search for that letter


def inside_word(text: str, position: int) -> bool:
    """Return True if this position is inside a word; combining marks and joiners belong to the letter before them."""
    if not 0 < position < len(text) or not (_LETTER.match(text, position) or _continues(text[position])):
        return False
    before = position - 1
    while before > max(0, position - _MOST_MARKS) and _continues(text[before]):
        before -= 1
    return bool(_LETTER.match(text, before))


def words_of(response: str) -> list[tuple[int, int]]:
    """Return the character range of each word of a response.

    A word is a run of letters and digits, or one other visible character: a letter of a script without spaces, a
    punctuation mark, an emoji. Accents, vowel signs and joiners belong to the character before them.

    Example:
        >>> words_of("It's 5 €")
        [(0, 2), (2, 3), (3, 4), (5, 6), (7, 8)]
    """
    visible = ((place, place + 1) for place, character in enumerate(response) if not character.isspace())
    return _joined(visible, lambda _, place: inside_word(response, place) or _continues(response[place]))


def whole_words(text: str) -> list[tuple[int, int]]:
    """Return the character range of each word of a text; unlike `words_of`, also in scripts without spaces.

    Example:
        >>> whole_words("日本 5 €")
        [(0, 2), (3, 4), (5, 6)]
    """
    runs = (run.span() for run in _RUN.finditer(text))
    return _joined(
        runs, lambda first, place: (is_letter(text[first]) and is_letter(text[place])) or _continues(text[place])
    )


def _joined(pieces: Iterable[tuple[int, int]], joins: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Join each piece to the word right before it, if `joins` says so of the places where the two begin."""
    words: list[tuple[int, int]] = []
    for start, end in pieces:
        if words and words[-1][1] == start and joins(words[-1][0], start):
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
    return words


def is_letter(character: str) -> bool:
    """Return True for a letter, a digit or "_"."""
    return character.isalnum() or character == "_"


def _continues(character: str) -> bool:
    """Return True for an accent, a vowel sign or a joiner, which never begin a word."""
    return character > "\u02ff" and (character in "\u200c\u200d" or unicodedata.category(character).startswith("M"))


StepRule = Literal["lines", "sentences", "clauses"]

_PATTERNS: Mapping[StepRule, re.Pattern[str]] = {
    "lines": re.compile(r"\S(?:[^\n]*\S)?"),
    "sentences": re.compile(r"\S[^\n]*?(?:[.!?…][\"')\]]*(?=\s|\Z)|(?<=\S)(?=\s*(?:\n|\Z)))"),
    "clauses": re.compile(r"\S[^\n]*?(?:[.!?…,;:][\"')\]]*(?=\s|\Z)|(?<=\S)(?=\s*(?:\n|\Z)))"),
}


def split_steps(response: str, rule: StepRule) -> list[tuple[int, int]]:
    r"""Return the characters [start, end) of each step of a response, without the white space around it.

    Args:
        response: a text.
        rule: "lines", "sentences" (which end with . ! ? … or a line) or "clauses" (which also end with , ; or :).

    Raises:
        ConfigError: if there is no such rule.

    Example:
        >>> split_steps("It is 2.5, not 3. So\nyes.", "sentences")
        [(0, 17), (18, 20), (21, 25)]
        >>> split_steps("It is 2.5, not 3. So\nyes.", "clauses")
        [(0, 10), (11, 17), (18, 20), (21, 25)]
    """
    check_known("rule", rule, get_args(StepRule))
    return [step.span() for step in _PATTERNS[rule].finditer(response)]
