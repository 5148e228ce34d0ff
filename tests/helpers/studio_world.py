"""Runs for the studio: records as a trainer writes them, with known numbers, and a session over them."""

import json
from pathlib import Path
from typing import Any

from text2grad_studio.session import Session
from text2grad_studio.sources import open_sources
from text2grad_studio.suggestions import Suggestions
from text2grad_studio.versions import Versions

WORDS = ("The", " cat", " sat", " on", " the", " mat", ".")


def record(
    step: int, row: int, *, prompt: str = "Say where.", response: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a record of seven tokens; the third has the reward −1 − step, "mat" is positive, "cat" is negative."""
    text = response or "".join(WORDS)
    lengths = [len(word) for word in WORDS]
    offsets = [[sum(lengths[:n]), sum(lengths[: n + 1])] for n in range(len(WORDS))]
    return {
        "step": step,
        "prompt": prompt,
        "response": text,
        "truncated": row == 1,
        "critique": {
            "feedback": "The cat is wrong.",
            "spans": [{"start": 4, "end": 7, "label": "negative"}, {"start": 19, "end": 22, "label": "positive"}],
            "outcome": None,
            "status": "ok",
            "unmatched": ["a dog"] if row == 2 else [],
        },
        "ids": list(range(len(WORDS))),
        "offsets": offsets,
        "delta": [0, -1, 0, 0, 0, 1, 0],
        "reward": [0, 0, -1.0 - step, 0, 0, 0, 0],
        "kl": [0.1] * 7,
        "value": [0.0] * 7,
        "advantage": [0, -2.0 - row, 0, 0, 0, 1, 0],
        **more,
    }


def write_run(directory: Path, *, steps: int = 3, rows: int = 4, name: str = "00000") -> Path:
    """Write the rollouts of a run."""
    (directory / "rollouts").mkdir(parents=True, exist_ok=True)
    append(
        directory, [record(step, row, prompt=f"Prompt {row}.") for step in range(steps) for row in range(rows)], name
    )
    return directory


def append(directory: Path, records: list[dict[str, Any]], name: str = "00000") -> None:
    """Append records to a file of a run."""
    with (directory / "rollouts" / f"{name}.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def session(
    store: Path,
    *paths: Path,
    read_only: bool = False,
    policy: dict[str, Any] | None = None,
    critics: dict[int, dict[str, str]] | None = None,
) -> Session:
    """Return a session whose indices are up to date."""
    made = Session(
        open_sources(paths, store),
        store,
        rater="ann",
        read_only=read_only,
        versions=Versions(store, policy),
        suggestions=Suggestions(critics or {}),
    )
    for index in made.indices:
        index.update()
    return made
