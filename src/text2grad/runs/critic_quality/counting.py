"""One response with the marks of critic and annotator → counts, and the rates that are quotients of counts.

precision, recall, f1     over units, by label (table 1); a rate with denominator zero is left out
f1_everything             F1 of a critic that marks every unit with the label: a critic below it has learned nothing
exact                     share of true spans with exactly the units of a predicted span of the same label (table 6)
partial                   share of true spans that overlap a predicted span of the same label, but equal none (table 6)
oui                       overlap unit index: mean over the true spans with any overlap of the best |A ∩ B| / |A ∪ B|
                          in units. The paper gives no formula; its published code computes this as mean IoU (table 6)
quote_exact               share of the critic's quotes with the same characters and label as an annotated span (table 7)
quote_overlap_90          share of the critic's quotes that share at least 90 % of the visible characters of the longer
                          span with an annotated span of the same label (table 7)
failure_rate              share of critiques that could not be parsed (table 15)
unmatched_rate            share of quotes that do not occur in the response (table 15)
auroc                     of a token's score, the number of sampled critiques that mark it: how probably it is higher
                          for a marked token than for another one; 0.5 for a critic that marks every token, or none
recall/LABEL/TYPE         share of the units in true spans of an error type that the critic marks with the label
f1/LABEL/TYPE             of units with this label and type in both critiques. The type of a span is the beginning of a
                          line of the feedback, before the quote: `Fluency (Minor): "quote"`; commas separate several.
                          Types of fewer than 5 annotated responses are left out
accuracy                  share of predicted spans of which at least half of the units have the same label in truth, by
                          quartile of span length (table 19)
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from text2grad.evaluation import Area, Ratio
from text2grad.reward_models import compare
from text2grad.runs.critic_quality.units import Marked, Marks
from text2grad.types import LABELS, Critique, Label, Span

LEAST_OVERLAP = 0.9
_SIGNS: Mapping[Label, float] = {"positive": 1.0, "negative": -1.0}
_TYPE_RESPONSES = 5
_LONGEST_TYPE = 80  # characters; a longer text before a quote is a sentence
BUCKETS = ("0 to Q1", "Q1 to Q2", "Q2 to Q3", "above Q3")
Quartiles = Mapping[Label, Sequence[float]]


def token_counts(marked: Marked) -> dict[str, float]:
    """Return the counts of `compare` for one response, under their names in files."""
    agreement = compare([marked.predicted.delta], [marked.true.delta], [marked.pair.predicted])
    return {**agreement._asdict(), "units": len(marked.true.delta)}


def span_counts(marked: Marked) -> Counter[str]:
    """Return how well the true spans are found, by label; spans without units are left out."""
    counts: Counter[str] = Counter()
    for label in LABELS:
        true, predicted = (_unit_sets(marks, label) for marks in (marked.true, marked.predicted))
        best = [max((len(one & other) / len(one | other) for other in predicted), default=0.0) for one in true]
        counts[f"true_spans/{label}"] += len(true)
        counts[f"spans/{label}"] += len(predicted)
        counts[f"exact/{label}"] += sum(iou == 1.0 for iou in best)
        counts[f"partial/{label}"] += sum(0.0 < iou < 1.0 for iou in best)
        counts[f"iou/{label}"] += sum(best)  # type: ignore[assignment]
    return counts


def quote_counts(marked: Marked) -> Counter[str]:
    """Return how many of the critic's quotes are spans of the annotator, compared by characters."""
    counts: Counter[str] = Counter(quotes_lost=len(marked.pair.predicted.unmatched))
    for span in marked.predicted.spans:
        true = [one for one in marked.true.spans if one.label == span.label]
        best = max((_overlap(span, one, marked.text) for one in true), default=0.0)
        counts[f"quotes/{span.label}"] += 1
        counts[f"quotes_exact/{span.label}"] += any((one.start, one.end) == (span.start, span.end) for one in true)
        counts[f"quotes_overlap/{span.label}"] += best >= LEAST_OVERLAP
    return counts


def length_counts(marked: Marked, quartiles: Quartiles) -> Counter[str]:
    """Return the number of the critic's spans, and of the correct spans, by quartile of length."""
    counts: Counter[str] = Counter()
    for span, units in zip(marked.predicted.spans, marked.predicted.units, strict=True):
        if units:
            bucket = BUCKETS[int(np.searchsorted(quartiles[span.label], len(units)))]
            right = sum(marked.true.delta[unit] == _SIGNS[span.label] for unit in units)
            counts[f"of/{span.label}/{bucket}"] += 1
            counts[f"right/{span.label}/{bucket}"] += 2 * right >= len(units)
    return counts


def vote_counts(marked: Marked) -> Counter[str]:
    """Return how many units have each score, by label, where the truth has the label and where it has not."""
    counts: Counter[str] = Counter()
    for label, sign in _SIGNS.items():
        scores = [sum(delta) for delta in zip(*([v == sign for v in one.delta] for one in marked.samples), strict=True)]
        for score, true in zip(scores, marked.true.delta, strict=bool(scores)):
            counts[_score(label, score, of_label=true == sign)] += 1
    return counts


def _score(label: str, votes: int, *, of_label: bool) -> str:
    return f"votes/{label}/{votes}/{'true' if of_label else 'other'}"


def areas(votes: int) -> dict[str, Area]:
    """Return the area under the ROC curve of each label for a number of sampled critiques."""
    return {
        f"auroc/{label}": Area(
            *(tuple(_score(label, score, of_label=true) for score in range(votes + 1)) for true in (True, False))
        )
        for label in LABELS
    }


