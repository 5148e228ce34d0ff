"""Words that say where, a self-teacher that says how much, and one number: five ways to credit tokens, compared.

    python evidence/benchmarks/credit.py --model models/smollm2 --data data/grounded --out runs/credit

SmolLM2-135M-Instruct answers questions from passages (evidence/recipes/smollm2-grounded.toml); the critic is the
program that asks for an answer (evidence/tasks/grounded/answering.py). `METHODS` of the same 12 steps of 16 responses:

    spans         Text2Grad
    gated         ppo.credit = "gated": the self-teacher says how much, where spans are
    self_teacher  ppo.credit = "self_teacher": SDPO with the critiques of the samples
    grpo          one number for each response, over its group
    unlikely      a control that reads no critique (arXiv 2608.31046): the advantage of a sampled token is -1 if the
                  policy gave it less than `UNLIKELY`, else 0

Each has two trials, at the rates of `RATES`, on prompts that no other run sees; the one with the higher F1 against the
gold answer is taken for three seeds and 101 held-out prompts. A run takes minutes, and its record is written when it
ends, as evidence/results/credit/METHOD-RATE-SEED.json: a chain that was stopped goes on with the first that is missing.
`--table` prints the mean over seeds of each figure, and its difference from the first of `METHODS`, with intervals over
prompts.
"""

import argparse
import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from evidence.benchmarks.grounded_answers import FIGURES, counts
from evidence.lessons.helpfulness import POSTS, Policy
from evidence.plans.methods import GRPO, ONE_NUMBER
from evidence.tasks import register
from text2grad.config import load_recipe
from text2grad.costs import peak_memory
from text2grad.evaluation import Ratio, estimate
from text2grad.files import to_json, write_atomically
from text2grad.rl import Text2GradTrainer
from text2grad.runs import run_recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "evidence" / "recipes" / "smollm2-grounded.toml"
RECORDS = ROOT / "evidence" / "results" / "credit"
POSTS_FILE = ROOT.parent / "shared" / "data" / "slf5k_slice" / "posts_ideal.jsonl"
UNLIKELY = 0.1  # probability
RATES = ("3e-4", "9e-4")
SEEDS = (0, 1, 2)
TUNING = 7  # seed of the trials
STEPS = 12
SHARED = (
    "critic.use=evidence.tasks.grounded.answering:critic",
    "reward.positive=1.0",
    "reward.negative=-0.5",
    "reward.truncated=-2.0",
    "ppo.epochs=2",
    f"run.steps={STEPS}",
    f"data.eval_every={STEPS}",
    "run.threads=1",
)
SHOWN = FIGURES | {"distinct pairs": Ratio(("different",), ("pairs",), share=True)}
METHODS: dict[str, tuple[str, ...]] = {
    "spans": (),
    "gated": ("ppo.credit=gated",),
    "self_teacher": ("ppo.credit=self_teacher",),
    "grpo": (*ONE_NUMBER, *GRPO),
    "unlikely": (),
}


class UnlikelyTokens(Text2GradTrainer):
    """The control: the same steps, in which an advantage knows the policy's probability alone."""

    def advantages(self, rewards: Any, scores: Any, batch: Any, taught: Any) -> Any:
        """Return -1 for each sampled token of which the policy was unsure."""
        given = super().advantages(rewards, scores, batch, taught)
        unsure = batch.response_mask & (scores.logp.exp() < UNLIKELY)
        return given._replace(advantages=-unsure.to(rewards))


