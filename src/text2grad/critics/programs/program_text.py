"""The program in a response, and the character offsets of its lines and expressions.

The program is the longest fenced block of Python, else the longest fenced block, else the whole response. It is a
substring of the response, so an offset in the response is an offset in the program plus its start.
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
    """A program and its position.

    Attributes:
        text: its source.
        start: offset of its first character in the response.
    """

    text: str
    start: int = 0

    @cached_property
    def _lines(self) -> list[int]:
        """Offset of the start of each line, by Python's definition of lines."""
        return [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self._lines)

    def at(self, line: int, column: int) -> int:
        """Return the offset of a line and a column, both from 1; a position after the end is the end."""
        if line > self.lines:
            return len(self.text)
        end = self._lines[line] if line < self.lines else len(self.text)
        return min(self._lines[line - 1] + column - 1, end)

    def span(self, start: int, end: int) -> Span | None:
        """Return the negative span of the response for offsets in the program, without white space at its ends."""
        text = self.text[start:end]
        if not text.strip():
            return None
        start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        return Span(self.start + start, self.start + end, "negative")

    def expression(self, line: int) -> Span | None:
        """Return the span of the value of the statement in a line, or of the whole code if it has no value."""
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
        """Return the offset of a line and a column of `ast`, which counts bytes from 0."""
        begin = self.at(line, 1)
        return begin + len(self.text[begin : self.at(line + 1, 1)].encode()[:column_bytes].decode())


_VALUES = ("value", "test", "iter", "exc", "subject")


def program_in(response: str) -> Program:
    r"""Return the program of a response: its longest Python block, else its longest block, else the whole response.

    Example:
        >>> program_in("Here:\n```python\nx = 1\n```\nDone.")
        Program(text='x = 1\n', start=16)
    """
    blocks = list(fenced_blocks(response))
    python = [block for language, block in blocks if language.lower() in _PYTHON]
    return max(python or [block for _, block in blocks], key=lambda one: len(one.text), default=Program(response))


def fenced_blocks(response: str) -> Iterator[tuple[str, Program]]:
    """Yield the fenced blocks with their languages; the last block may lack its closing fence."""
    at = 0
    while opening := _FENCE.search(response, at):
        closing = re.compile(rf"^[ ]{{0,3}}{opening['ticks']}[`~]*[ \t]*\r?$", re.MULTILINE)
        end = closing.search(response, opening.end())
        stop = end.start() if end else len(response)
        yield opening["language"], Program(response[opening.end() : stop], opening.end())
        at = end.end() if end else len(response)
