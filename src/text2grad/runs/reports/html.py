"""Responses with tokens coloured by reward → one self-contained HTML file.

In: the records of a run (`rl.response_records`). Out: a page for desktop and phone, light and dark mode, that needs no
network and no script: it contains style and pictures. Texts of models, critics and people are escaped, and a content
security policy blocks every script and every other style.

The colour of a token is its δ: teal with a straight underline if positive, vermilion with a wavy underline if negative,
in four strengths. Pointing at a token shows its numbers, and what is said about its spans.
"""

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple

from markupsafe import Markup

from text2grad.runs.reports.plots import Picture
from text2grad.types import signs

Record = Mapping[str, Any]
Groups = Sequence[tuple[str, Sequence[Record]]]
Tokens = deque[tuple[int, tuple[int, int]]]  # number and characters of each token that is not shown yet


class Column(NamedTuple):
    """Numbers per token: their name on the page, and what they mean."""

    name: str
    meaning: str


COLUMNS = {  # numbers per token that a record may have
    "delta": Column("δ", "pseudo-reward of the token: positive or negative span, or none"),
    "reward": Column("reward", "δ scaled by the recipe, plus the outcome on the last token"),
    "kl": Column("KL", "KL divergence from the reference model, nats"),
    "value": Column("value", "value function: expected discounted reward from this token on"),
    "advantage": Column("advantage", "reward compared with the value function; the policy update follows it"),
    "change": Column("Δ log p", "change of the token's log-probability by this step's update, nats"),
}


class Table(NamedTuple):
    """A table of a page or of the terminal."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def rollouts_page(
    title: str,
    records: Sequence[Record] = (),
    *,
    intro: str = "",
    summary: Sequence[tuple[str, str]] = (),
    groups: Groups = (),
    images: Sequence[tuple[str, Sequence[Picture]]] = (),
    tables: Sequence[Table] = (),
) -> str:
    """Return a page of responses with coloured tokens.

    Args:
        title: of the page.
        records: responses shown without a heading. Only "response" is required. Optional are "prompt",
            "critique", "offsets" and the numbers per token of `COLUMNS` (None if not recorded); "beside", a list of
            further records for columns beside the first; "by", the heading of the column; "unit", the name of a token.
        intro: text under the title; a blank line starts a new paragraph.
        summary: figures of the whole page, as (name, value); brackets at the end of a value are shown small.
        groups: further responses, as (heading, records), such as before and after training.
        images: panels, as (caption, pictures).
        tables: below the panels.

    Example:
        >>> record = {"response": "Hi there", "offsets": [[0, 2], [2, 8]], "delta": [0.0, -1.0]}
        >>> '<span class="t n4" title="δ -1"> there</span>' in rollouts_page("One answer", [record])
        True
    """
    sections = [*([("", records)] if records else []), *groups]
    columns = [column for column in COLUMNS if any(column in record for _, group in sections for record in group)]
    style = _read("page.css")
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{_base64(sha256(style.encode()).digest())}'"
    return _template().render(  # type: ignore[no-any-return]
        title=title,
        intro=intro,
        summary=summary,
        groups=sections,
        images=images,
        tables=tables,
        columns=columns,
        style=style,
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
    )


@cache
def _template() -> Any:
    """Return the template of the page, which escapes every value that the template does not call safe."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, finalize=escape_value)
    functions = {"base64": _base64, "count": count, "facts": _facts, "response_html": response_html}
    environment.globals |= {"known": COLUMNS, **functions}
    return environment.from_string(_read("page.html"))


def _read(name: str) -> str:
    return files("text2grad.runs.reports").joinpath(name).read_text(encoding="utf-8")


def response_html(record: Record, columns: Sequence[str]) -> str:
    """Return the response as HTML with one element per token; its text content is the response, made `visible`.

    A token without characters of its own (end-of-sequence, later bytes of an emoji) is an empty element. Of a
    conversation, all turns from the policy's first one on: thoughts folded, calls as code, and what was given without
    tokens.

    Args:
        record: with "response", "offsets" and numbers per token; without offsets it has no tokens. "shade", numbers
            from −1 to 1, gives the colours in place of δ; "turns" makes it a conversation.
        columns: the numbers that a browser shows of the token at which a reader points.
    """
    tokens: Tokens = deque((t, (start, end)) for t, (start, end) in enumerate(record.get("offsets", ())))
    shown, html, done = signs(record["response"]), "", 0
    if "turns" not in record:
        return _tokens_html(record, columns, shown, (0, len(shown)), tokens)
    for place, turn in dropwhile(lambda pair: not pair[1].get("sampled"), enumerate(record["turns"])):
        kind, text, thought = "turn given", turn["text"], turn.get("thought", "")
        said = _escaped(signs(text))
        if turn.get("sampled"):
            kind, said, begin = "turn", "", max(text.find(thought), 0)
            cuts = [0, begin, begin + len(thought) * text.startswith(thought, begin), len(text)]
            for number, (start, end) in enumerate(pairwise(cuts)):
                part = _tokens_html(record, columns, shown, (done + start, done + end), tokens)
                said += f"<details><summary>thought</summary>{part}</details>" if number == 1 and start < end else part
            done += len(text)
        names = _escaped(signs(" · ".join(filter(None, (f"turn {place}", turn["role"], turn.get("name"))))))
        calls = "".join(f"<code>{_escaped(signs(call_text(call)))}</code>" for call in turn.get("tool_calls", ()))
        html += f'<div class="{kind}"><p class="where as-is">{names}</p>{said}{calls}</div>'
    return html


