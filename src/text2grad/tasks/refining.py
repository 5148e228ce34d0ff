"""Program refiners of the built-in tasks: response, critique → refined response.

A refiner reads the critique's words and quotes alone. It never gets the example, so it knows no truth that the critique
does not state; it knows the language of the task, such as the order of an answer's phrases.
"""

from collections.abc import Callable

from text2grad.tasks.code import refine_program
from text2grad.tasks.grounded import refine_grounded
from text2grad.tasks.qa import refine_answer
from text2grad.tasks.stories import refine_story
from text2grad.tasks.summarization import refine_summary
from text2grad.types import Critique

Refine = Callable[[str, Critique], str]

REFINERS: dict[str, Refine] = {
    "code": refine_program,
    "grounded": refine_grounded,
    "qa": refine_answer,
    "stories": refine_story,
    "summarization": refine_summary,
}


def program_refiner(task: str) -> Refine:
    """Return the refiner of a built-in task."""
    return REFINERS[task]
