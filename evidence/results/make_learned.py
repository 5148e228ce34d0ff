"""How much of the program critic's gain does a learned reward model give? Runs → results/learned_reward.json.

    python evidence/results/make_learned.py LEARNED [LEARNED ...] [--called "altered answers"]

LEARNED is the directory of a run of evidence/recipes/smollm2-learned.toml, whose critic is the reward model that
`text2grad reward` made from the program's annotations. Beside it stands the run of Text2Grad with the same seed in
results/runs/smollm2.jsonl, whose critic is the program. Pairs of other seeds and forms, which the file already has, are
kept; `--called` keeps runs with other settings apart.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from evidence.pages.records import Record, read_runs
from text2grad.files import to_json, write_atomically
from text2grad.reward_models.format import saved_format

RESULTS = Path(__file__).parent
OUT = RESULTS / "learned_reward.json"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def program_of(seed: int, records: list[Record]) -> list[dict[str, float]]:
    """Return the metrics of the first and last evaluation of the program's run with a seed."""
    for one in records:
        if (one.study, one.method, one.purpose, one.seed) == ("smollm2", "text2grad_group", "evaluation", seed):
            return [dict(one.curve[place]["metrics"]) for place in (0, -1)]
    sys.exit(
        f"{RESULTS / 'runs'} has no evaluation of text2grad_group with seed {seed}: run evidence/recipes/smollm2.toml"
    )


def pair_of(learned: Path, records: list[Record], called: str) -> dict[str, Any]:
    """Return the figures of one seed; `called` stands behind the form in its name."""
    recipe = json.loads((learned / "run.json").read_bytes())["recipe"]
    start, by_program = program_of(recipe["run"]["seed"], records)
    writes = saved_format(recipe["critic"]["model"])
    parts = [
        f"`{writes.form}`",
        *([] if writes.write_feedback else ["without words"]),
        *([called] if called else []),
    ]
    last, steps = max((learned / "evaluations").glob("*.json")), recipe["run"]["steps"]
    if int(last.stem) < steps:
        sys.exit(f"{learned} is not finished: {steps} steps, last evaluation after {int(last.stem)}; resume it first")
    audits = [
        {name.removeprefix("audit/"): value for name, value in line.items() if name.startswith("audit/")}
        for line in lines_of(learned / "metrics.jsonl")
    ]
    return {
        "seed": recipe["run"]["seed"],
        "form": ", ".join(parts),
        "dtype": recipe["model"]["dtype"],
        "start": start,
        "program": by_program,
        "learned": json.loads(last.read_bytes())["metrics"],
        "annotations": len(lines_of(Path(recipe["refresh"]["replay_from"]))),
        "refreshes": recipe["refresh"]["steps"],
        "audits": audits,
    }


def main() -> None:
    """Write the figures of all pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("learned", type=Path, nargs="+")
    parser.add_argument("--called", default="", help="further words in the name of the results")
    options = parser.parse_args()
    records = read_runs(RESULTS / "runs")
    known = json.loads(OUT.read_bytes()) if OUT.exists() else []
    pairs = {
        (one["form"], one["seed"]): one
        for one in [*known, *(pair_of(run, records, options.called) for run in options.learned)]
    }
    write_atomically(OUT, to_json([pairs[key] for key in sorted(pairs)], indent=2))


if __name__ == "__main__":
    main()