def call_text(call: Record) -> str:
    """Return a call of a tool as code, such as look({"city": "Lyon"})."""
    return f"{call.get('name', '')}({json.dumps(call.get('arguments', {}), ensure_ascii=False)})"


def _tokens_html(
    record: Record, columns: Sequence[str], shown: Sequence[str], part: tuple[int, int], tokens: Tokens
) -> str:
    """Return the characters of a part of a response as HTML, and take its tokens; one that goes on behind it stays."""
    text, html, (done, stop), spans = record["response"], "", part, list(_said_spans(record))
    shades = record.get("shade", record.get("delta", [0.0] * (len(tokens) and tokens[-1][0] + 1)))
    while tokens and (tokens[0][1][0] < stop or tokens[0][1][1] <= stop):
        t, (start, end) = tokens[0]
        begin, until = max(start, done), min(end, stop)
        look = strength(shades[t] or 0.0) + _kind(text[begin:until], shares=start < end)
        numbers = {name: record[name][t] for name in columns if name in record}
        title = " · ".join(f"{COLUMNS[name].name} {n:.4g}" for name, n in numbers.items() if n is not None)
        said = [said_of(span) for first, last, span in spans if first < end and start < last]
        title = _escaped(signs("\n".join(filter(None, (title, *said)))))
        own = f'<span class="t{look}" title="{title}">{_escaped(shown[begin:until])}</span>'
        html += _escaped(shown[done:start]) + own
        done = max(done, until)
        if end > stop:
            break
        tokens.popleft()
    return html + _escaped(shown[done:stop])


def _said_spans(record: Record) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Yield the spans of which something is said, each with its characters in the whole response."""
    for span in (record.get("critique") or {}).get("spans", ()):
        before = record.get("turns", ())[: span.get("turn") or 0]
        first = sum(len(turn["text"]) for turn in before if turn.get("sampled"))
        if said_of(span):
            yield first + span["start"], first + span["end"], span


def said_of(span: Mapping[str, Any]) -> str:
    """Return what is said about a span of a record, such as "negative: Fact · ann: It is Nice."; "" if nothing is."""
    about = " · ".join(str(span[name]) for name in ("category", "severity", "rater") if span.get(name))
    said = ": ".join(part for part in (about, str(span.get("reason") or "")) if part)
    return f"{span['label']}: {said}" if said else ""


def _kind(own: str, *, shares: bool) -> str:
    """Return the style class of a token without visible text: a line break, part of a character, or no text."""
    if own:
        return "" if own.strip("\r\n") else " newline"
    return " shared" if shares else " none"


def strength(delta: float) -> str:
    """Return the style class of a reward: `p1` to `p4` for a positive one, `n1` to `n4`, nothing for 0.

    Example:
        >>> strength(0.3), strength(-1.0), strength(0.0)
        (' p2', ' n4', '')
    """
    level = min(4, math.ceil(abs(delta) * 4))
    return f" {'p' if delta > 0 else 'n'}{level}" if level else ""


def count(number: int, noun: str) -> str:
    """Return text such as "1 response" or "3 responses"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escape_value(value: Any) -> Markup:
    """Return a value as text of the page: escaped and `visible`, unless it is HTML already."""
    return value if isinstance(value, Markup) else Markup(_escaped(signs(str(value))))


def _escaped(shown: Sequence[str]) -> str:
    """Return characters escaped between tags and in attributes; browsers would drop a plain carriage return."""
    return escape("".join(shown)).replace("\r", "&#13;")


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _facts(record: Record) -> list[str]:
    """Return counts and sums over the tokens of a response."""
    delta = [number or 0 for number in record["delta"]]
    sums = {name: [value for value in record[name] if value is not None] for name in ("reward", "kl") if name in record}
    return [
        count(len(delta), record.get("unit", "token")),
        f"{sum(number > 0 for number in delta)} positive",
        f"{sum(number < 0 for number in delta)} negative",
        *(f"Σ {COLUMNS[name].name} {f'{sum(known):.2f}' if known else '–'}" for name, known in sums.items()),
        *(["cut by the length limit"] if record.get("truncated") else []),
    ]
