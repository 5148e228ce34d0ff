"""The program in a response, and the character offsets of its lines and expressions.

A response that Python can parse is the program. Else it is sought outside of the reasoning (`feedback.reasoning`). Of
fenced blocks it is the last one that defines most of what the tests use: models correct themselves downwards, and show
uses behind the program; without such tests, the last with all that the richest defines and reads. Blocks of Python come
before blocks without a language, and these before others. Blocks that bind what it lacks are added. Without a fence it
is the part from the first line of code on, if that defines what the tests use and only prose is behind; or the code in
backticks that does; else all.

Fences are those of CommonMark, at any depth of lists and quotes. Where Python cannot parse a block, a text in the
program may hold a fence: the block goes to a later fence, up to which Python can parse it. Or the block is a document,
or lacks its end: it is searched for more blocks, and prose behind its program is left out.
"""

import ast
import builtins
import json
import re
import warnings
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice, pairwise
from math import inf

from text2grad.feedback import answer_parts
from text2grad.types import Example, Span
from text2grad_sandbox import global_names, names_of_tests

Lines = Sequence[tuple[int, str]]  # offset in the response and text, with its end, of each line
Block = tuple[str, tuple[tuple[int, str], ...]]  # of a fence: its language in small letters, "" without one; its lines

_NEWLINE = re.compile(r"\r\n|\r|\n")
_ITEM = re.compile(r"^([ \t>]*)((?:[-*+]|\d{1,9}[.)])[ \t]+)(?=`{3}|~{3})", re.MULTILINE)
_PYTHON = ("python", "py", "python3", "py3", "python2", "ipython")
_PARTS = re.compile(r"^(?:(?:async +)?def|class) +\w+|\b(?:input|stdin|print|stdout)\b", re.MULTILINE)
_CODE = re.compile(  # a line of code, not of prose
    r"(?:async )?def \w|class \w+ *[(:]|from [\w.]+ import\b|import [\w., ]+$|@\w"
    r"|(?:if|for|while|with|try|else|elif|except|finally)\b.*:[ \t]*$|[A-Za-z_][\w.\[\]]* *[-+*/%&|^@]?=(?!=)"
    r"|[A-Za-z_][\w.]*\(.*[(),\[{][ \t]*$"
)
_INLINE = re.compile(r"(?<!`)(`{1,3})(?:py\w*[ \t]+)?([^`]+)\1(?!`)|<code[^<>\n]*>((?:(?!</?code).)+)</code>", re.S)
_MOST_CHARS = 100_000  # of a text that is parsed to find out what it is
_MOST = 8  # levels of blocks in blocks; fences behind a block that are tried as its end


@dataclass(frozen=True)
class Program:
    """A program and its position in a response."""

    text: str
    start: int = 0  # offset in the response of its first character
    pieces: tuple[tuple[int, int], ...] = field(default=(), repr=False)  # if not one range: their starts here and there
    response: str = field(default="", repr=False, compare=False)

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the start of each line, by Python's definition of lines."""
        return [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    def at(self, line: int, column: int) -> int:
        """Return the offset of a line and a column, both from 1; a position after the end is the end."""
        starts = [*self.line_starts, len(self.text)]
        return min(starts[line - 1] + column - 1, starts[line]) if line < len(starts) else len(self.text)

    def quote(self, span: Span) -> str:
        """Return the text of a span of the response in quotation marks."""
        return json.dumps(self.response[span.start : span.end], ensure_ascii=False)

    def span(self, start: int, end: int) -> Span | None:
        """Return the negative span of the response for offsets in the program, without white space at its ends."""
        text = self.text[start:end]
        if not text.strip():
            return None
        start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        return Span(self._in_response(start), self._in_response(end - 1) + 1, "negative")

    def _in_response(self, offset: int) -> int:
        pieces = self.pieces or ((0, self.start),)
        here, there = pieces[bisect_right(pieces, (offset, inf)) - 1]
        return there + offset - here

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
        tree = parsed("" if fault(self.text) else self.text)
        return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]

    def _offset(self, line: int, column_bytes: int) -> int:
        """Return the offset of a line and a column of `ast`, which counts bytes from 0."""
        begin = self.at(line, 1)
        return begin + len(self.text[begin : self.at(line + 1, 1)].encode()[:column_bytes].decode())


_VALUES = ("value", "test", "iter", "exc", "subject")


def judged_program(example: Example, response: str) -> Program:
    """Return the program that is judged as the response to an example, by what its tests use: see the module."""
    return program_in(response, names_of_tests(example.tests or ""), example.joined_text)


def program_in(response: str, names: Collection[str] = (), prompt: str = "") -> Program:
    r"""Return the program of a response for tests that use some names: see the module.

    Args:
        response: the text of a model.
        names: what the tests use; without them, code in backticks is no program.
        prompt: what stood before the response; its end may have opened the reasoning.

    Example:
        >>> program_in("Here:\n```python\nx = 1\n```\nDone.")
        Program(text='x = 1\n', start=16)
    """
    if len(response) > 10 * _MOST_CHARS or not fault(response):
        return Program(response, response=response)
    parts, wanted = answer_parts(response, prompt), set(names)
    lines: Lines = [line for part in parts for line in _lines(response, *part)]
    if blocks := fenced_blocks(lines):
        lines = _chosen(blocks, wanted)
    elif _names(text_of(code := code_of(lines)))[2] & wanted:
        lines = code
    else:
        codes = (code.span(code.lastindex or 0) for part in parts for code in _INLINE.finditer(response, *part))
        valid = [code for code in codes if not fault(response[slice(*code)])]
        blocks = [("", (*_lines(response, *code), (code[1], "\n"))) for code in valid]
        if any(_names(text_of(code))[2] & wanted for _, code in blocks):
            lines = _chosen(blocks, wanted)
    places = [place for place, _ in lines] or [len(response)]
    pieces = tuple(zip(accumulate((len(text) for _, text in lines), initial=0), places, strict=False))
    apart = any(there - here != places[0] for here, there in pieces)
    return Program(text_of(lines), places[0], pieces if apart else (), response)


