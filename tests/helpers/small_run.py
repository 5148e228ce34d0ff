"""A run small enough for any test: a Llama and a tokenizer made on the spot, and a critic whose calls are counted.

Run as a script it trains to the end, resuming where an earlier process was killed:

    python tests/helpers/small_run.py OUT [SECTION.KEY=VALUE ...]
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from text2grad.config.recipe import Recipe, make_recipe
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span

WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "bird", "runs", "sleeps", "eats"]
EXAMPLES = [Example(f"{a} {b}") for a in WORDS for b in WORDS]


class ColourCritic:
    """Mark colours as positive and numbers as negative; note every call in a file if one is given.

    A file "hold" beside that file has the number of calls after which the critic waits to be killed.
    """

    def __init__(self, calls: Path | None = None) -> None:
        self.calls = calls

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        if self.calls is not None:
            with self.calls.open("a") as file:
                file.write(json.dumps(list(responses)) + "\n")
            hold = self.calls.with_name("hold")
            while hold.exists() and self.calls.read_bytes().count(b"\n") > int(hold.read_text()):
                time.sleep(0.005)
        return [self.judge(response) for response in responses]

    def judge(self, response: str) -> Critique:
        spans, start = [], 0
        for word in response.split(" "):
            if word in WORDS[:3]:
                spans.append(Span(start, start + len(word), "positive"))
            if word in WORDS[3:6]:
                spans.append(Span(start, start + len(word), "negative"))
            start += len(word) + 1
        return Critique("Colours are welcome, numbers are not.", tuple(spans))


def tokenizer_and_model() -> tuple[Any, Any]:
    tokenizer = word_tokenizer([" ".join(WORDS), " " + " ".join(reversed(WORDS))])
    return tokenizer, tiny_llama(tokenizer, seed=1, width=32, context=64)


def critic_tokenizer() -> Any:
    """Return a tokenizer of all that a reward model reads and writes about these words."""
    from text2grad.reward_models.writing import SYMBOLS

    said = [*WORDS, *(f" {word}" for word in WORDS), "Colours are welcome, numbers are not.\n"]
    return word_tokenizer([" ".join(WORDS), *said], SYMBOLS)


def save_base(directory: Path) -> Any:
    """Write a base model of policies and reward models with its tokenizer; return the tokenizer."""
    tokenizer = critic_tokenizer()
    tiny_llama(tokenizer, seed=5, width=32, layers=1, context=64).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return tokenizer


def recipe(out: Path, **sections: dict[str, Any]) -> Recipe:
    base: dict[str, dict[str, Any]] = {
        "rollout": {"batch_size": 8, "max_new_tokens": 6},
        "ppo": {"epochs": 2, "minibatches": 2, "gamma": 0.5},
        "optim": {"lr": 3e-3, "value_lr": 1e-2},
        "run": {"steps": 4, "save_every": 2, "out": str(out), "threads": 1, "tracker": "none", "seed": 3},
    }
    return make_recipe({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


def trainer(out: Path, judge: Any = None, *, resume: bool = False, **sections: dict[str, Any]) -> Text2GradTrainer:
    tokenizer, model = tokenizer_and_model()
    settings = recipe(out, **sections)
    return Text2GradTrainer(
        model, judge or ColourCritic(), EXAMPLES, settings, processing_class=tokenizer, resume=resume
    )


def weights(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    return load_file(last / "trainable.safetensors")


def untimed(path: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("seconds/", "memory/", "tokens/"))} for line in lines]


def assert_same_run(run: Path, other: Path) -> None:
    first, second = weights(run), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert untimed(run / "metrics.jsonl") == untimed(other / "metrics.jsonl")
    logs = [sorted((directory / "rollouts").glob("*.jsonl")) for directory in (run, other)]
    assert [p.read_bytes() for p in logs[0]] == [p.read_bytes() for p in logs[1]]


def finish(command: Sequence[str], environment: Mapping[str, str], *, seconds: float = 240) -> None:
    """Run a command to its end; where it fails or hangs, show what it said and leave none of its processes behind."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **options) as process:
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, said = process.communicate()
            said += f"\nkilled after {seconds} seconds"
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}:\n{said[-4000:]}"


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    overrides: dict[str, dict[str, Any]] = {}
    for item in sys.argv[2:]:
        name, value = item.split("=", 1)
        section, key = name.split(".")
        overrides.setdefault(section, {})[key] = json.loads(value)
    trainer(
        directory, ColourCritic(directory.parent / "calls.jsonl"), resume=(directory / "run.json").exists(), **overrides
    ).train()
