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

from text2grad.experiments.methods import METHODS

MEASURED = ["run.steps=20", "run.track_update=5", "data.eval_examples=4"]
STORIES = ["rollout.batch_size=32", "rollout.max_new_tokens=64", "data.examples=700"]
PROGRAM = ["critic.use=''", "critic.model=''", "refresh.steps=[]", "refresh.audit=0"]
METHODS_SHOWN = {"spans": "text2grad", "number": "grpo"}


def text2grad(*words: str) -> None:
    """Run a command of text2grad.

    Raises:
        CalledProcessError: if it fails.
    """
    subprocess.run([sys.executable, "-m", "text2grad.cli", *words], check=True)


def options(settings: list[str]) -> list[str]:
    """Return settings as options of a command."""
    return [word for setting in settings for word in ("--set", setting)]


def runs(out: Path, stories: Path) -> list[Path]:
    """Make the missing runs; return all of them."""
    models = out / "models"
    if not (models / "start").exists():
        of_program = options(["sft.after_reward_model=0"])
        phases = ["--models-in", str(models), "--phases", "sft,start"]
        text2grad("experiment", "recipes/quickstart-summarization.toml", *phases, *of_program)
    tasks = {
        "summaries": ("recipes/quickstart-summarization.toml", [f"model.path='{models / 'start'}'", *PROGRAM]),
        "stories": ("recipes/stories.toml", [f"model.path='{stories}'", *STORIES]),
    }
    found = []
    for task, (recipe, settings) in tasks.items():
        for name, method in METHODS_SHOWN.items():
            run = out / f"{task}-{name}"
            more = ["--resume"] if (run / "run.json").exists() else []
            chosen = options([*settings, *MEASURED, *METHODS[method].settings])
            text2grad("train", recipe, *chosen, "--out", str(run), *more)
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
    text2grad("analyse", *map(str, made), "--out", str(args.out / "analysis"))
    analysis: dict[str, Any] = json.loads((args.out / "analysis" / "analysis.json").read_bytes())
    found = {name: one["update"] for name, one in analysis["runs"].items()}
    args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
