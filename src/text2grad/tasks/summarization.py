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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, get_args

from text2grad.critics import Critic
from text2grad.errors import ConfigError, DataError
from text2grad.tasks import _summarization_metric as metric
from text2grad.tasks import _summarization_posts as posts
from text2grad.tasks import _summarization_wording as wording
from text2grad.tasks._summarization_critic import read
from text2grad.tasks._summarization_world import (
    CHATTER,
    EXTRA_LINE,
    FILLERS,
    NAMES,
    SLOTS,
    Facts,
    Split,
    combinations,
    draw_facts,
    phrase,
    summary_of,
)
from text2grad.tasks.base import half_of_both, split_words, verdicts
from text2grad.types import Critique, Example, Span

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
class SummaryCritic:
    """Judges summaries in words: `critic(examples, responses)` returns one critique each.

    Attributes:
        omission_penalty: with a value above 0, each fact that a summary leaves out takes this much off the
            critique's `outcome`; an omission has no span. At 0 the outcome is None.
    """

    omission_penalty: float = 0.0

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            DataError: if the lengths differ or an example is not of this task.
        """
        if len(examples) != len(responses):
            raise DataError(f"got {len(examples)} examples and {len(responses)} responses")
        return [self._critique(example, response) for example, response in zip(examples, responses, strict=True)]

    def _critique(self, example: Example, response: str) -> Critique:
        facts = facts_of(example)
        reading = read(response, facts)
        spans = tuple(
            Span(finding.start, finding.end, "positive" if finding.kind == "right" else "negative")
            for finding in wording.quotable(reading)
        )
        feedback = wording.write(reading, response, facts, _generator(example.prompt_text, response))
        outcome = -self.omission_penalty * len(reading.missing) if self.omission_penalty else None
        return Critique(feedback, spans, outcome)


@dataclass(frozen=True, slots=True)
class SummarizationTask:
    """Posts to be summarized; the two splits share no post, no name and no deed.

    Attributes:
        split: "train" or "held_out".
        difficulty: a key of `DIFFICULTIES`.
        seed: with another seed, every item is another.
    """

    split: Split = "train"
    difficulty: str = "normal"
    seed: int = 0
    name: str = field(default="summarization", init=False)
    metric: str = field(default="fact_f1", init=False)

    def __post_init__(self) -> None:
        """Refuse unknown settings."""
        for what, value, known in (
            ("split", self.split, get_args(Split)),
            ("difficulty", self.difficulty, tuple(DIFFICULTIES)),
        ):
            if value not in known:
                raise ConfigError(f"summarization has no {what} {value!r}; known: {', '.join(known)}")

    def examples(self, n: int, seed: int = 0) -> list[Example]:
        """Return n items with distinct prompts; a shorter list is the beginning of a longer one."""
        rng = _generator("examples", self.split, self.difficulty, self.seed, seed)
        items: dict[str, Example] = {}
        while len(items) < n:
            example = self._example(rng)
            items.setdefault(example.prompt_text, example)
        return list(items.values())

    def _example(self, rng: Random) -> Example:
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
            return _chatty(" ".join(parts), rng)
        return " ".join(parts) + "."

    def corruption(self, example: Example, rng: Random) -> str:
        """Return a summary with faults that demonstrations seldom have.

        Two of three state other values in place of some facts, whatever the post says first or last, so that only
        comparing tells right from wrong; the third came out garbled: cut, shuffled, doubled, or spliced.
        """
        if rng.random() < 2 / 3:
            return self._mistaken(example, rng)
        words = self.demonstration(example, rng).split()
        others = summary_of(draw_facts(self.split, rng)).split()
        i, j = sorted((rng.randrange(len(words)), rng.randrange(len(words))))
        kinds = (
            words[:i],
            words[:i] + others[i:],
            words[:i] + words[i + 1 :],
            words[:j] + words[i:],
            [*words[:i], words[j], *words[i + 1 : j], words[i], *words[j + 1 :]],
            rng.sample(words, len(words)),
        )
        return " ".join(rng.choice(kinds))

    def _mistaken(self, example: Example, rng: Random) -> str:
        """State each fact, or as often another value: one that the post names, or any; of names at times one half."""
        said, other = dict(example.meta["facts"]), draw_facts(self.split, rng)
        for slot in SLOTS:
            if rng.random() < 0.5:
                value = rng.choice([*example.meta["distractors"][slot], other[slot]])
                said[slot] = self._name(said[slot], value, rng) if slot == "who" else value
        return summary_of(said)

    def _name(self, name: str, other: str, rng: Random) -> str:
        """Return another name, perhaps half the same; training never sees one that is held out."""
        mixed = half_of_both(name, other, rng)
        unseen = self.split == "train" and tuple(mixed.split()) in combinations(NAMES, "held_out")
        return other if unseen else mixed

    def critic(self) -> Critic:
        """Return the programmatic critic."""
        return SummaryCritic()

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return fact F1, ROUGE-L and whether the response is the reference, each in [0, 1]."""
        reference = summary_of(facts_of(example))
        return {
            "fact_f1": fact_f1(example, response),
            "rouge_l": metric.rouge_l(reference, response),
            "exact": float(metric.same_words(reference, response)),
        }

    def score_many(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, float]]:
        """Return `score` of each response."""
        return [self.score(example, response) for example, response in zip(examples, responses, strict=True)]

    def vocabulary(self) -> list[str]:
        """Return every word and mark of posts, summaries and critiques, of both splits, sorted."""
        return sorted({word for text in (*posts.words(), *wording.words()) for word in split_words(text)})

    def verdicts(self) -> list[str]:
        """Return what critiques say right after a quote, from its closing mark on."""
        return verdicts(wording.judgements())

    def texts(self, n: int, seed: int = 0) -> list[str]:
        """Return n texts, each a post, an answer and its critique; every second answer is a corruption."""
        rng = _generator("texts", self.split, self.difficulty, self.seed, seed)
        examples = self.examples(n, seed)
        answers = [(self.corruption if i % 2 else self.demonstration)(e, rng) for i, e in enumerate(examples)]
        critiques = SummaryCritic()(examples, answers)
        return [
            f"{example.prompt_text} {answer}\n{critique.feedback}"
            for example, answer, critique in zip(examples, answers, critiques, strict=True)
        ]


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


def _chatty(sentence: str, rng: Random) -> str:
    ending = rng.choice((*CHATTER, None))
    return f"{sentence}. {EXTRA_LINE}" if ending is None else f"{sentence} {ending}."


def _generator(*parts: object) -> Random:
    """Return a generator seeded by the parts alone: the same on every machine and in every process."""
    return Random(sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest())
