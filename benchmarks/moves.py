"""Which way tokens move in an update: spans and one number, on summaries and on stories; docs/results/moves.md.

    python benchmarks/moves.py --json docs/results/moves.json       # ten minutes of one core; goes on where it stopped

Twenty steps of each of four runs on seed 0, with the task's program as critic; every fifth step is measured
(`run.track_update`). Summaries: recipes/quickstart-summarization.toml from the fine-tuned policy, without refreshes.
Stories: recipes/stories.toml on stories260k, 32 stories of 64 tokens a step. The number is GRPO's.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from text2grad.experiments.methods import METHODS, PROGRAM_CRITIC
from text2grad.experiments.pipeline import WITHOUT_REWARD_MODEL
from text2grad.experiments.tuning import run_command

TEXT2GRAD = [sys.executable, "-m", "text2grad.cli"]
RECIPES = {"summaries": Path("recipes/quickstart-summarization.toml"), "stories": Path("recipes/stories.toml")}

MEASURED = ["run.steps=20", "run.track_update=5", "data.eval_examples=4"]
STORIES = ["rollout.batch_size=32", "rollout.max_new_tokens=64", "data.examples=700"]
METHODS_SHOWN = {"spans": "text2grad", "number": "grpo"}


def runs(out: Path, stories: Path) -> list[Path]:
    """Make the missing runs; return all of them.

    Raises:
        CalledProcessError: if a command fails.
    """
    models = out / "models"
    if not (models / "start").exists():
        words = ["--models-in", str(models), "--phases", ",".join(WITHOUT_REWARD_MODEL)]
        words += ["--set", "sft.after_reward_model=0"]
        subprocess.run([*TEXT2GRAD, "experiment", str(RECIPES["summaries"]), *words], check=True)
    settings = {
        "summaries": [f"model.path='{models / 'start'}'", *PROGRAM_CRITIC],
        "stories": [f"model.path='{stories}'", *STORIES],
    }
    found = []
    for task, recipe in RECIPES.items():
        for name, method in METHODS_SHOWN.items():
            run = out / f"{task}-{name}"
            chosen = [*settings[task], *MEASURED, *METHODS[method].settings]
            subprocess.run(run_command(TEXT2GRAD, method, recipe, run, chosen), check=True)
            found.append(run)
    return found


def main() -> None:
    """Make the runs, analyse them, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/moves"), help="directory of the runs")
    parser.add_argument("--stories", type=Path, default=Path("../shared/models/stories260k"), help="the story teller")
    parser.add_argument("--json", type=Path, default=Path("docs/results/moves.json"), help="file of the figures")
    args = parser.parse_args()
    made = runs(args.out, args.stories)
    subprocess.run([*TEXT2GRAD, "analyse", *map(str, made), "--out", str(args.out / "analysis")], check=True)
    analysis: dict[str, Any] = json.loads((args.out / "analysis" / "analysis.json").read_bytes())
    found = {name: one["update"] for name, one in analysis["runs"].items()}
    args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
