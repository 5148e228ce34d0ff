"""Seconds that a training step waits for a slow critic, asked meanwhile (its attribute `overlap`) or afterwards.

    python benchmarks/slow_critic.py --json evidence/results/slow_critic.json

Setting: a Llama of 256 × 4 with random weights, 64 responses of 64 tokens to prompts of 64 tokens, four parts of 16.
The critic sleeps for its latency in each call, however many responses the call has, as a server with enough capacity
does. "work" is the time of a step without the critic's latency; "waited" is the time that the latency adds, the mean of
the steps, with both ways in turn.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SEQUENCE, ROWS, PART = 64, 64, 16
LATENCIES = (0.5, 1.0, 2.0, 5.0)


class Sleeping:
    """A critic with a latency that says nothing."""

    def __init__(self, latency: float) -> None:
        """Take the seconds of one call."""
        self.latency = latency

    def __call__(self, examples: Sequence[Any], responses: Sequence[str]) -> list[Any]:
        """Return empty critiques after the latency."""
        from text2grad.types import Critique

        time.sleep(self.latency)
        return [Critique("")] * len(responses)


def trainer(directory: Path, critic: Any, *, overlap: int, width: int) -> Any:
    """Return a trainer of the setting."""
    from text2grad import Example, Text2GradTrainer, make_recipe
    from text2grad.tasks.tiny import tiny_llama, word_tokenizer

    words = [f"w{number}" for number in range(500)]
    tokenizer = word_tokenizer([" ".join(words), " " + " ".join(words)])
    prompt = " ".join(words[:SEQUENCE])
    recipe = make_recipe(
        {
            "rollout": {"batch_size": ROWS, "max_new_tokens": SEQUENCE, "rows_at_once": PART},
            "ppo": {"epochs": 1, "minibatches": 2},
            "run": {"steps": 100, "out": str(directory), "threads": 1, "tracker": "none"},
        }
    )
    critic.overlap = overlap
    model = tiny_llama(tokenizer, seed=0, width=width, layers=4, context=2 * SEQUENCE)
    return Text2GradTrainer(model, critic, [Example(prompt)], recipe, processing_class=tokenizer)


def measure(latency: float, *, steps: int, width: int) -> dict[str, float]:
    """Return the seconds of a step with both ways, and without the latency."""
    with tempfile.TemporaryDirectory() as scratch:
        ways = {
            name: trainer(Path(scratch) / name, Sleeping(seconds), overlap=overlap, width=width)
            for name, seconds, overlap in (("work", 0.0, 0), ("afterwards", latency, 0), ("meanwhile", latency, 4))
        }
        for run in ways.values():
            run.train_step()
        seconds = dict.fromkeys(ways, 0.0)
        for _ in range(steps):
            for name, run in ways.items():
                start = time.perf_counter()
                metrics = run.train_step()
                seconds[name] += (time.perf_counter() - start) / steps
        meanwhile = metrics["seconds/rollout"] + metrics["seconds/score"]
    waited = {name: seconds[name] - seconds["work"] for name in ("afterwards", "meanwhile")}
    return {
        "latency": latency,
        "work": round(seconds["work"], 3),
        "sampled_and_scored": round(meanwhile, 3),
        **{f"waited_{name}": round(value, 3) for name, value in waited.items()},
    }


def main() -> None:
    """Measure each latency and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--json", type=Path, help="file of the results")
    add("--steps", type=int, default=3)
    add("--width", type=int, default=256)
    add("--latencies", type=float, nargs="+", default=list(LATENCIES))
    options = parser.parse_args()
    found = [measure(latency, steps=options.steps, width=options.width) for latency in options.latencies]
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
