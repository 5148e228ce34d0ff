r"""The embedded question-answering task: a small table, a question, and one sentence of two to five claims.

A table lists courses, of which one is open; a question asks for the teacher and one to four details of the open course.
Demonstrations imitate a hasty reader. More than half of their cities, days and prices come from the first row, so a
policy that only imitates stays wrong, even with greedy decoding. Other details become "somewhere" or "for some price":
an omission that a critique can quote.

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

import re
from dataclasses import dataclass
from random import Random

from evidence.tasks.parts import FactTask
from evidence.tasks.qa import tables, world
from evidence.tasks.qa.critic import WRITER, QACritic
from evidence.tasks.qa.metric import METRIC
from text2grad.tasks.base import pairs
from text2grad.tasks.facts import Facts, chatty, half_of_both, key, scrambled
from text2grad.types import Example

MOST_CLAIMS = 4  # about one table, where the length is set
CAREFUL = ("who", "what")  # the slots that demonstrations read with more care


@dataclass(frozen=True, slots=True)
class Faults:
    """The length of the tables, and the rates of faults in demonstrations, each in [0, 1].

    Attributes:
        rows: the fewest and the most rows.
        skim: rate at which a city, a day or a price is taken from the first row of the table.
        slip: the same rate for the person and the subject.
        vague: rate of a filler such as "somewhere" for a detail that is not taken from the first row.
        drop: rate at which a detail is left out.
        chatter: rate of an added phrase or sentence that states nothing.
    """

    rows: tuple[int, int]
    skim: float
    slip: float
    vague: float
    drop: float = 0.02
    chatter: float = 0.3


USUAL_FAULTS = Faults((3, 3), skim=0.52, slip=0.12, vague=0.15)


@dataclass(frozen=True, slots=True)
class QATask(FactTask):
    """Questions about tables; the splits share no name, no course and no combination of details asked for.

    With `settings.length` an answer has so many claims: two or four about one table, or four about each of several
    tables under labels, with a labelled sentence for each. Questions for two claims, and so for one detail, are the
    same in both splits; their names and courses are not.
    """

    name = "qa"
    metric = "claim_f1"
    judgements = WRITER.judgements()
    unit = "claims"
    lengths = (2, 4, 8, 12, 16)
    cue = tables.CUE
    claim_metric = METRIC

    def critic(self) -> QACritic:
        """Return the program critic."""
        return QACritic(truths=self.settings.truths)

    @property
    def parts(self) -> int:
        """The number of tables under labels; 0 for a table without a label and a question of any length."""
        return -(-self.settings.length // MOST_CLAIMS)

    def facts(self, example: Example) -> Facts:
        """Return the claims of the perfect answer to one question, by slot."""
        return world.problem_of(example).facts

    def state(self, facts: Facts) -> str:
        """Return the perfect answer that states the facts."""
        return world.answer_of(facts)

    def draw_part(self, rng: Random) -> Example:
        """Draw one table and a question."""
        rows, length = rng.randint(*USUAL_FAULTS.rows), self.settings.length
        problem = tables.draw_problem(self.split, rows, rng, details=min(length, MOST_CLAIMS) - 1 if length else 0)
        prompt = tables.write_prompt(problem, self.split, rng)
        meta = {"rows": problem.rows, "target": problem.target, "asked": problem.asked}
        return Example(prompt, world.answer_of(problem.facts), meta=meta)

    def label_prompt(self, label: str, prompt: str) -> str:
        """Return a table and its question, with the label in each line by which a small model tells tables apart."""
        return re.sub("^- ", f"{label} ", prompt, flags=re.MULTILINE).replace("Question:", f"Question {label}:")

    def demonstrate_part(self, part: Example, rng: Random) -> str:
        """Return an answer with wrong values of the first row, vague fillers, omissions and chatter."""
        level, problem = USUAL_FAULTS, world.problem_of(part)
        phrases = {}
        for slot in world.SLOTS:
            hasty = level.slip if slot in CAREFUL else level.skim
            skims, vague, drops = (self.errs(p, rng) for p in (hasty, level.vague, level.drop))
            if slot in problem.facts and (slot in CAREFUL or not drops):
                value = problem.rows[0 if skims else problem.target][slot]
                phrases[slot] = world.FILLERS[slot] if vague and not skims else world.phrase(slot, value)
        if self.errs(level.chatter, rng):
            return chatty(world.sentence(phrases), world.CHATTER, world.EXTRA_LINE, rng)
        return world.sentence(phrases) + "."

    def corrupt_part(self, part: Example, rng: Random) -> str:
        """Return an answer with wrong values, or a garbled one."""
        if rng.random() < 2 / 3:
            return self._mistaken(world.problem_of(part), rng)
        return scrambled(self.demonstrate_part(part, rng), str(self.draw_part(rng).reference), rng)

    def _mistaken(self, problem: world.Problem, rng: Random) -> str:
        """Replace each value with probability 1/2: by a value of another row or of another table."""
        said, others = dict(problem.facts), [row for i, row in enumerate(problem.rows) if i != problem.target]
        unseen = pairs(world.NAMES, "held_out") if self.split == "train" else ()
        for slot in said:
            if rng.random() < 0.5:
                anything = tables.draw_problem(self.split, 2, rng).rows[0]
                value = rng.choice([anything, *others])[slot]
                said[slot] = half_of_both(said[slot], value, rng, unseen) if slot == "who" else value
        return world.answer_of(said)

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return F1, precision and recall of the claims, and 1.0 as `exact` if the answer is the reference."""
        scores = {f"claim_{name}": value for name, value in self.claims(example, response).items()}
        return {**scores, "exact": float(key(self.reference(example)) == key(response))}

    def all_words(self) -> list[str]:
        """Return texts that together hold every word of prompts, answers and critiques."""
        return [*tables.words(), *WRITER.words(), *self.label_words()]
