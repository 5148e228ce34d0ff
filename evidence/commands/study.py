"""`python -m evidence study`: rating sheets for people, and the agreement between raters (appendix M).

correct      share of all ratings that are yes, with a bootstrap interval over items
majority     share of items that more than half of their raters rated correct
agreement    mean over items of the share of pairs of raters with equal ratings; alpha: as in `critic_quality`
kappa        Fleiss' kappa (1971) over the items that every rater rated
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from evidence.commands.sheets import OF_CRITIQUES, critique_items, read_sheets, sheet_files
from text2grad.cli.options import add_command, add_shared, at_least, print_end, refuse_overwriting, say
from text2grad.errors import ConfigError, DataError
from text2grad.evaluation import Ratio, estimate
from text2grad.runs.critic_quality.verdicts import measure_agreement, pairs_alike

DESCRIPTION = """\
People rate critiques (100 critiques, three raters in the paper): is the critique correct, and are its spans correct?

  FILE.jsonl   critiques: N are drawn at random -> sheet.csv for a spreadsheet, sheet.html to read, study.json
  FILE.csv ... the filled sheets of all raters -> percent correct, agreement, Fleiss' kappa, Krippendorff's alpha"""

EPILOG = """\
examples:
  python -m evidence study runs/evaluation/predictions.jsonl --items 100 --out runs/study
  python -m evidence study ann.csv ben.csv cleo.csv --out runs/study

Each rater fills a copy of sheet.csv: yes or no (or 1 or 0) in the last columns; an empty cell is no answer.
evidence/docs/raters.md explains the numbers."""

AGREEMENT = "agreement.json"
SEED = 0  # of the draw


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "rating sheets for people, and the agreement between raters"
    add = add_command(commands, "study", run, about, DESCRIPTION, EPILOG, extras=()).add_argument
    add("files", metavar="FILE", type=Path, nargs="+", help="JSONL of responses with critiques, or filled sheets (CSV)")
    add("--items", type=at_least(1), default=100, metavar="N", help="number of critiques (default: %(default)s)")
    add("--out", type=Path, metavar="DIR", help="directory of the sheet, or of agreement.json")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Write the sheet, or read filled sheets."""
    sheets = [path for path in args.files if path.suffix == ".csv"]
    if len(sheets) == len(args.files):
        return _read(args)
    if sheets or len(args.files) > 1:
        raise ConfigError("give one JSONL file of critiques to draw from, or the filled sheets (.csv) of all raters")
    if args.out is None:
        raise ConfigError("name the directory of the sheet with --out DIR")
    return _draw(args)


def _draw(args: argparse.Namespace) -> int:
    """Draw critiques, and write the sheet."""
    from text2grad.feedback import read_critique_records
    from text2grad.files import to_json, write_files

    path = args.files[0]
    judged = list(read_critique_records(path))
    items = critique_items(judged, args.items, seed=SEED)
    if not items:
        raise DataError(f"{path} has nothing to rate: no readable critique")
    if (args.out / "sheet.csv").exists():
        raise ConfigError(f"{args.out}/sheet.csv exists and may hold ratings. Choose another --out, or remove the file")
    if not (args.out / "study.json").exists():  # a sheet of text2grad is drawn again
        refuse_overwriting([args.out / "sheet.html"], force=args.force)
    named = {item.id: item.number for item in items}
    study = {"critiques": str(path), "seed": SEED, "of": len(judged), "items": named}
    files = {"study.json": to_json(study, indent=2) + b"\n", **sheet_files(items, OF_CRITIQUES, "critiques")}
    write_files(args.out, files)
    say(f"{len(items):,} of {len(judged):,} critiques")
    then = "python -m evidence study COPY1.csv COPY2.csv reads them"
    print_end(f"{args.out}/{', '.join(files)}", note=f"each rater fills a copy of {args.out}/sheet.csv; {then}")
    return 0


def _read(args: argparse.Namespace) -> int:
    """Read filled sheets, and print and write the agreement between raters."""
    from text2grad.files import to_json, write_files
    from text2grad.runs.reports import as_text

    if args.out is not None:
        refuse_overwriting([args.out / AGREEMENT], force=args.force)
    sheets = read_sheets(args.files, OF_CRITIQUES)
    questions = {
        question: measure_ratings([[sheet[item][question] for item in sheets[0]] for sheet in sheets])
        for question in OF_CRITIQUES.columns
    }
    say(as_text([_table(questions, len(sheets))]).rstrip())
    if args.out is not None:
        record = {"sheets": list(map(str, args.files)), "questions": questions}
        write_files(args.out, {AGREEMENT: to_json(record, indent=2) + b"\n"})
        print_end(f"{args.out}/{AGREEMENT}")
    return 0


def measure_ratings(ratings: Sequence[Sequence[bool | None]]) -> dict[str, Any]:
    """Return the numbers of the module as JSON data; `ratings` are [raters][items]."""
    by_item = [[rating for rating in item if rating is not None] for item in zip(*ratings, strict=True)]
    rows = [{"right": sum(item), "all": len(item)} for item in by_item if item]
    correct = estimate(rows, {"correct": Ratio(("right",), ("all",))}).get("correct")
    whole = [item for item in by_item if len(item) == len(ratings) > 1]
    return {
        **measure_agreement(ratings),
        "kappa": fleiss_kappa(np.array([[item.count(True), item.count(False)] for item in whole], dtype=float)),
        "correct": correct._asdict() if correct else None,
        "majority": fmean(2 * row["right"] > row["all"] for row in rows) if rows else None,
    }


def fleiss_kappa(counts: np.ndarray) -> float | None:
    """Return Fleiss' kappa, (P − P_e) / (1 − P_e), or None where P_e is 1 or there is no item.

    Args:
        counts: how many raters chose each category [items, categories]; every item has the same number of raters.

    Example:
        >>> fleiss_kappa(np.array([[2.0, 0.0], [1.0, 1.0]]))  # P = (1 + 0) / 2, P_e = (3/4)² + (1/4)² = 5/8
        -0.3333333333333333
    """
    if not len(counts):
        return None
    observed = float(pairs_alike(counts).mean())
    expected = float(((counts.sum(0) / counts.sum()) ** 2).sum())
    return None if expected == 1.0 else (observed - expected) / (1 - expected)


def _table(questions: Mapping[str, Any], raters: int) -> Any:
    """Return table 16."""
    from text2grad.runs.reports import Table

    columns = ("question", "items", "ratings", "correct", "majority", "agreement", "kappa", "alpha")
    rows = []
    for question, rated in questions.items():
        correct = "{:.1%} [{:.1%}, {:.1%}]".format(*rated["correct"].values()) if rated["correct"] else "–"
        shares = ("–" if rated[key] is None else f"{rated[key]:.3f}" for key in columns[4:])
        rows.append((question, f"{rated['items']:,}", f"{rated['ratings']:,}", correct, *shares))
    return Table(f"Ratings of {raters} raters (table 16); [low, high]: 95 % intervals over items", columns, rows)
