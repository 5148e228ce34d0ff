"""The world of the summarization task: its words, its six facts and what each split may combine.

An event is six facts: who did what, where, when and why (`did` is the verb, `what` its object). Every
word can be a true fact in training; what is held out are combinations. Full names (first and last) whose
index sum is divisible by eight occur only in held-out posts, such pairs of verb and object are only there
the deed that is told, and sentence templates of its own mark each held-out post.
"""

from collections.abc import Mapping
from random import Random

from text2grad.tasks.base import Pair, Split, pairs

Facts = Mapping[str, str]

SLOTS = ("who", "did", "what", "where", "when", "why")

FIRST_NAMES = ("Maria", "Tom", "Anna", "Omar", "Lena", "Ivan", "Ruth", "Felix")
LAST_NAMES = ("Lopez", "Chen", "Novak", "Brown", "Diaz", "Kaya", "Silva", "Weber")
BASE_FORMS = {
    "fixed": "fix",
    "sold": "sell",
    "painted": "paint",
    "cleaned": "clean",
    "found": "find",
    "lost": "lose",
    "bought": "buy",
    "moved": "move",
}
VERBS = tuple(BASE_FORMS)
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


def with_article(slot: str, value: str) -> str:
    """Return a value as a sentence says it: places, things and reasons take "the"."""
    return f"the {value}" if slot in ("what", "where", "why") else value


def phrase(slot: str, value: str) -> str:
    """Return the words by which a summary states one fact.

    Example:
        >>> phrase("where", "park")
        'at the park'
    """
    lead = {"where": "at ", "when": "on ", "why": "because of "}.get(slot, "")
    return lead + with_article(slot, value)


def summary_of(facts: Facts) -> str:
    """Return the perfect summary of an event."""
    return " ".join(phrase(slot, facts[slot]) for slot in SLOTS) + "."