def _lines(response: str, start: int, end: int) -> Lines:
    ends = [start, *(match.end() for match in _NEWLINE.finditer(response, start, end)), end]
    return [(begin, response[begin:stop]) for begin, stop in pairwise(ends) if stop > begin]


def _names(text: str) -> tuple[set[str], set[str], set[str]]:
    """Return what `global_names` does; of a program that Python cannot parse, what it seems to define."""
    try:
        return global_names(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        seen = {part.split()[-1] for part in _PARTS.findall(text)}
        return set(), seen, seen


def _chosen(blocks: Sequence[Block], names: set[str]) -> Lines:
    """Return the lines of the program among blocks."""
    known = [_names(text_of(lines)) for _, lines in blocks]
    used, bound, defined = (dict(zip(blocks, sets, strict=True)) for sets in zip(*known, strict=True))
    kinds = [[block for block in blocks if block[0] in language] for language in (_PYTHON, ("",))]
    kinds = [kind for kind in (*kinds, list(blocks)) if kind]
    kind = next((kind for kind in kinds if any(defined[block] & names for block in kind)), kinds[0])
    parts = {block: defined[block] & names for block in kind}
    if not any(parts.values()):
        parts = {block: set(_PARTS.findall(text_of(block[1]))) for block in kind}
        longest = max(reversed(kind), key=lambda block: (len(parts[block]), len(text_of(block[1]))))
        parts = {block: parts[block] & parts[longest] for block in kind} if parts[longest] else {longest: {""}}
    chosen = max(reversed(parts), key=lambda block: len(parts[block]))
    taken, lacks = [chosen], (names | used[chosen]) - bound[chosen] - set(dir(builtins))
    for block in reversed(kind):
        if block is not chosen and bound[block] & lacks:
            taken.append(block)
            lacks = (lacks | used[block]) - bound[block] - set(dir(builtins))
    return [line for block in kind if block in taken for line in block[1]]


def text_of(lines: Lines) -> str:
    """Return the text of lines."""
    return "".join(text for _, text in lines)


def parsed(text: str) -> ast.Module:
    """Return the tree of a program or of tests, without warnings of escapes in it; raises what `ast.parse` does."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(text)


def fault(text: str) -> int:
    """Return the line of the first fault that Python finds in a program, 0 without one; 1 if it is not tried."""
    try:
        return int(len(text) > _MOST_CHARS or not parsed(text))
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
    text = _ITEM.sub(lambda item: item[1] + " " * len(item[2]), text)  # a fence beside the mark of a list
    blocks = list[Block]()
    for token in MarkdownIt("zero").enable(["fence", "blockquote"]).disable("inline").parse(text):
        if token.type != "fence" or token.map is None:
            continue
        (start, stop), contents = token.map, token.content.split("\n")[:-1]
        [language, *_] = re.findall(r"[\w+#-]+", token.info.lower()) or [""]  # as in {.python} or python:solution.py
        own = tuple(map(_inside, lines[start + 1 : stop], contents))
        faulty = fault(text_of(own)) > 0
        behind = (at for at in range(stop, len(lines)) if lines[at][1].startswith(token.markup))
        ends = islice(behind, _MOST if faulty and language in _PYTHON else 0)
        if end := next((end for end in ends if not fault(text_of(lines[start + 1 : end]))), 0):
            blocks.append((language, tuple(lines[start + 1 : end])))
            return blocks + fenced_blocks(lines[end + 1 :], depth + 1)
        glued = (at for at, (_, line) in enumerate(own) if line.rstrip().endswith(token.markup))
        if faulty and (at := next(glued, None)) is not None:  # the fence stands behind the last line of code
            place, line = own[at]
            ended = (*own[:at], (place, line.rstrip().removesuffix(token.markup)))
            if text_of(ended).strip() and not fault(text_of(ended)):
                blocks.append((language, ended))
                return blocks + fenced_blocks(lines[start + at + 2 :], depth + 1)
        inner = fenced_blocks(own, depth + 1) if faulty else []
        if inner:
            own = tuple(line for line in own if line[0] < inner[0][1][0][0])[:-1]
        if text_of(own).strip() and (language in _PYTHON or not inner):
            closed = stop - start - 2 == len(contents) and not inner
            blocks.append((language, own if closed else tuple(code_of(own))))
        blocks += inner
    return blocks


def _inside(line: tuple[int, str], content: str) -> tuple[int, str]:
    """Return a line of a block without the marks of quotes and lists around it, and without the fence's indentation."""
    place, text = line
    body = text.rstrip("\r\n")
    cut = len(body) - len(content) if body.endswith(content) else 0
    return place + cut, text[cut:]


def code_of(lines: Lines) -> Lines:
    """Return the lines from the first line of code on that Python can parse, if only prose is behind; else all."""
    start = next((number for number, (_, text) in enumerate(lines) if _CODE.match(text)), 0)
    end = len(lines)
    while start < end and (line := fault(text_of(lines[start:end]))):
        end = min(end - 1, start + line - 1)
    behind = [text for _, text in lines[end:] if text.strip(" \t\r\n`~")]
    prose = not behind or not (behind[0][0].isspace() or any(map(_CODE.match, behind)))
    return lines[start:end] if start < end and prose else lines
