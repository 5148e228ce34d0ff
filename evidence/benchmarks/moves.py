"""Which way tokens move in an update: spans and one number, on three tasks; evidence/results/moves.md.

    python evidence/benchmarks/moves.py                  # fifteen minutes of one core; goes on where it stopped
    python evidence/benchmarks/moves.py --task answers   # two hours of one core, after the commands of
                                                         # evidence/docs/grounded.md

Runs of each task on one seed, with the task's program as critic: spans, and one number, that of GRPO, at the recipe's
settings. Every fifth step is measured (`analysis.track_update`). The file also has figures of spans without credit for
certain tokens and of another β₁, whose settings are gone.
Summaries: 20 steps of evidence/recipes/quickstart-summarization.toml from the fine-tuned policy, without refreshes.
Stories: 20 steps of evidence/recipes/stories.toml on stories260k, 32 stories of 64 tokens a step. Answers: 11 steps of
evidence/recipes/smollm2-grounded.toml, a LoRA adapter of SmolLM2. Figures of other tasks stay in the file.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from evidence.plans.methods import METHODS, PROGRAM_CRITIC
from evidence.plans.tuning import run_command
from evidence.tasks.lengths import WITHOUT_REWARD_MODEL

TEXT2GRAD = [sys.executable, "-m", "evidence"]
RECIPES = {
    "summaries": Path("evidence/recipes/quickstart-summarization.toml"),
    "stories": Path("evidence/recipes/stories.toml"),
    "answers": Path("evidence/recipes/smollm2-grounded.toml"),
}

MEASURED = ["analysis.track_update=5", "data.eval_examples=4"]
STORIES = ["run.steps=20", "rollout.batch_size=32", "rollout.max_new_tokens=64", "quickstart.examples=700"]
SEEDS = {"summaries": 1, "stories": 1, "answers": 0}
"""Task → seed of its runs."""

SHOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "spans": ("text2grad", ()),
    "number": ("grpo", ()),
}
"""What the policy gets, and how its updates differ from the recipe's → method and further settings."""


def start_of(task: str, out: Path, stories: Path) -> list[str]:
    """Return the settings by which the runs of a task begin; make the fine-tuned policy of the summaries, if missing.

    Raises:
        CalledProcessError: if a command fails.
    """
    if task == "stories":
        return [f"model.path='{stories}'", *STORIES]
    if task == "answers":
        return ["run.steps=11"]
    models = out / "models"
    if not (models / "start").exists():
        words = ["--models-in", str(models), "--phases", ",".join(WITHOUT_REWARD_MODEL)]
        words += ["--set", "quickstart.after_reward_model=0"]
        subprocess.run([*TEXT2GRAD, "experiment", str(RECIPES[task]), *words], check=True)
    return [f"model.path='{models / 'start'}'", *PROGRAM_CRITIC, "run.steps=20"]


def runs(task: str, only: list[str], out: Path, stories: Path) -> list[Path]:
    """Make the missing runs of a task, those of some keys of `SHOWN`; return all of them.

    Raises:
        CalledProcessError: if a command fails.
    """
    start, found = start_of(task, out, stories), []
    for name in only:
        method, more = SHOWN[name]
        run = out / f"{task}-{name}"
        chosen = [*start, *MEASURED, f"run.seed={SEEDS[task]}", *METHODS[method].settings, *more]
        subprocess.run(run_command(TEXT2GRAD, method, RECIPES[task], run, chosen), check=True)
        found.append(run)
    return found


def main() -> None:
    """Make the runs, analyse them, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(RECIPES), action="append", help="default: summaries and stories")
    parser.add_argument("--only", choices=tuple(SHOWN), action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/moves"), help="directory of the runs")
    parser.add_argument("--stories", type=Path, default=Path("../shared/models/stories260k"), help="the story teller")
    parser.add_argument("--json", type=Path, default=Path("evidence/results/moves.json"), help="file of the figures")
    args = parser.parse_args()
    made = [
        run
        for task in args.task or ["summaries", "stories"]
        for run in runs(task, args.only or list(SHOWN), args.out, args.stories)
    ]
    subprocess.run([*TEXT2GRAD, "analyse", *map(str, made), "--out", str(args.out / "analysis")], check=True)
    analysis: dict[str, Any] = json.loads((args.out / "analysis" / "analysis.json").read_bytes())
    known: dict[str, Any] = json.loads(args.json.read_bytes()) if args.json.exists() else {}
    known |= {name: one["update"] for name, one in analysis["runs"].items()}
    names = [f"{task}-{name}" for task in RECIPES for name in SHOWN]
    found = {name: known[name] for name in names if name in known}
    args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
