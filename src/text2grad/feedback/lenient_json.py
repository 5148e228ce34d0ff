"""Text -> the objects in it: JSON as models write it, read leniently and in linear time.

In: any text. Out: each `{...}` that can be read, left to right, with its place in the text. Besides JSON this
reads Python literals (single and triple quotes, tuples, None), JavaScript's bare keys, trailing commas, `//`
and `#` comments, raw line breaks inside strings, curly quotes as delimiters, line breaks that were escaped
between tokens, brackets closed in the wrong order, and objects whose end is missing.

Where a text stops, nothing is guessed: a string without its closing delimiter becomes a `Cut`, an unfinished
number or word becomes an empty `Cut`, and an object without its brace becomes a `CutObject`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 16
"""Brackets inside brackets beyond this are no critique; it also keeps the reader off Python's stack limit."""

EFFORT = 10
"""Characters read in all attempts together, as a multiple of the text's length: what keeps time linear."""


class Cut(str):
    """Text whose end is missing: its characters so far, empty for a number or word that was cut."""

    __slots__ = ()


class CutObject(dict[str, Any]):
    """An object that was not closed: the pairs read before the end of the text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One object found in a text.

    Attributes:
        value: the object; a `CutObject` where the text stopped inside it.
        start: where its opening brace stands, in characters.
        end: the first character after it, or after what of it could be read.
    """

    value: dict[str, Any]
    start: int
    end: int


def read_objects(text: str, *, lenient_ends: bool = False) -> Iterator[Reading]:
    r"""Yield the outermost objects of a text, left to right.

    Args:
        text: anything, of any length.
        lenient_ends: False takes the first unescaped delimiter as the end of a string, as JSON does. True
            passes over delimiters after which neither a comma nor a bracket nor a colon makes sense, and
            forgives missing commas: it reads strings whose inner quotes were not escaped.

    Example:
        >>> [reading.value for reading in read_objects("so: {'a': ('b', None),} and {\"c\": \"d")]
        [{'a': ['b', None]}, {'c': 'd'}]
    """
    position, budget = 0, EFFORT * len(text)
    while budget > 0 and (start := text.find("{", position)) >= 0:
        reader = _Reader(text, start, lenient_ends)
        try:
            value = reader.mapping(0)
        except _TooDeepError:
            position = reader.position
        except _UnreadableError:
            position = start + 1
        else:
            yield Reading(value, start, reader.position)
            position = start + 1 if reader.cut else reader.position
        budget -= reader.position - start


_SKIP = re.compile(r"(?:\s|\\[nrt]|//[^\n]*+|#[^\n]*+)*+")
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL
)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in "\"'\\/`"}
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BARE_KEY = re.compile(r"[A-Za-z_$][\w$-]*+")
_SCALAR = re.compile(r"[-+.\w]++")
_CONSTANTS = dict.fromkeys(("null", "none", "undefined", "nan", "...")) | {"true": True, "false": False}
_FENCE = "```"
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_DELIMITERS = {'"""': '"""', "'''": "'''", '"': '"', "'": "'", "“": "”", "‘": "’"}
_OPENING = "".join(opening for opening in _DELIMITERS if len(opening) == 1)
_STRICT_BODY = {
    closing: re.compile(rf"((?:[^\\{closing[0]}]++|\\.|(?!{closing}){closing[0]})*+){closing}", re.DOTALL)
    for closing in _DELIMITERS.values()
}
_MARKS = {closing: re.compile(rf"\\.|{closing}", re.DOTALL) for closing in _DELIMITERS.values()}

_AFTER_KEY = re.compile(r"\s*+:")
_AFTER_ITEM = re.compile(
    r"""(?:\s|\\[nrt])*+(?:$|```                                # the text ends here
        |,\s*+(?:$|["'“‘\[{(\]})]|[-+.]?\d|(?i:none|null|true|false)\b)  # another item follows
        |[\])}]\s*+(?:$|```|[,\])}]|(?<=\s)["'“‘])                 # or the list closes
        |(?<=\s)["'“‘])                                             # or a comma was forgotten
    """,
    re.VERBOSE,
)
_AFTER_VALUE = re.compile(
    r"""(?:\s|\\[nrt])*+(?:$|```
        |(?:,\s*+["'“‘]?|(?<=\s)["'“‘])[\w\ -]{1,60}["'”’]?\s*+:    # another key follows
        |,?\s*+[}\])](?:\s|$|```|[,\])}])                           # or the object closes
        |,\s*+$)
    """,
    re.VERBOSE,
)


class _UnreadableError(Exception):
    """What starts here is no object."""


class _TooDeepError(_UnreadableError):
    """What starts here goes deeper than `MAX_DEPTH`."""


