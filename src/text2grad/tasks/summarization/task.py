r"""The embedded summarization task: who did what, where, when and why, in one sentence.

A post of five to eight sentences tells one event among sentences about other people, places and days.
Demonstrations are those of a hasty reader: where the post names another day before the true one, more than
half take it, so that imitation alone, even greedy, stays wrong; and what the reader did not catch becomes
"somewhere" or "at some point", so that an omission is words that a critique can quote.

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

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from text2grad.errors import DataError
from text2grad.tasks.base import chatty, half_of_both, pairs, same_words, scrambled, split_words
from text2grad.tasks.procedural import Judgement, ProceduralTask, ProgramCritic
from text2grad.tasks.summarization import metric, posts
from text2grad.tasks.summarization.critic import PEN, READER
from text2grad.tasks.summarization.world import (
    CHATTER,
    EXTRA_LINE,
    FILLERS,
    NAMES,
    SLOTS,
    Facts,
    draw_facts,
    phrase,
    summary_of,
)
from text2grad.types import Example

TOGETHER = (("who",), ("did", "what"), ("where",), ("when",), ("why",))  # believed or mistaken as one


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How hard the posts are to read and how badly the demonstrations read them.

    Attributes:
        distractors: the fewest and the most sentences beside the event.
        skim: how often a demonstration takes the value that the post names first.
        vague: how often it says "somewhere" instead, where it does not skim.
        drop: how often it leaves a fact out without a word.
        chatter: how often it adds an empty phrase or line.
        confusing: whether sentences about others name places and days in the words that tell the event.
    """

    distractors: tuple[int, int]
    skim: float
    vague: float
    drop: float = 0.02
    chatter: float = 0.3
    confusing: bool = False


DIFFICULTIES = {
    "easy": Difficulty((2, 3), skim=0.5, vague=0.3),
    "normal": Difficulty((2, 4), skim=0.6, vague=0.35),
    "hard": Difficulty((4, 4), skim=0.65, vague=0.4, confusing=True),
}


@dataclass(frozen=True, slots=True)
class SummaryCritic(ProgramCritic):
    """Judges summaries in words, each fact against the event."""

    def judge(self, example: Example, response: str, rng: Random) -> Judgement:
        """Judge one summary."""
        facts = facts_of(example)
        reading = READER.read(response, facts)
        return Judgement(PEN.write(reading, response, facts, rng), PEN.quotable(reading), len(reading.missing))


@dataclass(frozen=True, slots=True)
class SummarizationTask(ProceduralTask):
    """Posts to be summarized; the two splits share no post, no name and no deed."""

    name = "summarization"
    metric = "fact_f1"
    difficulties = DIFFICULTIES
    judgements = PEN.judgements()

    def draw(self, rng: Random) -> Example:
        """Draw one item."""
        facts = draw_facts(self.split, rng)
        level = DIFFICULTIES[self.difficulty]
        post = posts.write_post(facts, self.split, level.distractors, rng, confusing=level.confusing)
        meta = {"facts": facts, "distractors": post.distractors, "mentions": post.mentions}
        return Example(post.text + posts.CUE, summary_of(facts), meta=meta)

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return a hasty reader's summary: it believes what it read first, hedges, and chats."""
        level = DIFFICULTIES[self.difficulty]
        parts = []
        for slots in TOGETHER:
            skims, vague, drops = (rng.random() < p for p in (level.skim, level.vague, level.drop))
            for slot in slots:
                value = example.meta["mentions" if skims else "facts"][slot]
                said = phrase(slot, value[0] if skims else value)
                if vague and not skims and slot in FILLERS:
                    said = FILLERS[slot]
                if not (drops and slot in ("where", "when", "why")):
                    parts.append(said)
        if rng.random() < level.chatter:
            return chatty(" ".join(parts), CHATTER, EXTRA_LINE, rng)
        return " ".join(parts) + "."

    def corruption(self, example: Example, rng: Random) -> str:
        """Return a summary with faults that demonstrations seldom have.

        Two of three state other values in place of some facts, whatever the post says first or last, so that only
        comparing tells right from wrong; the third came out garbled: cut, shuffled, doubled, or spliced.
        """
        if rng.random() < 2 / 3:
            return self._mistaken(example, rng)
        return scrambled(self.demonstration(example, rng), summary_of(draw_facts(self.split, rng)), rng)

    def _mistaken(self, example: Example, rng: Random) -> str:
        """State each fact, or as often another value: one that the post names, or any; of names at times one half."""
        said, other = dict(example.meta["facts"]), draw_facts(self.split, rng)
        unseen = pairs(NAMES, "held_out") if self.split == "train" else ()
        for slot in SLOTS:
            if rng.random() < 0.5:
                value = rng.choice([*example.meta["distractors"][slot], other[slot]])
                said[slot] = half_of_both(said[slot], value, rng, unseen) if slot == "who" else value
        return summary_of(said)

    def critic(self) -> SummaryCritic:
        """Return the programmatic critic."""
        return SummaryCritic()

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return fact F1, ROUGE-L and whether the response is the reference, each in [0, 1]."""
        reference = summary_of(facts_of(example))
        return {
            "fact_f1": fact_f1(example, response),
            "rouge_l": metric.rouge_l(reference, response),
            "exact": float(same_words(reference, response)),
        }

    def vocabulary(self) -> list[str]:
        """Return every word and mark of posts, summaries and critiques, of both splits, sorted."""
        return sorted({word for text in (*posts.words(), *PEN.words()) for word in split_words(text)})


def fact_f1(example: Example, response: str) -> float:
    """Return the F1 of the facts that a response states, in [0, 1]."""
    return metric.fact_f1(facts_of(example), response)


def facts_of(example: Example) -> Facts:
    """Return the event behind an example.

    Raises:
        DataError: if the example is not of this task.
    """
    facts: Any = example.meta.get("facts")
    if not isinstance(facts, Mapping) or set(facts) != set(SLOTS):
        raise DataError(f"not a summarization example: meta['facts'] is {facts!r}, need the keys {SLOTS}")
    return facts
