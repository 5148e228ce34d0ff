r"""The embedded question-answering task: a small table, a question, and one sentence of two to five claims.

A table lists courses, of which one is open; a question asks for the person and one to four details of that one.
Demonstrations are those of a hasty reader: he often reads a detail off the first row, in more than half the cases
where it is a city, a day or a price, so that imitation alone, even greedy, stays wrong; and what he did not catch
becomes "somewhere" or "for some price", so that an omission is words that a critique can quote.

Example:
    >>> task = QATask("held_out")
    >>> example = task.examples(1)[0]
    >>> print(example.prompt_text)
    - closed: Olga Berg Thursday dancing Lyon 40
    - over: Hugo Sato Saturday sewing Turin 25
    - open: Sven Costa Sunday singing Krakow 20
    Question: If a course is open, tell me who, what, where and for how much.
    Answer:
    >>> response = "Sven Costa teaches something in Turin for 20 euros."
    >>> critique = QACritic()([example], [response])[0]
    >>> print(critique.feedback.replace(". ", ".\n"))
    The first name is Sven: "Sven" is right.
    The last name is Costa: "Costa" is right.
    The subject is singing: "something" is vague.
    The city is Krakow: "Turin" is wrong.
    The price is 20 euros: "20" is right.
    >>> round(task.score(example, response)["claim_f1"], 2)
    0.57
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from text2grad.errors import DataError
from text2grad.tasks.base import chatty, half_of_both, pairs, same_words, scrambled, split_words
from text2grad.tasks.procedural import Judgement, ProceduralTask, ProgramCritic
from text2grad.tasks.qa import metric, tables
from text2grad.tasks.qa.critic import PEN, READER
from text2grad.tasks.qa.world import (
    CHATTER,
    DETAILS,
    EXTRA_LINE,
    FILLERS,
    NAMES,
    SLOTS,
    Problem,
    answer_of,
    phrase,
    sentence,
)
from text2grad.types import Example

TOGETHER = (("who",), ("what",), ("where",), ("when",), ("price",))  # read from one row
CAREFUL = ("who", "what")  # the groups that are read with more care


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How long the tables are and how badly the demonstrations read them.

    Attributes:
        rows: the fewest and the most rows.
        skim: how often a demonstration takes a city, a day or a price from the first row of the table.
        slip: how often it does so for the person and for the subject.
        vague: how often it says "somewhere" instead, where it does neither.
        drop: how often it leaves a detail out without a word.
        chatter: how often it adds an empty phrase or line.
    """

    rows: tuple[int, int]
    skim: float
    slip: float
    vague: float
    drop: float = 0.02
    chatter: float = 0.3


DIFFICULTIES = {
    "easy": Difficulty((2, 3), skim=0.52, slip=0.1, vague=0.1),
    "normal": Difficulty((3, 3), skim=0.52, slip=0.12, vague=0.15),
    "hard": Difficulty((4, 4), skim=0.55, slip=0.15, vague=0.2),
}


@dataclass(frozen=True, slots=True)
class QACritic(ProgramCritic):
    """Judges answers in words, each claim against the open row."""

    def judge(self, example: Example, response: str, rng: Random) -> Judgement:
        """Judge one answer."""
        facts = problem_of(example).facts
        reading = READER.read(response, facts)
        return Judgement(PEN.write(reading, response, facts, rng), PEN.quotable(reading), len(reading.missing))


