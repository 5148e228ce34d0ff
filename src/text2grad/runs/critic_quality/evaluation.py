"""Pairs of predicted and true critiques → all measurements of a critic, as JSON and as the tables of the paper.

`counting` defines the rates of marks, spans and quotes, `text2grad.evaluation` those of feedback in words (table 8).
Responses whose annotation has no feedback are left out there. BLEU is in [0, 1], as in the paper.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from text2grad.evaluation import DRAWS, LEVEL, Bleu, Estimate, Ratio, Statistic, Wording, estimate
from text2grad.runs.critic_quality import counting
from text2grad.runs.critic_quality.pairs import Pair
from text2grad.runs.critic_quality.units import Marked, Units, mark
from text2grad.runs.reports.html import Table
from text2grad.types import LABELS, Status

NONE = "–"
WHO = ("predicted", "true")
NAMED = 20
"""How many responses that could not be split into units are listed."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measurements of one critic.

    Attributes:
        unit: the unit that precision and recall count.
        marked: the responses.
        left_out: file and line of the responses whose tokens decode to another text; no number includes them.
        metrics: rates with intervals.
        counts: sums over responses; the rates are their quotients.
        span_units: quartiles of the units per span, for "predicted" and "true", by label (table 18).
        statuses: number of critiques by status, for "predicted" and "true".
        settings: draws, level and seed of the intervals.
    """

    unit: str
    marked: Sequence[Marked]
    left_out: Sequence[str]
    metrics: Mapping[str, Estimate]
    counts: Mapping[str, float]
    span_units: Mapping[str, Mapping[str, Sequence[float] | None]]
    statuses: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the responses, as JSON data."""
        return {
            "unit": self.unit,
            "responses": len(self.marked),
            "left_out": len(self.left_out),
            "first_left_out": list(self.left_out[:NAMED]),
            "intervals": dict(self.settings),
            "metrics": {name: rate._asdict() for name, rate in self.metrics.items()},
            "responses_with_words": int(self.counts.get("with_reference", 0)),
            "units_per_span": {who: dict(by) for who, by in self.span_units.items()},
            "statuses": {who: dict(by) for who, by in self.statuses.items()},
            "counts": dict(self.counts),
        }


def evaluate(pairs: Sequence[Pair], units: Units, wording: Wording, *, draws: int = DRAWS) -> Evaluation:
    """Measure a critic; `units` are the unit that precision and recall count, `wording` what is measured of words."""
    cut = [(pair, mark(pair, units)) for pair in pairs]
    marked = [response for _, response in cut if response is not None]
    kept = [response.pair for response in marked]
    sizes = {who: counting.lengths([getattr(response, who) for response in marked]) for who in WHO}
    quarters = {label: quartiles(sizes["predicted"][label]) or [0.0] * 3 for label in LABELS}
    rows: list[dict[str, float]] = [
        {
            **counting.token_counts(response),
            **counting.span_counts(response),
            **counting.quote_counts(response),
            **counting.length_counts(response, quarters),
            **_word_counts(response.pair, wording),
        }
        for response in marked
    ]
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row)
    statuses = {who: Counter(getattr(pair, who).status for pair in kept) for who in WHO}
    return Evaluation(
        unit=units.name,
        marked=marked,
        left_out=[pair.where for pair, response in cut if response is None],
        metrics=estimate(rows, {**counting.ratios(), **_of_words(wording)}, draws=draws),
        counts=dict(sums),
        span_units={who: {label: quartiles(by[label]) for label in LABELS} for who, by in sizes.items()},
        statuses={who: {status: by[status] for status in get_args(Status)} for who, by in statuses.items()},
        settings={"draws": draws, "level": LEVEL, "seed": 0},
    )


def _of_words(wording: Wording) -> dict[str, Statistic]:
    """Return the figures of feedback by name."""
    figures = {name: Bleu(scale=0.01) if name == "bleu" else figure for name, figure in wording.overlaps.items()}
    perplexity = {f"perplexity/{who}": Ratio((f"nats/{who}",), (f"tokens/{who}",), exp=True) for who in WHO}
    return {**figures, **perplexity}


def _word_counts(pair: Pair, wording: Wording) -> dict[str, float]:
    """Return the counts of a critic's feedback beside the annotator's, and of both alone."""
    true = pair.true.feedback
    counts = wording.beside(pair.predicted.feedback, [true]) if true.strip() else {}
    for who in WHO:
        alone = wording.alone(getattr(pair, who).feedback)
        counts |= {f"{name}/{who}": value for name, value in alone.items()}
    return counts