def type_counts(marked: Marked) -> Counter[str]:
    """Return the units that critic and annotator mark, by label and error type."""
    counts: Counter[str] = Counter()
    pair = marked.pair
    predicted = _typed_units(marked.predicted, pair.predicted, pair.response)
    true = _typed_units(marked.true, pair.true, pair.response)
    for kind in {*predicted, *true}:
        label, name = kind
        sign = _SIGNS[label]
        mine, theirs = predicted.get(kind, set()), true.get(kind, set())
        counts[f"type/{label}/{name}/predicted"] += len(mine)
        counts[f"type/{label}/{name}/true"] += len(theirs)
        counts[f"type/{label}/{name}/responses"] += bool(theirs)
        counts[f"type/{label}/{name}/both"] += len(mine & theirs)
        counts[f"type/{label}/{name}/found"] += sum(marked.predicted.delta[unit] == sign for unit in theirs)
    return counts


def type_ratios(counts: Mapping[str, float]) -> dict[str, Ratio]:
    """Return the rates of the error types that occur in enough responses, from the sums of the counts."""
    found = {}
    ends = "/responses"
    frequent = (name for name, number in counts.items() if name.endswith(ends) and number >= _TYPE_RESPONSES)
    for kind in sorted(name.removesuffix(ends) for name in frequent):
        rate = kind.removeprefix("type/")
        found[f"recall/{rate}"] = Ratio((f"{kind}/found",), (f"{kind}/true",))
        found[f"f1/{rate}"] = Ratio((f"{kind}/both", f"{kind}/both"), (f"{kind}/predicted", f"{kind}/true"))
    return found


def _typed_units(marks: Marks, critique: Critique, response: str) -> dict[tuple[Label, str], set[int]]:
    """Return the units of the spans by label and error type; a span of which no line tells the type is in none."""
    found: dict[tuple[Label, str], set[int]] = defaultdict(set)
    lines = [line.partition(': "')[::2] for line in critique.feedback.splitlines()]
    for span, units in zip(critique.spans, marks.units, strict=not critique.failed):
        for types, quoted in lines:
            if len(types) <= _LONGEST_TYPE and _quotes(quoted, response[span.start : span.end]):
                for name in types.split(","):
                    found[span.label, name.strip()] |= set(units)
    return found


def _quotes(quoted: str, text: str) -> bool:
    """Tell whether a line, after its first quotation mark, goes on with a text as `feedback import` quotes it.

    It is escaped as in JSON, or on one line and perhaps cut at a word, with " …" behind.
    """
    joined = " ".join(text.split())
    shortened, cut, _ = quoted.partition(' …"')
    whole = quoted.startswith((json.dumps(text, ensure_ascii=False)[1:], f'{joined}"'))
    return whole or bool(cut and shortened and joined.startswith(shortened))


def lengths(marks: Sequence[Marks]) -> dict[Label, list[int]]:
    """Return the number of units of each span, by label."""
    return {label: [len(units) for one in marks for units in _unit_sets(one, label)] for label in LABELS}


def ratios() -> dict[str, Ratio]:
    """Return the rates by name: which counts each divides by which."""
    found: dict[str, Ratio] = {}
    for label in LABELS:
        both, true = f"{label}_both", f"{label}_true"
        found[f"precision/{label}"] = Ratio((both,), (label,))
        found[f"recall/{label}"] = Ratio((both,), (true,))
        found[f"f1/{label}"] = Ratio((both, both), (label, true))
        found[f"f1_everything/{label}"] = Ratio((true, true), ("units", true))
    for label in LABELS:
        found[f"exact/{label}"] = Ratio((f"exact/{label}",), (f"true_spans/{label}",))
        found[f"partial/{label}"] = Ratio((f"partial/{label}",), (f"true_spans/{label}",))
        found[f"oui/{label}"] = Ratio((f"iou/{label}",), (f"exact/{label}", f"partial/{label}"))
        found[f"quote_exact/{label}"] = Ratio((f"quotes_exact/{label}",), (f"quotes/{label}",))
        found[f"quote_overlap_90/{label}"] = Ratio((f"quotes_overlap/{label}",), (f"quotes/{label}",))
        for bucket in BUCKETS:
            found[f"accuracy/{label}/{bucket}"] = Ratio((f"right/{label}/{bucket}",), (f"of/{label}/{bucket}",))
    quotes = tuple(f"quotes/{label}" for label in LABELS)
    for kind in ("exact", "overlap"):
        name = "quote_exact" if kind == "exact" else "quote_overlap_90"
        found[f"{name}/all"] = Ratio(tuple(f"quotes_{kind}/{label}" for label in LABELS), (*quotes, "quotes_lost"))
    found["failure_rate"] = Ratio(("failed",), ("responses",))
    found["unmatched_rate"] = Ratio(("unmatched",), ("quotes",))
    found["gap"] = Ratio(("surplus",), ("responses",))
    return found


def _unit_sets(marks: Marks, label: Label) -> list[frozenset[int]]:
    pairs = zip(marks.spans, marks.units, strict=True)
    return [frozenset(units) for span, units in pairs if span.label == label and units]


def _overlap(one: Span, other: Span, text: str) -> float:
    """Return the shared visible characters of two spans, as a share of those of the longer span."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    longer = max(_visible(text[one.start : one.end]), _visible(text[other.start : other.end]))
    return _visible(text[start:end]) / longer if longer else 0.0


def _visible(text: str) -> int:
    return sum(not character.isspace() for character in text)
