"""The rollouts of a run, step by step: as records, and as arrays of tokens.

Shapes: B responses of a step, T tokens of the longest; padded with 0 where `mask` is False.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from text2grad.errors import DataError
from text2grad.feedback import critique_from_json

Floats = NDArray[np.float64]
Record = Mapping[str, Any]
NEEDED = ("prompt", "response", "critique", "ids", "delta", "reward", "kl", "advantage")
COLUMNS = ("delta", "reward", "kl", "advantage", "logp", "logp_after", "logp_without_momentum")


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one step.

    Attributes:
        step: number of the step.
        mask: True on tokens, bool [B, T].
        ids: of the tokens, int64 [B, T].
        columns: numbers per token by name, each float64 [B, T]; those named `logp…` only where they were logged.
        prompts: number of each response's prompt, int64 [B].
        span_tokens: tokens of each span of each response, in the order of the critique.
        span_signs: sign of each of these spans.
    """

    step: int
    mask: NDArray[np.bool_]
    ids: NDArray[np.int64]
    columns: Mapping[str, Floats]
    prompts: NDArray[np.int64]
    span_tokens: Sequence[Sequence[int]]
    span_signs: Sequence[Sequence[int]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each response, int64 [B]."""
        found: NDArray[np.int64] = self.mask.sum(1)
        return found

    @property
    def labels(self) -> NDArray[np.int64]:
        """Sign of δ, int64 [B, T]: −1, 0 or 1."""
        return np.sign(self.columns["delta"]).astype(np.int64)

    @property
    def grouped(self) -> bool:
        """True if every prompt has several responses in the step."""
        return bool((np.bincount(self.prompts) > 1).all())


def steps_of(run: Path, *, last: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield (step, records of its responses) in order; the run may be under way.

    Args:
        run: its directory.
        last: the last finished step; later records may be incomplete.

    Raises:
        DataError: if there are no rollouts, a line is damaged, or a record lacks numbers per token.
    """
    files = sorted((run / "rollouts").glob("*.jsonl"))
    if not files:
        raise DataError(f"{run / 'rollouts'} is missing or empty: a run can be analysed while it has its rollouts")
    for step, records in groupby(_records(files), key=lambda record: int(record["step"])):
        if step > last:
            return
        yield step, list(records)


def _records(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):  # being written, or cut by a kill: of a step that is not finished
                    return
                yield _record(line, f"{file}:{number}")


def _record(line: bytes, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        int(record["step"])
        missing = [name for name in NEEDED if name not in record]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{place} is damaged ({error!r}); put back a copy of the file, or analyse another run"
        ) from error
    if missing:
        raise DataError(f"{place} has no {', '.join(missing)}; only runs of `text2grad train` can be analysed")
    return record  # type: ignore[no-any-return]


def batch_of(step: int, records: Sequence[Record]) -> Batch:
    """Return the tokens of a step's records."""
    lengths = np.array([len(record["ids"]) for record in records])
    mask = np.arange(max(int(lengths.max()), 1)) < lengths[:, None]
    columns = {}
    for name in COLUMNS:
        if all(name in record for record in records):
            columns[name] = _filled(mask, [record[name] for record in records]).astype(np.float64)
    numbers: dict[str, int] = {}
    spans = [_spans(record) for record in records]
    return Batch(
        step,
        mask,
        _filled(mask, [record["ids"] for record in records]).astype(np.int64),
        columns,
        np.array([numbers.setdefault(record["prompt"], len(numbers)) for record in records]),
        [[tokens for tokens, _ in one] for one in spans],
        [[sign for _, sign in one] for one in spans],
    )


def _filled(mask: NDArray[np.bool_], rows: Sequence[Sequence[float]]) -> NDArray[Any]:
    found = np.zeros(mask.shape)
    found[mask] = np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
    return found


def _spans(record: Record) -> list[tuple[int, int]]:
    """Return (tokens, sign) of each span that touches a token; without offsets there are none."""
    offsets = record.get("offsets", ())
    critique = critique_from_json(record["critique"], record["response"], where=f"step {record['step']}")
    found = []
    for span in critique.spans:
        tokens = sum(start < span.end and end > span.start for start, end in offsets)
        if tokens:
            found.append((tokens, 1 if span.label == "positive" else -1))
    return found
