"""The answer in a model's text: what stands outside of its reasoning, by the marks that models put around reasoning.

A draft in the reasoning must not be read as the answer: a critique, a judge's verdict, a program. Some chat templates
put the opening mark into the prompt; then the text begins inside the reasoning, and has the closing mark alone.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

_TAG = r"(?:[\w-]*[:_])?(?:think|thinking|thoughts?|thought[_-]process|reasoning|scratchpad|antthinking)"
_MARKS = (  # opening, closing
    (rf"<\s*{_TAG}(?:\s[^<>\n]{{0,80}})?>", rf"<\s*/\s*{_TAG}\s*>"),  # most models
    (r"\[THINK\]|◁think▷|\[unused16\]|<unused94>", r"\[/THINK\]|◁/think▷|\[unused17\]|<unused95>"),  # Mistral, Kimi, …
    (r"<\|begin_of_thought\|>|<\|START_THINKING\|>", r"<\|end_of_thought\|>|<\|END_THINKING\|>"),  # Sky-T1, Command A
    (r"<\|inner_prefix\|>|<\|channel>", r"<\|inner_suffix\|>|<channel\|>"),  # Apertus, Gemma
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)",
        r"<\|channel\|>final\b[^\n]{0,80}?<\|message\|>",
    ),
    (r"(?-i:\A\s*analysis(?=[A-Z\"'`]))", r"(?-i:assistantfinal)"),  # harmony, whose special tokens were left out
    (r"\A\s*Here(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),  # Granite
)
_WORDS = len(_MARKS) - 2  # the marks from this one on are words: without the opening, the closing is text
_MARK = re.compile("|".join(f"({opening})|({closing})" for opening, closing in _MARKS), re.IGNORECASE)
_BEGUN = re.compile(rf"(?:\A|[\n:>])\s*(?:{'|'.join(opening for opening, _ in _MARKS[:_WORDS])})\s*\Z", re.IGNORECASE)
_QUOTED = ('"', "'", "`")
_QUOTES = (re.compile('"'), re.compile("`"), re.compile(r"(?<!\w)'|'(?!\w)"))


def answer_parts(text: str, prompt: str = "") -> list[tuple[int, int]]:
    """Return the ranges of a text outside of its reasoning, in order; none if the reasoning was cut off.

    Args:
        text: the text of a model. A mark in quotation marks is text; so is an opening mark behind other words that is
            never closed.
        prompt: what stood before the text: if it ends with an opening mark, the text begins inside the reasoning.
    """
    marks = list(_marks(text))
    last = {mark.kind: mark.start for mark in marks if mark.closes}
    leads = bool(marks) and not marks[0].closes and not text[: marks[0].start].strip()
    inside: int | None = -1 if not leads and _BEGUN.search(prompt[-200:]) else None  # -1: of any kind
    parts, at = list[tuple[int, int]](), 0
    for start, end, kind, closes, line, quoted in marks:
        if closes and (inside in (kind, -1) or (inside is None and kind < _WORDS and not quoted)):
            parts = [] if inside in (-1, None) else parts  # before a closing mark alone, all is reasoning
            at, inside = end, None
        elif (
            not closes
            and inside is None
            and not quoted
            and (last.get(kind, -1) > start or not text[line:start].strip())
        ):
            parts.append((at, start))
            inside = kind
    parts += [(at, len(text))] if inside is None else []
    return [(start, end) for start, end in parts if text[start:end].strip()]


class _Mark(NamedTuple):
    """A mark: its range and kind, the start of its line, and whether quotation marks are beside it or around it."""

    start: int
    end: int
    kind: int
    closes: bool
    line: int
    quoted: bool


def _marks(text: str) -> Iterator[_Mark]:
    """Yield the marks in a text, other than those that stand between two quotation marks."""
    every = list(_MARK.finditer(text))
    lines = [-1, *(match.start() for match in re.finditer("\n", text))] if every else []
    quotes = [[match.start() for match in quote.finditer(text)] for quote in _QUOTES] if every else []
    for mark in every:
        start, end = mark.span()
        number = bisect_right(lines, start)
        line, stop = lines[number - 1] + 1, lines[number] if number < len(lines) else len(text)
        before = text[max(start - 1, 0) : start] in _QUOTED and text[start - 3 : start] != "```"
        behind = text[end : end + 1] in _QUOTED and text[end : end + 3] != "```"
        around = any(
            (bisect_right(places, start) - bisect_right(places, line - 1)) % 2
            and bisect_right(places, end - 1) < bisect_right(places, stop)
            for places in quotes
        )
        kind, closes = divmod((mark.lastindex or 1) - 1, 2)
        if not (before and behind):
            yield _Mark(start, end, kind, bool(closes), line, before or behind or around)


def without_reasoning(text: str, prompt: str = "") -> str:
    """Return the answer of a model without its reasoning; "" if the reasoning was cut off. See `answer_parts`.

    Example:
        >>> without_reasoning("<think>5?</think> 8"), without_reasoning("5?</think> 8"), without_reasoning("<think>5?")
        (' 8', ' 8', '')
    """
    return "".join(text[start:end] for start, end in answer_parts(text, prompt))
