"""An evaluation → a self-contained HTML page: the tables, and responses with prediction beside truth."""

from typing import Any

from text2grad.feedback import critique_to_json
from text2grad.runs.critic_quality.evaluation import Evaluation, tables
from text2grad.runs.critic_quality.units import Marked
from text2grad.runs.reports.html import rollouts_page
from text2grad.types import LABELS

WORST, FIRST = 10, 20  # responses on the page: with the largest differences, then the first others


def evaluation_page(evaluation: Evaluation, critic: str, annotations: str) -> str:
    """Return the HTML page, with the names of the critic and of the annotation file."""
    order = sorted(evaluation.marked, key=_disagreement, reverse=True)
    worst = [marked for marked in order[:WORST] if _disagreement(marked)]
    rest = [marked for marked in evaluation.marked if marked not in worst][:FIRST]
    noun = evaluation.unit.split()[0].removesuffix("s")  # token, word, character
    groups = {"Largest differences": worst, "Other responses, in the order of the file": rest}
    intro = (
        f"Critiques of {len(evaluation.marked):,} responses by {critic}, compared with the annotations in "
        f"{annotations}. Unit: {evaluation.unit}. In brackets: 95 % bootstrap intervals over responses."
    )
    return rollouts_page(
        "A critic compared with annotations",
        intro=intro,
        summary=_summary(evaluation),
        groups=[(name, [_record(marked, critic, noun) for marked in some]) for name, some in groups.items() if some],
        tables=tables(evaluation),
    )


def _disagreement(marked: Marked) -> float:
    """Return the sum over units of |δ predicted − δ true|."""
    return sum(abs(a - b) for a, b in zip(marked.predicted.delta, marked.true.delta, strict=True))


def _summary(evaluation: Evaluation) -> list[tuple[str, str]]:
    names = {
        **{f"{rate}/{label}": f"{rate}, {label}" for label in LABELS for rate in ("precision", "recall")},
        "failure_rate": "unreadable critiques",
        "unmatched_rate": "quotes not in the response",
    }
    shown = [(title, evaluation.cell(name, "{} ({} to {})")) for name, title in names.items()]
    return shown + ([("responses left out", f"{len(evaluation.left_out):,}")] if evaluation.left_out else [])


def _record(marked: Marked, critic: str, noun: str) -> dict[str, Any]:
    """Return a record of the page: the critic's marks, and the annotator's beside them."""
    shared = {"unit": noun, "response": marked.text, "offsets": marked.offsets}
    own, true = (
        {**shared, "by": by, "critique": critique_to_json(critique), "delta": marks.delta}
        for by, critique, marks in (
            (critic, marked.pair.predicted, marked.predicted),
            ("Annotation", marked.pair.true, marked.true),
        )
    )
    return {"prompt": marked.pair.prompt, "record": marked.pair.where, **own, "beside": [true]}
