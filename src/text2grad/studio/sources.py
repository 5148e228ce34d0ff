"""Runs and files that a person names → JSONL files of records, one response per line.

A run of `text2grad train` is its `rollouts/*.jsonl`. A file holds responses with or without critiques: the annotations
of `text2grad annotate` and `text2grad import`, predictions of `text2grad evaluate-reward`, or any JSONL with "prompt"
and "response" (or "completion", as TRL names it). An output directory of TRL's GRPO with `log_completions=True` holds
`completions/*.parquet`; each file becomes JSONL in the studio's directory when it is first seen.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError, require
from text2grad.files import json_lines, write_files
from text2grad.types import Example

PER_TOKEN = ("delta", "reward", "value", "advantage", "kl", "logp", "logp_after", "change")
"""Numbers per token that a record may have; "change" is `logp_after` − `logp`."""


class Source(NamedTuple):
    """A run or a file.

    Attributes:
        name: shown on the page, unique in a session.
        path: as given, resolved.
        is_run: True for the directory of a run.
        converted: where JSONL of Parquet files goes; None for a source without them.
    """

    name: str
    path: Path
    is_run: bool
    converted: Path | None = None

    def files(self) -> list[Path]:
        """Return the files of records that exist now, in order.

        Raises:
            DataError: if a Parquet file cannot be read.
            ConfigError: if pyarrow is missing.
        """
        if self.converted is not None:
            return [_as_jsonl(path, self.converted) for path in sorted((self.path / "completions").glob("*.parquet"))]
        return sorted((self.path / "rollouts").glob("*.jsonl")) if self.is_run else [self.path]


def open_sources(paths: Sequence[Path], store: Path) -> list[Source]:
    """Return the sources of a session, each with a name of its own.

    Args:
        paths: directories and files.
        store: directory of the studio.

    Raises:
        DataError: if a path holds no rollouts.
    """
    found: list[Source] = []
    for path in paths:
        whole = path.resolve()
        is_run = whole.is_dir()
        if not whole.exists():
            raise DataError(f"{path} does not exist. Name the directory of a run (run.out), or a JSONL file")
        converted = store / "converted" / sha256(str(whole).encode()).hexdigest()[:12]
        from_trl = is_run and any((whole / "completions").glob("*.parquet"))
        if is_run and not from_trl and not (whole / "rollouts").is_dir():
            raise DataError(
                f"{path} holds no rollouts/: it is no directory of a run. Name the directory in run.out of `text2grad "
                "train`, or a JSONL file of responses"
            )
        if not is_run and whole.suffix != ".jsonl":
            raise DataError(
                f"{path} is no .jsonl file. `text2grad import table {path} --out responses.jsonl` reads other formats"
            )
        name, number = whole.name if is_run else whole.stem, 1
        while any(one.name == name for one in found):
            number += 1
            name = f"{whole.name if is_run else whole.stem} ({number})"
        found.append(Source(name, whole, is_run and not from_trl, converted if from_trl else None))
    return found


def normalized(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the names of a rollout: "prompt", "response", "critique" and numbers per token.

    Raises:
        ValueError: if it has no response.
    """
    one = dict(record)
    if "response" not in one and isinstance(one.get("completion"), str | list):  # TRL
        one["response"] = _prompt(one.pop("completion"))
    if not isinstance(one.get("response"), str):
        raise ValueError('no text under "response" or "completion"')
    one["prompt"] = _prompt(one.get("prompt"))
    if not isinstance(one.get("critique"), dict):
        one.pop("critique", None)
    for name in ("reward", "advantage"):
        if isinstance(one.get(name), int | float):  # one number for the whole response
            one[f"{name}_of_response"] = float(one.pop(name))
    tokens = len(one["offsets"]) if isinstance(one.get("offsets"), list) else 0
    for name in PER_TOKEN:
        values = one.get(name)
        if not isinstance(values, list) or len(values) != tokens:
            one.pop(name, None)
    if "logp" in one and "logp_after" in one:
        one["change"] = [round(b - a, 5) for a, b in zip(one["logp"], one["logp_after"], strict=True)]
    return one


def _as_jsonl(path: Path, directory: Path) -> Path:
    """Return the JSONL file of a Parquet file of TRL, written when it is first seen.

    Columns of numbers beside "step" and "advantage" are the values of reward functions; their sum is the reward.
    """
    target = directory / f"{path.stem}.jsonl"
    if target.exists():
        return target
    require("pyarrow", extra="train", purpose="completions that TRL logged")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}; it is read again while TRL writes it") from error
    records = []
    for row in rows:
        rewards = {name: row.pop(name) for name in list(row) if _is_reward(name, row[name])}
        record = {name: row[name] for name in ("step", "prompt", "completion", "advantage") if name in row}
        records.append({**record, "reward": sum(rewards.values()), "rewards": rewards} if rewards else record)
    write_files(directory, {target.name: json_lines(records)})
    return target


def _is_reward(name: str, value: Any) -> bool:
    return name not in ("step", "advantage") and type(value) in (int, float) and math.isfinite(value)


def _prompt(given: Any) -> str:
    """Return a prompt as text; chat messages are joined by blank lines."""
    if isinstance(given, list):
        return Example([part for part in given if isinstance(part, dict) and "content" in part]).prompt_text
    return given if isinstance(given, str) else ""
