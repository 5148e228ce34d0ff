"""Shared parts of the readers of sources: access to the columns of a record, and the items read from it.

A reader maps one record to any number of `Item`s: annotations if it has feedback, examples if it has none. Data that an
annotation cannot hold is a `Loss`, which is counted and reported with its reason.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

from text2grad.feedback.record_files import Entry, Object, bad_record, keys_of, shown
from text2grad.feedback.records import Annotation
from text2grad.types import Critique, Example, Label, Span

Meaning = Literal["positive", "negative", "ignore"]

NO_ERRORS = "No errors marked."
WORDS_ONLY = "words without a place: no token learns from them until they are grounded in spans"
MARKED_TWICE = "marked twice at the same place: one span, both in words"
NO_PLACE = "about something that the response does not hold: kept in words, no span"  # a fault: `missing_outcome`
ADDED = "text that the better response adds: it has no place in this one"
NO_PROMPT = "records without a prompt, which is left empty: --column prompt=NAME names the field that holds it"
IGNORED = "labels that are told to be ignored"
NOT_JUDGED = "responses without feedback: examples that an annotator can judge"

PLAIN_LABELS: dict[str, Meaning] = {
    **dict.fromkeys(("good", "positive", "correct", "right", "+"), "positive"),
    **dict.fromkeys(("poor", "bad", "negative", "wrong", "incorrect", "error", "-"), "negative"),
}


class Loss(NamedTuple):
    """Data that an annotation cannot hold, or holds only in words."""

    reason: str  # the same text for all losses of a kind
    detail: str = ""  # the lost data


class Item(NamedTuple):
    """One annotation or example of a record.

    Attributes:
        made: an annotation, or an example if there is no feedback; None if there is nothing but losses.
        losses: the data of the record that it lacks.
        unread: the columns of the record that have no place in the annotation.
        where: file and number of the record; "" until `read_items` sets it.
    """

    made: Annotation | Example | None
    losses: tuple[Loss, ...] = ()
    unread: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a reader.

    Attributes:
        columns: our column name → the source's column name.
        labels: a label, or in a table a value of the outcome, → its meaning; upper and lower case are the same.
        missing_outcome: outcome of each error about what the response does not hold, such as a missing fact; or None.
        met: the labels of the records read so far.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    missing_outcome: float | None = None
    met: set[str] = field(default_factory=set)

    def meaning(self, label: str, known: Mapping[str, Meaning] = PLAIN_LABELS) -> Any:
        """Return the meaning of a label: the given one, or else that of its plain name; None without one."""
        self.met.add(label.strip())
        given = {_folded(name): meaning for name, meaning in self.labels.items()}
        return given.get(_folded(label), known.get(_folded(label)))

    def unmet(self) -> list[str]:
        """Return the names in `labels` that no record had."""
        met = {_folded(name) for name in self.met}
        return [name for name in self.labels if _folded(name) not in met]


@dataclass(frozen=True, slots=True)
class Row:
    """One record with its place and settings; every error message names the place.

    Attributes:
        where: file and number.
        record: the JSON object.
        options: the settings of the reader.
    """

    where: str
    record: Object
    options: Options

    def name(self, column: str) -> str:
        """Return the source's name of a column."""
        return self.options.columns.get(column, column)

    def get(self, column: str) -> Any:
        """Return the value of a column; None without this column."""
        return self.record.get(self.name(column))

    def text(self, column: str) -> str:
        """Return the text of a required column."""
        return str(self._of(column, str, "a text"))

    def words(self, column: str) -> str:
        """Return the stripped text of an optional column; empty without this column."""
        return "" if self.get(column) is None else self.text(column).strip()

    def listed(self, column: str) -> list[Any]:
        """Return the list of a required column."""
        return list(self._of(column, list, "a list"))

    def first(self, *columns: str) -> str:
        """Return the text of the first of these columns that is present."""
        for column in columns:
            if self.get(column) is not None:
                return self.text(column)
        names = " or ".join(f'"{self.name(column)}"' for column in columns)
        raise self.bad(f"there must be a text {names}; the record has {keys_of(self.record)}")

    def outcome(self, value: Any) -> float:
        """Return the outcome that a value in words means, such as "up"."""
        outcome = self.options.meaning(str(value), {})
        if not isinstance(outcome, float):
            name, known = self.name("outcome"), ", ".join(self.options.labels) or "nothing"
            raise self.bad(
                f'"{name}" is {shown(value)}; say its number with --map {name}=up:1,down:-1, which knows {known}'
            )
        return outcome

    def inner(self, record: Any, name: str) -> "Row":
        """Return an object inside the record, at the same place."""
        if not isinstance(record, dict):
            raise self.bad(f"{name} is an object, got {shown(record)}")
        return Row(self.where, record, self.options)

    def span(self, start: Any, end: Any, label: Label, response: str, **about: Any) -> Span:
        """Return a span, with what is said about it; raise an error if it is empty or not inside the response."""
        if not (type(start) is type(end) is int and 0 <= start < end <= len(response)):
            raise self.bad(
                f"span [{shown(start)}, {shown(end)}] does not lie in the response, which has {len(response)} "
                "characters"
            )
        texts: dict[str, Any] = {name: str(said).strip() or None for name, said in about.items() if said is not None}
        return Span(start, end, label, **texts)

    def meaning(self, label: str) -> Meaning:
        """Return what a label means; raise an error if nobody said it."""
        meaning: Meaning | float | None = self.options.meaning(label)
        if not isinstance(meaning, str):
            raise self.bad(
                f"nobody said what the label {quoted(label)} means; say --label {quoted(label + '=negative')}, "
                "=positive or =ignore"
            )
        return meaning

    def bad(self, what: str) -> Exception:
        """Return the error for a record that cannot be used."""
        return bad_record(self.where, what)

    def _of(self, column: str, kind: type, name: str) -> Any:
        """Return the value of a required column of this kind."""
        value = self.get(column)
        if not isinstance(value, kind):
            got = f"the record has {keys_of(self.record)}" if value is None else f"got {shown(value)}"
            raise self.bad(f'"{self.name(column)}" must be {name}; {got}')
        return value


