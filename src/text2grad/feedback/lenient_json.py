"""Text → its objects: a lenient parser, linear in time, for the JSON that models write.

In: any text. Out: each `{...}` that can be parsed, left to right, with its range in the text. Besides JSON, the parser
accepts Python literals (single and triple quotes, tuples, None), NumPy's `array([...], dtype=object)`, bare keys as in
JavaScript, trailing commas, `//` and `#` comments, raw line breaks in strings, curly quotes as delimiters, escaped line
breaks between tokens, dashes as minus signs, brackets closed in the wrong order, and objects without an end.

No value is guessed. An object with a key that stands twice with two values, or with a number that is none (`50%`), is
passed over with all that it holds.

The missing end of a text is never guessed: a string without its closing delimiter becomes a `Cut`, an unfinished
number or word an empty `Cut`, and an object without its closing brace a `CutObject`.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from text2grad.types import HALF_PAIR

MAX_DEPTH = 16  # maximum nesting of brackets: no critique needs more, and Python's recursion limit is far
EFFORT = 10  # maximum characters parsed in all attempts, as a multiple of the text's length: it keeps the time linear


class Cut(str):
    """A text without its end: the characters so far; empty for a number or word that was cut off."""

    __slots__ = ()


class CutObject(dict[str, Any]):
    """An object without its closing brace: the pairs before the end of the text."""


class Reading(NamedTuple):
    """An object in a text.

    Attributes:
        value: the object; a `CutObject` if the text ends inside it.
        start: the character index of its opening brace.
        end: the index after its last parsed character.
    """

    value: dict[str, Any]
    start: int
    end: int


def read_objects(text: str, *, lenient_ends: bool = False) -> Iterator[Reading]:
    r"""Yield the objects of a text, left to right, without those inside a complete object.

    Args:
        text: any text of any length.
        lenient_ends: False takes the first unescaped delimiter as the end of a string, as JSON does. True
            skips delimiters that no plausible comma, bracket or colon follows, and accepts missing commas: it
            parses strings whose inner quotes were not escaped.

    Example:
        >>> [reading.value for reading in read_objects("so: {'a': ('b', None),} and {\"c\": \"d")]
        [{'a': ['b', None]}, {'c': 'd'}]
    """
    position, budget = 0, EFFORT * len(text)
    while budget > 0 and (start := text.find("{", position)) >= 0:
        reader = _Reader(text, start, lenient_ends)
        try:
            value = reader.container("}")
        except _TooDeepError:
            position = reader.position
        except _UnreadableError:
            position = reader.after_parts or start + 1
        else:
            yield Reading(value, start, reader.position)
            position = start + 1 if reader.cut else reader.position
        budget -= reader.position - start


_SKIP = re.compile(r"(?>(?:\s|\\[nrt]|//[^\n]*+|#[^\n]*+|dtype=\w++(?=\)))*)")
_ARRAY = re.compile(r"(?:array|np\.\w++)(?=\()")
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL
)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in "\"'\\/`"}
_BARE_KEY = re.compile(r"[A-Za-z_$][\w$-]*+")
MINUS_SIGNS = dict.fromkeys(map(ord, "‐‑‒–—―−﹘﹣－"), "-")  # dashes that people and models write for it
_SCALAR = re.compile(rf"[-+.\w{''.join(map(chr, MINUS_SIGNS))}]++")
_NO_KEY = re.compile(r"""\s*+["'“‘](?![^"'“”‘’]*+["'”’]\s*+:)""")  # a text that is no key, as in 8 "of 10"
_CONSTANTS = dict.fromkeys(("null", "none", "undefined", "...")) | {"true": True, "false": False}
_FENCE = "```"
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_DELIMITERS = {'"""': '"""', "'''": "'''", '"': '"', "'": "'", "“": "”", "‘": "’"}
_OPENING = "".join(opening for opening in _DELIMITERS if len(opening) == 1)
_MARKS = {closing: re.compile(rf"\\.|{closing}", re.DOTALL) for closing in _DELIMITERS.values()}

_AFTER_KEY = re.compile(r"\s*+:")
_AFTER_ITEM = re.compile(
    r"""(?>(?:\s|\\[nrt])*)(?:$|```                                # the text ends here
        |,\s*+(?:$|["'“‘\[{(\]})]|[-+.]?\d|(?i:none|null|true|false)\b)  # another item follows
        |[\])}]\s*+(?:$|```|[,\])}]|(?<=\s)["'“‘])                 # or the list closes
        |(?<=\s)["'“‘])                                             # or a comma was forgotten
    """,
    re.VERBOSE,
)
_AFTER_VALUE = re.compile(
    r"""(?>(?:\s|\\[nrt])*)(?:$|```
        |(?:,\s*+["'“‘]?|(?<=\s)["'“‘])[\w\ -]{1,60}["'”’]?\s*+:    # another key follows
        |,?\s*+[}\])](?:\s|$|```|[,\])}])                           # or the object closes
        |,\s*+$)
    """,
    re.VERBOSE,
)


class _UnreadableError(Exception):
    """There is no object at this place."""


class _TooDeepError(_UnreadableError):
    """The object is nested deeper than `MAX_DEPTH`."""


class _Reader:
    """Parses one object by recursive descent; `cut` becomes True if the text ends inside it."""

    def __init__(self, text: str, position: int, lenient_ends: bool) -> None:
        self.text = text
        self.position = position
        self.cut = False
        self.after_parts = 0  # the place after the last whole object inside this one; 0 without one
        self._lenient = lenient_ends
        self._open: list[str] = []  # the closing brackets still to come, innermost last

    def container(self, closer: str) -> Any:
        """Parse `{key: value, ...}`, a list or a tuple from its opening bracket."""
        if len(self._open) >= MAX_DEPTH:
            raise _TooDeepError
        self.position += 1
        self._open.append(closer)
        pairs, items = dict[str, Any](), list[Any]()
        while not self._leaves():
            if closer != "}":
                items.append(self._value())
            elif not isinstance(key := self._key(), Cut):
                value = self._value()
                if (known := pairs.setdefault(key, value)) is not value and known != value:
                    raise _UnreadableError
            self._separator()
        if closer != "}":
            return items
        if self._open:  # whole, and not the outermost
            self.after_parts = self.position
        return CutObject(pairs) if self.cut else pairs

    def _leaves(self) -> bool:
        """Return True if the innermost bracket closes here, or the text ends.

        A bracket that closes an outer one closes the inner ones as well.
        """
        character = self._peek()
        if character == self._open[-1]:
            self.position += 1
        elif not self.cut and character not in self._open:
            return False
        self._open.pop()
        return True

    def _peek(self) -> str:
        """Return the next significant character; at the end of the text, set `cut` and return an empty text."""
        self._matched(_SKIP)
        self.cut = self.position >= len(self.text) or self.text.startswith(_FENCE, self.position)
        return "" if self.cut else self.text[self.position]

    def _separator(self) -> None:
        """Step over the comma between two items, if no closing bracket or end of the text follows."""
        if self._peek() == ",":
            while self._peek() == ",":
                self.position += 1
        elif not (self.cut or self.text[self.position] in self._open or self._lenient):
            raise _UnreadableError

    def _key(self) -> str:
        """Parse a key and its colon; a `Cut` if the text ends before the colon."""
        key = self._string(_AFTER_KEY) if self._peek() in _OPENING else self._matched(_BARE_KEY)
        if self._peek() == ":":
            self.position += 1
            return key
        if self.cut:
            return Cut(key)
        raise _UnreadableError

    def _value(self) -> Any:
        """Parse a value; an empty `Cut` if the text ends, also right after a number or a word."""
        character = self._peek()
        if self.cut:
            return Cut()
        if character in _CLOSERS:
            return self.container(_CLOSERS[character])
        if character in _OPENING:
            return self._string(_AFTER_VALUE if self._open[-1] == "}" else _AFTER_ITEM)
        if array := _ARRAY.match(self.text, self.position):
            self.position = array.end()
            return next(iter(self.container(")")), Cut())
        word = self._matched(_SCALAR).lower()
        if self.position >= len(self.text):
            return Cut()
        value = _CONSTANTS[word] if word in _CONSTANTS else number_of(word)
        if isinstance(value, str) or (self._open[-1] == "}" and _NO_KEY.match(self.text, self.position)):
            raise _UnreadableError
        return value

    def _matched(self, pattern: re.Pattern[str]) -> str:
        """Return the match of a pattern and step over it."""
        if (match := pattern.match(self.text, self.position)) is None:
            raise _UnreadableError
        self.position = match.end()
        return match[0]

    def _string(self, follow: re.Pattern[str]) -> str:
        """Parse a string from its opening delimiter to its first unescaped closing one; a `Cut` if there is none.

        If lenient, `follow` must match the text after the closing delimiter.
        """
        triple = self.text[self.position : self.position + 3]
        opening = triple if triple in _DELIMITERS else self.text[self.position]
        body, closing = self.position + len(opening), _DELIMITERS[opening]
        for mark in _MARKS[closing].finditer(self.text, body):
            if mark[0] == closing and (not self._lenient or follow.match(self.text, mark.end())):
                self.position = mark.end()
                return unescape(self.text[body : mark.start()])
        self.position, self.cut = len(self.text), True
        return Cut(unescape(self.text[body:]))


def number_of(value: Any) -> Any:
    """Return the number that a text is, such as "−0.5" with a dash as its minus sign; any other value unchanged."""
    if isinstance(value, str) and not isinstance(value, Cut):
        for kind in (int, float):
            with suppress(ValueError):  # an int has a limit of digits, too
                return kind(value.translate(MINUS_SIGNS))
    return value


def unescape(text: str) -> str:
    r"""Replace backslash escapes as JSON and Python do; unknown escapes stay unchanged.

    Example:
        >>> unescape(r"caf\u00e9 \"au\tlait\" \d+")
        'café "au\tlait" \\d+'
    """

    def character(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        return chr(int(digits, 16)) if digits else _PLAIN_ESCAPES.get(match[4], match[0])

    return printable(_ESCAPE.sub(character, text)) if "\\" in text else text


def printable(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates, which UTF-8 files cannot hold, by U+FFFD."""
    if not HALF_PAIR.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
