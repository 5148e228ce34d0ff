"""The critic of summaries: the phrases it knows, when one of them is at fault, and how it says so.

A fact is judged against the event; a second mention of a slot, or a phrase where the sentence has no place for it, is
a fault even when its value is right.
"""

from functools import cache

from text2grad.tasks.facts.reading import FactReader, Facts, Phrase, Phrases, key
from text2grad.tasks.facts.wording import VERDICTS, FactPen
from text2grad.tasks.summarization.world import (
    CHATTER,
    FILLERS,
    FIRST_NAMES,
    LAST_NAMES,
    NAMES,
    NOUNS,
    SLOTS,
    VALUES,
    phrase,
    with_article,
)

# What may be said right before: a person opens the sentence or follows a time or a place, never a deed.
LEADS = {"who": ("", "where", "when", "why"), "did": ("", "who"), "what": ("", "did")}


@cache
def _phrases() -> Phrases:
    table = {key(name): Phrase("half", "who", name) for name in FIRST_NAMES + LAST_NAMES}
    values = {**VALUES, "who": tuple(f"{first} {last}" for first in NAMES.left for last in NAMES.right)}
    for slot in SLOTS:
        for value in values[slot]:
            words = key(phrase(slot, value))
            quoted = slice(len(words) - len(key(with_article(slot, value))), None)
            table[words] = Phrase("fact", slot, value, quoted)
    table |= {key(text): Phrase("vague", slot) for slot, text in FILLERS.items()}
    return table | {key(text): Phrase("chatter") for text in CHATTER}


def _verdict(known: Phrase, last: str, seen: set[str], facts: Facts) -> str:
    """Judge one phrase; a second mention and a wrong place in the sentence outweigh a right value."""
    if known.slot in seen:
        return "duplicate"
    if last not in LEADS.get(known.slot, (*SLOTS, "")):
        return "misplaced"
    if known.kind != "fact":
        return known.kind
    return "right" if known.value == facts[known.slot] else "wrong"


READER = FactReader(_phrases, _verdict, longest_phrase=5, longest_quote=8)
PEN = FactPen(
    truths={
        "first": ("The first name is {first}", "The name begins with {first}"),
        "last": ("The last name is {last}", "The surname is {last}"),
        "who": ("The person is {who}", "It was {who}"),
        "did": ("The verb is {did}", "The post says {did}"),
        "what": ("The thing is the {what}", "It was the {what}"),
        "where": ("The place is the {where}", "It was at the {where}"),
        "when": ("The day is {when}", "It was on {when}"),
        "why": ("The reason is the {why}", "It was because of the {why}"),
    },
    nouns=NOUNS,
    empty="The summary is empty.",
    most_faults=7,
    verdicts=VERDICTS,
)
