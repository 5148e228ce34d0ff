"""The world of the question-answering task: its words, its five slots and what each split may combine.

A table lists courses: whether one can still come, who teaches what, where, when and at what price. The question is
always about the one course that is open: a model of 0.1 million parameters learned to find a row by its mark within
800 steps, while to find it by a name that changes from table to table it did not. Every word can stand in the open
row in training; what is held out are combinations. Full names and courses (subject and city) whose index sum is
divisible by eight are asked about only in held-out tables, and two of the fifteen compositions of a question (the
details that it asks for) occur only there; each of their steps from one detail to the next occurs in training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from text2grad.tasks.base import Pair, Split

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
NEVER_TRAINED = (("where", "when"), ("what", "where", "price"))  # what only held-out questions ask for
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
    """A table and a question about its open row; no value stands in two rows.

    Attributes:
        rows: the table, each row with its "status" and every slot.
        target: the index of the open row.
        asked: the details to answer with beside the person, in the order of `DETAILS`.
    """

    rows: tuple[Row, ...]
    target: int
    asked: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str]:
        """The claims of the perfect answer: the person and the details asked for."""
        return {slot: self.rows[self.target][slot] for slot in ("who", *self.asked)}


@cache
def compositions(split: Split) -> tuple[tuple[str, ...], ...]:
    """Return what the questions of one split ask for: one to four of the four details.

    Example:
        >>> len(compositions("train")), compositions("held_out")
        (13, (('where', 'when'), ('what', 'where', 'price')))
    """
    every = [asked for size in (1, 2, 3, 4) for asked in combinations(DETAILS, size)]
    return tuple(asked for asked in every if (asked in NEVER_TRAINED) == (split == "held_out"))


def phrase(slot: str, value: str) -> str:
    """Return the words by which an answer states one claim.

    Example:
        >>> phrase("where", "Lyon"), phrase("price", "40")
        ('in Lyon', 'for 40 euros')
    """
    return {"where": f"in {value}", "when": f"on {value}", "price": f"for {value} euros"}.get(slot, value)


def sentence(phrases: Mapping[str, str]) -> str:
    """Join phrases into an answer, without its full stop; a person is followed by the verb.

    Example:
        >>> sentence({"who": "Ann Weber", "where": "in Lyon"})
        'Ann Weber teaches in Lyon'
    """
    ordered = [phrases[slot] for slot in SLOTS if slot in phrases]
    return " ".join([*ordered[:1], VERB, *ordered[1:]] if "who" in phrases else ordered)


def answer_of(facts: Mapping[str, str]) -> str:
    """Return the perfect answer that states these facts."""
    return sentence({slot: phrase(slot, value) for slot, value in facts.items()}) + "."
