"""Print a critique to the terminal: the response with coloured spans, the feedback, quotes that were not found.

Positive spans are green and underlined, negative spans red and reversed, characters in both magenta. The spans are also
listed with a sign, for output without colour. Texts of models and critics are not interpreted as markup, and their
control characters are replaced by visible signs.
"""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from text2grad.feedback import in_turns
from text2grad.runs.reports.html import Table as ReportTable, call_text
from text2grad.types import Conversation, Critique, Label, Span, signs, visible

STYLES: dict[Label, str] = {"positive": "green underline", "negative": "red reverse"}
BOTH = "magenta reverse underline"

_SIGNS: dict[Label, str] = {"positive": "+", "negative": "−"}
_LISTED_CHARS = 100


def print_critique(console: Console, response: str, critique: Critique, *, title: str = "") -> None:
    """Print a response with coloured spans, and its critique, equal marks once; the title goes above the response."""
    if title:
        console.print(plain(title, style="bold"))
    print_response(console, response, critique)
    feedback = critique.feedback if critique.status == "ok" else f"[{critique.status}] {critique.feedback}"
    console.print(plain(feedback, style="italic"))
    marks = Counter((span.label, _quoted(response, span)) for span in in_turns(response, critique.spans)[0])
    for (label, quote), count in marks.items():
        times = f"{_SIGNS[label]} {count} ×" if count > 1 else _SIGNS[label]
        _print_item(console, times, quote, STYLES[label].split()[0])
    for quote in critique.unmatched:
        _print_item(console, "not found:", quote, "yellow")
    if critique.outcome is not None:
        console.print(plain(f"outcome {critique.outcome:+.3g}"))
    console.print()


def print_response(console: Console, response: str, critique: Critique) -> None:
    """Print a response with coloured spans; of a conversation all turns with calls, what was given and thoughts dim."""
    if not isinstance(response, Conversation):
        console.print(coloured(response, critique))
        return
    spans, _ = in_turns(response, critique.spans)
    for number, turn in enumerate(response.turns):
        names = " · ".join(filter(None, (f"turn {number}", turn.role, turn.name)))
        console.print(plain(names, style="bold dim"))
        text = coloured(turn.text, Critique("", tuple(span for span in spans if span.turn == number)))
        begin = turn.text.find(turn.thought)
        widths = [0, *accumulate(map(len, signs(turn.text)))]
        if not turn.sampled:
            text.stylize("dim")
        elif turn.thought and begin >= 0:
            text.stylize("dim", widths[begin], widths[begin + len(turn.thought)])
        if turn.text:
            console.print(text)
        for call in turn.tool_calls:
            console.print(plain(call_text(call), style="cyan"))


def _quoted(response: str, span: Span) -> str:
    """Return the words of a span, in a conversation with their turn."""
    if not isinstance(response, Conversation) or span.turn is None:
        return response[span.start : span.end]
    return f"turn {span.turn}: {response.turns[span.turn].text[span.start : span.end]}"


def print_figures(console: Console, figures: Sequence[tuple[str, object]], *, title: str = "") -> None:
    """Print names and values in two columns, whose lines are not wrapped."""
    if title:
        console.print(plain(title, style="bold"))
    width = max(len(name) for name, _ in figures) + 3
    for name, value in figures:
        console.print(plain(f"{name:{width}}{value}"), soft_wrap=True)


def print_tables(console: Console, tables: Iterable[ReportTable]) -> None:
    """Print tables; their first column is on the left, the others on the right."""
    for table in tables:
        drawn = Table(header_style="dim", box=SIMPLE_HEAD)
        for number, column in enumerate(table.columns):
            drawn.add_column(plain(column), justify="right" if number else "left")
        for row in table.rows:
            drawn.add_row(*map(plain, row))
        console.print(plain(table.caption, style="bold"), drawn, sep="")


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
    text, begin = Text(), 0
    for at in range(1, len(labels) + 1):
        if at == len(labels) or labels[at] != labels[begin]:
            here = labels[begin]
            text.append(plain(response[begin:at]).plain, BOTH if len(here) > 1 else STYLES[min(here)] if here else None)
            begin = at
    return text


def plain(text: str, *, style: str = "") -> Text:
    r"""Return text that is safe to print: control characters are `visible`; \n and \t stay.

    Example:
        >>> plain("[red]\x1b[2J").plain
        '[red]␛[2J'
    """
    return Text(visible(text).replace("\r", "␍"), style=style)


def _print_item(console: Console, sign: str, quote: str, style: str) -> None:
    shown = " ".join(quote.split())
    shown = shown if len(shown) <= _LISTED_CHARS else shown[: _LISTED_CHARS - 2] + " …"
    console.print(Text.assemble(f"  {sign} ", plain(shown)), style=style)


def as_text(tables: Iterable[ReportTable]) -> str:
    """Return tables as plain text, whose lines are not wrapped."""
    console = Console(file=io.StringIO(), width=10_000, record=True)
    print_tables(console, tables)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"
