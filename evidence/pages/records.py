"""Records of runs as typed objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from evidence.plans.records import read_records
from text2grad.errors import DataError


@dataclass(frozen=True, slots=True)
class Record:
    """A run that ended; the fields are those of its line (`experiments/records.py`)."""

    study: str
    task: str
    length: int
    faults: float
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
    error: str = ""
    apart: str = ""
    at_kl: float | None = None
    item_ids: Sequence[str] = field(default_factory=list)


def read_runs(directory: Path) -> list[Record]:
    """Return the records of a directory; [] if it is absent.

    Raises:
        DataError: if a line is no record, or its run has no evaluation.
    """
    names = [one.name for one in fields(Record)]
    found = []
    for record in read_records(directory) if directory.is_dir() else []:
        if not record["curve"] or not record["items"] or len(record["items"]) != len(record["items_at_start"]):
            place = ", ".join(f"{name} {record[name]}" for name in ("study", "task", "method", "seed", "trial"))
            raise DataError(
                f"{directory}: the record of {place} has no evaluation, or not the same items before and after; "
                "remove its line, and repeat the run"
            )
        found.append(Record(**{name: record[name] for name in names if name in record}))
    return found