@dataclass(frozen=True, slots=True)
class QATask(ProceduralTask):
    """Questions about tables; the two splits share no question: no name, course or composition that is asked for."""

    name = "qa"
    metric = "claim_f1"
    difficulties = DIFFICULTIES
    judgements = PEN.judgements()

    def draw(self, rng: Random) -> Example:
        """Draw one item."""
        rows = rng.randint(*DIFFICULTIES[self.difficulty].rows)
        problem = tables.draw_problem(self.split, rows, rng)
        prompt = tables.write_prompt(problem, self.split, rng)
        meta = {"rows": problem.rows, "target": problem.target, "asked": problem.asked}
        return Example(prompt, answer_of(problem.facts), meta=meta)

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return a hasty reader's answer: it reads the first row, hedges, and chats."""
        level, problem = DIFFICULTIES[self.difficulty], problem_of(example)
        phrases = {}
        for slots in TOGETHER:
            hasty = level.slip if slots[0] in CAREFUL else level.skim
            skims, vague, drops = (rng.random() < p for p in (hasty, level.vague, level.drop))
            for slot in set(slots) & set(problem.facts):
                value = problem.rows[0 if skims else problem.target][slot]
                phrases[slot] = FILLERS[slot] if vague and not skims else phrase(slot, value)
                if drops and slot not in CAREFUL:
                    del phrases[slot]
        if rng.random() < level.chatter:
            return chatty(sentence(phrases), CHATTER, EXTRA_LINE, rng)
        return sentence(phrases) + "."

    def corruption(self, example: Example, rng: Random) -> str:
        """Return an answer with faults that demonstrations seldom have.

        Two of three claim other values in place of some, so that only comparing tells right from wrong; the third
        came out garbled: cut, shuffled, doubled, or spliced with another answer.
        """
        if rng.random() < 2 / 3:
            return self._mistaken(problem_of(example), rng)
        return scrambled(self.demonstration(example, rng), str(self.draw(rng).reference), rng)

    def _mistaken(self, problem: Problem, rng: Random) -> str:
        """State each claim, or as often another value: of another row, or any; of names at times one half."""
        said, others = dict(problem.facts), [row for i, row in enumerate(problem.rows) if i != problem.target]
        unseen = pairs(NAMES, "held_out") if self.split == "train" else ()
        for slot in said:
            if rng.random() < 0.5:
                anything = tables.draw_problem(self.split, 2, rng).rows[0]
                value = rng.choice([anything, *others])[slot]
                said[slot] = half_of_both(said[slot], value, rng, unseen) if slot == "who" else value
        return answer_of(said)

    def critic(self) -> QACritic:
        """Return the programmatic critic."""
        return QACritic()

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return F1, precision and recall of the claims and whether it is the reference, each in [0, 1]."""
        facts = problem_of(example).facts
        exact = float(same_words(answer_of(facts), response))
        return {**metric.claim_scores(facts, response), "exact": exact}

    def vocabulary(self) -> list[str]:
        """Return every word and mark of prompts, answers and critiques, of both splits, sorted."""
        return sorted({word for text in (*tables.words(), *PEN.words()) for word in split_words(text)})


def claim_f1(example: Example, response: str) -> float:
    """Return the F1 of the claims that a response makes, in [0, 1]."""
    return metric.claim_scores(problem_of(example).facts, response)["claim_f1"]


def problem_of(example: Example) -> Problem:
    """Return the table and the question behind an example.

    Raises:
        DataError: if the example is not of this task.
    """
    meta = example.meta
    rows: Any = meta.get("rows")
    target, asked = meta.get("target"), _details(meta.get("asked"))
    if not (_is_table(rows) and isinstance(target, int) and 0 <= target < len(rows) and asked):
        raise DataError(
            f"not a qa example: meta has rows={rows!r}, target={target!r}, asked={meta.get('asked')!r}; need rows with "
            f"a status and the keys {SLOTS}, the index of one, and some of {DETAILS}"
        )
    return Problem(tuple(rows), target, asked)


def _is_table(rows: Any) -> bool:
    return isinstance(rows, Sequence) and all(
        isinstance(row, Mapping) and set(row) == {"status", *SLOTS} for row in rows
    )


def _details(asked: Any) -> tuple[str, ...]:
    """Return the details asked for, or nothing if they are none."""
    known = isinstance(asked, Sequence) and not isinstance(asked, str) and set(asked) <= set(DETAILS)
    return tuple(asked) if known else ()
