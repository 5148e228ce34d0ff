"""The world of the question-answering task: its words, its five slots and what each split may combine.

A table lists courses: status, teacher, subject, city, day and price. The question is always about the only open course:
a model of 0.1 million parameters learned within 800 steps to find a row by its status, but not to find it by a name
that changes from table to table.

Every word can stand in the open row in training; the split holds out combinations. Full names and courses (subject and
city) whose index sum is divisible by eight stand in the open row only in held-out tables. Two of the fifteen
combinations of details that a question can ask for occur only in held-out questions; each of their steps from one
detail to the next occurs in training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from text2grad.errors import DataError
from text2grad.tasks.base import Pair, Split
from text2grad.types import Example

Row = Mapping[str, str]

DETAILS = ("what", "where", "when", "price")
SLOTS = ("who", *DETAILS)

FIRST_NAMES = ("Ann", "Hugo", "Nina", "Paul", "Rosa", "Sven", "Olga", "Karl")
LAST_NAMES = ("Weber", "Chen", "Novak", "Costa", "Khan", "Berg", "Rossi", "Sato")
VALUES = {
    "what": ("chess", "cooking", "drawing", "singing", "yoga", "pottery", "dancing", "sewing"),
    "where": ("Lyon", "Oslo", "Turin", "Porto", "Ghent", "Krakow", "Bergen", "Tartu"),
    "when": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "price": ("10", "15", "20", "25", "30", "40", "50", "60"),
}
NEVER_TRAINED = (("where", "when"), ("what", "where", "price"))  # details of held-out questions only
OPEN = "open"
SHUT = ("full", "closed", "over")
NOUNS = {
    "who": "person",
    "first": "first name",
    "last": "last name",
    "what": "subject",
    "where": "city",
    "when": "day",
    "price": "price",
}
VERB = "teaches"
FILLERS = {
    "who": "Someone",
    "what": "something",
    "where": "somewhere",
    "when": "at some point",
    "price": "for some price",
}
CHATTER = ("and it is fun", "and all are welcome", "which is a good deal")
EXTRA_LINE = "See you soon."


NAMES = Pair(FIRST_NAMES, LAST_NAMES)
COURSES = Pair(VALUES["what"], VALUES["where"])


@dataclass(frozen=True, slots=True)
class Problem:
    """A table and a question about its open row; no value occurs in two rows.

    Attributes:
        rows: the table, each row with its "status" and every slot.
        target: the index of the open row.
        asked: the details that the question asks for beside the person, in the order of `DETAILS`.
    """

    rows: tuple[Row, ...]
    target: int
    asked: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str]:
        """The claims of the perfect answer: the person and the details asked for."""
        return {slot: self.rows[self.target][slot] for slot in ("who", *self.asked)}


def problem_of(example: Example) -> Problem:
    """Return the table and the question behind an example.

    Raises:
        DataError: if the example is not of this task.
    """
    meta = example.meta
    rows: Any = meta.get("rows")
    target, asked = meta.get("target"), _details(meta.get("asked"))
    if not (_is_table(rows) and isinstance(target, int) and 0 <= target < len(rows) and asked):
        raise DataError(
            f"not a qa example: meta has rows={rows!r}, target={target!r}, asked={meta.get('asked')!r}; need rows with "
            f"a status and the keys {SLOTS}, the index of a row, and some of {DETAILS}"
        )
    return Problem(tuple(rows), target, asked)


def _is_table(rows: Any) -> bool:
    return isinstance(rows, Sequence) and all(
        isinstance(row, Mapping) and set(row) == {"status", *SLOTS} for row in rows
    )


def _details(asked: Any) -> tuple[str, ...]:
    """Return the details asked for; empty if `asked` is no list of known details."""
    known = isinstance(asked, Sequence) and not isinstance(asked, str) and set(asked) <= set(DETAILS)
    return tuple(asked) if known else ()


@cache
def compositions(split: Split, details: int = 0) -> tuple[tuple[str, ...], ...]:
    """Return the combinations of so many details that questions of one split ask for; 0 for one to four of the four.

    Where no combination of this size is held out, both splits ask for all of them.

    Example:
        >>> len(compositions("train")), compositions("held_out")
        (13, (('where', 'when'), ('what', 'where', 'price')))
        >>> compositions("train", 1) == compositions("held_out", 1)
        True
    """
    sizes = (details,) if details else (1, 2, 3, 4)
    every = [asked for size in sizes for asked in combinations(DETAILS, size)]
    chosen = tuple(asked for asked in every if (asked in NEVER_TRAINED) == (split == "held_out"))
    return chosen or tuple(every)


def phrase(slot: str, value: str) -> str:
    """Return the words that state one claim in an answer.

    Example:
        >>> phrase("where", "Lyon"), phrase("price", "40")
        ('in Lyon', 'for 40 euros')
    """
    return {"where": f"in {value}", "when": f"on {value}", "price": f"for {value} euros"}.get(slot, value)


def sentence(phrases: Mapping[str, str]) -> str:
    """Join phrases into an answer without its full stop; the verb follows the person.

    Example:
        >>> sentence({"who": "Ann Weber", "where": "in Lyon"})
        'Ann Weber teaches in Lyon'
    """
    ordered = [phrases[slot] for slot in SLOTS if slot in phrases]
    return " ".join([*ordered[:1], VERB, *ordered[1:]] if "who" in phrases else ordered)


def answer_of(facts: Mapping[str, str]) -> str:
    """Return the perfect answer that states these facts."""
    return sentence({slot: phrase(slot, value) for slot, value in facts.items()}) + "."
