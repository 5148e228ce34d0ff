"""How good a reward model is: its spans beside the annotator's, in the policy's own tokens (Table 1).

precision/positive    of the tokens it praises, the share that the annotator praises too
recall/positive       of the tokens that the annotator praises, the share that it praises too; likewise negative
failure_rate          critiques that could not be read;  unmatched_rate: quotes that are not in the response
gap                   mean over responses of Σ δ learned − Σ δ true: above 0, the policy is praised for nothing
"""

from collections.abc import Sequence
from typing import NamedTuple

from text2grad.types import Critique


class Quality(NamedTuple):
    """Counts that add up over batches; `merged` adds them."""

    praised_both: int = 0
    praised: int = 0
    praised_true: int = 0
    blamed_both: int = 0
    blamed: int = 0
    blamed_true: int = 0
    failed: int = 0
    unmatched: int = 0
    quotes: int = 0
    responses: int = 0
    surplus: float = 0.0

    def merged(self, other: "Quality") -> "Quality":
        """Return the counts of both."""
        return Quality(*(a + b for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]

    def metrics(self) -> dict[str, float]:
        """Return rates in [0, 1] and the gap; a rate of nothing is left out."""
        rates = {
            "precision/positive": (self.praised_both, self.praised),
            "recall/positive": (self.praised_both, self.praised_true),
            "precision/negative": (self.blamed_both, self.blamed),
            "recall/negative": (self.blamed_both, self.blamed_true),
            "failure_rate": (self.failed, self.responses),
            "unmatched_rate": (self.unmatched, self.quotes),
            "gap": (self.surplus, self.responses),
        }
        return {name: part / whole for name, (part, whole) in rates.items() if whole}


def compare(
    deltas: Sequence[Sequence[float]], true_deltas: Sequence[Sequence[float]], critiques: Sequence[Critique]
) -> Quality:
    """Return the counts of some responses.

    Args:
        deltas: δ of each response from the reward model's spans, one number per token.
        true_deltas: likewise from the annotator's.
        critiques: what the reward model wrote.
    """
    pairs = [pair for one, other in zip(deltas, true_deltas, strict=True) for pair in zip(one, other, strict=True)]
    unmatched = sum(len(critique.unmatched) for critique in critiques)
    return Quality(
        praised_both=sum(a > 0 and b > 0 for a, b in pairs),
        praised=sum(a > 0 for a, _ in pairs),
        praised_true=sum(b > 0 for _, b in pairs),
        blamed_both=sum(a < 0 and b < 0 for a, b in pairs),
        blamed=sum(a < 0 for a, _ in pairs),
        blamed_true=sum(b < 0 for _, b in pairs),
        failed=sum(critique.failed for critique in critiques),
        unmatched=unmatched,
        quotes=unmatched + sum(len(critique.spans) for critique in critiques),
        responses=len(critiques),
        surplus=sum(a - b for a, b in pairs),
    )
