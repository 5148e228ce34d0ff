"""Posts: the sentences that tell an event, among sentences that name other people, places and days.

A template names its slots in braces. Fact templates are filled with the event. Distractors are filled with values that
differ from the event and from each other, in sentences that do not tell the event.
"""

import re
from functools import cache
from random import Random

from text2grad.tasks.base import Split, pairs
from text2grad.tasks.facts import Facts
from text2grad.tasks.program_critic import bare
from text2grad.tasks.summarization.world import ANSWER_WORDS, BASE_FORMS, NAMES, SLOTS, VALUES, summary_of
from text2grad.types import Example

MAIN = {
    "train": (
        "{who} {did} the {what}.",
        "The {what} was {did} by {who}.",
        "It was {who} who {did} the {what}.",
        "{who} {did} the {what} at the {where}.",
        "{who} {did} the {what} on {when}.",
        "The {what} was {did} by {who} at the {where}.",
        "The {what} was {did} by {who} because of the {why}.",
        "On {when} {who} {did} the {what}.",
        "At the {where} the {what} was {did} by {who}.",
        "Because of the {why} {who} {did} the {what}.",
    ),
    "held_out": (
        "The {what} was {did} by {who} on {when}.",
        "{who} {did} the {what} because of the {why}.",
        "On {when} the {what} was {did} by {who}.",
        "At the {where} {who} {did} the {what}.",
    ),
}
DETAILS = {
    "train": (
        "It happened at the {where}.",
        "All this took place at the {where}.",
        "It happened on {when}.",
        "The day was {when}.",
        "It happened because of the {why}.",
        "The reason was the {why}.",
        "It happened at the {where} on {when}.",
    ),
    "held_out": (
        "All this took place on {when}.",
        "It happened on {when} at the {where}.",
        "All this took place because of the {why}.",
    ),
}
DISTRACTORS = {
    "train": (
        "{who} stayed near the {where}.",
        "{who} was busy until {when}.",
        "{who} was near the {where} until {when}.",
        "{who} wanted to {do} the {what}.",
        "{who} talked about the {why}.",
        "The first plan said {when}.",
        "The {where} was closed.",
        "The {where} was closed until {when}.",
        "The {why} was not the reason.",
        "Nobody {did} the {what}.",
    ),
    "held_out": (
        "{who} was near the {where}.",
        "{who} stayed near the {where} until {when}.",
        "{who} talked about the {why} until {when}.",
        "Nobody wanted to {do} the {what}.",
    ),
}
CUE = "\nTL;DR:"
FEWEST, MOST = 2, 4  # sentences beside the event; more if the post has less than five in all
NEEDED = ("who", "where", "when")  # the distractors of a post name at least one other value of each
SHORTEST = 5  # sentences


@cache
def slots_of(template: str) -> tuple[str, ...]:
    """Return the slots of a template in order; the base form `do` counts as `did`."""
    return tuple("did" if slot == "do" else slot for slot in re.findall(r"\{(\w+)\}", template))


def write_post(facts: Facts, split: Split, rng: Random) -> Example:
    """Return a post of an event and other sentences, by templates of the split, and its perfect summary."""
    telling = fact_templates(split, rng)
    fewest = max(FEWEST, SHORTEST - len(telling))
    others = distractor_templates(split, rng.randint(fewest, max(fewest, MOST)), rng)
    return render(interleave(telling, others, rng), set(telling), facts, Strangers(facts, split, rng))


class Strangers:
    """Draws values for distractors: never a fact, never a value twice."""

    def __init__(self, facts: Facts, split: Split, rng: Random) -> None:
        """Mark the values of the event as used."""
        self._used = set(facts.values()) | set(facts["who"].split())
        self._people = pairs(NAMES, "train") + (pairs(NAMES, "held_out") if split == "held_out" else ())
        self._rng = rng

    def draw(self, slot: str) -> str:
        """Return an unused value; a person shares neither the first nor the last name with another person."""
        while True:
            new = self._rng.choice(self._people) if slot == "who" else (self._rng.choice(VALUES[slot]),)
            if self._used.isdisjoint(new):
                self._used.update(new)
                return " ".join(new)


def _known(templates: dict[str, tuple[str, ...]], split: Split) -> list[str]:
    """Return the templates of a split: training has no held-out templates, a held-out post may have both."""
    return list(templates["train"] + (templates["held_out"] if split == "held_out" else ()))


def fact_templates(split: Split, rng: Random) -> list[str]:
    """Choose templates that state each fact exactly once; the first states who did what."""
    chosen = [rng.choice(MAIN[split])]
    missing = {"where", "when", "why"} - set(slots_of(chosen[0]))
    details = _known(DETAILS, split)
    rng.shuffle(details)
    for template in details:
        slots = set(slots_of(template))
        if slots <= missing:
            chosen.append(template)
            missing -= slots
    return chosen


def distractor_templates(split: Split, count: int, rng: Random) -> list[str]:
    """Choose `count` different distractors that name at least one other person, place and day."""
    pool = _known(DISTRACTORS, split)
    while True:
        chosen = rng.sample(pool, count)
        if set(NEEDED) <= {slot for template in chosen for slot in slots_of(template)}:
            return chosen


def interleave(telling: list[str], others: list[str], rng: Random) -> list[str]:
    """Mix two lists at random and keep the order within each."""
    places = set(rng.sample(range(len(telling) + len(others)), len(telling)))
    facts, rest = iter(telling), iter(others)
    return [next(facts if i in places else rest) for i in range(len(telling) + len(others))]


def render(templates: list[str], telling: set[str], facts: Facts, strangers: Strangers) -> Example:
    """Fill the templates: those in `telling` with the facts, the others with fresh values.

    The `meta` of the example holds the facts; by slot every value of the post in order of mention ("mentions"), and
    those that are not of the event ("distractors").
    """
    sentences: list[str] = []
    mentions: dict[str, list[str]] = {slot: [] for slot in SLOTS}
    for template in templates:
        slots = slots_of(template)
        values = {slot: facts[slot] if template in telling else strangers.draw(slot) for slot in slots}
        for slot in slots:
            mentions[slot].append(values[slot])
        sentences.append(template.format(**values, do=BASE_FORMS[values.get("did", facts["did"])]))
    others = {slot: [value for value in mentions[slot] if value != facts[slot]] for slot in SLOTS}
    meta = {"facts": facts, "distractors": others, "mentions": mentions}
    return Example(" ".join(sentences) + CUE, summary_of(facts), meta=meta)


def words() -> list[str]:
    """Return texts that hold every word of posts and summaries."""
    tables = (MAIN, DETAILS, DISTRACTORS)
    templates = [text for table in tables for texts in table.values() for text in texts]
    values = [value for pool in VALUES.values() for value in pool]
    return [*map(bare, templates), *values, *NAMES.left, *NAMES.right, *BASE_FORMS.values(), *ANSWER_WORDS, CUE]
