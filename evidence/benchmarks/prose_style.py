"""What SmolLM2 stops writing when a prose linter and a house style judge it (evidence/recipes/smollm2-prose.toml).

    python evidence/benchmarks/prose_style.py --seeds 0 1 2

The prompts are those of evidence/results/prose.md, in data/prose.jsonl. Trains the recipe once per seed, samples
`--answers` answers to each held-out prompt from the untouched model and from the policy, and asks the recipe's critic.
A mark is a negative span. Intervals: bootstrap over prompts. Every seed goes on where it was stopped.
Writes evidence/results/prose.json.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.config import Recipe, latest_checkpoint, load_recipe
from text2grad.evaluation.intervals import Ratio, Statistic, estimate
from text2grad.feedback import ask, load_callable
from text2grad.files import to_json, write_atomically
from text2grad.rl.run_log import RunLog
from text2grad.runs import run_examples
from text2grad.runs.evaluate_policy import PolicySampler
from text2grad.types import Critique, Example

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "evidence" / "recipes" / "smollm2-prose.toml"
FIGURES: dict[str, Statistic] = {
    "answers with a mark": Ratio(("with_a_mark",), ("answers",)),
    "marks per 100 words": Ratio(("marks",) * 100, ("words",)),
    "words per answer": Ratio(("words",), ("answers",)),
}
SHOWN = ("distinct_2", "reference_perplexity", "truncated_share", "kl_per_token")
LONGEST = 40  # characters of a marked phrase; a longer one is counted under its beginning


def marked(response: str, critique: Critique) -> list[str]:
    """Return the marked phrases of an answer, in small letters."""
    spans = [span for span in critique.spans if span.label == "negative"]
    return [" ".join(response[span.start : span.end].lower().split())[:LONGEST] for span in spans]


def trained(out: Path, seed: int, steps: int) -> list[dict[str, Any]]:
    """Return the evaluations before and after the training with a seed, which is made or finished first."""
    last = out / "evaluations" / f"{steps:06d}.json"
    if not last.exists():
        words = ["train", RECIPE, "--set", f"run.seed={seed}", "--set", "run.threads=1", "--out", out]
        again = ["--resume"] if (out / "run.json").exists() else []
        command = [sys.executable, "-m", "evidence", *map(str, [*words, *again])]
        if code := subprocess.run(command, check=False).returncode:
            sys.exit(code)
    return [json.loads(path.read_bytes()) for path in (last.with_name("000000.json"), last)]


def answers_of(recipe: Recipe, path: str, examples: Sequence[Example], store: Path, seed: int) -> list[str]:
    """Return answers of a model, sampled as in the recipe's rollouts; they are kept."""
    if not store.exists():
        rollouts = PolicySampler(recipe, path)(examples, seed=seed)
        write_atomically(store, to_json([one.response for one in rollouts]))
    return list(json.loads(store.read_bytes()))


def main() -> None:
    """Train every seed that is missing, and write the results of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--answers", type=int, default=4, help="to each held-out prompt")
    parser.add_argument("--work", type=Path, default=Path("runs/prose"))
    parser.add_argument("--json", type=Path, default=ROOT / "evidence" / "results" / "prose.json")
    options = parser.parse_args()
    recipe = load_recipe(RECIPE)
    critic = load_callable(recipe.critic.use, "critic")
    of_prompts: dict[str, dict[str, Counter[str]]] = {name: defaultdict(Counter) for name in ("before", "after")}
    phrases: dict[str, Counter[str]] = {"before": Counter(), "after": Counter()}
    seeds = []
    for seed in options.seeds:
        out = options.work / f"seed-{seed}"
        first, last = trained(out, seed, recipe.run.steps)
        of_run = load_recipe(RECIPE, [f"run.seed={seed}"])
        examples = [
            one for one in run_examples(of_run).held_out[: recipe.data.eval_examples] for _ in range(options.answers)
        ]
        own: dict[str, list[Counter[str]]] = {}
        checkpoint = latest_checkpoint(out / "checkpoints")
        for name, path in (("before", recipe.model.path), ("after", f"{checkpoint}/policy")):
            written = answers_of(of_run, path, examples, out / f"{name}.json", seed)
            own[name] = []
            for example, response, critique in zip(
                examples, written, ask(critic, examples, written, match="exact"), strict=True
            ):
                marks = marked(response, critique)
                words = len(re.findall(r"\w+", response))
                own[name].append(Counter(answers=1, with_a_mark=min(len(marks), 1), marks=len(marks), words=words))
                of_prompts[name][example.prompt_text] += own[name][-1]
                phrases[name].update(marks)
        steps = RunLog(out).metrics()
        seconds = sum(value for step in steps for key, value in step.items() if key.startswith("seconds/"))
        seeds.append(
            {
                "seed": seed,
                "minutes": seconds / 60,
                **{
                    name: {key: one.value for key, one in estimate(rows, FIGURES).items()} for name, rows in own.items()
                },
                "metrics": {
                    name: {key: found["metrics"][key] for key in SHOWN}
                    for name, found in (("before", first), ("after", last))
                },
            }
        )
    order = sorted(of_prompts["before"])
    tables = {name: [dict(of_prompt[prompt]) for prompt in order] for name, of_prompt in of_prompts.items()}
    result = {
        "steps": recipe.run.steps,
        "responses": recipe.run.steps * recipe.rollout.batch_size,
        "answers": sum(row["answers"] for row in tables["before"]),
        "prompts": len(order),
        "figures": {
            name: {key: one._asdict() for key, one in estimate(rows, FIGURES).items()} for name, rows in tables.items()
        },
        "fewer": {
            key: one._asdict() for key, one in estimate(tables["before"], FIGURES, minus=tables["after"]).items()
        },
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
