"""What SmolLM2 stops writing when a prose linter and a house style judge it (recipes/smollm2-prose.toml).

    text2grad import ultrafeedback ../shared/data/ultrafeedback_binarized/train.jsonl --out data/prose.jsonl
    python benchmarks/prose_style.py --seeds 0 1 2

Trains the recipe once per seed, and compares the answers to the held-out prompts before and after. A mark is a negative
span of the critic; answers are sampled once. Intervals: bootstrap over prompts. Every seed goes on where it was
stopped. Writes docs/results/prose.json.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.config import load_recipe
from text2grad.evaluation.intervals import Ratio, Statistic, differences, estimate
from text2grad.experiments.reports.run_report import before_and_after
from text2grad.files import to_json, write_atomically

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "smollm2-prose.toml"
FIGURES: dict[str, Statistic] = {
    "answers with a mark": Ratio(("with_a_mark",), ("answers",)),
    "marks per 100 words": Ratio(("marks",) * 100, ("words",)),
    "words per answer": Ratio(("words",), ("answers",)),
}
SHOWN = ("distinct_2", "reference_perplexity", "truncated_share", "kl_per_token")
LONGEST = 40  # characters of a marked phrase; a longer one is counted under its beginning


def marked(record: Mapping[str, Any]) -> list[str]:
    """Return the marked phrases of an answer, in small letters."""
    spans = [span for span in record["critique"]["spans"] if span["label"] == "negative"]
    return [" ".join(record["response"][span["start"] : span["end"]].lower().split())[:LONGEST] for span in spans]


def counts(record: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of `FIGURES` of an answer."""
    marks, words = len(marked(record)), len(re.findall(r"\w+", record["response"]))
    return Counter(answers=1, with_a_mark=min(marks, 1), marks=marks, words=words)


def trained(out: Path, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the evaluations before and after the training with a seed, which is made or finished first."""
    if not (out / "report.html").exists():
        words = ["train", RECIPE, "--set", f"run.seed={seed}", "--out", out]
        again = ["--resume"] if (out / "run.json").exists() else []
        command = [sys.executable, "-m", "text2grad.cli", *map(str, [*words, *again])]
        if code := subprocess.run(command, check=False).returncode:
            sys.exit(code)
    files = sorted((out / "evaluations").glob("*.json"))
    first, last = (json.loads(files[place].read_bytes()) for place in (0, -1))
    return first, last


def main() -> None:
    """Train every seed that is missing, and write the results of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/prose"))
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "prose.json")
    options = parser.parse_args()
    of_prompts: dict[str, dict[str, Counter[str]]] = {name: defaultdict(Counter) for name in ("before", "after")}
    phrases: dict[str, Counter[str]] = {"before": Counter(), "after": Counter()}
    seeds = []
    for seed in options.seeds:
        out = options.work / f"seed-{seed}"
        first, last = trained(out, seed)
        own: dict[str, list[Counter[str]]] = {"before": [], "after": []}
        for pair in before_and_after(first, last):
            for name, record in zip(own, (pair, pair["beside"][0]), strict=True):
                own[name].append(counts(record))
                of_prompts[name][record["prompt"]] += own[name][-1]
                phrases[name].update(marked(record))
        steps = map(json.loads, (out / "metrics.jsonl").read_bytes().splitlines())
        seconds = sum(value for step in steps for key, value in step.items() if key.startswith("seconds/"))
        seeds.append(
            {
                "seed": seed,
                "minutes": seconds / 60,
                **{
                    name: {key: one.value for key, one in estimate(rows, FIGURES).items()} for name, rows in own.items()
                },
                "metrics": {
                    name: {key: found["metrics"][key] for key in SHOWN if key in found["metrics"]}
                    for name, found in (("before", first), ("after", last))
                },
            }
        )
    order = sorted(of_prompts["before"])
    tables = {name: [dict(of_prompt[prompt]) for prompt in order] for name, of_prompt in of_prompts.items()}
    recipe = load_recipe(RECIPE)
    result = {
        "steps": recipe.run.steps,
        "responses": recipe.run.steps * recipe.rollout.batch_size,
        "answers": sum(row["answers"] for row in tables["before"]),
        "prompts": len(order),
        "figures": {
            name: {key: one._asdict() for key, one in estimate(rows, FIGURES).items()} for name, rows in tables.items()
        },
        "fewer": {key: one._asdict() for key, one in differences(tables["before"], tables["after"], FIGURES).items()},
        "metrics": {
            name: {key: fmean(one["metrics"][name][key] for one in seeds) for key in seeds[0]["metrics"][name]}
            for name in tables
        },
        "phrases": [
            [phrase, number, phrases["after"][phrase]]
            for phrase, number in (phrases["before"] | phrases["after"]).most_common()
        ],
        "seeds": seeds,
    }
    print(json.dumps(result, indent=1))
    write_atomically(options.json, to_json(result, indent=1) + b"\n")


if __name__ == "__main__":
    main()
