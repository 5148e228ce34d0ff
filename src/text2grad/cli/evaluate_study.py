"""`text2grad evaluate study`: rating sheets for people, and the agreement between raters (appendix M)."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, at_least, print_end, refuse_overwriting, say
from text2grad.errors import ConfigError, DataError

DESCRIPTION = """\
People rate critiques (100 critiques, three raters in the paper): is the critique correct, and are its spans correct?

  FILE.jsonl   critiques: N are drawn at random -> sheet.csv for a spreadsheet, sheet.html to read, study.json;
               with --against: N pairs of texts of two files, sides hidden: 1, 2 or tie
  FILE.csv ... the filled sheets of all raters -> percent correct, agreement, Fleiss' kappa, Krippendorff's alpha"""

EPILOG = """\
examples:
  text2grad evaluate study runs/evaluation/predictions.jsonl --items 100 --out runs/study
  text2grad evaluate study ann.csv ben.csv cleo.csv --out runs/study
  text2grad evaluate study ours.jsonl --against theirs.jsonl --items 50 --out runs/pairs

Each rater fills a copy of sheet.csv: yes or no (or 1 or 0) in the last columns; an empty cell is no answer. Sheets of
pairs go to `text2grad evaluate pairs --human`. docs/critics.md explains the numbers."""

AGREEMENT = "agreement.json"
SEED = 0
"""Seed of the draw."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "rating sheets for people, and the agreement between raters"
    add = add_command(commands, "study", run, about, DESCRIPTION, EPILOG, extras=()).add_argument
    add("files", metavar="FILE", type=Path, nargs="+", help="JSONL of responses with critiques, or filled sheets (CSV)")
    add("--items", type=at_least(1), default=100, metavar="N", help="number of critiques (default: %(default)s)")
    other = "a second file about the same prompts: raters choose the better text of each pair"
    add("--against", metavar="FILE", type=Path, help=other)
    add("--out", type=Path, metavar="DIR", help="directory of the sheet, or of agreement.json")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Write the sheet, or read filled sheets.

    Raises:
        Text2GradError: if there is nothing to rate, the directory already holds a sheet, a file is no sheet of this
            study, or all sheets are empty.
    """
    sheets = [path for path in args.files if path.suffix == ".csv"]
    if len(sheets) == len(args.files) and args.against is None:
        return _read(args)
    if sheets or len(args.files) > 1:
        raise ConfigError("give one JSONL file of critiques to draw from, or the filled sheets (.csv) of all raters")
    if args.out is None:
        raise ConfigError("name the directory of the sheet with --out DIR")
    return _draw(args)


def _draw(args: argparse.Namespace) -> int:
    """Draw critiques, or pairs of texts, and write the sheet; study.json does not tell the sides of a pair."""
    from text2grad.feedback import read_critique_records
    from text2grad.files import to_json, write_files
    from text2grad.runs.critic_quality import (
        draw,
        draw_pairs,
        pairs_csv,
        pairs_html,
        read_comparisons,
        sheet_csv,
        sheet_html,
    )

    path = args.files[0]
    if args.against is None:
        judged = list(read_critique_records(path))
        items = draw(judged, args.items, seed=SEED)
        named = {item.id: item.judged.number for item in items}
        study = {"critiques": str(path), "seed": SEED, "of": len(judged), "items": named}
        page, table = sheet_html(items, path.name), sheet_csv(items)
        drawn, then = f"{len(items):,} of {len(judged):,} critiques", "text2grad evaluate study COPY1.csv COPY2.csv"
    else:
        pairs = read_comparisons(path, args.against)
        sides = draw_pairs(pairs, args.items, seed=SEED)
        study = {
            "first": str(path),
            "second": str(args.against),
            "of": len(pairs),
            "items": [side.id for side in sides],
        }
        page, table = pairs_html(sides), pairs_csv(sides)
        drawn = f"{len(sides):,} of {len(pairs):,} pairs"
        then = f"text2grad evaluate pairs {path} {args.against} --human COPY1 --human COPY2 --out DIR"
    if not study["items"]:
        raise DataError(
            f"{path} has nothing to rate: no readable critique, or with --against no pair of different texts"
        )
    if (args.out / "sheet.csv").exists():
        raise ConfigError(f"{args.out}/sheet.csv exists and may hold ratings. Choose another --out, or remove the file")
    if not (args.out / "study.json").exists():  # a sheet of text2grad is drawn again
        refuse_overwriting([args.out / "sheet.html"], force=args.force)
    files = {"study.json": to_json(study, indent=2) + b"\n", "sheet.html": page.encode(), "sheet.csv": table}
    write_files(args.out, files)
    say(drawn)
    note = f"each rater fills a copy of {args.out}/sheet.csv; {then} reads them"
    print_end(f"{args.out}/{', '.join(files)}", note=note)
    return 0


def _read(args: argparse.Namespace) -> int:
    """Read filled sheets, and print and write the agreement between raters."""
    from text2grad.files import to_json, write_files
    from text2grad.runs.critic_quality import QUESTIONS, measure_agreement, read_sheets
    from text2grad.runs.reports import as_text

    if args.out is not None:
        refuse_overwriting([args.out / AGREEMENT], force=args.force)
    sheets = read_sheets(args.files)
    order = list(sheets[0])
    agreements = {
        question: measure_agreement([[sheet[item][question] for item in order] for sheet in sheets])
        for question in QUESTIONS
    }
    if not any(agreement.ratings for agreement in agreements.values()):
        raise DataError(f"there is no rating in {', '.join(map(str, args.files))}. Fill in yes or no first")
    say(as_text([_table(agreements, len(sheets))]).rstrip())
    if args.out is not None:
        questions = {question: agreement.as_json() for question, agreement in agreements.items()}
        record = {"sheets": [str(path) for path in args.files], "questions": questions}
        write_files(args.out, {AGREEMENT: to_json(record, indent=2) + b"\n"})
        print_end(f"{args.out}/{AGREEMENT}")
    return 0


def _table(agreements: Any, raters: int) -> Any:
    """Return table 16."""
    from text2grad.runs.reports import Table

    columns = ("question", "items", "ratings", "correct", "majority", "agreement", "kappa", "alpha")
    rows = []
    for question, rated in agreements.items():
        correct = "{:.1%} [{:.1%}, {:.1%}]".format(*rated.correct) if rated.correct else "–"
        shares = ("–" if share is None else f"{share:.1%}" for share in (rated.majority, rated.agreement))
        chances = ("–" if number is None else f"{number:.3f}" for number in (rated.kappa, rated.alpha))
        rows.append((question, f"{rated.items:,}", f"{rated.ratings:,}", correct, *shares, *chances))
    return Table(f"Ratings of {raters} raters (table 16); [low, high]: 95 % intervals over items", columns, rows)
