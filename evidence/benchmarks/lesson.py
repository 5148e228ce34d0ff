"""Give a ready lesson to a model, and measure it by a program that shares no rule with the lesson's critic.

    python evidence/benchmarks/lesson.py begin --model models/qwen --out runs/lessons/begin \
        --json evidence/results/lessons/begin.json [--skip 24] [--mode marks] [--set optim.lr=1e-4]

Processor seconds count, not those of the clock, since other work may share the machine; what an earlier process left in
`--out` is not made again, and its seconds do not count.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from evidence.lessons.faults import FAULTS
from text2grad.config import load_recipe
from text2grad.costs import peak_memory
from text2grad.files import to_json
from text2grad.runs import give_lesson
from text2grad.tasks import LESSON_RECIPE, Lesson, ready_lesson
from text2grad.types import Example

SHOWN = 12  # answers before and after, by number


def faults(name: str, answers: list[dict[str, str]]) -> list[bool]:
    """Return whether each answer has the fault of a lesson."""
    known = {example.prompt_text: example for example in ready_lesson(name).questions("held_out")}
    return [FAULTS[name](known[answer["prompt"]], answer["response"]) for answer in answers]


def later(lesson: Lesson, skip: int) -> Lesson:
    """Return a lesson without its first held-out questions."""

    class Later(Lesson):
        def questions(self, split: Any) -> list[Example]:
            return super().questions(split)[skip if split == "held_out" else 0 :]

    return Later(lesson.comment, lesson.topics, lesson.marks)


def main() -> None:
    """Give the lesson, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FAULTS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--mode", choices=["marks", "alternatives", "both"], default="alternatives")
    parser.add_argument("--skip", type=int, default=0, help="held-out questions on which settings were chosen")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    args = parser.parse_args()
    started = time.process_time()
    settings = [f'model.path="{args.model}"', f'run.out="{args.out}"', *args.overrides]
    lesson = later(ready_lesson(args.name), args.skip)
    figures: dict[str, Any] = give_lesson(load_recipe(LESSON_RECIPE, settings), lesson, mode=args.mode)
    written = json.loads((args.out / "lesson.json").read_bytes())
    for side in ("before", "after"):
        faulty = faults(args.name, written[side])
        figures[f"fault_{side}"] = sum(faulty) / len(faulty)
    figures |= {
        "lesson": args.name,
        "skipped": args.skip,
        "settings": args.overrides,
        "processor_s": round(time.process_time() - started, 1),
    }
    figures |= {"peak_gb": round(peak_memory() / 2**30, 2)}
    pairs = zip(written["before"], written["after"], strict=True)
    figures["answers"] = [{**old, "after": new["response"]} for old, new in pairs][:SHOWN]
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_bytes(to_json(figures) + b"\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "answers"}, indent=1))


if __name__ == "__main__":
    main()
