"""Print a critique to the terminal: the response with coloured spans, the feedback, quotes that were not found.

Positive spans are green and underlined, negative spans red and reversed, characters in both magenta. The spans are also
listed with a sign, for output without colour. Texts of models and critics are not interpreted as markup, and their
control characters are replaced by visible signs.
"""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from text2grad.types import Critique, Label

STYLES: dict[Label, str] = {"positive": "green underline", "negative": "red reverse"}
BOTH = "magenta reverse underline"

_SIGNS: dict[Label, str] = {"positive": "+", "negative": "−"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LISTED_CHARS = 100


def print_critique(console: Console, response: str, critique: Critique, *, title: str = "") -> None:
    """Print a response with coloured spans, and its critique; the title goes above the response."""
    if title:
        console.print(plain(title, style="bold"))
    console.print(coloured(response, critique))
    feedback = critique.feedback if critique.status == "ok" else f"[{critique.status}] {critique.feedback}"
    console.print(plain(feedback, style="italic"))
    for span in critique.spans:
        _print_item(console, _SIGNS[span.label], response[span.start : span.end], STYLES[span.label].split()[0])
    for quote in critique.unmatched:
        _print_item(console, "not found:", quote, "yellow")
    if critique.outcome is not None:
        console.print(plain(f"outcome {critique.outcome:+.3g}"))
    console.print()


def print_figures(console: Console, figures: Sequence[tuple[str, str]], *, title: str = "") -> None:
    """Print names and values in two columns."""
    table = Table.grid(padding=(0, 3))
    if title:
        table.add_row(plain(title, style="bold"))
    for name, value in figures:
        table.add_row(plain(name, style="dim"), plain(value))
    console.print(table)


def coloured(response: str, critique: Critique) -> Text:
    """Return a response with coloured spans.

    Example:
        >>> from text2grad.types import Span
        >>> text = coloured("I live in Lyon.", Critique("Wrong city.", (Span(10, 14, "negative"),)))
        >>> text.plain, [(span.start, span.end, span.style) for span in text.spans]
        ('I live in Lyon.', [(10, 14, 'red reverse')])
    """
    labels: list[set[Label]] = [set() for _ in response]
    for span in critique.spans:
        for place in labels[span.start : span.end]:
            place.add(span.label)
    text, begin = plain(response), 0
    for at in range(1, len(labels) + 1):
        if at == len(labels) or labels[at] != labels[begin]:
            if labels[begin]:
                text.stylize(BOTH if len(labels[begin]) > 1 else STYLES[next(iter(labels[begin]))], begin, at)
            begin = at
    return text


def plain(text: str, *, style: str = "") -> Text:
    r"""Return text that is safe to print: each control character becomes one visible sign; \n and \t stay.

    Example:
        >>> plain("[red]\x1b[2J").plain
        '[red]␛[2J'
    """
    return Text(_CONTROL.sub(_sign, text), style=style)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\ufffd"


def _print_item(console: Console, sign: str, quote: str, style: str) -> None:
    shown = " ".join(quote.split())
    shown = shown if len(shown) <= _LISTED_CHARS else shown[: _LISTED_CHARS - 2] + " …"
    console.print(Text.assemble(f"  {sign} ", plain(shown)), style=style)