def trained(method: str, rate: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one policy, and return its record."""
    tuning = seed == TUNING
    out, data = args.out / f"{method}-{rate}-{seed}", args.data
    files = ("tune_train", "tune_held_out") if tuning else ("train", "held_out")
    settings = (
        *SHARED,
        *METHODS[method],
        f"model.path={args.model}",
        f"optim.lr={rate}",
        f"run.seed={seed}",
        f"run.out={out}",
        *(f"data.{name}={data / file}.jsonl" for name, file in zip(("train", "held_out"), files, strict=True)),
    )
    recipe = load_recipe(RECIPE, settings)
    trainer = UnlikelyTokens if method == "unlikely" else Text2GradTrainer
    began = time.process_time()
    policy = run_recipe(recipe, resume=(out / "run.json").exists(), trainer_class=trainer)
    ends = sorted((out / "evaluations").glob("*.json"))
    record: dict[str, Any] = {"method": method, "rate": rate, "seed": seed, "settings": settings}
    record["rows"] = {
        name: [{"prompt": prompt, **row, **pairs[prompt]} for prompt, row in counts(file).items()]
        for name, file in (("before", ends[0]), ("after", ends[-1]))
        for pairs in [distinct(file)]
    }
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    record["kl_per_token"] = metrics[-1]["kl/per_token"]
    posts = [json.loads(line)["post"] for line in POSTS_FILE.read_text("utf-8").splitlines()][:50]
    record["posts"] = Policy(str(policy), str(args.model), dtype="float32").read(posts)
    return record | {"processor_s": round(time.process_time() - began, 1), "peak_gb": round(peak_memory() / 1e9, 2)}


def distinct(evaluation: Path) -> dict[str, dict[str, int]]:
    """Return, for each prompt, the neighbouring pairs of words in its answer, and how many of them are different."""
    pairs = dict[str, dict[str, int]]()
    for response in json.loads(evaluation.read_bytes())["responses"]:
        words = str(response["response"]).lower().split()
        said = list(pairwise(words))
        pairs[str(response["prompt"])] = {"pairs": len(said), "different": len(set(said))}
    return pairs


def split(data: Path) -> None:
    """Write the prompts of the trials: the last 101 of those to train on are held out from the others."""
    lines = (data / "train.jsonl").read_bytes().splitlines(keepends=True)
    for name, part in (("tune_train", lines[:-101]), ("tune_held_out", lines[-101:])):
        write_atomically(data / f"{name}.jsonl", b"".join(part))


def f1(record: dict[str, Any]) -> float:
    """Return the mean F1 after the steps."""
    rows = record["rows"]["after"]
    return float(sum(row["f1"] for row in rows) / len(rows))


def taken(method: str) -> str:
    """Return the rate of a method whose trial had the higher F1."""
    return max(RATES, key=lambda rate: f1(json.loads((RECORDS / f"{method}-{rate}-{TUNING}.json").read_bytes())))


def main() -> None:
    """Make the runs whose records are missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2")
    parser.add_argument("--data", type=Path, default=Path("data/grounded"))
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    parser.add_argument("--table", action="store_true", help="print the table of the records that are there")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    torch.set_num_threads(1)
    register()
    split(args.data)
    plan = [(method, rate, TUNING) for rate in RATES for method in METHODS]
    plan += [(method, "", seed) for seed in SEEDS for method in METHODS]
    for method, rate, seed in plan:
        rate = rate or taken(method)
        path = RECORDS / f"{method}-{rate}-{seed}.json"
        if not path.exists():
            print(f"{method} at {rate}, seed {seed}", flush=True)
            write_atomically(path, to_json(trained(method, rate, seed, args)))


def table() -> str:
    """Return figures of each method over its seeds, and differences from Text2Grad, with intervals over prompts."""
    lines = ["| method | rate | seeds | figure | value | difference |", "|---|---|---|---|---|---|"]
    first: list[Counter[str]] | None = None
    for method in METHODS:
        files = [path for seed in SEEDS for path in sorted(RECORDS.glob(f"{method}-*-{seed}.json"))]
        records = [json.loads(path.read_bytes()) for path in files]
        for side in ("before", "after") if method == "spans" and records else ("after",) if records else ():
            by_prompt = dict[str, Counter[str]]()
            for row in (row for record in records for row in record["rows"][side]):
                by_prompt.setdefault(row["prompt"], Counter()).update({k: row[k] for k in row if k != "prompt"})
            rows = [by_prompt[prompt] for prompt in sorted(by_prompt)]
            values = estimate(rows, SHOWN)
            apart = {} if first is None else estimate(rows, SHOWN, minus=first)
            name = f"{method} | {records[0]['rate']} | {len(records)}" if side == "after" else "start | |"
            for figure, value in values.items():
                lines.append(f"| {name} | {figure} | {_told(value)} | {_told(apart.get(figure))} |")
            first = first or (rows if side == "after" else None)
        nats = [record["kl_per_token"] for record in records]
        posts = [estimate(record["posts"], POSTS, draws=0)["perplexity"].value for record in records]
        lines += [f"| {method} | | {len(records)} | KL per token | {sum(nats) / len(nats):.3f} | |"] if records else []
        lines += [f"| {method} | | {len(records)} | perplexity | {sum(posts) / len(posts):.2f} | |"] if records else []
    return "\n".join(lines)


def _told(value: Any) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})" if value else ""


if __name__ == "__main__":
    main()
