r"""A response → units, and the units that critic and annotator mark; precision and recall count units.

tokens       of a tokenizer, such as the policy's, whose tokens get the rewards (table 1 of the paper)
words        as `feedback.words_of` finds them, each with the white space before it
characters   every character

A span marks every unit that it overlaps. A unit with marks of both labels counts as unmarked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from text2grad.align import Range, encode, move_spans, span_tokens, token_offsets
from text2grad.feedback import words_of
from text2grad.runs.critic_quality.pairs import Pair
from text2grad.types import Critique, Label, Span


def _words(response: str) -> list[Range]:
    """Return the words, each with the white space before it, and the white space at the end."""
    ends = [end for _, end in words_of(response)]
    if response[ends[-1] if ends else 0 :]:
        ends.append(len(response))
    return list(pairwise((0, *ends)))


CUTS: dict[str, Callable[[str], list[Range]]] = {  # name of a unit without a tokenizer → its ranges in a response
    "words": _words,
    "characters": lambda response: list(pairwise(range(len(response) + 1))),
}


@dataclass(frozen=True, slots=True)
class Units:
    """The unit that responses are split into.

    Attributes:
        name: for reports: "tokens of models/policy", "words" or "characters".
        tokenizer: a Hugging Face tokenizer; None for words and characters.
    """

    name: str
    tokenizer: Any = None

    def cut(self, response: str) -> tuple[str, list[Range]]:
        """Return the text of all units, and the characters of each unit in it."""
        if self.tokenizer is None:
            return response, CUTS[self.name](response)
        ids = encode(self.tokenizer, response)
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""
        return text, list(token_offsets(self.tokenizer, ids))


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one critique.

    Attributes:
        critique: the critique, whose spans are in characters of the response.
        spans: its spans, in characters of the text of all units, each with its units.
        delta: for each unit +1 in a positive span, −1 in a negative span, else 0.
    """

    critique: Critique
    spans: tuple[tuple[Span, frozenset[int]], ...]
    delta: tuple[float, ...]

    def unit_sets(self, label: Label) -> list[frozenset[int]]:
        """Return the units of each span of a label; spans without units are left out."""
        return [units for span, units in self.spans if span.label == label and units]


@dataclass(frozen=True, slots=True)
class Marked:
    """A response split into units, with the marks of critic and annotator."""

    pair: Pair
    text: str
    offsets: tuple[Range, ...]
    predicted: Marks
    true: Marks


def mark(pair: Pair, units: Units) -> Marked | None:
    """Split a pair into units; None if the tokens decode to another text than the response.

    A critique with a failed status marks nothing.
    """
    text, offsets = units.cut(pair.response)
    predicted, true = (marks_of(critique, pair.response, text, offsets) for critique in (pair.predicted, pair.true))
    return Marked(pair, text, tuple(offsets), predicted, true) if predicted and true else None


def marks_of(critique: Critique, response: str, text: str, offsets: Sequence[Range]) -> Marks | None:
    """Return the marks of a critique on ranges of a text; None if the text is another than the response."""
    if (spans := move_spans(() if critique.failed else critique.spans, response, text)) is None:
        return None
    placed = tuple(zip(spans, map(frozenset, span_tokens(offsets, spans)), strict=True))
    touched = {(unit, span.label) for span, units in placed for unit in units}
    delta = [float(((unit, "positive") in touched) - ((unit, "negative") in touched)) for unit in range(len(offsets))]
    return Marks(critique, placed, tuple(delta))
