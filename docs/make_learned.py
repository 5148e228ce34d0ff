"""How much of the program critic's gain does a learned reward model give? Pairs of runs → results/learned_reward.json.

    python docs/make_learned.py PROGRAM LEARNED [PROGRAM LEARNED ...]

Each pair is of one seed: a run of recipes/smollm2-grounded.toml in bfloat16, whose critic is the program, and a run of
recipes/smollm2-learned.toml, whose critic is the reward model that `text2grad reward` made from its annotations.
"""

import json
import sys
from pathlib import Path
from typing import Any

from text2grad.files import to_json

OUT = Path(__file__).parent / "results" / "learned_reward.json"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def metrics_of(run: Path) -> list[dict[str, float]]:
    """Return the metrics of a run's first and last evaluation."""
    files = sorted((run / "evaluations").glob("*.json"))
    return [json.loads(files[place].read_bytes())["metrics"] for place in (0, -1)]


def pair_of(program: Path, learned: Path) -> dict[str, Any]:
    """Return the figures of one seed."""
    recipe = json.loads((learned / "run.json").read_bytes())["recipe"]
    (start, by_program), (_, by_learned) = metrics_of(program), metrics_of(learned)
    audits = [
        {name.removeprefix("audit/"): value for name, value in line.items() if name.startswith("audit/")}
        for line in lines_of(learned / "metrics.jsonl")
    ]
    return {
        "seed": recipe["run"]["seed"],
        "start": start,
        "program": by_program,
        "learned": by_learned,
        "annotations": len(lines_of(Path(recipe["refresh"]["replay_from"]))),
        "refreshes": recipe["refresh"]["steps"],
        "audits": audits,
    }


def main() -> None:
    """Write the figures of all pairs."""
    runs = list(map(Path, sys.argv[1:]))
    if not runs or len(runs) % 2:
        sys.exit(__doc__)
    OUT.write_bytes(to_json([pair_of(*pair) for pair in zip(runs[::2], runs[1::2], strict=True)], indent=2))


if __name__ == "__main__":
    main()
