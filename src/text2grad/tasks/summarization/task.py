r"""The embedded summarization task: a post becomes one sentence that says who did what, where, when and why.

A post of five to eight sentences tells one event among sentences about other people, places and days. Demonstrations
imitate a hasty reader. Where the post names another day before the true day, more than half state the other day, so a
policy that only imitates stays wrong, even with greedy decoding. Other facts become "somewhere" or "at some point": an
omission that a critique can quote.

Example:
    >>> task = SummarizationTask("held_out")
    >>> example = task.examples(1)[0]
    >>> print(example.prompt_text[:110])
    Tom Weber moved the lamp because of the flood. It happened at the beach. The school was closed until Saturday.
    >>> critique = SummaryCritic()([example], ["Tom Weber moved the lamp somewhere on Thursday."])[0]
    >>> print(critique.feedback.replace(". ", ".\n"))
    The name begins with Tom: "Tom" is correct.
    The surname is Weber: "Weber" is correct.
    The post says moved: "moved" is correct.
    It was the lamp: "the lamp" is correct.
    It was at the beach: "somewhere" is too vague.
    It was on Wednesday: "Thursday" is the wrong day.
    It was because of the flood: nothing names it.
    >>> round(task.score(example, "Tom Weber moved the lamp somewhere on Thursday.")["fact_f1"], 2)
    0.6
"""

from dataclasses import dataclass
from random import Random

from text2grad.tasks.base import Task, pairs
from text2grad.tasks.facts import (
    VERDICTS,
    ClaimMetric,
    FactCritic,
    FactReader,
    Facts,
    FactWriter,
    Phrase,
    Phrases,
    chatty,
    half_of_both,
    key,
    scrambled,
)
from text2grad.tasks.summarization import posts, world
from text2grad.types import Example

SKIM, VAGUE, DROP, CHATTER = 0.6, 0.35, 0.02, 0.3
"""Rates of faults in demonstrations: the value that the post names first, a filler such as "somewhere" for a fact that
is not skimmed, a fact left out, and an added phrase or sentence that states nothing."""
TOGETHER = (("who",), ("did", "what"), ("where",), ("when",), ("why",))  # the slots of a group are wrong together

# A person opens the sentence or follows a time, a place or a reason, never a deed.
LEADS = {"who": ("", "where", "when", "why"), "did": ("", "who"), "what": ("", "did")}


def _phrases() -> Phrases:
    """Return the known phrases."""
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


READER = FactReader(_phrases(), LEADS, longest_quote=8)
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


_ANY = {slot: "|".join(values) for slot, values in world.VALUES.items()}
METRIC = ClaimMetric(
    {
        "who": rf"\b((?:{'|'.join(world.FIRST_NAMES)}) (?:{'|'.join(world.LAST_NAMES)}))(?= (?:{_ANY['did']})\b)",
        "did": rf"\b({_ANY['did']})\b",
        "what": rf"\b(?:{_ANY['did']}) the ({_ANY['what']})\b",
        "where": rf"\bat the ({_ANY['where']})\b",
        "when": rf"\bon ({_ANY['when']})\b",
        "why": rf"\bbecause of the ({_ANY['why']})\b",
    }
)


@dataclass(frozen=True, slots=True)
class SummaryCritic(FactCritic):
    """Judges summaries in words, each fact against the event.

    A second mention of a slot and a phrase in the wrong place of the sentence are faults even when the value is right.
    """

    reader = READER
    writer = WRITER

    def facts(self, example: Example) -> Facts:
        """Return the facts of the event, by slot."""
        return world.facts_of(example)


@dataclass(frozen=True, slots=True)
class SummarizationTask(Task):
    """Posts and their summaries; the events of the two splits share no full name and no pair of verb and object."""

    name = "summarization"
    metric = "fact_f1"
    judgements = WRITER.judgements()
    symbols = WRITER.symbols()  # 67 tokens of a critique, word by word 97: so much less to write and to learn

    def critic(self) -> SummaryCritic:
        """Return the program critic."""
        return SummaryCritic(truths=self.settings.truths)

    def draw(self, rng: Random) -> Example:
        """Draw one post and its summary."""
        facts = world.draw_facts(self.split, rng)
        return posts.write_post(facts, self.split, rng)

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return a summary with the values that the post names first, vague fillers, omissions and chatter."""
        phrases = []
        for slots in TOGETHER:
            skims, vague, drops = (self.errs(rate, rng) for rate in (SKIM, VAGUE, DROP))
            for slot in slots:
                value = example.meta["mentions" if skims else "facts"][slot]
                words = world.phrase(slot, value[0] if skims else value)
                if vague and not skims and slot in world.FILLERS:
                    words = world.FILLERS[slot]
                if not (drops and slot in ("where", "when", "why")):
                    phrases.append(words)
        if self.errs(CHATTER, rng):
            return chatty(" ".join(phrases), world.CHATTER, world.EXTRA_LINE, rng)
        return " ".join(phrases) + "."

    def corruption(self, example: Example, rng: Random) -> str:
        """Return a summary with wrong values, or a garbled one.

        Two thirds replace some values by other valid ones: a reward model must compare them with the prompt to find the
        faults. One third is garbled: cut, shuffled, doubled, or spliced with another answer.
        """
        if rng.random() < 2 / 3:
            return self._mistaken(example, rng)
        return scrambled(self.demonstration(example, rng), world.summary_of(world.draw_facts(self.split, rng)), rng)

    def _mistaken(self, example: Example, rng: Random) -> str:
        """Replace each value with probability 1/2: by another value of the post or of another event."""
        facts, other = dict(example.meta["facts"]), world.draw_facts(self.split, rng)
        unseen = pairs(world.NAMES, "held_out") if self.split == "train" else ()
        for slot in world.SLOTS:
            if rng.random() < 0.5:
                value = rng.choice([*example.meta["distractors"][slot], other[slot]])
                facts[slot] = half_of_both(facts[slot], value, rng, unseen) if slot == "who" else value
        return world.summary_of(facts)

    def reference(self, example: Example) -> str:
        """Return the perfect summary, from the facts."""
        return world.summary_of(world.facts_of(example))

    def claims(self, example: Example, response: str) -> dict[str, float]:
        """Return F1, precision and recall of the claimed facts."""
        return METRIC.scores([(world.facts_of(example), response)])

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return fact F1, and 1.0 as `exact` if the summary is the reference."""
        exact = key(self.reference(example)) == key(response)
        return {"fact_f1": self.claims(example, response)["f1"], "exact": float(exact)}

    def all_words(self) -> list[str]:
        """Return texts that together hold every word of posts, summaries and critiques."""
        return [*posts.words(), *WRITER.words()]
