"""Final values with settings by which more tokens move with their advantage; evidence/results/moves.md.

    python evidence/benchmarks/final_values.py               # two hours of one core; goes on where it stopped

The runs of evidence/benchmarks/moves.py, summaries of 60 steps from one fine-tuned policy and stories of 40 steps, on
several seeds of prompts and samples with held-out items of their own, on which no setting was chosen. Writes
evidence/results/final_values.json.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from moves import RECIPES, SHOWN, TEXT2GRAD, start_of

from evidence.plans.methods import METHODS
from evidence.plans.tuning import run_command
from text2grad.files import to_json, write_atomically

STEPS = {"summaries": 60, "stories": 40}
EVALUATED = {"summaries": ("fact_f1", "kl_per_token"), "stories": ("invented_share", "kl_per_token")}


class Job(NamedTuple):
    """One run: task, what the policy gets and how its updates differ (a key of `moves.SHOWN`), and seed."""

    task: str
    shown: str
    seed: int

    @property
    def name(self) -> str:
        """The directory of the run."""
        return f"{self.task}-{self.shown}-{self.seed}"


def run(job: Job, out: Path, stories: Path) -> dict[str, Any]:
    """Make a run unless it is finished; return its record.

    Raises:
        CalledProcessError: if the run fails.
    """
    directory = out / job.name
    if not (directory / "results.json").exists():
        start = [one for one in start_of(job.task, out, stories) if not one.startswith("run.steps")]
        own = [f"run.steps={STEPS[job.task]}", f"run.seed={job.seed}", f"world.eval_seed={10 + job.seed}"]
        own += ["data.eval_examples=256", "data.eval_every=0"]
        method, more = SHOWN[job.shown]
        chosen = [*start, *own, *METHODS[method].settings, *more]
        subprocess.run(run_command(TEXT2GRAD, method, RECIPES[job.task], directory, chosen), check=True)
    (results,) = json.loads((directory / "results.json").read_bytes())["runs"].values()
    return {**job._asdict(), "after": {name: results["after"][name] for name in EVALUATED[job.task]}}


def main() -> None:
    """Make the runs, and write their records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(STEPS), action="append", help="default: both")
    parser.add_argument("--only", choices=tuple(SHOWN), action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=8, help="1 to N")
    parser.add_argument("--out", type=Path, default=Path("runs/final_values"), help="directory of the runs")
    parser.add_argument("--stories", type=Path, default=Path("../shared/models/stories260k"), help="the story teller")
    parser.add_argument(
        "--json", type=Path, default=Path("evidence/results/final_values.json"), help="file of the records"
    )
    args = parser.parse_args()
    jobs = [
        Job(task, shown, seed)
        for task in args.task or STEPS
        for seed in range(1, args.seeds + 1)
        for shown in args.only or SHOWN
    ]
    known: list[dict[str, Any]] = json.loads(args.json.read_bytes()) if args.json.exists() else []
    records = {Job(**{name: one[name] for name in Job._fields}): one for one in known}
    for job in jobs:
        records[job] = run(job, args.out, args.stories)
        write_atomically(args.json, to_json([records[one] for one in sorted(records)], indent=1) + b"\n")


if __name__ == "__main__":
    main()
