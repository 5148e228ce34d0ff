"""What readers of sources share: looking a record's columns up, and what became of a record.

A reader maps one record to any number of `Item`s: annotations where it holds feedback, examples where it holds none.
What an annotation cannot say is a loss: it is named with its reason, counted and shown, never dropped in silence.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from text2grad.feedback.record_files import Entry, Object, bad_record, keys_of, shown
from text2grad.feedback.records import Annotation
from text2grad.feedback.spans import Match
from text2grad.types import Critique, Example, Label, Span

Ground = Literal["diff", "words"]
Meaning = Literal["positive", "negative", "ignore"]

NO_ERRORS = "No errors marked."
WORDS_ONLY = "words without a place: no token learns from them until they are grounded in spans"
NO_PLACE = "about something that the response does not hold: kept in words, no span"
NOT_JUDGED = "responses without feedback: examples that an annotator can judge"


class Loss(NamedTuple):
    """Something that an annotation cannot say, or says only in words.

    Attributes:
        reason: why, in words that all losses of this kind share.
        detail: what it was.
    """

    reason: str
    detail: str = ""


class Item(NamedTuple):
    """What a record became.

    Attributes:
        made: an annotation, or an example where there is no feedback.
        losses: what of the record is not in it.
        missing: how many faults are of something that the response lacks, and so have no span.
    """

    made: Annotation | Example
    losses: tuple[Loss, ...] = ()
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """How a source is read.

    Attributes:
        columns: our name of a column -> the source's name, where the two differ.
        labels: a label of the source -> what it means.
        match: how quotes are found in the response, as in `locate_spans`.
        ground: where words come with a better response: mark what was changed, or leave them as words.
        missing_outcome: the outcome of each fault that has no span, such as a missing fact; None gives none.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Meaning] = field(default_factory=dict)
    match: Match = "exact"
    ground: Ground = "diff"
    missing_outcome: float | None = None


class Reader(Protocol):
    """A function that reads one record of a source."""

    def __call__(self, row: "Row", /) -> Iterator[Item]:
        """Yield what the record holds."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One record, its place, and how to read it. Every refusal names the place.

    Attributes:
        number: its line or place in the file, from 1.
        where: file and number.
        record: the JSON object.
        options: how its source is read.
    """

    number: int
    where: str
    record: Object
    options: Options

    def name(self, column: str) -> str:
        """Return the source's name of a column."""
        return self.options.columns.get(column, column)

    def get(self, column: str) -> Any:
        """Return what a column holds, None where there is no such column."""
        return self.record.get(self.name(column))

    def text(self, column: str) -> str:
        """Return a text that the record must have."""
        value = self.get(column)
        if not isinstance(value, str):
            raise self.bad(f'"{self.name(column)}" must be a text; {self._got(column)}')
        return value

    def words(self, column: str) -> str:
        """Return a text that may be missing, without space around it."""
        return "" if self.get(column) is None else self.text(column).strip()

    def listed(self, column: str) -> list[Any]:
        """Return a list that the record must have."""
        value = self.get(column)
        if not isinstance(value, list):
            raise self.bad(f'"{self.name(column)}" must be a list; {self._got(column)}')
        return value

    def first(self, *columns: str) -> str:
        """Return the text of the first of these columns that there is."""
        found = next((column for column in columns if self.get(column) is not None), None)
        if found is None:
            names = " or ".join(f'"{self.name(column)}"' for column in columns)
            raise self.bad(f"there must be a text {names}; the record has {keys_of(self.record)}")
        return self.text(found)

    def span(self, start: Any, end: Any, label: Label, response: str) -> Span:
        """Return a span of the response, or refuse it."""
        if not (type(start) is type(end) is int and 0 <= start < end <= len(response)):
            raise self.bad(
                f"span [{shown(start)}, {shown(end)}] does not lie in the response, which has {len(response)} "
                "characters"
            )
        return Span(start, end, label)

    def bad(self, what: str) -> Exception:
        """Return the error of a record that cannot be used."""
        return bad_record(self.where, what)

    def _got(self, column: str) -> str:
        value = self.get(column)
        return f"the record has {keys_of(self.record)}" if value is None else f"got {shown(value)}"


class Gather(Protocol):
    """A function that puts records together that a source spreads over several rows."""

    def __call__(self, entries: Iterator[Entry], /) -> Iterator[Entry]:
        """Yield whole records."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """One source of feedback.

    Attributes:
        about: what it is, in a line.
        read: its reader.
        columns: the names that a column mapping may give.
        gather: puts rows together, where records are spread over several.
        labels: True where labels must be told what they mean.
    """

    about: str
    read: Reader
    columns: tuple[str, ...] = ()
    gather: Gather | None = None
    labels: bool = False


def critique(lines: list[str], spans: list[Span], outcome: float | None = None) -> Critique:
    """Return a critique of lines of words and spans, each span once and in order."""
    return Critique("\n".join(line for line in lines if line) or NO_ERRORS, tuple(sorted(set(spans))), outcome)


def unjudged(
    prompt: str, response: Any, *losses: Loss, reference: str | None = None, meta: Mapping[str, Any] | None = None
) -> Item:
    """Return a response that nobody judged, as an example that has it in its `meta`, beside what else is there."""
    return Item(Example(prompt, reference, meta={"response": response, **(meta or {})}), (Loss(NOT_JUDGED), *losses))


def quoted(text: str) -> str:
    """Return a text as JSON quotes it, on one line."""
    return json.dumps(text, ensure_ascii=False)
