r"""Text → its normalized form for matching, with a map back to the characters of the text.

In: a response or a quote. Out: `Normalized`: `form` is equal for texts that differ only in ignored properties;
`starts` and `ends` map each character of the form to a range of the text.

Ignored: runs of white space; letter case; Unicode composition (NFC, NFD) and compatible forms (ligatures,
full width, `…`), but not superscripts, subscripts, fractions and circled numbers, which carry meaning;
kinds of quotation marks and of dashes, and runs of dashes; invisible characters (soft hyphens, direction
marks, variation selectors); emphasis in Markdown (`*`, `_` and backticks at the start or end of a word).

The text is divided into units that are never split: a letter with its combining marks, a run of white space, a
run of dashes, a character that folds to several (`ß`, `…`).
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_UNIT = 32  # maximum characters per unit: longer runs of marks on a letter are noise and slow to normalize


@dataclass(frozen=True, slots=True)
class Normalized:
    """The normalized form of a text and its map back.

    Attributes:
        form: the text to compare.
        starts: for each character of the form, the start of its unit in the text.
        ends: for each character of the form, the end of its unit in the text.
    """

    form: str
    starts: Sequence[int]
    ends: Sequence[int]

    def interval(self, first: int, last: int) -> tuple[int, int] | None:
        """Map a range [first, last) of the form, not empty, to [start, end) of the text.

        Returns None if a bound lies inside a unit, such as half of an `ß`.
        """
        begins_inside = first > 0 and self.starts[first - 1] == self.starts[first]
        stops_inside = last < len(self.form) and self.ends[last - 1] == self.ends[last]
        return None if begins_inside or stops_inside else (self.starts[first], self.ends[last - 1])


def unchanged(text: str) -> Normalized:
    """Return a text as its own form, for a search character by character."""
    return Normalized(text, range(len(text)), range(1, len(text) + 1))


def normalize(text: str) -> Normalized:
    """Return the normalized form of a text, in time linear in its length.

    Example:
        >>> normalize("A **“Bold”**  claim…").form
        'a "bold" claim...'
    """
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end, piece, plain in _units(text):
        if piece in {" ", "-"} and pieces[-1:] == [piece]:  # only dropped characters between them: one run
            ends[-1] = end
            continue
        if plain:
            starts.extend(range(start, end))
            ends.extend(range(start + 1, end + 1))
        else:
            starts.extend([start] * len(piece))
            ends.extend([end] * len(piece))
        pieces.append(piece)
    return Normalized("".join(pieces), starts, ends)


_MARKERS = r"(?<![\w*])[*_]++(?=\S)|(?<=[^\s*_])[*_]++(?!\w)|[`\u1fef]++"
_INVISIBLE = r"[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]++"
_TOKEN = re.compile(
    rf"(?P<drop>{_MARKERS}|{_INVISIBLE})"
    r"|(?P<space>\s++)"
    r"|(?P<dash>[-‐‑‒–—―−﹘﹣－]++)"
    r"|(?P<plain>[!-'+,./0-9:-@A-Z\[-^a-z{-~()]+(?![^\x00-\x7f]))"
    r"|(?P<other>.)",
    re.DOTALL,
)
_FIXED = {"space": " ", "dash": "-"}
_QUOTES = dict.fromkeys("‘’‚‛′‹›´ʼ＇", "'") | dict.fromkeys("“”„‟″«»〝〞〟＂", '"')
_VARIATIONS = {chr(code): "" for code in range(0xFE00, 0xFE10)}  # ❤ as text and as a picture
_STRAIGHTEN = str.maketrans(_QUOTES | _VARIATIONS)
_JOINING = (
    ("\u1160", "\u11ff"),  # Korean vowels and finals
    ("\ud7b0", "\ud7fb"),
    ("\uff9e", "\uff9f"),  # voicing of half-width katakana
    ("\u200d", "\u200d"),  # zero-width joiner
    ("\U0001f3fb", "\U0001f3ff"),  # skin tones
)
_MEANINGFUL = ("<super>", "<sub>", "<fraction>", "<circle>")


def _units(text: str) -> Iterator[tuple[int, int, str, bool]]:
    """Yield start, end, form and False for each unit; for a run of one-character ASCII units, its range and True."""
    position = 0
    while match := _TOKEN.match(text, position):
        start, position, kind = match.start(), match.end(), match.lastgroup
        if kind == "plain":
            yield start, position, match[0].lower(), True
        elif kind in _FIXED:
            yield start, position, _FIXED[kind], False
        elif kind == "other":
            stop = start if match[0] in "*_" else min(start + MAX_UNIT, len(text))
            while position < stop and _joins(text[position - 1], text[position]):
                position += 1
            if form := _fold(text[start:position]):
                yield start, position, form, False


def _joins(previous: str, character: str) -> bool:
    """Return True if a character belongs to the letter or emoji before it: a mark, a Korean vowel, a skin tone."""
    if character.isascii():
        return False
    joined = previous == "\u200d" or unicodedata.category(character)[0] == "M"
    return joined or any(low <= character <= high for low, high in _JOINING)


@lru_cache(maxsize=4096)
def _fold(unit: str) -> str:
    """Return the form of one character with its marks."""
    straight = unicodedata.normalize("NFC", unit).translate(_STRAIGHTEN)
    compatible = "".join(c if _is_meaningful(c) else unicodedata.normalize("NFKC", c) for c in straight)
    folded = unicodedata.normalize("NFC", compatible).casefold()
    return unicodedata.normalize("NFC", folded)


def _is_meaningful(character: str) -> bool:
    """Return True if the compatible form has another meaning (x² is not x2) or splits (a lone accent)."""
    kind = unicodedata.decomposition(character)
    return kind.startswith(_MEANINGFUL) or unicodedata.normalize("NFKC", character).startswith(" ")
