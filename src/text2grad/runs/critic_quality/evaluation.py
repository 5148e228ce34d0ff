"""Pairs of predicted and true critiques → all measurements of a critic, as JSON and as the tables of the paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from text2grad.evaluation import DRAWS, LEVEL, Area, Encoder, Estimate, Ratio, Reader, estimate
from text2grad.runs.critic_quality import counting, wording
from text2grad.runs.critic_quality.pairs import Pair
from text2grad.runs.critic_quality.units import Marked, Units, mark
from text2grad.runs.reports.html import Table
from text2grad.types import LABELS, Status

NONE = "–"
NAMED = 20
"""How many responses that could not be split into units are listed."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Measurements besides spans, and settings of the intervals.

    Attributes:
        words: measure ROUGE and BLEU.
        encoder: the model of BERTScore; None leaves it out.
        reader: the model of perplexity; None leaves it out.
        draws: number of bootstrap resamples.
        seed: of the resamples.
    """

    words: bool = True
    encoder: Encoder | None = None
    reader: Reader | None = None
    draws: int = DRAWS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measurements of one critic.

    Attributes:
        unit: the unit that precision and recall count.
        marked: the responses.
        left_out: file and line of the responses whose tokens decode to another text; no number includes them.
        metrics: rates with intervals; `counting` and `wording` define the names.
        counts: sums over responses; the rates are their quotients.
        bleu: over all critiques; None if it was not measured.
        span_units: quartiles of the units per span, for "predicted" and "true", by label (table 18).
        statuses: number of critiques by status, for "predicted" and "true".
        worded: number of responses whose annotation has feedback in words.
        settings: draws, level and seed of the intervals.
    """

    unit: str
    marked: Sequence[Marked]
    left_out: Sequence[str]
    metrics: Mapping[str, Estimate]
    counts: Mapping[str, float]
    bleu: float | None
    span_units: Mapping[str, Mapping[str, Sequence[float] | None]]
    statuses: Mapping[str, Mapping[str, int]]
    worded: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the responses, as JSON data."""
        return {
            "unit": self.unit,
            "responses": len(self.marked),
            "left_out": len(self.left_out),
            "first_left_out": list(self.left_out[:NAMED]),
            "intervals": dict(self.settings),
            "metrics": {name: one._asdict() for name, one in self.metrics.items()},
            "bleu": self.bleu,
            "responses_with_words": self.worded,
            "units_per_span": {who: dict(by) for who, by in self.span_units.items()},
            "statuses": {who: dict(by) for who, by in self.statuses.items()},
            "counts": dict(self.counts),
        }


def evaluate(pairs: Sequence[Pair], units: Units, measures: Measures | None = None) -> Evaluation:
    """Measure a critic; `units` are the unit that precision and recall count."""
    measures = measures or Measures()
    cut = [(pair, mark(pair, units)) for pair in pairs]
    marked = [one for _, one in cut if one is not None]
    sizes = {who: counting.lengths([getattr(one, who) for one in marked]) for who in ("predicted", "true")}
    quarters = {label: quartiles(sizes["predicted"][label]) or [0.0] * 3 for label in LABELS}
    rows: list[dict[str, float]] = [
        {
            **counting.token_counts(one),
            **counting.span_counts(one),
            **counting.quote_counts(one),
            **counting.length_counts(one, quarters),
            **counting.type_counts(one),
            **counting.vote_counts(one),
        }
        for one in marked
    ]
    kept = [one.pair for one in marked]
    for extra in _word_rows(kept, measures):
        for row, counts in zip(rows, extra, strict=True):
            row.update(counts)
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row)
    votes = max((len(one.samples) for one in marked), default=0)
    rates: dict[str, Ratio | Area] = {**_ratios(measures), **counting.type_ratios(sums)}
    rates |= counting.areas(votes) if votes else {}
    return Evaluation(
        unit=units.name,
        marked=marked,
        left_out=[pair.where for pair, one in cut if one is None],
        metrics=estimate(rows, rates, draws=measures.draws, seed=measures.seed),
        counts=dict(sums),
        bleu=wording.bleu(kept) if measures.words else None,
        span_units={who: {label: quartiles(by[label]) for label in LABELS} for who, by in sizes.items()},
        statuses={who: _statuses(kept, who) for who in ("predicted", "true")},
        worded=len(wording.with_words(kept)),
        settings={"draws": measures.draws, "level": LEVEL, "seed": measures.seed},
    )


def _ratios(measures: Measures) -> dict[str, Ratio]:
    bert, perplexity = measures.encoder is not None, measures.reader is not None
    return counting.ratios() | wording.word_ratios(words=measures.words, bert=bert, perplexity=perplexity)


def _word_rows(pairs: Sequence[Pair], measures: Measures) -> list[list[dict[str, float]]]:
    """Return the counts for the rates of words: for each measurement one row per response."""
    found = [wording.word_counts(pairs)] if measures.words else []
    if measures.encoder is not None:
        found.append(wording.bertscore_counts(pairs, measures.encoder))
    if measures.reader is not None:
        for who in ("predicted", "true"):
            texts = [getattr(pair, who).feedback for pair in pairs]
            found.append(wording.perplexity_counts(texts, measures.reader, who))
    return found


def _statuses(pairs: Sequence[Pair], who: str) -> dict[str, int]:
    counts = Counter(getattr(pair, who).status for pair in pairs)
    return {status: counts[status] for status in get_args(Status)}


def tables(found: Evaluation) -> list[Table]:
    """Return the tables of the paper, each rate with its interval in brackets."""
    shown = [_token_table(found), *_score_table(found), _span_table(found), _quote_table(found), _fidelity_table(found)]
    return [*shown, _length_table(found), *_type_table(found), *_word_tables(found)]


def _token_table(found: Evaluation) -> Table:
    rows = [
        (
            label,
            *(_rate(found, f"{name}/{label}") for name in ("precision", "recall", "f1", "f1_everything")),
            *_marked(found, label),
        )
        for label in LABELS
    ]
    of_all = "F1 of marking everything"
    columns = ("label", "precision", "recall", "F1", of_all, "marked by critic", "marked in truth", "by both")
    return Table(f"{found.unit}: precision and recall (table 1 of the paper)", columns, rows)


def _marked(found: Evaluation, label: str) -> list[str]:
    return [f"{found.counts.get(name, 0):,.0f}" for name in (label, f"{label}_true", f"{label}_both")]


def _score_table(found: Evaluation) -> list[Table]:
    """Return the table of the scores by votes, or no table without sampled critiques."""
    rows = [(label, _rate(found, f"auroc/{label}")) for label in LABELS if f"auroc/{label}" in found.metrics]
    caption = f"{found.unit}: score by the sampled critiques that mark it"
    return [Table(caption, ("label", "area under the ROC curve"), rows)] if rows else []


def _type_table(found: Evaluation) -> list[Table]:
    """Return the table of the annotator's error types, or no table if the annotations name none."""
    kinds = [
        name.removeprefix("recall/") for name in found.metrics if name.startswith("recall/") and name.count("/") > 1
    ]
    rows = [
        (
            kind,
            f"{found.counts[f'type/{kind}/true']:,.0f}",
            *(_rate(found, f"{name}/{kind}") for name in ("recall", "f1")),
        )
        for kind in kinds
    ]
    columns = ("label and type", "marked in truth", "recall, any type", "F1, same type")
    return (
        [Table(f"{found.unit}: by error type, as the feedback names it before each quote", columns, rows)]
        if rows
        else []
    )


