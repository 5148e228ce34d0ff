"""One response with the marks of critic and annotator → counts, and the rates that are quotients of counts.

precision, recall, f1 …   the rates of `reward_models.agreement`, over units (tables 1, 15)
f1_everything             F1 of a critic that marks every unit with the label: a critic below it has learned nothing
exact                     share of true spans with exactly the units of a predicted span of the same label (table 6)
partial                   share of true spans that overlap a predicted span of the same label, but equal none (table 6)
oui                       overlap unit index: mean over the true spans with any overlap of the best |A ∩ B| / |A ∪ B|
                          in units. The paper gives no formula; its published code computes this as mean IoU (table 6)
quote_exact               share of the critic's quotes with the same characters and label as an annotated span (table 7)
quote_overlap_90          share of the critic's quotes that share at least 90 % of the visible characters of the longer
                          span with an annotated span of the same label (table 7)
…_of/CATEGORY             precision, recall and F1 over units with spans of a category alone, such as a criterion's
accuracy                  share of predicted spans with at least half of their units in a true span of the label, by
                          quartile of span length (table 19)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from text2grad.evaluation import Ratio
from text2grad.reward_models import RATES
from text2grad.runs.critic_quality.units import Marked
from text2grad.types import LABELS, Label, Span

LEAST_OVERLAP = 0.9
_SIGNS: Mapping[Label, float] = {"positive": 1.0, "negative": -1.0}
QUARTILES = ("Q1", "Q2", "Q3")
BUCKETS = ("0 to Q1", "Q1 to Q2", "Q2 to Q3", "above Q3")


def span_counts(marked: Marked) -> Counter[str]:
    """Return how well the true spans are found, by label."""
    counts: Counter[str] = Counter()
    for label in LABELS:
        true, predicted = (marks.unit_sets(label) for marks in (marked.true, marked.predicted))
        best = [max((len(span & other) / len(span | other) for other in predicted), default=0.0) for span in true]
        counts[f"true_spans/{label}"] += len(true)
        counts[f"spans/{label}"] += len(predicted)
        counts[f"exact/{label}"] += sum(iou == 1.0 for iou in best)
        counts[f"partial/{label}"] += sum(0.0 < iou < 1.0 for iou in best)
        counts[f"iou/{label}"] += sum(best)  # type: ignore[assignment]
    return counts


def quote_counts(marked: Marked) -> Counter[str]:
    """Return how many of the critic's quotes are spans of the annotator, compared by characters."""
    counts: Counter[str] = Counter({"quotes/all": len(marked.pair.predicted.unmatched)})
    for span, _ in marked.predicted.spans:
        true = [other for other, _ in marked.true.spans if other.label == span.label]
        best = max((_overlap(span, other, marked.text) for other in true), default=0.0)
        for part in (span.label, "all"):
            counts[f"quotes/{part}"] += 1
            counts[f"quotes_exact/{part}"] += span in true
            counts[f"quotes_overlap/{part}"] += best >= LEAST_OVERLAP
    return counts


def length_counts(marked: Marked, quartiles: Mapping[Label, Sequence[float] | None]) -> Counter[str]:
    """Return the number of the critic's spans, and of the correct spans, by quartile of length."""
    counts: Counter[str] = Counter()
    for span, units in marked.predicted.spans:
        if units:
            bucket = BUCKETS[int(np.searchsorted(quartiles[span.label] or (), len(units)))]
            right = sum(marked.true.delta[unit] == _SIGNS[span.label] for unit in units)
            counts[f"of/{span.label}/{bucket}"] += 1
            counts[f"right/{span.label}/{bucket}"] += 2 * right >= len(units)
    return counts


def category_counts(marked: Marked) -> Counter[str]:
    """Return the units that critic and annotator mark with spans of each category, and those with the same label."""
    counts: Counter[str] = Counter()
    for category in categories(marked):
        own, true = (
            {(unit, span.label) for span, units in marks.spans if _name(span) == category for unit in units}
            for marks in (marked.predicted, marked.true)
        )
        counts.update({f"own/{category}": len(own), f"true/{category}": len(true), f"same/{category}": len(own & true)})
    return counts


def categories(marked: Marked) -> list[str]:
    """Return the categories of the spans of a response, in small letters."""
    spans = (span for marks in (marked.predicted, marked.true) for span, _ in marks.spans)
    return sorted({_name(span) for span in spans} - {""})


def _name(span: Span) -> str:
    """Return the category of a span in small letters; empty without one."""
    return (span.category or "").casefold()


def ratios(categories: Iterable[str] = ()) -> dict[str, Ratio]:
    """Return name of a rate → the counts that it divides."""
    rates = {name: Ratio(*counts) for name, counts in RATES.items()}
    for category in categories:
        own, true, same = (f"{name}/{category}" for name in ("own", "true", "same"))
        rates[f"precision_of/{category}"] = Ratio((same,), (own,))
        rates[f"recall_of/{category}"] = Ratio((same,), (true,))
        rates[f"f1_of/{category}"] = Ratio((same, same), (own, true))
    for label in LABELS:
        true = f"{label}_true"
        rates[f"f1_everything/{label}"] = Ratio((true, true), ("units", true))
        rates[f"exact/{label}"] = Ratio((f"exact/{label}",), (f"true_spans/{label}",))
        rates[f"partial/{label}"] = Ratio((f"partial/{label}",), (f"true_spans/{label}",))
        rates[f"oui/{label}"] = Ratio((f"iou/{label}",), (f"exact/{label}", f"partial/{label}"))
        for bucket in BUCKETS:
            rates[f"accuracy/{label}/{bucket}"] = Ratio((f"right/{label}/{bucket}",), (f"of/{label}/{bucket}",))
    for part in (*LABELS, "all"):
        rates[f"quote_exact/{part}"] = Ratio((f"quotes_exact/{part}",), (f"quotes/{part}",))
        rates[f"quote_overlap_90/{part}"] = Ratio((f"quotes_overlap/{part}",), (f"quotes/{part}",))
    return rates


def _overlap(span: Span, other: Span, text: str) -> float:
    """Return the share of the longer span's visible characters that the other span holds, too."""
    start, end = max(span.start, other.start), min(span.end, other.end)
    longer = max(_visible(text[span.start : span.end]), _visible(text[other.start : other.end]))
    return _visible(text[start:end]) / longer if longer else 0.0


def _visible(text: str) -> int:
    return sum(not character.isspace() for character in text)
