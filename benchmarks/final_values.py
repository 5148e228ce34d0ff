"""Final values with settings by which more tokens move with their advantage; docs/results/moves.md.

    python benchmarks/final_values.py               # two hours of one core; goes on where it stopped

Summaries of 60 steps from one fine-tuned policy and stories of 40 steps, for spans and one number (GRPO), on several
seeds of prompts and samples with held-out items of their own, in the ways of benchmarks/moves.py: at the recipes'
settings, without credit for certain tokens, with more epochs and less momentum, and with both. No setting was
searched for.
Writes docs/results/final_values.json.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from moves import EPOCHS, RECIPES, TEXT2GRAD, start_of
from text2grad.experiments.methods import METHODS
from text2grad.experiments.tuning import run_command
from text2grad.files import to_json, write_atomically

STEPS = {"summaries": 60, "stories": 40}
EVALUATED = {"summaries": ("fact_f1", "kl_per_token"), "stories": ("invented_share", "kl_per_token")}
METHOD_OF = {"spans": "text2grad", "number": "grpo"}
CERTAINTY = ("ppo.certainty=0.9",)
WAYS = {"recipe": (), "uncertain": CERTAINTY, "epochs": EPOCHS, "both": (*CERTAINTY, *EPOCHS)}
OF_SPANS = ("uncertain", "both")  # one number has the recipe's way and the epochs


class Job(NamedTuple):
    """One run: task, what the policy gets, seed, and the way of its updates, a key of `WAYS`."""

    task: str
    signal: str
    seed: int
    way: str

    @property
    def name(self) -> str:
        """The directory of the run."""
        return f"{self.task}-{self.signal}-{self.way}-{self.seed}"


def run(job: Job, out: Path, stories: Path) -> dict[str, Any]:
    """Make a run unless it is finished; return its record.

    Raises:
        CalledProcessError: if the run fails.
    """
    directory = out / job.name
    if not (directory / "results.json").exists():
        start = [one for one in start_of(job.task, out, stories) if not one.startswith("run.steps")]
        own = [f"run.steps={STEPS[job.task]}", f"run.seed={job.seed}", f"data.eval_seed={10 + job.seed}"]
        own += ["data.eval_examples=256", "data.eval_every=0"]
        method = METHOD_OF[job.signal]
        chosen = [*start, *own, *METHODS[method].settings, *WAYS[job.way]]
        subprocess.run(run_command(TEXT2GRAD, method, RECIPES[job.task], directory, chosen), check=True)
    (results,) = json.loads((directory / "results.json").read_bytes())["runs"].values()
    return {**job._asdict(), "after": {name: results["after"][name] for name in EVALUATED[job.task]}}


def main() -> None:
    """Make the runs, and write their records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(STEPS), action="append", help="default: both")
    parser.add_argument("--way", choices=tuple(WAYS), action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=8, help="1 to N")
    parser.add_argument("--out", type=Path, default=Path("runs/final_values"), help="directory of the runs")
    parser.add_argument("--stories", type=Path, default=Path("../shared/models/stories260k"), help="the story teller")
    parser.add_argument("--json", type=Path, default=Path("docs/results/final_values.json"), help="file of the records")
    args = parser.parse_args()
    jobs = [
        Job(task, signal, seed, way)
        for task in args.task or STEPS
        for seed in range(1, args.seeds + 1)
        for signal in METHOD_OF
        for way in args.way or WAYS
        if signal == "spans" or way not in OF_SPANS
    ]
    known: list[dict[str, Any]] = json.loads(args.json.read_bytes()) if args.json.exists() else []
    records = {Job(**{name: one[name] for name in Job._fields}): one for one in known}
    for job in jobs:
        records[job] = run(job, args.out, args.stories)
        write_atomically(args.json, to_json([records[one] for one in sorted(records)], indent=1) + b"\n")


if __name__ == "__main__":
    main()
