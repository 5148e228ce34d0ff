"""The critic of answers: the phrases it knows, when one of them is at fault, and how it says so.

A claim is judged against the open row; one that nobody asked for, that comes a second time, or that stands where the
sentence has no place for it is a fault even when its value is right.
"""

from functools import cache

from text2grad.tasks.facts.reading import FactReader, Facts, Phrase, Phrases, key
from text2grad.tasks.facts.wording import VERDICTS, FactPen
from text2grad.tasks.qa.world import CHATTER, FILLERS, FIRST_NAMES, LAST_NAMES, NOUNS, SLOTS, VALUES, VERB, phrase

# What may be said right before: a person never follows a subject, and a subject follows a person alone.
LEADS = {"who": ("", "where", "when", "price"), "what": ("who",)}


@cache
def _phrases() -> Phrases:
    full = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    persons = [("half", name) for name in FIRST_NAMES + LAST_NAMES] + [("fact", name) for name in full]
    table: dict[tuple[str, ...], Phrase] = {}
    for kind, name in persons:
        quoted = slice(0, len(key(name)))
        table[key(name)] = Phrase("bare" if kind == "fact" else kind, "who", name, quoted)
        table[key(f"{name} {VERB}")] = Phrase(kind, "who", name, quoted)
    for slot, values in VALUES.items():
        for value in values:
            words = key(phrase(slot, value))
            at = words.index(value.lower())
            table[words] = Phrase("fact", slot, value, slice(at, at + 1))
    for slot, text in FILLERS.items():
        verb = f" {VERB}" if slot == "who" else ""
        table[key(text + verb)] = Phrase("vague", slot, "", slice(0, len(key(text))))
    return table | {key(text): Phrase("chatter") for text in CHATTER}


def _verdict(known: Phrase, last: str, seen: set[str], facts: Facts) -> str:
    """Judge one phrase; a second mention, a wrong place and a lack of interest outweigh a right value."""
    if known.slot in seen:
        return "duplicate"
    if known.kind == "bare" or last not in LEADS.get(known.slot, (*SLOTS, "")):  # "bare": a name without its verb
        return "misplaced"
    if known.slot not in facts:
        return "unasked"
    if known.kind != "fact":
        return known.kind
    return "right" if known.value == facts[known.slot] else "wrong"


READER = FactReader(_phrases, _verdict, longest_phrase=5, longest_quote=6)
PEN = FactPen(
    truths={
        "first": ("The first name is {first}", "The name begins with {first}"),
        "last": ("The last name is {last}", "The surname is {last}"),
        "who": ("{who} teaches it", "The table says {who}"),
        "what": ("The subject is {what}", "It is {what}"),
        "where": ("The city is {where}", "It is in {where}"),
        "when": ("The day is {when}", "It is on {when}"),
        "price": ("The price is {price} euros", "It costs {price} euros"),
    },
    nouns=NOUNS,
    empty="The answer is empty.",
    most_faults=6,
    verdicts=VERDICTS | {"unasked": ("{quote} is not asked for", "{quote} answers no question")},
)
