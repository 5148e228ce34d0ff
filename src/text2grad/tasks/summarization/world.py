"""The world of the summarization task: its words, its six facts and what each split may combine.

An event is six facts: who did what, where, when and why (`did` is the verb, `what` its object). Every word can be a
true fact in training; the split holds out combinations. Full names (first and last) whose index sum is divisible by
eight occur only in held-out posts. Pairs of verb and object with the same rule are events only in held-out posts. Each
held-out post has sentence templates that training does not have.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

from text2grad.errors import DataError
from text2grad.tasks.base import Pair, Split, pairs
from text2grad.tasks.facts import Facts
from text2grad.types import Example

SLOTS = ("who", "did", "what", "where", "when", "why")

FIRST_NAMES = ("Maria", "Tom", "Anna", "Omar", "Lena", "Ivan", "Ruth", "Felix")
LAST_NAMES = ("Lopez", "Chen", "Novak", "Brown", "Diaz", "Kaya", "Silva", "Weber")
VERBS = ("fixed", "sold", "painted", "cleaned", "found", "lost", "bought", "moved")
BASE_FORMS = dict(zip(VERBS, ("fix", "sell", "paint", "clean", "find", "lose", "buy", "move"), strict=True))
OBJECTS = ("bike", "lamp", "piano", "clock", "boat", "tent", "chair", "drum")
PLACES = ("park", "school", "library", "station", "market", "beach", "harbor", "museum")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CAUSES = ("race", "party", "storm", "exam", "wedding", "parade", "concert", "flood")

VALUES = {"did": VERBS, "what": OBJECTS, "where": PLACES, "when": DAYS, "why": CAUSES}
NOUNS = {
    "who": "person",
    "first": "first name",
    "last": "last name",
    "did": "verb",
    "what": "thing",
    "where": "place",
    "when": "day",
    "why": "reason",
}
FILLERS = {
    "who": "Someone",
    "what": "something",
    "where": "somewhere",
    "when": "at some point",
    "why": "for some reason",
}
CHATTER = ("and it was fun", "and everyone was happy", "which is a long story")
EXTRA_LINE = "What a week."
ANSWER_WORDS = (*FILLERS.values(), *CHATTER, EXTRA_LINE, "at the on because of.")


NAMES = Pair(FIRST_NAMES, LAST_NAMES)
DEEDS = Pair(VERBS, OBJECTS)


def draw_facts(split: Split, rng: Random) -> Facts:
    """Draw one event of the split."""
    first, last = rng.choice(pairs(NAMES, split))
    did, what = rng.choice(pairs(DEEDS, split))
    rest = (rng.choice(VALUES[slot]) for slot in ("where", "when", "why"))
    return dict(zip(SLOTS, (f"{first} {last}", did, what, *rest), strict=True))


def facts_of(example: Example) -> Facts:
    """Return the event behind an example.

    Raises:
        DataError: if the example is not of this task.
    """
    facts: Any = example.meta.get("facts")
    if not isinstance(facts, Mapping) or set(facts) != set(SLOTS):
        raise DataError(f"not a summarization example: meta['facts'] is {facts!r}, need the keys {SLOTS}")
    return facts


def with_article(slot: str, value: str) -> str:
    """Return a value as it stands in a sentence: places, things and reasons take "the"."""
    return f"the {value}" if slot in ("what", "where", "why") else value


def phrase(slot: str, value: str) -> str:
    """Return the words that state one fact in a summary.

    Example:
        >>> phrase("where", "park")
        'at the park'
    """
    lead = {"where": "at ", "when": "on ", "why": "because of "}.get(slot, "")
    return lead + with_article(slot, value)


def summary_of(facts: Facts) -> str:
    """Return the perfect summary of an event."""
    return " ".join(phrase(slot, facts[slot]) for slot in SLOTS) + "."
