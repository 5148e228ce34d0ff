"""`text2grad study export|import`: rating sheets for people, and the agreement between raters (appendix M)."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command, add_force, add_verbosity, at_least, print_end, refuse_overwriting
from text2grad.errors import ConfigError, DataError

DESCRIPTION = """\
People rate critiques (100 critiques, three raters in the paper): is the critique correct, and are its spans correct?

  export   N critiques drawn at random -> sheet.csv for a spreadsheet, sheet.html to read, study.json
           with --against: N pairs of responses (or critiques) of two files, sides hidden: 1, 2 or tie
  import   filled sheets -> percent correct, agreement, Fleiss' kappa, Krippendorff's alpha"""

EPILOG = """\
examples:
  text2grad study export runs/evaluation/predictions.jsonl --items 100 --out runs/study
  text2grad study import ann.csv ben.csv cleo.csv --out runs/study/agreement.json
  text2grad study export ours.jsonl --against theirs.jsonl --items 50 --out runs/pairs
  text2grad judge ours.jsonl theirs.jsonl --human ann.csv --human ben.csv --out runs/duel

Each rater fills a copy of sheet.csv: yes or no (or 1 or 0) in the last columns; an empty cell is no answer. A text that
a spreadsheet would read as a formula has an apostrophe before it. docs/evaluation.md defines the numbers."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "rating sheets for people, and the agreement between raters"
    parser = add_command(commands, "study", None, about, DESCRIPTION, EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="export|import")
    export = verbs.add_parser("export", help="draw critiques for a rating sheet")
    export.add_argument("critiques", metavar="CRITIQUES", type=Path, help="JSONL of responses with their critiques")
    export.add_argument(
        "--items", type=int, default=100, metavar="N", help="number of critiques (default: %(default)s)"
    )
    other = "a second file about the same prompts: raters choose the better text of each pair"
    export.add_argument("--against", metavar="FILE", type=Path, help=other)
    export.add_argument("--seed", type=at_least(0), default=0, help="of the draw")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the sheet")
    export.set_defaults(run=run_export)
    read = verbs.add_parser("import", help="read filled sheets and measure the agreement")
    read.add_argument("sheets", metavar="SHEET", type=Path, nargs="+", help="the filled sheet of each rater")
    read.add_argument("--out", type=Path, metavar="FILE", help="JSON file to write (default: print only)")
    read.set_defaults(run=run_import)
    for verb in (export, read):
        add_force(verb.add_argument)
        add_verbosity(verb)


def run_export(args: argparse.Namespace) -> int:
    """Draw critiques and write the sheet.

    Raises:
        Text2GradError: if there is nothing to rate, or the directory already holds a sheet.
    """
    from text2grad.files import write_files
    from text2grad.runs.reports import plain

    if args.items < 1:
        raise ConfigError(f"--items is at least 1, got {args.items}")
    drawn, then, files = (_critiques if args.against is None else _pairs)(args)
    if (args.out / "sheet.csv").exists():
        raise ConfigError(f"{args.out}/sheet.csv exists and may hold ratings. Choose another --out, or remove the file")
    if not (args.out / "study.json").exists():  # a sheet of text2grad is drawn again
        refuse_overwriting([args.out / "sheet.html"], force=args.force)
    write_files(args.out, files)
    console = Console()
    console.print(plain(drawn), soft_wrap=True)
    print_end(
        console, f"{args.out}/{', '.join(files)}", note=f"each rater fills a copy of {args.out}/sheet.csv; {then}"
    )
    return 0


def _critiques(args: argparse.Namespace) -> tuple[str, str, dict[str, bytes]]:
    """Return a line about the critiques that were drawn, the next command, and the files."""
    from text2grad.feedback import read_critique_records
    from text2grad.files import to_json
    from text2grad.runs.critic_quality import draw, sheet_csv, sheet_html

    judged = list(read_critique_records(args.critiques))
    items = draw(judged, args.items, seed=args.seed)
    if not items:
        raise DataError(f"{args.critiques} has no readable critique to rate. Give a file with critiques")
    study = {"critiques": str(args.critiques), "seed": args.seed, "of": len(judged)}
    named = {"items": {item.id: item.judged.number for item in items}}
    files = {
        "study.json": to_json({**study, **named}, indent=2) + b"\n",
        "sheet.html": sheet_html(items, args.critiques.name).encode(),
        "sheet.csv": sheet_csv(items),
    }
    then = "text2grad study import COPY1 COPY2 reads them"
    return f"{len(items):,} of {len(judged):,} critiques", then, files


def _pairs(args: argparse.Namespace) -> tuple[str, str, dict[str, bytes]]:
    """The same for pairs of texts; study.json does not tell the sides."""
    from text2grad.files import to_json
    from text2grad.runs.critic_quality import draw_pairs, pairs_csv, pairs_html, read_comparisons

    pairs = read_comparisons(args.critiques, args.against)
    items = draw_pairs(pairs, args.items, seed=args.seed)
    if not items:
        raise DataError(f"{args.critiques} and {args.against} have no pair of different texts to rate")
    study = {"first": str(args.critiques), "second": str(args.against), "of": len(pairs)}
    files = {
        "study.json": to_json({**study, "items": [item.id for item in items]}, indent=2) + b"\n",
        "sheet.html": pairs_html(items).encode(),
        "sheet.csv": pairs_csv(items),
    }
    then = f"text2grad judge {args.critiques} {args.against} --human COPY1 --human COPY2 --out DIR reads them"
    return f"{len(items):,} of {len(pairs):,} pairs", then, files


def run_import(args: argparse.Namespace) -> int:
    """Read filled sheets, and print and write the agreement between raters.

    Raises:
        Text2GradError: if a file is no sheet of this study, or all sheets are empty.
    """
    from text2grad.files import to_json, write_files
    from text2grad.runs.critic_quality import QUESTIONS, measure_agreement, read_sheets
    from text2grad.runs.reports import as_text, plain

    if args.out is not None:
        refuse_overwriting([args.out], force=args.force)
    sheets = read_sheets(args.sheets)
    order = list(sheets[0].answers)
    found = {
        question: measure_agreement([[sheet.answers[item][question] for item in order] for sheet in sheets])
        for question in QUESTIONS
    }
    if not any(one.ratings for one in found.values()):
        raise DataError(f"there is no rating in {', '.join(map(str, args.sheets))}. Fill in yes or no first")
    Console().print(plain(as_text([_table(found, len(sheets))]).rstrip()), soft_wrap=True)
    if args.out is not None:
        record = {"sheets": [str(path) for path in args.sheets]}
        data = {**record, "questions": {question: one.as_json() for question, one in found.items()}}
        write_files(args.out.parent, {args.out.name: to_json(data, indent=2) + b"\n"})
        print_end(Console(), str(args.out))
    return 0


def _table(found: Any, raters: int) -> Any:
    """Return table 16."""
    from text2grad.runs.reports import Table

    columns = ("question", "items", "ratings", "correct", "majority", "agreement", "kappa", "alpha")
    rows = []
    for question, one in found.items():
        correct = "{:.1%} [{:.1%}, {:.1%}]".format(*one.correct) if one.correct else "–"
        shares = ("–" if x is None else f"{x:.1%}" for x in (one.majority, one.agreement))
        chances = ("–" if x is None else f"{x:.3f}" for x in (one.kappa, one.alpha))
        rows.append((question, f"{one.items:,}", f"{one.ratings:,}", correct, *shares, *chances))
    return Table(f"Ratings of {raters} raters (table 16); [low, high]: 95 % intervals over items", columns, rows)
