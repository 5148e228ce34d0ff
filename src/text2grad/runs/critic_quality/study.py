"""Critiques → a rating sheet for people; filled sheets → ratings: the human study of appendix M.

A sheet is a CSV file for any spreadsheet. Each row is one item with two yes-or-no questions: is the critique correct,
and are its spans correct? A cell that a spreadsheet would read as a formula gets an apostrophe before it. An HTML page
shows the same items with coloured spans.
"""

import csv
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.feedback import CritiqueRecord, critique_to_json
from text2grad.runs.reports.html import rollouts_page
from text2grad.types import LABELS

QUESTIONS = {
    "critique_correct": "Does the critique correctly name the strengths and weaknesses of the response?",
    "spans_correct": "Are the positive and negative quotes correct, and does the critique support them?",
}
TEXTS = ("prompt", "response", "critique", "positive_quotes", "negative_quotes")
COLUMNS = ("item", *TEXTS, *QUESTIONS, "notes")
YES, NO = frozenset({"yes", "y", "1", "true", "correct"}), frozenset({"no", "n", "0", "false", "incorrect"})
MAX_CELL = 30_000  # characters; spreadsheets cut cells at 32,767
CUT = " [cut: the whole text is in sheet.html]"
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


class Item(NamedTuple):
    """A response and its critique, to be rated, with a unique id."""

    id: str
    judged: CritiqueRecord


def draw(judged: Sequence[CritiqueRecord], number: int, *, seed: int) -> list[Item]:
    """Return at most `number` critiques at random, in random order; critiques with a failed status are not drawn."""
    able = [record for record in judged if not record.critique.failed]
    drawn = random.Random(seed).sample(able, min(number, len(able)))
    return [Item(f"{n}-{_hash(record)}", record) for n, record in enumerate(drawn, start=1)]


def _hash(judged: CritiqueRecord) -> str:
    spans = [[span.start, span.end, span.label] for span in judged.critique.spans]
    parts = (judged.prompt, judged.response, repr({**critique_to_json(judged.critique), "spans": spans}))
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def sheet_csv(items: Sequence[Item]) -> bytes:
    """Return the sheet as CSV."""
    rows = []
    for item in items:
        critique, response = item.judged.critique, item.judged.response
        quotes = {
            label: "\n".join(f"• {response[span.start : span.end]}" for span in critique.spans if span.label == label)
            for label in LABELS
        }
        texts = (item.judged.prompt, response, critique.feedback, *(quotes[label] for label in LABELS))
        rows.append((item.id, *map(cell, texts)))
    return csv_of(COLUMNS, rows)


def csv_of(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """Return a sheet in UTF-8 with a byte order mark, which spreadsheets need; the last cells of a row are empty."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)
    return text.getvalue().encode("utf-8-sig", "replace")


def cell(text: str) -> str:
    """Return a text that a spreadsheet neither reads as a formula nor cuts off.

    Example:
        >>> cell("=HYPERLINK(1)"), cell("1 + 1"), cell("  -2")
        ("'=HYPERLINK(1)", '1 + 1', "'  -2")
    """
    text = text.replace("\0", "\ufffd")
    text = text if len(text) <= MAX_CELL else text[:MAX_CELL] + CUT
    return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def sheet_html(items: Sequence[Item], name: str) -> str:
    """Return the HTML page with the items of the sheet; `name` is the file of the critiques."""
    questions = "\n\n".join(f"{key}: {question}" for key, question in QUESTIONS.items())
    return rollouts_page(
        "Rating sheet",
        [_record(item) for item in items],
        intro=f"{len(items):,} critiques from {name}. Read each critique here, and answer yes or no in "
        f"sheet.csv.\n\n{questions}",
    )


def _record(item: Item) -> dict[str, Any]:
    """Return an item as the page has it: its pieces are those that spans begin and end."""
    response, critique = item.judged.response, item.judged.critique
    ends = {0, len(response), *(end for span in critique.spans for end in (span.start, span.end))}
    offsets = list(pairwise(sorted(ends)))
    signs = {"positive": 1.0, "negative": -1.0}
    deltas = [
        float(sum({signs[span.label] for span in critique.spans if span.start <= start and end <= span.end}))
        for start, end in offsets
    ]
    shown = {"prompt": item.judged.prompt, "response": response, "critique": critique_to_json(critique)}
    return {"item": item.id, "unit": "piece", **shown, "offsets": offsets, "delta": deltas}


Sheet = dict[str, dict[str, bool | None]]
"""The ratings of a rater: item → question → yes (True), no (False) or no answer (None)."""


def read_sheets(paths: Sequence[Path]) -> list[Sheet]:
    """Return the ratings in filled sheets of one study.

    Raises:
        DataError: if a file is no sheet, an answer is neither yes nor no, or the sheets have different items.
    """
    sheets: list[Sheet] = [
        {
            item: {name: _answer(row[name], f"{path}: row {number}, {name}") for name in QUESTIONS}
            for number, item, row in sheet_rows(path, QUESTIONS)
        }
        for path in paths
    ]
    for path, sheet in zip(paths, sheets, strict=True):
        differing = sheets[0].keys() ^ sheet.keys()
        if differing:
            raise DataError(
                f"{path} and {paths[0]} have different items, such as {min(differing)}. Import the sheets of one study "
                "together, each with all its rows"
            )
    return sheets


def sheet_rows(path: Path, questions: Iterable[str]) -> Iterator[tuple[int, str, dict[str, str | None]]]:
    """Yield (row number, item, row) of a filled sheet with columns for some questions.

    Raises:
        DataError: if the file is no sheet, has no items, or has an item twice.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f'{path} is not UTF-8; save the sheet as "CSV UTF-8" from the spreadsheet') from error
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)  # spreadsheets choose the delimiter by language
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    missing = [name for name in ("item", *questions) if name not in (rows.fieldnames or ())]
    if missing:
        raise DataError(
            f"{path} is no rating sheet: it has no column {missing[0]!r}. Give a filled sheet.csv of `evaluate study`"
        )
    seen = set()
    for number, row in enumerate(rows, start=2):
        item = (row["item"] or "").strip()
        if item:  # spreadsheets also save empty rows
            if item in seen:
                raise DataError(f"{path}: row {number} repeats item {item}. Keep one of the two rows")
            seen.add(item)
            yield number, item, row
    if not seen:
        raise DataError(f"{path} has no items. Give a sheet with rows")


def _answer(text: str | None, where: str) -> bool | None:
    word = (text or "").strip().casefold()
    if word and word not in YES | NO:
        raise DataError(f"{where}: expected yes, no or an empty cell, got {word[:40]!r}. Correct the cell")
    return word in YES if word else None
