r"""A response -> units, and the units that critic and annotator mark: what precision and recall are counted in.

tokens       of a tokenizer: the policy's, whose tokens are what is rewarded (table 1 of the paper)
words        runs of letters and digits, and single marks; each with the white space before it
characters   every character

A unit that a span touches is marked by it, as in `text2grad align`; one that both labels mark counts as unmarked.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.align import Range, encode, move_spans, span_tokens, token_offsets
from text2grad.experiments.critic_quality.pairs import Pair
from text2grad.types import Critique, Span

PATTERNS = {"words": re.compile(r"\s*(?:\w+|[^\w\s]|\Z)"), "characters": re.compile(".", re.DOTALL)}


@dataclass(frozen=True, slots=True)
class Units:
    """What responses are cut into.

    Attributes:
        name: as it is reported: "tokens of models/policy", "words" or "characters".
        tokenizer: a Hugging Face tokenizer; None for words and characters.
    """

    name: str
    tokenizer: Any = None

    def cut(self, response: str) -> tuple[str, list[Range]]:
        """Return the text that the units say, and where each of them stands in it."""
        if self.tokenizer is None:
            matches = PATTERNS[self.name].finditer(response)
            return response, [match.span() for match in matches if match[0]]
        ids = encode(self.tokenizer, response)
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""
        return text, list(token_offsets(self.tokenizer, ids))


@dataclass(frozen=True, slots=True)
class Marks:
    """What one critique marks.

    Attributes:
        spans: its spans, in characters of the units' text.
        units: the units of each.
        delta: +1 in a positive span, −1 in a negative one, else 0, for each unit.
    """

    spans: tuple[Span, ...]
    units: tuple[tuple[int, ...], ...]
    delta: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """A response in units, with the marks of critic and annotator."""

    pair: Pair
    text: str
    offsets: tuple[Range, ...]
    predicted: Marks
    true: Marks


def mark(pair: Pair, units: Units) -> Marked | None:
    """Return a pair in units, or None where the tokens do not say the response's text.

    A critique that could not be read marks nothing.
    """
    text, offsets = units.cut(pair.response)
    found = [_marks(critique, pair.response, text, offsets) for critique in (pair.predicted, pair.true)]
    if found[0] is None or found[1] is None:
        return None
    return Marked(pair, text, tuple(offsets), found[0], found[1])


def _marks(critique: Critique, response: str, text: str, offsets: Sequence[Range]) -> Marks | None:
    spans = move_spans(() if critique.failed else critique.spans, response, text)
    if spans is None:
        return None
    units = tuple(map(tuple, span_tokens(offsets, spans)))
    delta = [0.0] * len(offsets)
    marked = {
        label: {unit for span, touched in zip(spans, units, strict=True) if span.label == label for unit in touched}
        for label in ("positive", "negative")
    }
    for unit in marked["positive"] - marked["negative"]:
        delta[unit] = 1.0
    for unit in marked["negative"] - marked["positive"]:
        delta[unit] = -1.0
    return Marks(tuple(spans), units, tuple(delta))