def _span_table(found: Evaluation) -> Table:
    rows = [
        (
            label,
            *(f"{found.counts.get(f'{name}/{label}', 0):,.0f}" for name in ("true_spans", "spans", "exact", "partial")),
            *(_rate(found, f"{name}/{label}") for name in ("exact", "partial", "oui")),
        )
        for label in LABELS
    ]
    columns = ("label", "true", "predicted", "exact", "partial", "exact rate", "partial rate", "OUI")
    return Table(f"Spans, matched in {found.unit} (table 6)", columns, rows)


def _quote_table(found: Evaluation) -> Table:
    quotes: dict[str, float] = {label: found.counts.get(f"quotes/{label}", 0) for label in LABELS}
    number = {**quotes, "all": sum(quotes.values()) + found.counts.get("quotes_lost", 0)}
    rows = [
        (label, f"{count:,.0f}", _rate(found, f"quote_exact/{label}"), _rate(found, f"quote_overlap_90/{label}"))
        for label, count in number.items()
    ]
    columns = ("label", "quotes", "exact match", "at least 90 % overlap")
    return Table("Quotes, in characters; all: with those not found in the response (table 7)", columns, rows)


def _fidelity_table(found: Evaluation) -> Table:
    read = found.statuses["predicted"]
    row = (
        f"{len(found.marked):,}",
        *(f"{read[status]:,}" for status in get_args(Status)),
        _rate(found, "failure_rate"),
        f"{found.counts.get('quotes', 0):,.0f}",
        _rate(found, "unmatched_rate"),
    )
    return Table(
        "Critiques that were read, and quotes that were found (table 15)",
        ("responses", *get_args(Status), "failure rate", "quotes", "not found"),
        [row],
    )


def _length_table(found: Evaluation) -> Table:
    rows = []
    for label in LABELS:
        quarters = found.span_units["predicted"][label]
        accuracies = (_rate(found, f"accuracy/{label}/{bucket}") for bucket in counting.BUCKETS)
        rows.append((label, *(f"{q:g}" for q in quarters or ()), *([NONE] * (0 if quarters else 3)), *accuracies))
    columns = ("label", "Q1", "Q2", "Q3", *counting.BUCKETS)
    return Table(f"Predicted spans: length in {found.unit}, accuracy by length (tables 18, 19)", columns, rows)


def _word_tables(found: Evaluation) -> list[Table]:
    """Return the table of words, or no table if nothing was measured."""
    names = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "bertscore": "BERTScore"}
    names |= {"perplexity/predicted": "perplexity", "perplexity/true": "perplexity of truth"}
    cells = {title: _rate(found, name) for name, title in names.items() if name in found.metrics}
    if found.bleu is not None:
        cells["BLEU"] = f"{found.bleu:.3f}"
    caption = f"Words of {found.worded:,} critiques beside the annotator's (table 8)"
    return [Table(caption, tuple(cells), [tuple(cells.values())])] if cells else []


def _rate(found: Evaluation, name: str) -> str:
    """Return a rate with its interval; a dash if its denominator is zero."""
    if name not in found.metrics:
        return NONE
    value, low, high = found.metrics[name]
    digits = 3 if value < 10 else 1
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def quartiles(values: Sequence[float]) -> list[float] | None:
    """Return the three quartiles; None without values.

    Example:
        >>> quartiles([1, 2, 3, 10])
        [1.75, 2.5, 4.75]
    """
    return [float(q) for q in np.quantile(values, [0.25, 0.5, 0.75])] if values else None
