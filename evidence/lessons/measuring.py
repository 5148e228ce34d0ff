"""The figures of a lesson that a program measures which shares no rule with the lesson's critic."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.lessons.faults import FAULTS
from text2grad.costs import peak_memory
from text2grad.errors import DataError
from text2grad.files import to_json
from text2grad.tasks import Lesson, ready_lesson
from text2grad.tasks.base import Split
from text2grad.types import Example

SHOWN = 12  # answers before and after, by number


def faults(name: str, answers: list[dict[str, str]]) -> list[bool]:
    """Return whether each answer has the fault of a lesson."""
    known = {example.prompt_text: example for example in ready_lesson(name).questions("held_out")}
    return [FAULTS[name](known[answer["prompt"]], answer["response"]) for answer in answers]


def later(lesson: Lesson, skip: int) -> Lesson:
    """Return a lesson without its first held-out questions."""

    class Later(Lesson):
        def questions(self, split: Split) -> list[Example]:
            return super().questions(split)[skip if split == "held_out" else 0 :]

    return Later(lesson.comment, lesson.topics, lesson.marks)


def measured(name: str, out: Path, *, started: float) -> dict[str, Any]:
    """Return the shares with the fault before and after, seconds, memory, and the first answers of both sides.

    Args:
        name: of the lesson.
        out: the folder of its run, with lesson.json.
        started: processor time at the start, in seconds.

    Raises:
        DataError: if the answers before and after are not to the same questions.
    """
    written = json.loads((out / "lesson.json").read_bytes())
    before, after = written["before"], written["after"]
    if [row["prompt"] for row in before] != [row["prompt"] for row in after]:
        raise DataError(
            f"before.jsonl has {len(before)} answers to other questions than the {len(after)} of this run: give the "
            "--skip and data.eval_examples with which it was made"
        )
    shares = {f"fault_{side}": fmean(faults(name, written[side])) for side in ("before", "after")}
    return {
        **shares,
        "lesson": name,
        "processor_s": round(time.process_time() - started, 1),
        "peak_gb": round(peak_memory() / 2**30, 2),
        "answers": [{**old, "after": new["response"]} for old, new in zip(before, after, strict=True)][:SHOWN],
    }


def write(path: Path, figures: Mapping[str, Any]) -> str:
    """Write figures to a JSON file; return them without the answers, to be printed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_json(figures) + b"\n")
    return json.dumps({key: value for key, value in figures.items() if key != "answers"}, indent=1)