@dataclass(frozen=True, slots=True)
class Source:
    """One source of feedback.

    Attributes:
        about: a one-line description.
        read: yields the items of a record.
        columns: the names that a column mapping may use.
        labels: True if labels can be given a meaning.
        private: True if its texts may be personal, so that none is printed.
        gather: joins the rows of each record, for sources with several rows per record.
    """

    about: str
    read: Callable[[Row], Iterator[Item]]
    columns: tuple[str, ...] = ()
    labels: bool = False
    private: bool = False
    gather: Callable[[Iterator[Entry]], Iterator[Entry]] = iter


def own_word(label: str) -> str | None:
    """Return a label as the category of a span; None for a plain one, such as "poor", which says the sign alone."""
    return None if _folded(label) in PLAIN_LABELS else label.strip()


def _folded(label: str) -> str:
    return normalize("NFC", label.strip().lower()).removesuffix(".0")  # pandas writes stars beside an empty cell as 4.0


@dataclass(frozen=True, slots=True)
class Draft:
    """The annotation of one person while it is read: lines of feedback, spans, and losses.

    A blank line says that this person judged the response, and found nothing. `rater` is this person, and `seconds` the
    time; where no span names the rater, the line of the annotation does.
    """

    prompt: str
    response: str
    lines: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    rater: object = None
    seconds: object = None

    def lose(self, reason: str, detail: str = "") -> None:
        """Add a loss."""
        self.losses.append(Loss(reason, detail))

    def blame(self, line: str, place: Span | None) -> None:
        """Add an error in words and its span; without a place, or at the place of another error, the span is a loss."""
        self.lines.append(line)
        if place is None:
            self.lose(NO_PLACE, line)
        elif place in self.spans:
            self.lose(MARKED_TWICE, line)
        else:
            self.spans.append(place)

    def mark(self, place: Span, label: str, meaning: Label, reason: str) -> None:
        """Add a span, whose category is its label in the source."""
        self.spans.append(replace(place, label=meaning, category=own_word(label), reason=reason or None))

    def item(self, *losses: Loss) -> Item:
        """Return the annotation, with further losses of its record; each span is there once and in order.

        If all that this person said is lost, the response is an example, which nobody judged.
        """
        if not self.lines and not self.spans and any(loss.reason != IGNORED for loss in self.losses):
            return unjudged(self.prompt, self.response, *losses, *self.losses)
        feedback = "\n".join(line for line in self.lines if line) or NO_ERRORS
        critique = Critique(feedback, tuple(sorted(set(self.spans))))
        about = {"rater": None if self.spans or self.rater is None else str(self.rater), "seconds": self.seconds}
        line = {name: value for name, value in about.items() if value is not None} or None
        return Item(Annotation(self.prompt, self.response, critique, line), (*losses, *self.losses))


def unjudged(prompt: str, response: str, *losses: Loss) -> Item:
    """Return a response without feedback as an example, with the response in its `meta`."""
    return Item(Example(prompt, meta={"response": response}), (Loss(NOT_JUDGED), *losses))


def quoted(text: str) -> str:
    """Return a text as a JSON string on one line."""
    return json.dumps(text, ensure_ascii=False)
