"""The critic of answers to questions: its known phrases, their order and its wordings.

A claim is judged against the open row. A claim that the question does not ask for, a repeated claim and a claim in the
wrong place of the sentence are faults even when the value is right.
"""

from dataclasses import dataclass

from evidence.tasks.parts import LabelledFactCritic
from evidence.tasks.qa import world
from text2grad.tasks.facts import VERDICTS, FactReader, Facts, FactWriter, Phrase, Phrases, key
from text2grad.types import Example

# A person never follows a subject; a subject follows only a person.
LEADS = {"who": ("", "where", "when", "price"), "what": ("who",)}


def _phrases() -> Phrases:
    full = [f"{first} {last}" for first in world.FIRST_NAMES for last in world.LAST_NAMES]
    persons = [("half", name) for name in world.FIRST_NAMES + world.LAST_NAMES] + [("fact", name) for name in full]
    table: dict[tuple[str, ...], Phrase] = {}
    for kind, name in persons:
        quoted = slice(0, len(key(name)))
        # A full name without the verb is always misplaced.
        table[key(name)] = Phrase("bare" if kind == "fact" else kind, "who", name, quoted)
        table[key(f"{name} {world.VERB}")] = Phrase(kind, "who", name, quoted)
    for slot, values in world.VALUES.items():
        for value in values:
            words = key(world.phrase(slot, value))
            at = words.index(value.lower())
            table[words] = Phrase("fact", slot, value, slice(at, at + 1))
    for slot, text in world.FILLERS.items():
        verb = f" {world.VERB}" if slot == "who" else ""
        table[key(text + verb)] = Phrase("vague", slot, "", slice(0, len(key(text))))
    return table | {key(text): Phrase("chatter") for text in world.CHATTER}


READER = FactReader(_phrases(), LEADS, longest_quote=6)
WRITER = FactWriter(
    truths={
        "first": ("The first name is {first}", "The name begins with {first}"),
        "last": ("The last name is {last}", "The surname is {last}"),
        "who": ("{who} teaches it", "The table says {who}"),
        "what": ("The subject is {what}", "It is {what}"),
        "where": ("The city is {where}", "It is in {where}"),
        "when": ("The day is {when}", "It is on {when}"),
        "price": ("The price is {price} euros", "It costs {price} euros"),
    },
    nouns=world.NOUNS,
    empty="The answer is empty.",
    most_faults=6,
    verdicts=VERDICTS | {"unasked": ("{quote} is not asked for", "{quote} answers no question")},
)


@dataclass(frozen=True, slots=True)
class QACritic(LabelledFactCritic):
    """Judges answers in words, each claim against the open row."""

    reader = READER
    writer = WRITER

    def facts(self, example: Example) -> Facts:
        """Return the claims of the perfect answer, by slot."""
        return world.problem_of(example).facts