def tables(evaluation: Evaluation) -> list[Table]:
    """Return the tables of the paper, each rate with its interval in brackets."""
    unit, statuses, read = evaluation.unit, get_args(Status), evaluation.statuses["predicted"]

    def rates(*names: str, of: str = "") -> tuple[str, ...]:
        return tuple(_rate(evaluation.metrics.get(name + of)) for name in names)

    def counts(*names: str, of: str = "") -> tuple[str, ...]:
        return tuple(f"{evaluation.counts.get(name + of, 0):,.0f}" for name in names)

    def of_label(label: str) -> tuple[tuple[str, ...], ...]:
        quarters, of = evaluation.span_units["predicted"][label], f"/{label}"
        return (
            rates("precision", "recall", "f1", "f1_everything", of=of)
            + counts(label, f"{label}_true", f"{label}_both"),
            counts("true_spans", "spans", "exact", "partial", of=of) + rates("exact", "partial", "oui", of=of),
            counts("quotes", of=of) + rates("quote_exact", "quote_overlap_90", of=of),
            tuple(f"{quarter:g}" for quarter in quarters) if quarters else (NONE,) * 3,
            rates(*(f"accuracy{of}/{bucket}" for bucket in counting.BUCKETS)),
        )

    tokens, spans, quotes, quarters, accuracies = zip(*map(of_label, LABELS), strict=True)
    every = sum(evaluation.counts.get(name, 0) for name in ("quotes_lost", *(f"quotes/{label}" for label in LABELS)))
    all_quotes = ("all", f"{every:,.0f}", *rates("quote_exact/all", "quote_overlap_90/all"))
    fidelity = (f"{len(evaluation.marked):,}", *(f"{read[status]:,}" for status in statuses), *rates("failure_rate"))
    return [
        Table(
            f"{unit}: precision and recall (table 1 of the paper)",
            (
                *("label", "precision", "recall", "F1", "F1 of marking everything"),
                *("marked by critic", "marked in truth", "by both"),
            ),
            _labelled(tokens),
        ),
        Table(
            f"Spans, matched in {unit} (table 6)",
            ("label", "true", "predicted", "exact", "partial", "exact rate", "partial rate", "OUI"),
            _labelled(spans),
        ),
        Table(
            "Quotes, in characters; all: with those not found in the response (table 7)",
            ("label", "quotes", "exact match", "at least 90 % overlap"),
            [*_labelled(quotes), all_quotes],
        ),
        Table(
            "Critiques that were read, and quotes that were found (table 15)",
            ("responses", *statuses, "failure rate", "quotes", "not found"),
            [fidelity + counts("quotes") + rates("unmatched_rate")],
        ),
        Table(
            f"Predicted spans: length in {unit}, accuracy by length (tables 18, 19)",
            ("label", "Q1", "Q2", "Q3", *counting.BUCKETS),
            _labelled([q + accuracy for q, accuracy in zip(quarters, accuracies, strict=True)]),
        ),
        *_word_tables(evaluation),
    ]


def _labelled(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(label, *row) for label, row in zip(LABELS, rows, strict=True)]


def _word_tables(evaluation: Evaluation) -> list[Table]:
    """Return the table of words, or no table if nothing was measured."""
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "bleu": "BLEU", "bertscore": "BERTScore"}
    names |= {"perplexity/predicted": "perplexity", "perplexity/true": "perplexity of truth"}
    metrics = evaluation.metrics
    cells = {title: _rate(metrics[name]) for name, title in names.items() if name in metrics}
    caption = f"Words of {evaluation.counts.get('with_reference', 0):,.0f} critiques beside the annotator's (table 8)"
    return [Table(caption, tuple(cells), [tuple(cells.values())])] if cells else []


def _rate(rate: Estimate | None) -> str:
    """Return a rate with its interval; a dash if its denominator is zero."""
    if rate is None:
        return NONE
    digits = 3 if rate.value < 10 else 1
    return "{} [{}, {}]".format(*(f"{bound:.{digits}f}" for bound in rate))


def quartiles(values: Sequence[float]) -> list[float] | None:
    """Return the three quartiles; None without values.

    Example:
        >>> quartiles([1, 2, 3, 10])
        [1.75, 2.5, 4.75]
    """
    return [float(q) for q in np.quantile(values, [0.25, 0.5, 0.75])] if values else None
