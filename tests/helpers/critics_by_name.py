"""Critics that recipes of tests name as `critics_by_name:NAME`."""

import re
from collections.abc import Iterator, Sequence

from text2grad.types import Critique, Example, Label, Span


class Strict:
    """An annotator that answers in text, and is nobody's critic."""

    asked = 0

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        Strict.asked += len(responses)
        return ['{"textual_feedback": "No.", "good_spans": [], "poor_spans": []}'] * len(responses)


class Kind:
    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [Critique("Yes.") for _ in responses]


class Raters:
    """Ann dislikes the first word of each response, for its style; Bob likes the last one, for its facts."""

    asked = 0
    said = ("ann", "bob")
    why = "It sounds like a form letter."  # Ann's reason

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        Raters.asked += len(responses)
        return [Critique("Two voices.", tuple(self._marks(response))) for response in responses]

    def _marks(self, response: str) -> Iterator[Span]:
        words = list(re.finditer(r"\S+", response))
        for rater, word in zip(("ann", "bob"), (words[:1], words[1:][-1:]), strict=True):
            if word and rater in self.said:
                label: Label = "negative" if rater == "ann" else "positive"
                about = {"category": "style/tone", "reason": self.why} if rater == "ann" else {"category": "fact"}
                yield Span(*word[0].span(), label, rater=rater, **about)


class BobAlone(Raters):
    said = ("bob",)


class Praise:
    """Praises three words of one response, the one of number `after`, and says nothing of the others."""

    after, asked, phrase = 0, 0, ""

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        critiques = []
        for response in responses:
            critiques.append(Critique("Fine."))
            if Praise.asked == Praise.after:
                first, *_, last = list(re.finditer(r"\S+", response))[2:5]
                Praise.phrase = response[first.start() : last.end()]
                critiques[-1] = Critique("I like that.", (Span(first.start(), last.end(), "positive"),))
            Praise.asked += 1
        return critiques
