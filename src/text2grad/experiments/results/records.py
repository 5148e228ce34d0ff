"""Finished runs, one JSON object per line of `docs/results/runs/STUDY.jsonl`, as typed records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from text2grad.errors import DataError
from text2grad.files import read_text


@dataclass(frozen=True, slots=True)
class Record:
    """A finished run; the fields are those of its line."""

    study: str
    task: str
    length: int | None
    faults: float | None
    critic: str
    method: str
    purpose: Literal["tuning", "evaluation"]
    trial: int | None
    seed: int
    eval_seed: int
    settings: Mapping[str, Any]
    recipe: str
    steps: int
    rollouts: int
    tokens: int
    seconds: float
    start: str
    machine: Mapping[str, Any]
    version: str
    metric: str
    curve: Sequence[Mapping[str, Any]]
    items: Sequence[float]
    items_at_start: Sequence[float]
    diagnostics: Mapping[str, float]


def read_records(directory: Path) -> list[Record]:
    """Return the records of all files *.jsonl of a directory, in the order of names and lines; [] if it is absent.

    Raises:
        DataError: if a line is no record; the message names file and line.
    """
    found = []
    for path in sorted(directory.glob("*.jsonl")):
        for number, line in enumerate(read_text(path).splitlines(), 1):
            if line.strip():
                found.append(_record(line, f"{path}:{number}"))
    return found


def _record(line: str, where: str) -> Record:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: no JSON ({error}); restore the line, or delete it and repeat the run") from error
    names = Record.__slots__
    missing = [name for name in names if name not in fields] if isinstance(fields, dict) else list(names)
    if missing:
        raise DataError(f"{where}: no record of a run: {', '.join(missing)} missing; delete the line, repeat the run")
    record = Record(**{name: fields[name] for name in names})
    if not record.curve or not record.items or record.purpose not in ("tuning", "evaluation"):
        raise DataError(f"{where}: the run has no curve, no items, or the purpose {record.purpose!r}; delete the line")
    return record
