"""Marks that a generative reward model reads in its prompt: a probe finds the place, the language model the words.

Of the joint distribution of marks m and critique z, a probe is the first factor and the language model the second:

    p(m, z | x, y) = p(m | x, y) · p(z | m, x, y)

With few annotations the hidden states of a base tell more about a response than training brings it to write
(docs/reward_models.md), while to copy marks from the prompt, and to write a reason for each, is soon learned. So the
language model is trained behind the annotators' marks, and decodes behind those of the probe. The probe marks each unit
independently of the others. With the constraint the spans of a critique are its marks, and the language model writes
the feedback, and the outcome of a form that has one; without, it repeats the marks itself.

The prompt shows marks as the form of the critiques writes them: for a form that quotes, a line for each run of units
with one label, sign first; for a form with labels, its labels.

    - Widnes beat Castleford.                           spans, spans_and_outcome, labelled_spans
    + The Vikings took the lead. They kept it.

    Widnes beat Castleford. - The Vikings took the lead. + They kept it. +         tagged_sentences
    1 - 2 + 3 +                                                                    numbered_sentences

A model that writes feedback must know the sentences of the numbers, so that the marked ones stand behind the signs:

    1 - 2 = 3 +
    1: Widnes beat Castleford.
    3: They kept it.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from text2grad.feedback import Annotation
from text2grad.reward_models.probe import LABELS, SPLITS, Unit, UnitScore, mark_of
from text2grad.reward_models.writing import LABEL_FORMS, QUOTING, labels_within, sentences_of, spans_of
from text2grad.types import CritiqueForm, Span


class Marked(NamedTuple):
    """A unit of a response, its characters [start, end), with its label: 1, −1, or 0 for neither."""

    start: int
    end: int
    label: int


def annotated_marks(annotation: Annotation, unit: Unit) -> list[Marked]:
    """Return the units of an annotated response, each with the most frequent label of its words.

    Example:
        >>> from text2grad.types import Critique, Span
        >>> annotated_marks(Annotation("q", "So am I. No.", Critique("", (Span(9, 12, "negative"),))), "sentences")
        [Marked(start=0, end=8, label=0), Marked(start=9, end=12, label=-1)]
    """
    units = SPLITS[unit](annotation.response)
    inside = labels_within(annotation.response, annotation.critique.spans, units)
    return [Marked(*place, max(LABELS, key=own.count)) for place, own in zip(units, inside, strict=True)]


def likeliest_marks(scores: Sequence[UnitScore], threshold: float) -> list[Marked]:
    """Return the units with the labels whose probability reaches a threshold, as the probe itself marks them.

    Example:
        >>> likeliest_marks([UnitScore(0, 8, negative=0.3, positive=0.1)], threshold=0.2)
        [Marked(start=0, end=8, label=-1)]
    """
    return [Marked(one.start, one.end, mark_of(one.negative, one.positive, threshold)) for one in scores]


def drawn_marks(scores: Sequence[UnitScore], draws: int, seed: str) -> list[list[Marked]]:
    """Return marks drawn several times, each unit by its probabilities.

    The draws of a unit are stratified: each has the uniform number of another n-th part of [0, 1). So each draw alone
    has the probabilities of the probe, and of all draws together the share of a label differs from its probability by
    less than 1 / draws (for negative and positive; for neither by less than twice as much).

    Example:
        >>> [one.label for (one,) in drawn_marks([UnitScore(0, 8, negative=0.5, positive=0.0)], 4, "0")].count(-1)
        2
    """
    drawn: list[list[Marked]] = [[] for _ in range(draws)]
    for number, one in enumerate(scores):
        random = Random(f"{seed} {number}")
        strata = random.sample(range(draws), draws)
        for own, stratum in zip(drawn, strata, strict=True):
            uniform = (stratum + random.random()) / draws
            label = -1 if uniform < one.negative else 1 if uniform >= 1 - one.positive else 0
            own.append(Marked(one.start, one.end, label))
    return drawn


def marked_spans(response: str, marks: Sequence[Marked]) -> tuple[Span, ...]:
    """Return the spans of marks: one for each run of units with one label.

    Example:
        >>> marked_spans("So am I. No. Yes?", [Marked(0, 8, 0), Marked(9, 12, -1), Marked(13, 17, -1)])
        (Span(start=9, end=17, label='negative'),)
    """
    units = [(one.start, one.end) for one in marks]
    return spans_of(response, [one.label for one in marks], lambda _: units)


def marks_text(response: str, marks: Sequence[Marked], form: CritiqueForm, *, write_feedback: bool = False) -> str:
    r"""Return marks as they stand in the prompt; "none" without one.

    Args:
        response: the text that is marked.
        marks: its units.
        form: of the critique.
        write_feedback: whether the critique has feedback, about sentences that then stand behind the signs.

    Example:
        >>> marks = [Marked(0, 8, 0), Marked(9, 12, -1), Marked(13, 17, -1)]
        >>> marks_text("So am I. No. Yes?", marks, "labelled_spans")
        '- No. Yes?'
        >>> marks_text("So am I. No. Yes?", marks, "numbered_sentences")
        '1 = 2 - 3 -'
        >>> marks_text("So am I.", [Marked(0, 8, 0)], "labelled_spans")
        'none'
        >>> print(marks_text("So am I. No. Yes?", marks, "numbered_sentences", write_feedback=True))
        1 = 2 - 3 -
        2: No.
        3: Yes?
    """
    spans = marked_spans(response, marks)
    if form not in QUOTING:
        known = LABEL_FORMS[form]
        labels = known.labels(response, spans)
        lines = [known.value(response, labels) or "none"]
        if form == "numbered_sentences" and write_feedback:
            numbered = enumerate(zip(sentences_of(response), labels, strict=True), start=1)
            lines += [f"{number}: {response[start:end]}" for number, ((start, end), label) in numbered if label]
        return "\n".join(lines)
    signs = {"positive": "+", "negative": "-"}
    return "\n".join(f"{signs[one.label]} {response[one.start : one.end]}" for one in spans) or "none"
