"""Give lessons one after another, each to the policy of the one before; which faults does the last one leave?

    python evidence/benchmarks/lessons_in_turn.py begin folder sentence unknown --model models/qwen \
        --out runs/lessons/turn --json evidence/results/lessons/in-turn.json --skip 24

NAME=FILE teaches a person's marks about what the ready lesson is about, in its place, such as those of a reader:
`begin=evidence/results/lessons/reader/begin.jsonl`. Faults are counted by `evidence.lessons.faults` in the answers of
the last policy to the held-out questions of each lesson. A stopped program goes on. Processor seconds count, of what
this process made.
"""

import argparse
import time
from pathlib import Path
from statistics import fmean

from evidence.lessons.faults import FAULTS
from evidence.lessons.measuring import SHOWN, faults, later, write
from text2grad.config import load_recipe
from text2grad.costs import peak_memory
from text2grad.evaluation import read_subjects
from text2grad.runs import PolicySampler, contradictions, give_lesson, lessons_in
from text2grad.runs.learned import records_in
from text2grad.tasks import LESSON_RECIPE, ready_lesson


def main() -> None:
    """Give the lessons, and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="+", metavar="NAME[=FILE]", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0, help="held-out questions on which settings were chosen")
    parser.add_argument("--questions", type=int, default=64, help="most held-out questions of a lesson")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    args = parser.parse_args()
    started, path, told, seconds = time.process_time(), args.model, dict[str, list[str]](), dict[str, float]()
    marks = dict(given.partition("=")[::2] for given in args.lessons)
    for name, file in marks.items():
        began, home = time.process_time(), args.out / name
        if not (home / "lesson.json").exists():
            settings = [f'model.path="{path}"', f'run.out="{home}"', "data.eval_examples=4", *args.overrides]
            lesson = Path(file) if file else later(ready_lesson(name), args.skip)
            give_lesson(load_recipe(LESSON_RECIPE, settings), lesson)
        told[name] = contradictions(records_in(home), lessons_in(path))
        path, seconds[name] = read_subjects([str(home / "run")])[0].path, round(time.process_time() - began, 1)
    recipe = load_recipe(LESSON_RECIPE, args.overrides)
    policy = PolicySampler(recipe, path, dtype=recipe.model.dtype)
    left, answers = dict[str, float](), dict[str, list[dict[str, str]]]()
    for name in marks:
        asked = later(ready_lesson(name), args.skip).questions("held_out")[: args.questions]
        said = [{"prompt": own.example.prompt_text, "response": own.response} for own in policy(asked, seed=7)]
        left[name], answers[name] = round(fmean(faults(name, said)), 4), said[:SHOWN]
        print(name, left[name], flush=True)
    figures = {"lessons": args.lessons, "fault_after_all": left, "contradictions": told, "lesson_processor_s": seconds}
    figures |= {"skipped": args.skip, "settings": args.overrides, "answers": answers}
    figures |= {"processor_s": round(time.process_time() - started, 1), "peak_gb": round(peak_memory() / 2**30, 2)}
    print(write(args.json, figures))


if __name__ == "__main__":
    main()
