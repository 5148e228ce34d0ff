"""`text2grad feedback check`: how far each rater can be trusted, and why not."""

import argparse
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, say
from text2grad.feedback import CritiqueRecord, read_critique_records, read_store

DESCRIPTION = """\
Score raters by agreement with the others on the same words, by the errors of a model on the others' held-out marks with
and without what it learns from this rater, by single words, and by haste. Nothing is changed. The rater is that of the
spans, or of the line ("rater"); else the only one that the file names; of a file that names none, the file."""

EPILOG = """\
examples:
  text2grad feedback check team.jsonl
  text2grad feedback check ann.jsonl ben.jsonl cleo.jsonl
  text2grad feedback check runs/studio

docs/feedback.md explains the numbers."""

COLUMNS = ("rater", "answers", "marks", "words marked", "agreement", "harm", "s per answer", "verdict")
TITLE = "Raters, the most suspicious first; [low, high]: 95 % bootstrap intervals over responses"


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "how far each rater can be trusted, and why not"
    add = add_command(commands, "check", run, about, DESCRIPTION, EPILOG, extras=()).add_argument
    add("files", type=Path, nargs="+", metavar="FILE", help="annotations; or the directory of a studio")


def run(args: argparse.Namespace) -> int:
    """Print the table, and what cannot be judged."""
    from text2grad.runs import check_raters  # NumPy
    from text2grad.runs.reports import Table, as_text

    answers = [answer for path in args.files for answer in _answers(path)]
    rated, rows = check_raters(answers), list[list[str]]()
    for row in rated:
        reasons = "; ".join(reason for strength, reason in row["signs"] if strength >= 1)
        counts = row["rater"], f"{row['answers']:,}", f"{row['marks']:,}", f"{row['marked']:.0%}"
        kappa = "–" if isnan(row["agreement"].value) else "{:.2f} [{:.2f}, {:.2f}]".format(*row["agreement"])
        harm = "–" if isnan(row["harm"].value) else "{:+.1%} [{:+.1%}, {:+.1%}]".format(*row["harm"])
        pace = "–" if isnan(row["seconds"]) else f"{row['seconds']:.0f}"
        verdict = "cannot be judged" if kappa == harm == "–" else "no sign of trouble"
        rows.append([*counts, kappa, harm, pace, f"look: {reasons}" if reasons else verdict])
    say(as_text([Table(TITLE, COLUMNS, rows)]).rstrip())
    if nobody := sum(not answer.rater for answer in answers):
        say(f"{nobody:,} answers name no rater, or several, and are left out", style="yellow")
    if all(isnan(row["agreement"].value) for row in rated):
        say("agreement is not judged, since no response with marks has two raters; harm and single words are")
    if all(isnan(row["seconds"]) for row in rated):
        say('no line has "seconds": haste is not judged')
    return 0


def _answers(path: Path) -> list[CritiqueRecord]:
    """Return the readable critiques of a file or a studio with their raters; None is a rater whom nobody names."""
    read = read_store(path) if path.is_dir() else read_critique_records(path)
    records = [record for record in read if not record.critique.failed]
    names = {record.rater for record in records if record.rater} or {str(path.with_suffix(""))}
    alone = names.pop() if len(names) == 1 else None
    nobody = [not record.rater and not any(span.rater for span in record.critique.spans) for record in records]
    return [replace(each, rater=alone) if none else each for each, none in zip(records, nobody, strict=True)]
