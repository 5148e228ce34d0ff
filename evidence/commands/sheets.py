"""Critiques → a rating sheet for people; filled sheets → ratings: the human study of appendix M.

A sheet is a CSV file for any spreadsheet, and an HTML page that shows the same items with coloured spans. Each row is
an item. Raters say yes or no: is the critique correct, and are its spans correct? A cell that a spreadsheet would read
as a formula gets an apostrophe before it.
"""

import csv
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.feedback import CritiqueRecord, critique_to_json
from text2grad.runs.critic_quality.units import marks_of
from text2grad.runs.reports.html import rollouts_page
from text2grad.types import LABELS

MAX_CELL = 30_000  # characters; spreadsheets cut cells at 32,767
CUT = " [cut: the whole text is in sheet.html]"
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


class Questions(NamedTuple):
    """What a sheet asks of each item."""

    columns: Mapping[str, str]  # name of a column → its question
    words: Mapping[str, Any]  # what a rater may write → its meaning
    told: str  # the usual words

    def read(self, text: str | None, where: str) -> Any:
        """Return the rating in a cell, or None if it is empty."""
        word = (text or "").strip().casefold()
        if word and word not in self.words:
            raise DataError(f"{where}: expected {self.told}, or an empty cell, got {word[:40]!r}. Correct the cell")
        return self.words[word] if word else None


OF_CRITIQUES = Questions(
    {
        "critique_correct": "Does the critique correctly name the strengths and weaknesses of the response?",
        "spans_correct": "Are the positive and negative quotes correct, and does the critique support them?",
    },
    {
        **dict.fromkeys(("yes", "y", "1", "true", "correct"), True),
        **dict.fromkeys(("no", "n", "0", "false", "incorrect"), False),
    },
    "yes or no",
)


class Item(NamedTuple):
    """One thing to rate.

    Attributes:
        id: its name, which no other item of the sheet has.
        number: its row or line in the file.
        texts: the cells of the sheet by column.
        record: the same as the page shows it.
    """

    id: str
    number: int
    texts: Mapping[str, str]
    record: Mapping[str, Any]


def critique_items(judged: Sequence[CritiqueRecord], number: int, *, seed: int) -> list[Item]:
    """Return at most `number` critiques at random, in random order; critiques with a failed status are not drawn."""
    able = [record for record in judged if not record.critique.failed]
    items = []
    for n, record in enumerate(random.Random(seed).sample(able, min(number, len(able))), start=1):
        response, critique, said = record.response, record.critique, critique_to_json(record.critique)
        quotes = {
            f"{label}_quotes": "\n".join(f"• {response[s.start : s.end]}" for s in critique.spans if s.label == label)
            for label in LABELS
        }
        texts = {"prompt": record.prompt, "response": response, "critique": critique.feedback, **quotes}
        spans = [[span.start, span.end, span.label] for span in critique.spans]
        name = f"{n}-{hash_of(record.prompt, response, repr({**said, 'spans': spans}))[:8]}"
        ends = {0, len(response), *(end for span in critique.spans for end in (span.start, span.end))}
        pieces = list(pairwise(sorted(ends)))
        marks = marks_of(critique, response, response, pieces)
        shown = {"response": response, "critique": said, "offsets": pieces, "delta": marks and marks.delta}
        record_of_page = {"item": name, "unit": "piece", "prompt": record.prompt, **shown}
        items.append(Item(name, record.number, texts, record_of_page))
    return items


def hash_of(*parts: str) -> str:
    """Return a hash of texts, for names of items."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def sheet_files(items: Sequence[Item], questions: Questions, what: str) -> dict[str, bytes]:
    """Return the files of a sheet by name; `what` are the items, such as "critiques".

    The CSV is UTF-8 with a byte order mark, which spreadsheets need.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["item", *items[0].texts, *questions.columns, "notes"])
    empty = [""] * (len(questions.columns) + 1)
    writer.writerows([item.id, *map(cell, item.texts.values()), *empty] for item in items)
    asked = "\n\n".join(f"{name}: {question}" for name, question in questions.columns.items())
    intro = f"{len(items):,} {what}. Read each here, and answer {questions.told} in sheet.csv.\n\n{asked}"
    page = rollouts_page("Rating sheet", [item.record for item in items], intro=intro)
    return {"sheet.html": page.encode(), "sheet.csv": text.getvalue().encode("utf-8-sig", "replace")}


def cell(text: str) -> str:
    """Return a text that a spreadsheet neither reads as a formula nor cuts off.

    Example:
        >>> cell("=HYPERLINK(1)"), cell("1 + 1"), cell("  -2")
        ("'=HYPERLINK(1)", '1 + 1', "'  -2")
    """
    text = text.replace("\0", "\ufffd")
    text = text if len(text) <= MAX_CELL else text[:MAX_CELL] + CUT
    return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def read_sheets(paths: Sequence[Path], questions: Questions) -> list[dict[str, dict[str, Any]]]:
    """Return the ratings in filled sheets of one study: for each sheet item → question → rating, None if left out.

    Raises:
        DataError: if a file is no sheet, an answer has no meaning, or the sheets have different items.
    """
    sheets = [
        {
            item: {name: questions.read(row[name], f"{path}: row {number}, {name}") for name in questions.columns}
            for number, item, row in _rows(path, questions)
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
    if not any(rating is not None for sheet in sheets for row in sheet.values() for rating in row.values()):
        raise DataError(f"there is no rating in {', '.join(map(str, paths))}. Fill in {questions.told} first")
    return sheets


def _rows(path: Path, questions: Questions) -> Iterator[tuple[int, str, dict[str, str | None]]]:
    """Yield (row number, item, row) of a filled sheet."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f'{path} is not UTF-8; save the sheet as "CSV UTF-8" from the spreadsheet') from error
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)  # spreadsheets choose the delimiter by language
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    missing = [name for name in ("item", *questions.columns) if name not in (rows.fieldnames or ())]
    if missing:
        raise DataError(f"{path} is no rating sheet: it has no column {missing[0]!r}. Give a filled sheet.csv")
    seen = set()
    for number, row in enumerate(rows, start=2):
        item = (row["item"] or "").strip()
        if item:  # spreadsheets also save empty rows
            if item in seen:
                raise DataError(f"{path}: row {number} repeats item {item}. Keep one of the two rows")
            seen.add(item)
            yield number, item, row