class _Reader:
    """Reads one object by recursive descent. `cut` turns True when the text stops inside it."""

    def __init__(self, text: str, position: int, lenient_ends: bool) -> None:
        self.text = text
        self.position = position
        self.cut = False
        self._lenient = lenient_ends
        self._open: list[str] = []  # the closing brackets still to come, innermost last

    def mapping(self, depth: int) -> dict[str, Any]:
        """Read `{key: value, ...}` from its opening brace on."""
        result: dict[str, Any] = {}
        self._enter("}", depth)
        while not self._leaves():
            key = self._key()
            if not isinstance(key, Cut):
                result[key] = self._value(depth + 1)
            self._separator()
        return CutObject(result) if self.cut else result

    def _sequence(self, depth: int, closer: str) -> list[Any]:
        """Read a list or a tuple from its opening bracket on."""
        result: list[Any] = []
        self._enter(closer, depth)
        while not self._leaves():
            result.append(self._value(depth + 1))
            self._separator()
        return result

    def _enter(self, closer: str, depth: int) -> None:
        """Step over an opening bracket."""
        if depth >= MAX_DEPTH:
            raise _TooDeepError
        self.position += 1
        self._open.append(closer)

    def _leaves(self) -> bool:
        """True when the innermost bracket closes here, or the text stops.

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
        """The next character that means something; empty, and `cut` from then on, where the text stops."""
        match = _SKIP.match(self.text, self.position)
        self.position = match.end() if match else self.position
        self.cut = self.position >= len(self.text) or self.text.startswith(_FENCE, self.position)
        return "" if self.cut else self.text[self.position]

    def _separator(self) -> None:
        """Step over the comma between two items; the closing bracket or the end may stand there instead."""
        if self._peek() == ",":
            while self._peek() == ",":
                self.position += 1
        elif not (self.cut or self.text[self.position] in self._open or self._lenient):
            raise _UnreadableError

    def _key(self) -> str:
        """Read a key and its colon; a `Cut` where the text stops before the colon."""
        quoted = self._peek() in _OPENING
        key = self._string(_AFTER_KEY) if quoted else self._matched(_BARE_KEY)
        if self._peek() == ":":
            self.position += 1
            return key
        if self.cut:
            return Cut(key)
        raise _UnreadableError

    def _value(self, depth: int) -> Any:
        """Read a value of any kind; an empty `Cut` where the text stops."""
        character = self._peek()
        if self.cut:
            return Cut()
        if character == "{":
            return self.mapping(depth)
        if character in _CLOSERS:
            return self._sequence(depth, _CLOSERS[character])
        if character in _OPENING:
            return self._string(_AFTER_VALUE if self._open[-1] == "}" else _AFTER_ITEM)
        return self._scalar()

    def _scalar(self) -> Any:
        """Read a number, a constant, or the dots for "and so on"; an empty `Cut` where it may go on."""
        word = self._matched(_SCALAR).lower()
        if self.position >= len(self.text):
            return Cut()
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        try:
            return float(word)
        except ValueError:
            raise _UnreadableError from None

    def _matched(self, pattern: re.Pattern[str]) -> str:
        """Step over what the pattern matches here."""
        match = pattern.match(self.text, self.position)
        if match is None:
            raise _UnreadableError
        self.position = match.end()
        return match[0]

    def _string(self, follow: re.Pattern[str]) -> str:
        """Read a string from its opening delimiter on; `follow` is what may stand after its end."""
        triple = self.text[self.position : self.position + 3]
        opening = triple if triple in _DELIMITERS else self.text[self.position]
        body, closing = self.position + len(opening), _DELIMITERS[opening]
        end = self._lenient_end(body, closing, follow) if self._lenient else self._strict_end(body, closing)
        if end < 0:
            self.position, self.cut = len(self.text), True
            return Cut(unescape(self.text[body:]))
        self.position = end + len(closing)
        return unescape(self.text[body:end])

    def _strict_end(self, body: int, closing: str) -> int:
        """Where the first unescaped closing delimiter stands, or -1."""
        match = _STRICT_BODY[closing].match(self.text, body)
        return match.end(1) if match else -1

    def _lenient_end(self, body: int, closing: str, follow: re.Pattern[str]) -> int:
        """Where the first closing delimiter stands that `follow` agrees with, or -1."""
        for mark in _MARKS[closing].finditer(self.text, body):
            if mark[0] == closing and follow.match(self.text, mark.end()):
                return mark.start()
        return -1


def unescape(text: str) -> str:
    r"""Replace backslash escapes as JSON and Python do; an escape unknown to both stays as it is written.

    Example:
        >>> unescape(r"caf\u00e9 \"au\tlait\" \d+")
        'café "au\tlait" \\d+'
    """
    return printable(_ESCAPE.sub(_unescaped, text)) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    """The character that one escape stands for."""
    digits = match[1] or match[2] or match[3]
    return chr(int(digits, 16)) if digits else _PLAIN_ESCAPES.get(match[4], match[0])


def printable(text: str) -> str:
    """Join surrogate pairs into their character and replace halves of them, which no file could hold."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
