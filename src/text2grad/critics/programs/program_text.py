"""The program in a response, and the character offsets of its lines and expressions.

The program is the longest fenced block of Python, else the longest fenced block, else the whole response. The lines of
a block in an indented fence, as in a list, lose the indentation of the fence (CommonMark, section 4.5).
"""

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from text2grad.types import Span

_FENCE = re.compile(r"^(?P<indent>[ ]{0,3})(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n`]*\n", re.MULTILINE)
_NEWLINE = re.compile(r"\r\n|\r|\n")
_PYTHON = ("python", "py", "python3")


@dataclass(frozen=True)
class Program:
    """A program and its position.

    Attributes:
        text: its source.
        start: offset in the response of its first line, with its indentation.
        removed: number of characters that each line has in the response before its first one here; empty for none.
    """

    text: str
    start: int = 0
    removed: tuple[int, ...] = field(default=(), repr=False)

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the start of each line, by Python's definition of lines."""
        return [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.line_starts)

    def at(self, line: int, column: int) -> int:
        """Return the offset of a line and a column, both from 1; a position after the end is the end."""
        if line > self.lines:
            return len(self.text)
        end = self.line_starts[line] if line < self.lines else len(self.text)
        return min(self.line_starts[line - 1] + column - 1, end)

    def span(self, start: int, end: int) -> Span | None:
        """Return the negative span of the response for offsets in the program, without white space at its ends."""
        text = self.text[start:end]
        if not text.strip():
            return None
        start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        return Span(self._in_response(start), self._in_response(end), "negative")

    def _in_response(self, offset: int) -> int:
        line = bisect_right(self.line_starts, offset) - 1
        return self._places[line] + offset - self.line_starts[line]

    @cached_property
    def _places(self) -> list[int]:
        """Offset in the response of the first character of each line that the program has."""
        removed = list(accumulate(self.removed)) or [0] * self.lines
        return [self.start + line + before for line, before in zip(self.line_starts, removed, strict=True)]

    def expression(self, line: int) -> Span | None:
        """Return the span of the value of the statement in a line, or of the whole line if it has no value."""
        for node in self._statements:
            if node.lineno == line:
                value = next((getattr(node, name) for name in _VALUES if getattr(node, name, None) is not None), node)
                if isinstance(value, ast.expr):
                    last, column = value.end_lineno or value.lineno, value.end_col_offset or value.col_offset
                    return self.span(self._offset(value.lineno, value.col_offset), self._offset(last, column))
        return self.span(self.at(line, 1), self.at(line + 1, 1))

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]

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
    return max(python or [block for _, block in blocks], key=lambda block: len(block.text), default=Program(response))


def fenced_blocks(response: str) -> Iterator[tuple[str, Program]]:
    """Yield the fenced blocks with their languages; the last block may lack its closing fence."""
    at = 0
    while opening := _FENCE.search(response, at):
        closing = re.compile(rf"^[ ]{{0,3}}{opening['ticks']}[`~]*[ \t]*\r?$", re.MULTILINE)
        end = closing.search(response, opening.end())
        stop = end.start() if end else len(response)
        yield opening["language"], _dedented(response[opening.end() : stop], opening.end(), len(opening["indent"]))
        at = end.end() if end else len(response)


def _dedented(text: str, start: int, indent: int) -> Program:
    """Return a block whose lines lose up to `indent` blanks."""
    if not indent:
        return Program(text, start)
    lines = [text[begin:end] for begin, end in pairwise([*Program(text).line_starts, len(text)])]
    removed = tuple(min(indent, len(line) - len(line.lstrip(" "))) for line in lines)
    return Program("".join(line[cut:] for line, cut in zip(lines, removed, strict=True)), start, removed)
