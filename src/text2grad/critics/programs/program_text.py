"""The program in a response: where it stands, and where its lines and expressions do.

A program is the longest fenced block of Python, else the longest fenced block, else the whole response. It is one piece
of the response, so that a place in the program is a place in the response, moved by its start.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from text2grad.types import Span

_FENCE = re.compile(r"^[ ]{0,3}(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n`]*\n", re.MULTILINE)
_NEWLINE = re.compile(r"\r\n|\r|\n")
_PYTHON = ("python", "py", "python3")


@dataclass(frozen=True)
class Program:
    """A program and its place.

    Attributes:
        text: its source.
        start: the character of the response where it begins.
    """

    text: str
    start: int = 0

    @cached_property
    def _lines(self) -> list[int]:
        """Where each line begins, as Python counts lines."""
        return [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self._lines)

    def at(self, line: int, column: int) -> int:
        """Return the character of the program at a line and a column, both from 1; what lies beyond is its end."""
        if line > self.lines:
            return len(self.text)
        end = self._lines[line] if line < self.lines else len(self.text)
        return min(self._lines[line - 1] + column - 1, end)

    def span(self, start: int, end: int) -> Span | None:
        """Return characters of the program as a negative span of the response, without white space around them."""
        text = self.text[start:end]
        if not text.strip():
            return None
        start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        return Span(self.start + start, self.start + end, "negative")

    def expression(self, line: int) -> Span | None:
        """Return what a line computes: the value of its statement, or its code where it has none."""
        for node in self._statements:
            if node.lineno == line:
                value = next((getattr(node, name) for name in _VALUES if getattr(node, name, None) is not None), node)
                if isinstance(value, ast.expr):
                    return self.span(self._offset(value.lineno, value.col_offset), self._end(value))
        code = self.text[self.at(line, 1) : self.at(line + 1, 1)].partition("#")[0]
        return self.span(self.at(line, 1), self.at(line, 1) + len(code))

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]

    def _end(self, node: ast.expr) -> int:
        return self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def _offset(self, line: int, column_bytes: int) -> int:
        """Return the character at a line and a column as `ast` counts them, in bytes from 0."""
        begin = self.at(line, 1)
        return begin + len(self.text[begin : self.at(line + 1, 1)].encode()[:column_bytes].decode())


_VALUES = ("value", "test", "iter", "exc", "subject")


def program_in(response: str) -> Program:
    r"""Return the program of a response: its longest block of Python, or of anything, or all of it.

    Example:
        >>> program_in("Here:\n```python\nx = 1\n```\nDone.")
        Program(text='x = 1\n', start=16)
    """
    blocks = list(_blocks(response))
    python = [block for language, block in blocks if language.lower() in _PYTHON]
    return max(python or [block for _, block in blocks], key=lambda one: len(one.text), default=Program(response))


def _blocks(response: str) -> Iterator[tuple[str, Program]]:
    """Yield the fenced blocks, the last of which may lack its end."""
    at = 0
    while opening := _FENCE.search(response, at):
        closing = re.compile(rf"^[ ]{{0,3}}{opening['ticks']}[`~]*[ \t]*\r?$", re.MULTILINE)
        end = closing.search(response, opening.end())
        stop = end.start() if end else len(response)
        yield opening["language"], Program(response[opening.end() : stop], opening.end())
        at = end.end() if end else len(response)
