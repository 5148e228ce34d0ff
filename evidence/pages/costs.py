"""Directories of runs → the cost of each phase, and minutes per step with the share of the critic (table 13).

A directory stands for all runs below it. Costs come from costs.json, from metrics.jsonl of `train` and `rival` (seconds
of each part of a step), from the checkpoints of unfinished `sft` and `reward`, and from phases.json of the quickstart.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evidence.pages.markdown import table
from text2grad.costs import COSTS_FILE, Cost, read_cost, write_cost
from text2grad.errors import DataError
from text2grad.models.measured_training import MARK
from text2grad.runs.reports.html import Table

_GIB = 2**30
_LEAST_SHARE = 5e-4  # of the time of a step; smaller parts are in the JSON file only
_TOKENS = {
    "rollout": ("tokens/prompt", "tokens/generated"),
    "critic": ("tokens/critic_prompt", "tokens/critic_generated"),
}
"""Part of a step → names of its tokens in metrics.jsonl: read and written."""


@dataclass(slots=True)
class PhaseCost:
    """Costs of a phase of a run.

    Attributes:
        run: directory.
        cost: of the phase.
        steps: finished steps of the policy's training; 0 for other phases.
        parts: of a step of the policy's training, such as "rollout": their costs over all steps.
    """

    run: str
    cost: Cost
    steps: int = 0
    parts: dict[str, Cost] = field(default_factory=dict)

    @property
    def critic_share(self) -> float | None:
        """Share of the training's time in which the critic judges; None for other phases."""
        if not self.steps or "critic" not in self.parts or not self.cost.seconds:
            return None
        return self.parts["critic"].seconds / self.cost.seconds

    def as_json(self) -> dict[str, Any]:
        """Return the costs as JSON data."""
        parts = {name: asdict(part) for name, part in self.parts.items()}
        return {"run": self.run, **asdict(self.cost), "steps": self.steps, "parts": parts}


def read_costs(directories: Sequence[Path]) -> list[PhaseCost]:
    """Return the costs of all phases in some directories, in the order of their names.

    Raises:
        DataError: if a directory is absent or holds no costs, or a log is damaged.
    """
    found: list[PhaseCost] = []
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory} is no directory; give the directory of a run")
        own = [one for place in _places(directory) for one in _costs_of(place)]
        if not own:
            raise DataError(
                f"{directory} and the directories in it hold no costs: no {COSTS_FILE}, no metrics.jsonl with seconds, "
                "no checkpoint of sft or reward; give the directory of a run"
            )
        found += own
    return found


def checkpoint_cost(directory: Path) -> Cost | None:
    """Return the costs of a supervised training up to its last complete checkpoint; None without one."""
    checkpoints = sorted((directory / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    marks = [json.loads((path / MARK).read_bytes()) for path in checkpoints if (path / MARK).exists()]
    if not marks or "seconds" not in marks[-1]:
        return None
    mark = marks[-1]
    phase = mark.get("section", "training").replace("_", " ")
    return Cost(phase, mark["seconds"], mark.get("tokens", 0), 0, mark.get("peak_memory_bytes", 0), runs=1)


def keep_checkpoint_cost(training: Path, directory: Path) -> None:
    """Write the costs of a finished training to costs.json of a directory: its checkpoints may be removed."""
    cost = checkpoint_cost(training) or read_cost(training)
    if cost is not None:
        write_cost(directory, cost)


def _places(directory: Path) -> list[Path]:
    names = (COSTS_FILE, "metrics.jsonl", "phases.json")
    places = {path.parent for name in names for path in directory.rglob(name)}
    return sorted(place for place in places if "checkpoints" not in place.relative_to(directory).parts)


def _costs_of(place: Path) -> Iterator[PhaseCost]:
    """Yield the costs of the phases whose directory this is."""
    if (training := _steps(place)) is not None:
        yield training
    if (cost := read_cost(place) or checkpoint_cost(place)) is not None:
        yield PhaseCost(str(place), cost)
    if (place / "phases.json").exists():
        phases = _json((place / "phases.json").read_text("utf-8"), place / "phases.json")
        of_phases = (name for name in phases if (place / name).exists() or (place / f"{name}.jsonl").exists())
        for name in of_phases:
            yield PhaseCost(str(place), Cost(name.replace("_", " "), float(phases[name])))


def _steps(place: Path) -> PhaseCost | None:
    """Return the costs of a training of a policy; None if the log is of another training."""
    path = place / "metrics.jsonl"
    lines = [_json(line, path) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    lines = [line for line in lines if any(name.startswith("seconds/") for name in line)]
    if not lines:
        return None
    names = dict.fromkeys(
        name.removeprefix("seconds/") for line in lines for name in line if name.startswith("seconds/")
    )

    def total(name: str) -> float:
        return float(sum(line.get(name, 0.0) for line in lines))

    parts = {}
    for name in names:
        read, written = (round(total(key)) for key in _TOKENS.get(name, ("", "")))
        most = max(line.get(f"memory/{name}", 0.0) for line in lines)
        parts[name] = Cost(name, total(f"seconds/{name}"), read, written, round(most), 1)
    phase = "rival" if any("rival/rollouts" in line for line in lines) else "train"
    each = parts.values()
    read, written = sum(one.prompt_tokens for one in each), sum(one.generated_tokens for one in each)
    peak = round(max(line.get("memory/peak_bytes", 0.0) for line in lines))
    cost = Cost(phase, sum(one.seconds for one in each), read, written, peak, 1)
    return PhaseCost(str(place), cost, len(lines), parts)


def _json(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); a run that is resumed repairs its log") from error
    return found if isinstance(found, dict) else {}


def cost_tables(found: Sequence[PhaseCost]) -> list[Table]:
    """Return the table of phases, and that of minutes per step if a policy was trained."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        rows.append((one.run, one.cost.phase, *_figures(one.cost), ""))
        for name, part in one.parts.items():
            share = part.seconds / one.cost.seconds if one.cost.seconds else 0.0
            if share >= _LEAST_SHARE:
                rows.append(("", f"· {name}", *_figures(part), f"{share:.1%}"))
    columns = ("run", "phase", "minutes", "tokens read", "tokens written", "peak memory, GiB", "share")
    tables = [Table("Cost of phases", columns, rows)]
    trained = [one for one in found if one.steps]
    if trained:
        tables.append(_per_step(trained))
    return tables


def _figures(cost: Cost) -> tuple[str, ...]:
    counts = (f"{count:,}" if count else "–" for count in (cost.prompt_tokens, cost.generated_tokens))
    peak = f"{cost.peak_memory_bytes / _GIB:.2f}" if cost.peak_memory_bytes else "–"
    return (f"{cost.seconds / 60:.2f}", *counts, peak)


def _per_step(trained: Sequence[PhaseCost]) -> Table:
    first = trained[0].cost.seconds / trained[0].steps
    rows = []
    for one in trained:
        each = one.cost.seconds / one.steps
        change = "" if one is trained[0] or not first else f"{each / first - 1:+.1%}"
        share = "–" if one.critic_share is None else f"{one.critic_share:.1%}"
        rows.append((one.run, f"{one.steps:,}", f"{each / 60:.4f}", change, share))
    columns = ("run", "steps", "minutes per step", "against the first", "share of the critic")
    return Table("Minutes per step, without evaluations (table 13)", columns, rows)


def costs_markdown(tables: Sequence[Table]) -> str:
    """Return tables as Markdown."""
    parts = [f"## {one.caption}\n\n{table(one.columns, [list(row) for row in one.rows])}" for one in tables]
    return "\n\n".join(parts) + "\n"
