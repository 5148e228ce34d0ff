"""Critics that recipes of tests name as `critics_by_name:NAME`."""

from collections.abc import Sequence

from text2grad.types import Critique, Example


class Strict:
    """An annotator that answers in text, and is nobody's critic."""

    asked = 0

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        Strict.asked += len(responses)
        return ['{"textual_feedback": "No.", "good_spans": [], "poor_spans": []}'] * len(responses)


class Kind:
    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [Critique("Yes.") for _ in responses]
