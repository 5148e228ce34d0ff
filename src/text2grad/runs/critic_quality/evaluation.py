"""Pairs of predicted and true critiques → all measurements of a critic, as JSON, as tables of the paper and as a page.

`counting` defines the rates of marks, spans and quotes, `text2grad.evaluation` those of feedback in words (table 8).
Responses whose annotation has no feedback are left out there. BLEU is in [0, 1], as in the paper.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from text2grad.evaluation import DRAWS, LEVEL, Bleu, Estimate, Ratio, Statistic, Wording, estimate
from text2grad.feedback import critique_to_json
from text2grad.reward_models import compare
from text2grad.runs.critic_quality import counting
from text2grad.runs.critic_quality.pairs import Pair
from text2grad.runs.critic_quality.units import Marked, Units, mark
from text2grad.runs.reports.html import Table, rollouts_page
from text2grad.types import LABELS, Status

NONE = "–"
NAMED = 20  # most responses that are listed because they could not be split into units
WORST, FIRST = 10, 20  # responses on the page: with the largest differences, then the first others

_EVERY = (*LABELS, "all")
_BY_LABEL: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "{unit}: precision and recall (table 1 of the paper)": (
        LABELS,
        {
            **{"precision": "precision/{}", "recall": "recall/{}", "F1": "f1/{}"},
            "F1 of marking everything": "f1_everything/{}",
            **{"marked by critic": "#{}", "marked in truth": "#{}_true", "by both": "#{}_both"},
        },
    ),
    "Spans, matched in {unit} (table 6)": (
        LABELS,
        {
            **{"true": "#true_spans/{}", "predicted": "#spans/{}", "exact": "#exact/{}", "partial": "#partial/{}"},
            **{"exact rate": "exact/{}", "partial rate": "partial/{}", "OUI": "oui/{}"},
        },
    ),
    "Quotes, in characters; all: with those not found in the response (table 7)": (
        _EVERY,
        {"quotes": "#quotes/{}", "exact match": "quote_exact/{}", "at least 90 % overlap": "quote_overlap_90/{}"},
    ),
    "Predicted spans: length in {unit}, accuracy by length (tables 18, 19)": (
        LABELS,
        {
            **{q: f"{q}/{{}}" for q in counting.QUARTILES},
            **{name: f"accuracy/{{}}/{name}" for name in counting.BUCKETS},
        },
    ),
}
"""Caption of a table → the labels of its rows; title of a column → name of a metric, or "#" and the name of a count."""
_READ = {
    **{"responses": "#responses", **{status: f"#status/{status}" for status in get_args(Status)}},
    **{"failure rate": "failure_rate", "quotes": "#quotes", "not found": "unmatched_rate"},
}
_WORDS = {
    **{"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL", "BLEU": "bleu", "BERTScore": "bertscore"},
    **{"perplexity": "perplexity/predicted", "perplexity of truth": "perplexity/true"},
}


class Evaluation(NamedTuple):
    """The measurements of one critic."""

    unit: str  # that precision and recall count
    marked: Sequence[Marked]  # the responses
    left_out: Sequence[str]  # file and line of the responses whose tokens decode to another text; no number has them
    metrics: Mapping[str, Estimate]  # rates with intervals
    counts: Mapping[str, float]  # sums over responses; the rates are their quotients
    categories: Sequence[str]  # of the spans of critic and annotator, such as the criteria of a rubric
    quartiles: Mapping[str, float]  # of the units per predicted span, "Q1/positive" and so on (table 18)
    draws: int  # resamples of the intervals

    @property
    def beaten_by_marking_everything(self) -> bool:
        """True if a critic that marks every unit has at least this critic's F1, for each label in the annotations."""
        rates = {label: self.metrics.get(f"f1_everything/{label}") for label in LABELS}
        true = {label: rate.value for label, rate in rates.items() if rate and rate.value}
        own = {label: self.metrics.get(f"f1/{label}") for label in true}
        return bool(true) and all(not rate or rate.value <= true[label] < 1.0 for label, rate in own.items())

    def as_json(self) -> dict[str, Any]:
        """Return everything except the responses, as JSON data."""
        return {
            "unit": self.unit,
            "responses": len(self.marked),
            "left_out": len(self.left_out),
            "first_left_out": self.left_out[:NAMED],
            "intervals": {"draws": self.draws, "level": LEVEL, "seed": 0},
            "metrics": {name: rate._asdict() for name, rate in self.metrics.items()},
            "units_per_span": self.quartiles,
            "counts": self.counts,
        }

    def cell(self, name: str, shape: str = "{} [{}, {}]") -> str:
        """Return a metric with its interval, a count ("#" and its name), or a quartile; a dash if there is none."""
        if name.startswith("#"):
            return f"{self.counts.get(name[1:], 0):,.0f}"
        if name in self.quartiles:
            return f"{self.quartiles[name]:g}"
        rate = self.metrics.get(name)
        if rate is None:
            return NONE
        digits = 3 if rate.value < 10 else 1
        return shape.format(*(f"{bound:.{digits}f}" for bound in rate))


