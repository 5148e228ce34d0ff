"""Responses with tokens coloured by reward → one self-contained HTML file.

In: the records of a run (`rl.response_records`). Out: a page for desktop and phone, light and dark mode, that needs no
network and no script: it contains style and pictures. Texts of models, critics and people are escaped, and a content
security policy blocks every script and every other style.

The colour of a token is its δ: teal with a straight underline if positive, vermilion with a wavy underline if negative,
in four strengths. Pointing at a token shows its numbers.
"""

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape as escape_html
from importlib.resources import files
from typing import Any, NamedTuple

from text2grad.runs.reports.plots import Picture
from text2grad.types import signs, visible

Record = Mapping[str, Any]
Groups = Sequence[tuple[str, Sequence[Record]]]

COLUMNS = {
    "delta": "δ",
    "reward": "reward",
    "kl": "KL",
    "value": "value",
    "advantage": "advantage",
    "change": "Δ log p",
}
"""Numbers per token that a record may have → their names on the page."""

GLOSSARY = {
    "delta": "pseudo-reward of the token: positive or negative span, or none",
    "reward": "δ scaled by the recipe, plus the outcome on the last token",
    "kl": "KL divergence from the reference model, nats",
    "value": "value function: expected discounted reward from this token on",
    "advantage": "reward compared with the value function; the policy update follows it",
    "change": "change of the token's log-probability by this step's update, nats",
}
_LONG_PROMPT = 280  # characters; longer ones are folded


