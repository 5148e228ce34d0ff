"""Counts of the items and losses that a source gives."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import Item
from text2grad.types import Example


class Account(NamedTuple):
    """Numbers of annotations, examples, spans by label and losses by reason; and the columns not read."""

    annotations: int
    examples: int
    spans: Counter[str]
    losses: Counter[str]
    unread: set[str]


def account_for(items: Iterable[Item]) -> Account:
    """Return the counts of some items."""
    listed = list(items)
    judged = [item.made for item in listed if isinstance(item.made, Annotation)]
    return Account(
        len(judged),
        sum(isinstance(item.made, Example) for item in listed),
        Counter(span.label for annotation in judged for span in annotation.critique.spans),
        Counter(loss.reason for item in listed for loss in item.losses),
        {column for item in listed for column in item.unread},
    )