def evaluate(pairs: Sequence[Pair], units: Units, wording: Wording, *, draws: int = DRAWS) -> Evaluation:
    """Measure a critic; `units` are the unit that precision and recall count, `wording` what is measured of words."""
    cut = [(pair, mark(pair, units)) for pair in pairs]
    marked = [response for _, response in cut if response is not None]
    spans = {label: [units for response in marked for units in response.predicted.unit_sets(label)] for label in LABELS}
    quarters = {label: quartiles(list(map(len, units))) for label, units in spans.items()}
    rows: list[dict[str, float]] = [
        {
            **compare([response.predicted.delta], [response.true.delta], [response.pair.predicted])._asdict(),
            "units": len(response.true.delta),
            **counting.span_counts(response),
            **counting.quote_counts(response),
            **counting.length_counts(response, quarters),
            **counting.category_counts(response),
            f"status/{response.pair.predicted.status}": 1.0,
            **_word_counts(response.pair, wording),
        }
        for response in marked
    ]
    categories = sorted({name for response in marked for name in counting.categories(response)})
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row)
    return Evaluation(
        unit=units.name,
        marked=marked,
        left_out=[pair.where for pair, response in cut if response is None],
        metrics=estimate(rows, {**counting.ratios(categories), **_of_words(wording)}, draws=draws),
        counts=sums,
        categories=categories,
        quartiles={
            f"{name}/{label}": value
            for label, values in quarters.items()
            for name, value in zip(counting.QUARTILES, values or (), strict=False)
        },
        draws=draws,
    )


def _of_words(wording: Wording) -> dict[str, Statistic]:
    """Return the figures of feedback by name."""
    figures = {name: Bleu(scale=0.01) if name == "bleu" else figure for name, figure in wording.overlaps.items()}
    alone = ("predicted", "true")
    return {**figures, **{f"perplexity/{who}": Ratio((f"nats/{who}",), (f"tokens/{who}",), exp=True) for who in alone}}


def _word_counts(pair: Pair, wording: Wording) -> dict[str, float]:
    """Return the counts of a critic's feedback beside the annotator's, and of both alone."""
    predicted, true = pair.predicted.feedback, pair.true.feedback
    counts = wording.beside(predicted, [true]) if true.strip() else {}
    for who, text in (("predicted", predicted), ("true", true)):
        counts |= {f"{name}/{who}": value for name, value in wording.alone(text).items()}
    return counts


def tables(evaluation: Evaluation) -> list[Table]:
    """Return the tables of the paper, each rate with its interval in brackets."""

    def row(names: Iterable[str]) -> list[str]:
        return [evaluation.cell(name) for name in names]

    *spans, lengths = [
        Table(
            caption.format(unit=evaluation.unit),
            ("label", *columns),
            [[label, *row(name.format(label) for name in columns.values())] for label in labels],
        )
        for caption, (labels, columns) in _BY_LABEL.items()
    ]
    read = Table("Critiques that were read, and quotes that were found (table 15)", tuple(_READ), [row(_READ.values())])
    worded = {title: name for title, name in _WORDS.items() if name in evaluation.metrics}
    caption = f"Words of {evaluation.cell('#with_reference')} critiques beside the annotator's (table 8)"
    words = [Table(caption, tuple(worded), [row(worded.values())])] if worded else []
    rates = {"precision": "precision_of/{}", "recall": "recall_of/{}", "F1": "f1_of/{}"}
    rates |= {"marked by critic": "#own/{}", "marked in truth": "#true/{}", "alike by both": "#same/{}"}
    by_category = [[name, *row(rate.format(name) for rate in rates.values())] for name in evaluation.categories]
    caption = f"Criteria, and other categories of spans: marked {evaluation.unit}, with their label"
    criteria = [Table(caption, ("category", *rates), by_category)] if by_category else []
    return [*spans, read, lengths, *criteria, *words]


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
        {**shared, "by": by, "critique": critique_to_json(marks.critique), "delta": marks.delta}
        for by, marks in ((critic, marked.predicted), ("Annotation", marked.true))
    )
    return {"prompt": marked.pair.prompt, "record": marked.pair.where, **own, "beside": [true]}


def quartiles(values: Sequence[float]) -> list[float] | None:
    """Return the three quartiles; None without values.

    Example:
        >>> quartiles([1, 2, 3, 10])
        [1.75, 2.5, 4.75]
    """
    return [float(q) for q in np.quantile(values, [0.25, 0.5, 0.75])] if values else None
