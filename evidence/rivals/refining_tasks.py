"""Program refiners of the built-in tasks: response, critique → refined response.

A refiner reads the critique's words and quotes alone. It never gets the example, so it knows no truth that the critique
does not state; it knows the language of the task, such as the order of an answer's phrases.
"""

from collections.abc import Callable

from evidence.rivals.refining_facts import FactRefiner
from evidence.tasks.code.refining import refine_program
from evidence.tasks.grounded.refining import refine_grounded
from evidence.tasks.qa import critic as qa, world as qa_world
from evidence.tasks.stories.refining import refine_story
from text2grad.tasks.facts import Facts
from text2grad.tasks.summarization import task as summaries, world as summary_world
from text2grad.types import Critique

Refine = Callable[[str, Critique], str]


def _answer(facts: Facts) -> str:
    return qa_world.sentence({slot: qa_world.phrase(slot, value) for slot, value in facts.items()}) + "."


def _summary(facts: Facts) -> str:
    slots = [slot for slot in summary_world.SLOTS if slot in facts]
    return " ".join(summary_world.phrase(slot, facts[slot]) for slot in slots) + "."


REFINERS: dict[str, Refine] = {
    "code": refine_program,
    "grounded": refine_grounded,
    "qa": FactRefiner(qa.READER, qa.WRITER, _answer),
    "stories": refine_story,
    "summarization": FactRefiner(summaries.READER, summaries.WRITER, _summary),
}


def program_refiner(task: str) -> Refine:
    """Return the refiner of a built-in task."""
    return REFINERS[task]
