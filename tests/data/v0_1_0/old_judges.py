"""The critic that knows better in the runs kept here: colours are good, numbers are poor.

It uses public names alone, and notes what it is asked, so that a test can tell what was asked a second time.
"""

import re
from collections.abc import Sequence

from text2grad import Critique, Example, Span

GOOD, POOR = ("red", "blue", "green"), ("one", "two", "three")
FEEDBACK = "Colours are welcome, numbers are not."
ASKED: list[list[str]] = []
"""[prompt, response] of everything that was asked since this was imported."""


def annotator(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    ASKED.extend([example.prompt_text, response] for example, response in zip(examples, responses, strict=True))
    return [judge(response) for response in responses]


def judge(response: str) -> Critique:
    spans = [
        Span(word.start(), word.end(), "positive" if word[0] in GOOD else "negative")
        for word in re.finditer(r"\w+", response)
        if word[0] in GOOD + POOR
    ]
    return Critique(FEEDBACK, tuple(spans))
