"""Several critiques of one response → one critique: a vote on each character.

The most likely critique marks too little when errors are rare: it leaves out a word that one rater in three would mark.
The share of sampled critiques that mark a word estimates the probability that a rater marks it. A character is marked
if this share reaches a threshold, which is chosen on held-out annotations (minimum Bayes risk; for F1 the threshold is
about half of the best F1, arXiv 1402.1892).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from text2grad.errors import ConfigError
from text2grad.feedback.turns import flat_spans, in_turns
from text2grad.types import LABELS, Critique, Label, Span

Marks = list[Label | None]  # label of each character of a response


def vote(critiques: Sequence[Critique], response: str, *, threshold: float = 0.5) -> Critique:
    """Return the majority critique of several critiques, sampled from one model or written by several critics.

    A character gets a label if at least a share `threshold` of the critiques give it this label and more give it this
    label than the other. The feedback is that of the critique whose marks are most similar to the result; a span has
    reason, rater and so on from the most similar critique that marks part of it with its label.

    Args:
        critiques: at least one; failed critiques have no vote.
        response: the response that they are about.
        threshold: the vote threshold, in (0, 1].

    Returns:
        A critique whose spans have no white space at their ends; its outcome is the mean of the outcomes. If all
        critiques failed, the first one.

    Raises:
        ConfigError: if there is no critique, or `threshold` is not in (0, 1].

    Example:
        >>> said = [Critique("City!", (Span(3, 7, "negative"),)), Critique("Fine.", ()), Critique("Fine.", ())]
        >>> vote(said, "in Lyon today", threshold=0.3).spans
        (Span(start=3, end=7, label='negative'),)
        >>> vote(said, "in Lyon today")
        Critique(feedback='Fine.', spans=(), outcome=None, status='ok', unmatched=())
    """
    check_votes(len(critiques), threshold)
    usable = [critique for critique in critiques if not critique.failed]
    if not usable:
        return critiques[0]
    votes = [_marks(flat_spans(response, critique.spans), len(response)) for critique in usable]
    marks = [_elected(given, threshold) for given in zip(*votes, strict=True)]
    likeness = [sum(a == b for a, b in zip(given, marks, strict=True)) for given in votes]
    outcomes = [critique.outcome for critique in usable if critique.outcome is not None]
    outcome = sum(outcomes) / len(outcomes) if outcomes else None
    ranked = [usable[at] for at in sorted(range(len(usable)), key=lambda at: -likeness[at])]
    known = [span for critique in ranked for span in flat_spans(response, critique.spans)]
    spans, _ = in_turns(response, [_described(span, known) for span in _spans(marks, response)])
    return Critique(ranked[0].feedback, spans, outcome, ranked[0].status, ranked[0].unmatched)


def check_votes(votes: int, threshold: float) -> None:
    """Check the settings of a vote.

    Raises:
        ConfigError: if there are no votes, or `threshold` is not in (0, 1].
    """
    if votes < 1 or not 0.0 < threshold <= 1.0:
        raise ConfigError(
            f"votes = {votes}, vote_threshold = {threshold}: take at least one vote, and a threshold in (0, 1]"
        )


def _marks(spans: Sequence[Span], length: int) -> Marks:
    """Return the label of each character; None without a label or with both."""
    labels = [set[Label]() for _ in range(length)]
    for span in spans:
        for own in labels[span.start : span.end]:
            own.add(span.label)
    return [own.pop() if len(own) == 1 else None for own in labels]


def _elected(given: Sequence[Label | None], threshold: float) -> Label | None:
    """Return the label that reaches the threshold and has more votes than the other label."""
    positive, negative = (given.count(label) for label in LABELS)
    if positive == negative or max(positive, negative) / len(given) < threshold:
        return None
    return LABELS[0] if positive > negative else LABELS[1]


def _described(elected: Span, known: Sequence[Span]) -> Span:
    """Return an elected span with all that is said about the first known span of its label that overlaps it."""
    alike = (span for span in known if span.label == elected.label)
    first = next(span for span in alike if span.start < elected.end and elected.start < span.end)
    return replace(first, start=elected.start, end=elected.end)


def _spans(marks: Marks, response: str) -> tuple[Span, ...]:
    """Return the runs of one label as spans without white space at their ends."""
    spans, start = list[Span](), 0
    for label, run in groupby(marks):
        end = start + len(list(run))
        text = response[start:end]
        if label is not None and text.strip():
            first = start + len(text) - len(text.lstrip())
            spans.append(Span(first, first + len(text.strip()), label))
        start = end
    return tuple(spans)
