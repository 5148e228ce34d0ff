"""Critics for the tests of verl's agent loop, loaded by name."""

from collections.abc import Sequence

from text2grad import Critique, Example, locate_spans


def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    """Mark "yes or" as positive and "later" as negative; the words are the example's meta."""
    return [
        Critique(str(example.meta), locate_spans(response, ["yes or"], ["later"]).spans, outcome=0.5)
        for example, response in zip(examples, responses, strict=True)
    ]


def silent(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
    """Return texts that hold no critique."""
    return ['{"feedback": "nothing'] * len(responses)  # cut off


def quoting(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
    """Quote with other letters and spaces."""
    return ['{"textual_feedback": "So.", "good_spans": ["YES  or"], "poor_spans": []}'] * len(responses)
