"""Several critiques of one response → one: what enough of them mark is marked.

A critique that is likely as a whole marks little where marks are rare and raters disagree: a word that one rater in
three would mark stands in no likeliest critique. The share of drawn critiques that mark a word estimates how likely it
is to be marked, and the share from which on marking it pays is chosen on held-out annotations (minimum Bayes risk;
with F1 as the gain it is about half of the best F1, arXiv 1402.1892).
"""

from collections.abc import Sequence
from itertools import accumulate, groupby

from text2grad.errors import ConfigError
from text2grad.types import LABELS, Critique, Label, Span

Marks = list[Label | None]  # of each character


def vote(
    critiques: Sequence[Critique], response: str, *, threshold: float = 0.5, agreement: float | None = None
) -> Critique:
    """Return the critique that several of one response come to: drawn from one model, or of several critics.

    A character is marked that at least a share `threshold` of them mark alike, and more than mark it otherwise. Its
    words are those of the critique whose marks are most like the result.

    Args:
        critiques: at least one; those that failed have no vote.
        response: what they are about.
        threshold: in (0, 1].
        agreement: the name of `threshold` in version 0.1; it goes before it.

    Returns:
        A critique of spans without white space at their ends, with the mean of the outcomes. The first critique, if
        all failed.

    Raises:
        ConfigError: if there is no critique, or `threshold` is not in (0, 1].

    Example:
        >>> said = [Critique("City!", (Span(3, 7, "negative"),)), Critique("Fine.", ()), Critique("Fine.", ())]
        >>> vote(said, "in Lyon today", threshold=0.3).spans
        (Span(start=3, end=7, label='negative'),)
        >>> vote(said, "in Lyon today")
        Critique(feedback='Fine.', spans=(), outcome=None, status='ok', unmatched=())
    """
    threshold = threshold if agreement is None else agreement
    check_votes(len(critiques), threshold)
    usable = [critique for critique in critiques if not critique.failed]
    if not usable:
        return critiques[0]
    votes = [_marks(critique, len(response)) for critique in usable]
    marks = [_elected(given, threshold) for given in zip(*votes, strict=True)]
    likeness = [sum(a == b for a, b in zip(given, marks, strict=True)) for given in votes]
    outcomes = [critique.outcome for critique in usable if critique.outcome is not None]
    outcome = sum(outcomes) / len(outcomes) if outcomes else None
    spoken = usable[likeness.index(max(likeness))]
    return Critique(spoken.feedback, _spans(marks, response), outcome, spoken.status, spoken.unmatched)


def check_votes(votes: int, threshold: float) -> None:
    """Refuse a vote of nobody, or one that cannot be won or lost.

    Raises:
        ConfigError: if it is one.
    """
    if votes < 1 or not 0.0 < threshold <= 1.0:
        raise ConfigError(
            f"votes = {votes}, vote_threshold = {threshold}: take at least one vote, and a threshold in (0, 1]"
        )


def _marks(critique: Critique, length: int) -> Marks:
    """Return the label of each character; None for none, or for both."""
    depth = {label: [0] * (length + 1) for label in LABELS}
    for span in critique.spans:
        depth[span.label][span.start] += 1
        depth[span.label][span.end] -= 1
    good, poor = (list(accumulate(depth[label]))[:length] for label in LABELS)
    return [None if bool(a) == bool(b) else LABELS[0] if a else LABELS[1] for a, b in zip(good, poor, strict=True)]


def _elected(given: Sequence[Label | None], threshold: float) -> Label | None:
    """Return the label that enough votes give, and more than give the other."""
    good, poor = (given.count(label) for label in LABELS)
    if good == poor or max(good, poor) / len(given) < threshold:
        return None
    return LABELS[0] if good > poor else LABELS[1]


def _spans(marks: Marks, response: str) -> tuple[Span, ...]:
    """Return runs of one label, without white space at their ends."""
    found, start = [], 0
    for label, run in groupby(marks):
        end = start + len(list(run))
        text = response[start:end]
        if label is not None and text.strip():
            first = start + len(text) - len(text.lstrip())
            found.append(Span(first, first + len(text.strip()), label))
        start = end
    return tuple(found)
