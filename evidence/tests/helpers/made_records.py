"""Records of runs that nobody made: curves that rise to a method's value, with noise of seeds and of items."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from evidence.pages.records import Record

VALUES = {
    "text2grad": 0.93,
    "scalar_ppo": 0.80,
    "grpo": 0.88,
    "scalar_reward_model": 0.65,
    "gamma_1": 0.90,
    "linear_decay": 0.86,
}
"""Method → mean final value; all start at 0.5."""


def record(method: str = "text2grad", seed: int = 0, **fields: Any) -> Record:
    """Return a record: steps 0, 5, ... 60 of 64 rollouts, 40 held-out items, any field replaced by `fields`."""
    value, items = fields.pop("value", VALUES.get(method, 0.8)), fields.pop("count", 40)
    rng = np.random.default_rng([seed, sum(map(ord, method))])
    shared = np.random.default_rng([seed, 999])  # items and seeds that are difficult for every method
    difficulty = shared.normal(0, 0.15, items)
    at_end = value + shared.normal(0, 0.02) + rng.normal(0, 0.01)
    speed = fields.pop("speed", 4 if method.startswith("text2grad") else 2)
    kl = fields.pop("kl", 0.3)
    curve: list[Mapping[str, Any]] = []
    for step in range(0, 61, 5):
        done = 1 - np.exp(-speed * step / 60)
        now = 0.5 + (at_end - 0.5) * done / (1 - np.exp(-speed)) + (rng.normal(0, 0.01) if 0 < step < 60 else 0)
        curve.append(
            {
                "step": step,
                "rollouts": step * 64,
                "tokens": step * 64 * 20,
                "seconds": step * 2.5,
                "value": float(now),
                "kl_per_token": kl * step / 60,
                "metrics": {"mean_tokens": 8.0 * max(1, fields.get("length", 8))},
            }
        )
    found = {
        "study": "made",
        "task": "summarization",
        "length": 8,
        "faults": 1.0,
        "critic": "program",
        "method": method,
        "purpose": "evaluation",
        "trial": None,
        "seed": seed,
        "eval_seed": 100 + seed,
        "settings": {"optim.lr": 0.001},
        "recipe": "r",
        "steps": 60,
        "rollouts": 3840,
        "tokens": 76800,
        "seconds": 150.0,
        "start": f"start-{seed}",
        "machine": {"cpu": "c", "threads": 1, "torch": "2"},
        "version": "0",
        "metric": "fact_f1",
        "curve": curve,
        "items": list(map(float, at_end + difficulty - difficulty.mean() + rng.normal(0, 0.05, items))),
        "items_at_start": list(map(float, 0.5 + difficulty - difficulty.mean())),
        "diagnostics": {},
    }
    return Record(**{**found, **fields})


def trials(method: str, values: Sequence[float], **fields: Any) -> list[Record]:
    """Return records of tuning: trial n has the learning rate (n + 1) / 1000 and ends at `values[n]`."""
    return [
        record(
            method,
            seed=50,
            purpose="tuning",
            trial=number,
            settings={"optim.lr": (number + 1) / 1000},
            curve=[{"step": 60, "rollouts": 3840, "tokens": 1, "seconds": 1, "value": value, "kl_per_token": 0.1}],
            **fields,
        )
        for number, value in enumerate(values)
    ]


def study(
    methods: Mapping[str, float] = VALUES, *, seeds: int = 5, lengths: Sequence[int] = (8,), **fields: Any
) -> list[Record]:
    """Return evaluations of methods at some lengths; with the length numbers fall behind spans."""
    found = []
    for length in lengths:
        for method, value in methods.items():
            lost = 0.0 if method == "text2grad" else 0.02 * np.log2(max(length, 1))
            found += [record(method, seed, value=value - lost, **{"length": length, **fields}) for seed in range(seeds)]
    return found


def write(directory: Path, records: Sequence[Record], name: str = "made") -> Path:
    """Write records as a study's file; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.jsonl").write_text("".join(json.dumps(asdict(one)) + "\n" for one in records), "utf-8")
    return directory
