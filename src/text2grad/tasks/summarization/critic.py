"""The critic of summaries: its known phrases, their order and its wordings.

A fact is judged against the event. A second mention of a slot and a phrase in the wrong place of the sentence are
faults even when the value is right.
"""

from dataclasses import dataclass
from functools import cache

from text2grad.tasks.facts import VERDICTS, FactCritic, FactReader, Facts, FactWriter, Phrase, Phrases, key
from text2grad.tasks.summarization import world
from text2grad.types import Example

# A person opens the sentence or follows a time, a place or a reason, never a deed.
LEADS = {"who": ("", "where", "when", "why"), "did": ("", "who"), "what": ("", "did")}


@cache
def _phrases() -> Phrases:
    table = {key(name): Phrase("half", "who", name) for name in world.FIRST_NAMES + world.LAST_NAMES}
    values = {
        **world.VALUES,
        "who": tuple(f"{first} {last}" for first in world.NAMES.left for last in world.NAMES.right),
    }
    for slot in world.SLOTS:
        for value in values[slot]:
            words = key(world.phrase(slot, value))
            quoted = slice(len(words) - len(key(world.with_article(slot, value))), None)
            table[words] = Phrase("fact", slot, value, quoted)
    table |= {key(text): Phrase("vague", slot) for slot, text in world.FILLERS.items()}
    return table | {key(text): Phrase("chatter") for text in world.CHATTER}


READER = FactReader(_phrases, LEADS, longest_phrase=5, longest_quote=8)
WRITER = FactWriter(
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
    nouns=world.NOUNS,
    empty="The summary is empty.",
    most_faults=7,
    verdicts=VERDICTS,
)


@dataclass(frozen=True, slots=True)
class SummaryCritic(FactCritic):
    """Judges summaries in words, each fact against the event."""

    reader = READER
    writer = WRITER

    def facts(self, example: Example) -> Facts:
        """Return the facts of the event, by slot."""
        return world.facts_of(example)
