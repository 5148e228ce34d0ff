"""Response → steps, and annotation → labels of the steps: the training data of a process reward model.

A step is a line or a sentence without the white space around it. Its label comes from the spans that overlap it:
positive or negative if all have this label, neutral if there is none or they differ. Where annotators mark the steps
of a solution themselves, the spans are the steps.
"""

import re
from typing import Literal, NamedTuple, get_args

from text2grad.errors import check_known
from text2grad.feedback import Annotation

StepRule = Literal["lines", "sentences"]
StepLabel = Literal["negative", "neutral", "positive"]
STEP_LABELS: tuple[StepLabel, ...] = get_args(StepLabel)

_LINE = re.compile(r"\S(?:[^\n]*\S)?")
_SENTENCE = re.compile(r"\S[^\n]*?(?:[.!?…][\"')\]]*(?=\s|\Z)|(?=\s*(?:\n|\Z)))")


class Step(NamedTuple):
    """Characters [start, end) of a response, and their label."""

    start: int
    end: int
    label: StepLabel = "neutral"


def split_steps(response: str, rule: StepRule) -> list[Step]:
    r"""Return the steps of a response, all neutral.

    Raises:
        ConfigError: if there is no such rule.

    Example:
        >>> [(step.start, step.end) for step in split_steps("It is 2.5. So\nyes.", "sentences")]
        [(0, 10), (11, 13), (14, 18)]
    """
    check_known("rule", rule, get_args(StepRule))
    pattern = _LINE if rule == "lines" else _SENTENCE
    return [Step(*found.span()) for found in pattern.finditer(response)]


def labelled_steps(annotation: Annotation, rule: StepRule | Literal["spans"]) -> list[Step]:
    """Return the steps of an annotated response with their labels; with rule "spans" they are the critique's spans."""
    spans = [span for span in annotation.critique.spans if span.end > span.start]
    if rule == "spans":
        return [Step(span.start, span.end, span.label) for span in spans]
    steps = []
    for step in split_steps(annotation.response, rule):
        labels = {span.label for span in spans if span.start < step.end and step.start < span.end}
        steps.append(step._replace(label=labels.pop()) if len(labels) == 1 else step)
    return steps
