"""The growing files of a run. A run can be killed at any moment; no finished step and no critique is lost.

    metrics.jsonl               one line per step
    rollouts/00000.jsonl ...    one line per response: critique, spans, and δ, KL, value, advantage per token
    critic-errors.log           tracebacks of errors in the critic, with the step
    critiques/000012-0.json     the critiques of one step and process, written before anything uses them, and the states
                                of the random generators after them; found also by another number of processes

A checkpoint stores the sizes of metrics.jsonl and rollouts/, and deletes the critiques of its steps. On resume `rewind`
truncates both to these sizes; repeated steps read their critiques, so that the critic is not called (and paid) twice.
"""

import json
import os
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from text2grad.errors import DataError
from text2grad.feedback import content_of, critique_from_json, critique_to_json
from text2grad.files import readable, to_json, write_atomically
from text2grad.types import Critique, Rollout

Samples = tuple[list[tuple[int, ...]], list[tuple[float, ...]]]  # ids and log-probs of responses
RESTORE = "Put back a copy of it, or start again in another directory from the policy of the last checkpoint"
BEGINNING = {"metrics_bytes": 0, "rollout_files": 0, "rollout_bytes": 0}


class RunLog:
    """The growing files of one run directory."""

    def __init__(self, directory: Path, *, rollout_file_bytes: int = 64 * 2**20) -> None:
        """Open the logs of `directory`, which must exist."""
        self.directory, self._metrics = directory, directory / "metrics.jsonl"
        self.rollout_file_bytes = rollout_file_bytes
        (directory / "rollouts").mkdir(exist_ok=True)
        (directory / "critiques").mkdir(exist_ok=True)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append one step's metrics."""
        _append(self._metrics, [metrics])

    def write_rollouts(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append responses; start a new file when the last exceeds its size limit."""
        files = self._rollout_files()
        current = files[-1] if files else self._rollout_file(0)
        if current.exists() and current.stat().st_size >= self.rollout_file_bytes:
            current = self._rollout_file(int(current.stem) + 1)
        _append(current, records)

    def steps_written(self) -> int:
        """Return the number of steps whose metrics were written, by their line breaks; a cut line does not count."""
        return self._metrics.read_bytes().count(b"\n") if self._metrics.exists() else 0

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of the steps so far.

        Raises:
            DataError: if the file is damaged.
        """
        lines = self._metrics.read_bytes().splitlines() if self._metrics.exists() else []
        with readable(self._metrics, RESTORE):
            return [json.loads(line) for line in lines]

    def write_critic_error(self, step: int, error: BaseException) -> Path:
        """Append an error of the critic with its traceback to critic-errors.log; return the path of the file."""
        path = self.directory / "critic-errors.log"
        text = "".join(traceback.format_exception(error))
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} step {step}\n{text}\n")
        return path

    def rollouts(self, *, since: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield (step, records) of the steps from `since` on, in order; only the files that hold them are read.

        Raises:
            DataError: if one is damaged.
        """
        files, logged = self._rollout_files(), deque[tuple[int, dict[str, Any]]]()
        while files and (not logged or logged[0][0] >= since):
            with readable(file := files.pop(), RESTORE):
                records = map(json.loads, file.read_bytes().splitlines())
                logged.extendleft(reversed([(int(record["step"]), record) for record in records]))
        for step, of_step in groupby(logged, key=itemgetter(0)):
            if step >= since:
                yield step, [record for _, record in of_step]

    def position(self) -> dict[str, int]:
        """Return how much has been written: bytes of the metrics, files of rollouts, bytes of the last such file."""
        files = self._rollout_files()
        return {
            "metrics_bytes": self._metrics.stat().st_size if self._metrics.exists() else 0,
            "rollout_files": int(files[-1].stem) + 1 if files else 0,
            "rollout_bytes": files[-1].stat().st_size if files else 0,
        }

    def rewind(self, position: Mapping[str, int]) -> list[str]:
        """Cut the logs back to a position; return the names of files that are gone, or shorter than they were there."""
        last = position["rollout_files"] - 1
        for file in self._rollout_files():
            if int(file.stem) > last:
                file.unlink()
        gone = [file for number in range(last) if not (file := self._rollout_file(number)).exists()]
        ends = {self._metrics: position["metrics_bytes"], self._rollout_file(last): position["rollout_bytes"]}
        short = [file for file, size in ends.items() if _cut(file, size)]
        return [str(file.relative_to(self.directory)) for file in [*gone, *short]]

    def keep_critiques(
        self,
        step: int,
        rank: int,
        rollouts: Sequence[Rollout],
        critiques: Sequence[Critique],
        states: Mapping[str, Any],
        *,
        ids: bool = False,
    ) -> None:
        """Write the critiques of this process's responses, before anything uses them; with `ids` what was sampled, too.

        `states` are those of the random generators after the critic, which may draw random numbers.
        """
        responses = []
        for rollout, critique in zip(rollouts, critiques, strict=True):
            sampled = {"ids": rollout.response_ids, "engine_logp": rollout.engine_logp} if ids else {}
            responses.append(
                {"response": content_of(rollout.response), **sampled, "critique": critique_to_json(critique)}
            )
        path = self.directory / "critiques" / f"{step:06d}-{rank}.json"
        write_atomically(path, to_json({"random": states, "responses": responses}))

    def keeps_critiques(self, step: int) -> bool:
        """Return whether a killed run has left critiques of a step."""
        return bool(self._critique_files(step))

    def kept_critiques(
        self, step: int, rank: int, rollouts: Sequence[Rollout]
    ) -> tuple[list[Critique], dict[str, Any] | None] | None:
        """Return the critiques kept for this process's responses and the random states after them, as they were kept.

        All processes have as many responses as this one. The result is None where a response has no critique; the
        states are None if no process of this number kept some.

        Raises:
            DataError: if critiques were kept for other responses, so that this is not the run that wrote them.
        """
        kept = self._kept(step)
        rows: dict[int, Any] = {}  # row of the global batch → its record
        for process, contents in kept.items():
            rows |= dict(enumerate(contents["responses"], start=process * len(contents["responses"])))
        mine = range(rank * len(rollouts), (rank + 1) * len(rollouts))
        if not rows.keys() >= set(mine):
            return None
        own = [rows[row] for row in mine]
        where = self.directory / "critiques"
        if [record["response"] for record in own] != [content_of(rollout.response) for rollout in rollouts]:
            raise DataError(
                f"{where} holds critiques of other responses than this run samples at step {step}: the seed, the "
                f"weights or the number of threads or processes changed. Resume with the same, or remove "
                f"{step:06d}-*.json there to ask the critic again."
            )
        pairs = zip(own, rollouts, strict=True)
        critiques = [critique_from_json(record["critique"], it.response, where=str(where)) for record, it in pairs]
        return critiques, kept[rank]["random"] if rank in kept else None

    def kept_samples(self, step: int, rank: int, count: int) -> Samples | None:
        """Return ids and log-probs of the responses that an engine sampled and whose critiques are kept, or None.

        An engine does not sample the same responses again, and the critiques belong to these. A run of another number
        of processes kept another number of responses than `count`.
        """
        records = self._kept(step).get(rank, {"responses": []})["responses"]
        if len(records) != count or not all("ids" in record for record in records):
            return None
        return [tuple(record["ids"]) for record in records], [tuple(record["engine_logp"]) for record in records]

    def drop_critiques(self, step: int) -> None:
        """Remove the critiques of a step: its responses are sampled anew."""
        for path in self._critique_files(step):
            path.unlink(missing_ok=True)

    def _kept(self, step: int) -> dict[int, dict[str, Any]]:
        """Return what the processes of a killed run kept of a step, by the number of the process."""
        kept = {}
        for path in self._critique_files(step):
            with readable(path, "Remove the file to ask the critic again"):
                contents = json.loads(path.read_bytes())
                kept[int(path.stem.split("-")[1])] = {name: contents[name] for name in ("random", "responses")}
        return kept

    def forget_critiques(self, before_step: int) -> None:
        """Remove the critiques of steps that a checkpoint covers."""
        for path in (self.directory / "critiques").glob("*-*.json"):
            if int(path.stem.split("-")[0]) < before_step:
                path.unlink()

    def _rollout_files(self) -> list[Path]:
        """Return the files of responses, the oldest first."""
        return sorted((self.directory / "rollouts").glob("*.jsonl"))

    def _rollout_file(self, number: int) -> Path:
        """Return the path of a file of responses, counted from 0."""
        return self.directory / "rollouts" / f"{number:05d}.jsonl"

    def _critique_files(self, step: int) -> list[Path]:
        """Return the files of critiques of a step, one for each process that kept some."""
        return sorted((self.directory / "critiques").glob(f"{step:06d}-*.json"))


def _append(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Append records to a file, a line for each."""
    with path.open("ab") as file:
        file.write(b"".join(to_json(record) + b"\n" for record in records))


def _cut(path: Path, size: int) -> bool:
    """Cut a file to a size in bytes; return whether it is shorter, or gone."""
    there = path.stat().st_size if path.exists() else 0
    if there > size:  # a shorter file would be filled up with NULs
        os.truncate(path, size)
    return there < size
