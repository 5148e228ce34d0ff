"""How often `text2grad why` names the critique that praised a phrase, and how much of the change its shares explain.

    python evidence/benchmarks/why.py --model models/stories260k --trials 100 --json evidence/results/why.json

Each trial trains ten steps of 32 responses. Every critique likes or dislikes two words at a random place; one critique
among the 320, in the first half of the run, also praises three words that no response before it had. `why` is asked
about these words. A seed whose words a later response has, too, is left out: other critiques may be about them there.
After an interruption the trials go on where --json ends.
"""

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.config import load_recipe
from text2grad.files import to_json, write_atomically
from text2grad.rl import RunLog
from text2grad.runs.attribution import explain
from text2grad.runs.recipe_run import run_recipe
from text2grad.types import Critique, Example, Label, Span

STEPS, BATCH = 10, 32
OPENINGS = ("One day, {}", "Once upon a time, {}", "{} had a", "In the park, {}")
NAMES = ("Lily", "Tom", "Ben", "Mia", "Sam", "Anna", "Max", "Sue")
SETTINGS = (
    'critic.use="evidence.benchmarks.why:critic"',
    f"rollout.batch_size={BATCH}",
    "rollout.max_new_tokens=32",
    f"run.steps={STEPS}",
    f"run.save_every={STEPS}",
    "run.threads=1",
    'run.tracker="none"',
    'model.value="none"',
    "ppo.beta=0.02",
    "optim.lr=3e-4",
)


class Planted:
    """Marks two words of each response at random, and three more of one of them."""

    rng, asked, at, phrase, seen = random.Random(0), 0, 0, "", ""

    @classmethod
    def begin(cls, seed: int) -> None:
        """Choose the response of the praise."""
        cls.rng, cls.asked, cls.phrase, cls.seen = random.Random(f"why {seed}"), 0, "", ""
        cls.at = cls.rng.randrange(BATCH * STEPS // 2)

    @classmethod
    def judge(cls, response: str) -> Critique:
        """Return the critique of the next response."""
        words, spans = list(re.finditer(r"\S+", response)), list[Span]()
        if len(words) >= 8:
            first = cls.rng.randrange(len(words) - 1)
            label: Label = cls.rng.choice(("positive", "negative"))
            spans.append(Span(words[first].start(), words[first + 1].end(), label))
        feedback = "A word or two."
        if cls.asked >= cls.at and not cls.phrase:
            places = [(words[i].start(), words[i + 2].end()) for i in range(1, len(words) - 2)]
            new = [place for place in places if response[slice(*place)] not in cls.seen]
            if new:
                place = cls.rng.choice(new)
                cls.phrase, feedback = response[slice(*place)], "Planted."
                spans = [*(span for span in spans if span.label == "positive"), Span(*place, "positive")]
        cls.asked, cls.seen = cls.asked + 1, f"{cls.seen}\0{response}"
        return Critique(feedback, tuple(sorted(set(spans))))


def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    """Judge responses."""
    return [Planted.judge(response) for response in responses]


def trial(model: str, seed: int) -> dict[str, Any]:
    """Train with a planted critique, and ask why its phrase became likelier; not if other responses have it, too."""
    Planted.begin(seed)
    with tempfile.TemporaryDirectory() as scratch:
        prompts, out = Path(scratch, "prompts.jsonl"), Path(scratch, "run")
        texts = [opening.format(name) for opening in OPENINGS for name in NAMES]
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        named = {"model.path": model, "data.train": str(prompts), "run.out": str(out)}
        run_recipe(
            load_recipe(None, [*SETTINGS, *(f"{n}={json.dumps(v)}" for n, v in named.items()), f"run.seed={seed}"])
        )
        recorded = (record["response"] for _, records in RunLog(out).rollouts(since=0) for record in records)
        if sum(Planted.phrase in response for response in recorded) > 1:
            return {"seed": seed, "phrase": Planted.phrase, "left_out": True}
        explained = explain(out, Planted.phrase)
    names = [share.record["critique"]["feedback"] for share in explained.shares]
    return {
        "seed": seed,
        "phrase": Planted.phrase,
        "rank": names.index("Planted.") + 1,
        "change": round(explained.after - explained.before, 4),
        "explained": round(explained.explained, 4),
    }


def main() -> None:
    """Run the trials that --json lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    trials = json.loads(args.json.read_bytes())["trials"] if args.json.exists() else []
    while sum("rank" in each for each in trials) < args.trials:
        trials.append(trial(args.model, len(trials)))
        asked = [each for each in trials if "rank" in each]
        explained = sorted(each["explained"] for each in asked) or [0.0]
        figures = {"first": sum(each["rank"] == 1 for each in asked), "of": len(asked)}
        figures |= {"left_out": len(trials) - len(asked), "explained_median": explained[len(explained) // 2]}
        figures |= {"explained_least": explained[0], "explained_most": explained[-1]}
        write_atomically(args.json, to_json({**figures, "trials": trials}) + b"\n")
        sys.stdout.write(f"{json.dumps(trials[-1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    from evidence.benchmarks import why  # the module that the recipe's critic is in

    why.main()
