"""Agreement on δ between a reward model and the annotator, token by token (Table 1).

f1                    F1 of positive and negative tokens together; f1/positive, f1/negative: of one label
precision/positive    of the tokens with δ > 0 by the reward model, the share with δ > 0 by the annotator
recall/positive       of the tokens with δ > 0 by the annotator, the share with δ > 0 by the reward model
precision/negative, recall/negative    likewise for δ < 0
failure_rate          share of critiques that could not be parsed
unmatched_rate        share of quotes that do not occur in the response
gap                   mean over responses of Σ δ (reward model) − Σ δ (annotator); above 0, the reward is too high
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from text2grad.types import Critique

RATES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # rate → the counts of numerator and denominator
    "f1": (("positive_both", "negative_both") * 2, ("positive", "positive_true", "negative", "negative_true")),
    "f1/positive": (("positive_both",) * 2, ("positive", "positive_true")),
    "f1/negative": (("negative_both",) * 2, ("negative", "negative_true")),
    "precision/positive": (("positive_both",), ("positive",)),
    "recall/positive": (("positive_both",), ("positive_true",)),
    "precision/negative": (("negative_both",), ("negative",)),
    "recall/negative": (("negative_both",), ("negative_true",)),
    "failure_rate": (("failed",), ("responses",)),
    "unmatched_rate": (("unmatched",), ("quotes",)),
    "gap": (("surplus",), ("responses",)),
}


class Agreement(NamedTuple):
    """Counts of tokens, critiques and quotes."""

    positive_both: int = 0
    positive: int = 0  # by the reward model
    positive_true: int = 0  # by the annotator
    negative_both: int = 0
    negative: int = 0
    negative_true: int = 0
    failed: int = 0
    unmatched: int = 0
    quotes: int = 0
    responses: int = 0
    surplus: float = 0.0

    def merged(self, other: "Agreement") -> "Agreement":
        """Return the counts of both."""
        return Agreement(*(a + b for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]

    def metrics(self) -> dict[str, float]:
        """Return rates in [0, 1] and the gap; a rate with denominator zero is left out.

        Example:
            >>> Agreement(negative_both=2, negative=3, negative_true=5).metrics()
            {'f1': 0.5, 'f1/negative': 0.5, 'precision/negative': 0.6666666666666666, 'recall/negative': 0.4}
        """
        sums = {
            name: [sum(getattr(self, count) for count in counts) for counts in both] for name, both in RATES.items()
        }
        return {name: part / whole for name, (part, whole) in sums.items() if whole}


def compare(
    deltas: Sequence[Sequence[float]], true_deltas: Sequence[Sequence[float]], critiques: Sequence[Critique]
) -> Agreement:
    """Count the agreement on some responses.

    Args:
        deltas: δ of each response from the reward model's spans, one number per token.
        true_deltas: δ of each response from the annotator's spans.
        critiques: of the reward model.
    """
    pairs = [pair for both in zip(deltas, true_deltas, strict=True) for pair in zip(*both, strict=True)]
    unmatched = sum(len(critique.unmatched) for critique in critiques)
    return Agreement(
        positive_both=sum(a > 0 and b > 0 for a, b in pairs),
        positive=sum(a > 0 for a, _ in pairs),
        positive_true=sum(b > 0 for _, b in pairs),
        negative_both=sum(a < 0 and b < 0 for a, b in pairs),
        negative=sum(a < 0 for a, _ in pairs),
        negative_true=sum(b < 0 for _, b in pairs),
        failed=sum(critique.failed for critique in critiques),
        unmatched=unmatched,
        quotes=unmatched + sum(len(critique.spans) for critique in critiques),
        responses=len(critiques),
        surplus=sum(a - b for a, b in pairs),
    )
