"""The lines of an answer → its fenced blocks, and what of a text is code.

Fences are those of CommonMark 0.31, also in lists and quotes, whose marks the lines of a block lose. A text in a
program may hold fences: a block ends at the first closing fence up to which Python can parse it. A block without an end
goes to the next opening fence, or to the end; prose behind its program is left out. A block of another language, such
as Markdown, may hold blocks.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Lines = Sequence[tuple[int, str]]
"""Offset in the response, and text with its end, of each line."""

PYTHON = frozenset(["python", "py", "python3", "py3", "python2", "ipython"])
_FENCE = re.compile(
    r"(?P<marks>[ \t]*+(?:(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t]))[ \t]*+)*+)(?P<ticks>`{3,}(?=[^`]*$)|~{3,})"
    r"[^\w\n]*(?P<language>[\w+#-]*)"
)
_ITEM = re.compile(r"[ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_CLOSING = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*\r?\n?")
_QUOTE = re.compile(r"[ \t]*> ?")
_CODE = re.compile(  # a line of code, not of prose
    r"(?:async )?def \w|class \w+ *[(:]|from [\w.]+ import\b|import [\w., ]+$|@\w"
    r"|(?:if|for|while|with|try|else|elif|except|finally)\b.*:[ \t]*$|[A-Za-z_][\w.\[\]]* *[-+*/%&|^@]?=(?!=)"
    r"|[A-Za-z_][\w.]*\(.*[(),\[{][ \t]*$"
)
_MOST_CHARS = 100_000  # of a text that is parsed to find out what it is
_MOST_FENCES, _MOST_ENDS = 1_000, 8  # fences of an answer; closing fences of a block that are tried


class Block(NamedTuple):
    """A fenced block: its language in small letters, "" without one, and its lines."""

    language: str
    lines: Lines


def text_of(lines: Lines) -> str:
    """Return the text of lines."""
    return "".join(text for _, text in lines)


def parses(text: str) -> bool:
    """Return whether Python can parse a program, which must not be longer than 100,000 characters."""
    try:
        return len(text) <= _MOST_CHARS and bool(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def fenced_blocks(lines: Lines) -> Iterator[Block]:
    """Yield the fenced blocks that are not blank."""
    if sum("```" in text or "~~~" in text for _, text in lines) > _MOST_FENCES:
        return
    at, listed = 0, False
    while at < len(lines):
        opening = _opening(lines[at][1], listed)
        listed = listed or _ITEM.match(lines[at][1]) is not None
        at += 1
        if opening is not None:
            inner, size = _inner(lines[at:], opening)
            at += size
            block = Block(opening["language"].lower(), inner)
            nested = [] if block.language in PYTHON or parses(text_of(inner)) else list(fenced_blocks(inner))
            yield from nested or ([block] if text_of(inner).strip() else [])


def _opening(line: str, listed: bool) -> re.Match[str] | None:
    """Return the opening fence in a line; one that is indented by four blanks or more belongs to a list."""
    opening = _FENCE.match(line)
    shown = opening and (listed or opening["marks"].strip() or len(opening["marks"].expandtabs(4)) < 4)
    return opening if shown else None


def _inner(lines: Lines, opening: re.Match[str]) -> tuple[Lines, int]:
    """Return the lines of the block behind an opening fence, and how many lines it takes, with its closing fence."""
    inner, ends, following = list[tuple[int, str]](), list[int](), 0
    quotes, columns = opening["marks"].count(">"), _QUOTE.sub("", opening["marks"].expandtabs(4))
    for place, text in lines:
        cut = _cut(text, quotes, len(columns))
        if cut is None or len(ends) == _MOST_ENDS:  # the quote has ended
            break
        closing, other = _CLOSING.fullmatch(text, cut), None if ends else _opening(text[cut:], listed=True)
        if closing and closing[1].startswith(opening["ticks"]):
            ends.append(len(inner))
        elif other and other["language"]:
            following = following or len(inner)
        inner.append((place + cut, text[cut:]))
    whole = next((end for end in ends if parses(text_of(inner[:end]))), None)
    if whole is None and (following or not ends):
        stop = following or len(inner)
        return code_of(inner[:stop]), stop
    end = ends[0] if whole is None else whole
    return inner[:end], end + 1


def _cut(line: str, quotes: int, columns: int) -> int | None:
    """Return how many characters a line loses as a line of a block in quotes and lists; None outside of the quotes."""
    at = 0
    for _ in range(quotes):
        mark = _QUOTE.match(line, at)
        if mark is None:
            return None
        at = mark.end()
    begin = at
    while line[at : at + 1] in (" ", "\t") and len(line[begin : at + 1].expandtabs(4)) <= columns:
        at += 1
    return at


def code_of(lines: Lines) -> Lines:
    """Return the lines from the first line of code on that Python can parse, if only prose is behind; else all."""
    start = next((number for number, (_, text) in enumerate(lines) if _CODE.match(text)), 0)
    end = len(lines)
    while start < end and len(text := text_of(lines[start:end])) <= _MOST_CHARS:
        try:
            ast.parse(text)
        except SyntaxError as error:
            end = min(end - 1, start + max((error.lineno or 1) - 1, 0))
        except (ValueError, RecursionError, MemoryError):
            return lines
        else:
            behind = [text for _, text in lines[end:] if text.strip(" \t\r\n`~")]
            prose = not behind or not (behind[0][0].isspace() or any(map(_CODE.match, behind)))
            return lines[start:end] if prose else lines
    return lines
