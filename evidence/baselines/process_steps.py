"""Response → steps, and annotation → labels of the steps: the training data of a process reward model.

A step is a line, a sentence or a clause (`feedback.split_steps`). Its label comes from the spans that overlap it:
positive or negative if all have this label, neutral if there is none or they differ. Where annotators mark the steps
of a solution themselves, the spans are the steps.
"""

from typing import Literal, NamedTuple, get_args

from text2grad.feedback.records import Annotation
from text2grad.feedback.words import StepRule, split_steps

StepLabel = Literal["negative", "neutral", "positive"]
STEP_LABELS: tuple[StepLabel, ...] = get_args(StepLabel)


class Step(NamedTuple):
    """Characters [start, end) of a response, and their label."""

    start: int
    end: int
    label: StepLabel = "neutral"


def labelled_steps(annotation: Annotation, rule: StepRule | Literal["spans"]) -> list[Step]:
    """Return the steps of an annotated response with their labels; with rule "spans" they are the critique's spans."""
    spans = [span for span in annotation.critique.spans if span.end > span.start]
    if rule == "spans":
        return [Step(span.start, span.end, span.label) for span in spans]
    steps = []
    for step in (Step(*place) for place in split_steps(annotation.response, rule)):
        labels = {span.label for span in spans if span.start < step.end and step.start < span.end}
        steps.append(step._replace(label=labels.pop()) if len(labels) == 1 else step)
    return steps
