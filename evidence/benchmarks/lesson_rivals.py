"""Teach a ready lesson to a model by another method, from the answers that lie in the folder of the lesson's run.

    python evidence/benchmarks/lesson_rivals.py dpo begin --model models/qwen --lesson-dir runs/lessons/begin \
        --json evidence/results/lessons/begin-dpo.json [--lr 1e-4] [--passes 6] [--skip 24]

The folder has marks.jsonl and before.jsonl of `evidence/benchmarks/lesson.py`, whose --skip and settings are to be the
same here; its time is not in the processor seconds. `evidence.lessons.rivals` says what each method does.
"""

import argparse
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from evidence.lessons.faults import FAULTS
from evidence.lessons.measuring import later, measured, write
from evidence.lessons.rivals import RIVALS, give_rival
from text2grad.config import load_recipe
from text2grad.tasks import LESSON_RECIPE, ready_lesson

GIVEN = ("marks.jsonl", "before.jsonl")


def main(arguments: list[str] | None = None) -> None:
    """Teach, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", choices=RIVALS)
    parser.add_argument("lesson", choices=FAULTS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lesson-dir", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--passes", type=int, default=6, help="over the prompts")
    parser.add_argument("--skip", type=int, default=0, help="held-out questions on which settings were chosen")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    args = parser.parse_args(arguments)
    if missing := [name for name in GIVEN if not (args.lesson_dir / name).exists()]:
        parser.error(f"{args.lesson_dir} has no {' and no '.join(missing)}; run evidence/benchmarks/lesson.py before")
    started = time.process_time()
    with TemporaryDirectory() as out:
        for name in GIVEN:
            shutil.copy(args.lesson_dir / name, out)
        settings = [f'model.path="{args.model}"', f'run.out="{out}"', f"optim.lr={args.lr}", *args.overrides]
        recipe, lesson = load_recipe(LESSON_RECIPE, settings), later(ready_lesson(args.lesson), args.skip)
        figures = give_rival(args.rival, args.lesson, recipe, lesson, passes=args.passes)
        figures |= {"lr": args.lr, "skipped": args.skip, "settings": args.overrides}
        figures |= measured(args.lesson, Path(out), started=started)
    print(write(args.json, figures))


if __name__ == "__main__":
    main()
