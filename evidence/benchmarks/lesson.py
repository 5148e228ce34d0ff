"""Give a ready lesson to a model, and measure it by a program that shares no rule with the lesson's critic.

    python evidence/benchmarks/lesson.py begin --model models/qwen --out runs/lessons/begin \
        --json evidence/results/lessons/begin.json [--skip 24] [--mode marks] [--set optim.lr=1e-4]

Processor seconds count, not those of the clock, since other work may share the machine; what an earlier process left in
`--out` is not made again, and its seconds do not count.
"""

import argparse
import time
from pathlib import Path

from evidence.lessons.faults import FAULTS
from evidence.lessons.measuring import later, measured, write
from text2grad.config import load_recipe
from text2grad.runs import give_lesson
from text2grad.tasks import LESSON_RECIPE, ready_lesson


def main() -> None:
    """Give the lesson, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FAULTS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--mode", choices=["marks", "alternatives", "both"], default="both")
    parser.add_argument("--skip", type=int, default=0, help="held-out questions on which settings were chosen")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    args = parser.parse_args()
    started = time.process_time()
    settings = [f'model.path="{args.model}"', f'run.out="{args.out}"', *args.overrides]
    lesson = later(ready_lesson(args.name), args.skip)
    figures = give_lesson(load_recipe(LESSON_RECIPE, settings), lesson, mode=args.mode)
    figures |= {"skipped": args.skip, "settings": args.overrides}
    print(write(args.json, figures | measured(args.name, args.out, started=started)))


if __name__ == "__main__":
    main()