class Table(NamedTuple):
    """A table of the page."""

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
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
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
        tables: as (caption, names of columns, rows); see `Table`.

    Example:
        >>> record = {"response": "Hi there", "offsets": [[0, 2], [2, 8]], "delta": [0.0, -1.0]}
        >>> '<span class="t n4" title="δ -1"> there</span>' in rollouts_page("One answer", [record])
        True
    """
    sections = [*([("", records)] if records else []), *groups]
    columns = [column for column in COLUMNS if any(column in record for _, group in sections for record in group)]
    parts = [_header(title, intro, summary), _gallery(images, tables), _legend(columns)]
    parts += [_group(heading, group, columns) for heading, group in sections]
    return _document(title, "".join(parts))


def response_html(record: Record, columns: Sequence[str]) -> str:
    """Return the response as HTML with one element per token; its text content is the response, made `visible`.

    A token without characters of its own (end-of-sequence, later bytes of an emoji) is an empty element.

    Args:
        record: with "response", "offsets" and numbers per token; without offsets it has no tokens. "shade", numbers
            from −1 to 1, gives the colours in place of δ.
        columns: the numbers that a browser shows of the token at which a reader points.
    """
    text, offsets = record["response"], record.get("offsets", ())
    shades = record.get("shade", record.get("delta", [0.0] * len(offsets)))
    shown, html, done = signs(text), [], 0
    for t, (start, end) in enumerate(offsets):
        html.append(_escape(shown[done:start]))
        own = text[max(start, done) : end]
        html_of_own, done = _escape(shown[max(start, done) : end]), max(done, end)
        look = strength(shades[t] or 0.0) + _kind(own, shares=start < end)
        numbers = [
            f"{COLUMNS[name]} {record[name][t]:.4g}" for name in columns if record.get(name, {t: None})[t] is not None
        ]
        html.append(f'<span class="t{look}" title="{" · ".join(numbers)}">{html_of_own}</span>')
    return "".join(html) + _escape(shown[done:])


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


def escape(text: str) -> str:
    """Return text escaped for HTML, between tags and in attributes.

    Carriage returns are kept; other control characters, and characters that nobody would see, are `visible`.
    """
    return _escape(visible(text))


def _escape(shown: Sequence[str]) -> str:
    return escape_html("".join(shown), quote=True).replace("\r", "&#13;")


def _document(title: str, body: str) -> str:
    style = files("text2grad.runs.reports").joinpath("page.css").read_text(encoding="utf-8")
    allowed = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _header(title: str, intro: str, summary: Sequence[tuple[str, str]]) -> str:
    paragraphs = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in intro.split("\n\n") if paragraph.strip())
    tiles = "".join(_tile(name, value) for name, value in summary)
    figures = f'<dl class="tiles">{tiles}</dl>' if tiles else ""
    return (
        f'<header><p class="brand"><i></i><i></i><i></i>text2grad</p><h1>{escape(title)}</h1>'
        f'<div class="intro">{paragraphs}</div>{figures}</header>\n'
    )


def _tile(name: str, value: str) -> str:
    """Return one figure; the part of its value in brackets is shown small."""
    number, _, detail = value.removesuffix(")").partition(" (")
    small = f"<small>{escape(detail)}</small>" if detail else ""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(number)}{small}</dd></div>"


def _legend(columns: Sequence[str]) -> str:
    """Return the legend of the colours and of the numbers."""
    glossary = "".join(f"<div><dt>{COLUMNS[column]}</dt><dd>{GLOSSARY[column]}</dd></div>" for column in columns)
    return (
        '<section class="legend" aria-label="Legend"><p class="key">'
        '<span><span class="t n4">negative</span> <span class="t n2">weaker</span> (wavy line)</span>'
        '<span><span class="t p4">positive</span> <span class="t p2">weaker</span> (straight line)</span>'
        '<span class="how">Point at a token to see its numbers.</span></p>'
        f"<details><summary>What the numbers mean</summary><dl>{glossary}</dl></details></section>\n"
        if columns
        else ""
    )


def _gallery(images: Sequence[tuple[str, Sequence[Picture]]], tables: Iterable[tuple[str, Any, Any]]) -> str:
    figures = (
        f'<figure><div class="panels">{"".join(map(_picture, panels))}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
        for caption, panels in images
    )
    shown = "".join([*figures, *(_table(Table(*table)) for table in tables)])
    return f'<section class="evidence">{shown}</section>\n' if shown else ""


def _picture(picture: Picture) -> str:
    return f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{b64encode(picture.png).decode("ascii")}">'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(table.caption)}"><table>'
        f"<caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n"
    )


def _group(heading: str, records: Sequence[Record], columns: Sequence[str]) -> str:
    title = ""
    if heading:
        beside = any("beside" in record for record in records)
        prompts = len({record["prompt"] for record in records if "prompt" in record}) or len(records)
        told = count(prompts, "prompt") if beside else count(len(records), "response")
        title = f"<h2>{escape(heading)} <small>{told}</small></h2>\n"
    return f'<section class="group">{title}{"".join(_card(record, columns) for record in records)}</section>\n'


def _card(record: Record, columns: Sequence[str]) -> str:
    """Return one response with its prompt and critique; the records "beside" it go into further columns."""
    beside = record.get("beside", ())
    if not beside:
        return f'<article>{_prompt(record)}<div class="pair">{_answer(record, columns)}</div></article>\n'
    every = "".join(f"<div>{_answer(side, columns)}</div>" for side in (record, *beside))
    return f'<article>{_prompt(record)}<div class="pair both">{every}</div></article>\n'


def _answer(record: Record, columns: Sequence[str]) -> str:
    parts = count(len(record.get("offsets", ())), record.get("unit", "token"))
    label = f"Response, {parts}"
    by = f'<p class="where as-is">{escape(record["by"])}</p>' if "by" in record else ""
    return (
        f'<div class="answer">{by}<div class="text" dir="auto" role="group" aria-label="{label}">'
        f"{response_html(record, columns)}</div>{_facts(record)}</div>{_critique(record)}"
    )


def _prompt(record: Record) -> str:
    """Return the origin of the response and its prompt; a long prompt is folded."""
    prompt = record.get("prompt", "")
    where = [f"{name} {record[name]}" for name in ("step", "record", "item") if name in record]
    place = f'<p class="where">{escape(" · ".join([*where, "prompt"] if prompt else where))}</p>'
    if len(prompt) <= _LONG_PROMPT and prompt.count("\n") < 6:
        return f'{place}<p class="prompt" dir="auto">{escape(prompt)}</p>'
    return f'{place}<details class="prompt"><summary dir="auto"><span>{escape(prompt)}</span></summary></details>'


def _sum(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known):.2f}" if known else "–"


def _facts(record: Record) -> str:
    """Return counts and sums over the tokens of a response."""
    delta = record.get("delta", ())
    facts = [
        count(len(delta), record.get("unit", "token")),
        f"{sum((x or 0) > 0 for x in delta)} positive",
        f"{sum((x or 0) < 0 for x in delta)} negative",
        *(f"Σ {COLUMNS[name]} {_sum(record[name])}" for name in ("reward", "kl") if name in record),
        *(["cut by the length limit"] if record.get("truncated") else []),
    ]
    return f'<p class="facts">{"".join(f"<span>{escape(fact)}</span>" for fact in facts)}</p>' if delta else ""


def _critique(record: Record) -> str:
    """Return the critique: feedback, status, outcome, and the quotes that do not occur in the response."""
    critique = record.get("critique")
    if not critique:
        return ""
    status, outcome = critique.get("status") or "ok", critique.get("outcome")
    notes = [f'<span class="status">{escape(status)}</span>'] if status != "ok" else []
    notes += [f'<span class="outcome">outcome {outcome + 0.0:+.3g}</span>'] if outcome is not None else []
    quotes = "".join(f"<li>{escape(quote)}</li>" for quote in critique.get("unmatched", ()))
    missing = f'<div class="missing"><h4>Not found in the response</h4><ul>{quotes}</ul></div>' if quotes else ""
    lines = "".join(f'<p dir="auto">{escape(line)}</p>' for line in critique.get("feedback", "").split("\n"))
    heading = escape(critique.get("heading", "Critique"))
    return f"<aside><h3>{heading}{''.join(notes)}</h3><blockquote>{lines}</blockquote>{missing}</aside>"


def count(number: int, noun: str) -> str:
    """Return text such as "1 response" or "3 responses"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
