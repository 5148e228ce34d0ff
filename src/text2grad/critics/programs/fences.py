"""The lines of an answer → its fenced blocks, and what of a text is code.

Fences are those of CommonMark, also in lists and quotes. Where Python cannot parse a block, a text in the program may
hold a fence, or a line may leave its list: the block goes to a later fence, up to which Python can parse it. Or the
block is a document, or lacks its end: it is searched for more blocks, and prose behind its program is left out.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Lines = Sequence[tuple[int, str]]
"""Offset in the response, and text with its end, of each line."""

PYTHON = frozenset(["python", "py", "python3", "py3", "python2", "ipython"])
_CODE = re.compile(  # a line of code, not of prose
    r"(?:async )?def \w|class \w+ *[(:]|from [\w.]+ import\b|import [\w., ]+$|@\w"
    r"|(?:if|for|while|with|try|else|elif|except|finally)\b.*:[ \t]*$|[A-Za-z_][\w.\[\]]* *[-+*/%&|^@]?=(?!=)"
    r"|[A-Za-z_][\w.]*\(.*[(),\[{][ \t]*$"
)
_MOST_CHARS = 100_000  # of a text that is parsed to find out what it is
_MOST = 8  # levels of blocks in blocks; fences behind a block that are tried as its end


class Block(NamedTuple):
    """A fenced block: its language in small letters, "" without one, and its lines."""

    language: str
    lines: tuple[tuple[int, str], ...]


def text_of(lines: Lines) -> str:
    """Return the text of lines."""
    return "".join(text for _, text in lines)


def fault(text: str) -> int:
    """Return the line of the first fault that Python finds in a program, 0 without one; 1 if it is not tried."""
    try:
        return int(len(text) > _MOST_CHARS or not ast.parse(text))
    except SyntaxError as error:
        return max(error.lineno or 1, 1)
    except (ValueError, RecursionError, MemoryError):
        return 1


def fenced_blocks(lines: Lines, depth: int = 0) -> list[Block]:
    """Return the fenced blocks that are not blank; `depth` counts blocks around them."""
    from markdown_it import MarkdownIt

    text = "".join(own if own.endswith(("\n", "\r")) else f"{own}\n" for _, own in lines)
    if not ("```" in text or "~~~" in text) or len(text) > _MOST_CHARS or depth > _MOST:
        return []
    reader = MarkdownIt("zero").enable(["fence", "code", "blockquote", "list"]).disable("inline")
    blocks = list[Block]()
    for token in reader.parse(text):
        if token.type != "fence" or token.map is None:
            continue
        start, stop = token.map
        contents = token.content.split("\n")[:-1]
        [language, *_] = re.findall(r"[\w+#-]+", token.info.lower()) or [""]  # as in {.python} or python:solution.py
        block = Block(language, tuple(map(_inside, lines[start + 1 :], contents)))
        closed = stop - start - 2 == len(contents)
        if language in PYTHON and (not closed or fault(text_of(block.lines))):
            indent = lines[start][1].find(token.markup)
            cuts = [min(indent, len(own) - len(own.lstrip(" "))) for _, own in lines]
            rest = [(place + cut, own[cut:]) for (place, own), cut in zip(lines, cuts, strict=True)]
            ends = [at for at in range(stop, len(rest)) if rest[at][1].startswith(token.markup)][:_MOST]
            if end := next((end for end in ends if not fault(text_of(rest[start + 1 : end]))), 0):
                whole = Block(language, tuple(rest[start + 1 : end]))
                return [*blocks, whole, *fenced_blocks(lines[end + 1 :], depth + 1)]
        blocks += _read(block, closed=closed, depth=depth)
    return blocks


def _inside(line: tuple[int, str], content: str) -> tuple[int, str]:
    """Return a line of a block without the marks of quotes and lists around it, and without the fence's indentation."""
    place, text = line
    body = text.rstrip("\r\n")
    cut = len(body) - len(content) if body.endswith(content) else 0
    return place + cut, text[cut:]


def _read(block: Block, *, closed: bool, depth: int) -> Iterator[Block]:
    """Yield a block, or where Python cannot parse it, the blocks in it with the code before them."""
    lines, inner = block.lines, fenced_blocks(block.lines, depth + 1) if fault(text_of(block.lines)) else []
    if inner:
        lines = tuple(line for line in lines if line[0] < inner[0].lines[0][0])[:-1]
    if text_of(lines).strip() and (block.language in PYTHON or not inner):
        yield Block(block.language, lines if closed and not inner else tuple(code_of(lines)))
    yield from inner


def code_of(lines: Lines) -> Lines:
    """Return the lines from the first line of code on that Python can parse, if only prose is behind; else all."""
    start = next((number for number, (_, text) in enumerate(lines) if _CODE.match(text)), 0)
    end = len(lines)
    while start < end and (line := fault(text_of(lines[start:end]))):
        end = min(end - 1, start + line - 1)
    behind = [text for _, text in lines[end:] if text.strip(" \t\r\n`~")]
    prose = not behind or not (behind[0][0].isspace() or any(map(_CODE.match, behind)))
    return lines[start:end] if start < end and prose else lines
