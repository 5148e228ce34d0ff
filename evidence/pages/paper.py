"""The paper's tables with our figures beside them → paper.md.

paper_numbers.json   the paper's numbers, with their source
paper_ours.json      our figures by table, taken from evaluations; written by `python -m evidence results paper`
quickstart*.json     figures of the built-in tasks: reward models and convergence

A cell without our figure has the command that makes it below its table. The page follows from the files alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence.pages.markdown import number, table
from text2grad.errors import ConfigError, DataError, check_known
from text2grad.files import read_text, to_json
from text2grad.runs.reports.plots import mean_curve

NUMBERS, OURS, PAGE = "paper_numbers.json", "paper_ours.json", "paper.md"
CONVERGED = 0.95
"""Share of a run's gain at which it counts as converged; the paper gives no definition."""

_QUICKSTART = {"summarization": "quickstart.json", "qa": "quickstart-qa.json", "code": "quickstart-code.json"}
_RIVAL = "scalar_ppo"
_THEN = "`python -m evidence results paper --ours TABLE=DIR`"
Json = Mapping[str, Any]
Row = tuple[str, list[str]]


def paper_page(directory: Path) -> str:
    """Return the page from the JSON files of a directory.

    Raises:
        DataError: if a file is absent or damaged.
    """
    numbers = _read(directory / NUMBERS)
    ours = _read(directory / OURS) if (directory / OURS).exists() else {}
    parts = [
        "# The paper's tables, and ours",
        "<!-- Made by `python -m evidence results paper` from the JSON files beside it; edit those, not this page. -->",
        f"Numbers of the paper: {numbers['source']}. Ours are in bold, with 95 % intervals where there are some.",
    ]
    for name, one in numbers["tables"].items():
        parts += _section(one, [*_ours(one, ours.get(name, [])), *_built_in(name, directory)])
    return "\n\n".join(parts) + "\n"


def _read(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); restore it from the repository") from error


def _section(one: Json, ours: Sequence[tuple[Row, str]]) -> Iterator[str]:
    """Yield the parts of a table: its rows, the differences of our runs, and the command that makes missing ones."""
    names = [column["name"] for column in one["columns"]] + ([one["mean"]] if "mean" in one else [])
    digits = [column["digits"] for column in one["columns"]] + ([1] if "mean" in one else [])
    rows = [
        [f"paper: {method}", *(_printed(value, place) for value, place in zip(values, digits, strict=True))]
        for method, values in one["rows"].items()
    ]
    rows += [[f"**{name}**", *cells] for (name, cells), _ in ours]
    yield f"## {one['title']}"
    yield table(["", *names], rows)
    yield f"Paper: {one['model']}; {one['data']}; {one['hardware']}."
    if ours:
        yield "\n".join(f"- {name}: {differs}." for (name, _), differs in ours)
    missing = [name for at, name in enumerate(names) if all(cells[at] == "–" for (_, cells), _ in ours)]
    if missing:
        trained = f" (trained by `{one['recipe']}`)" if "recipe" in one else ""
        yield f"Ours is missing for {', '.join(missing)}: `{one['command']}`{trained}, then {_THEN}."


def _printed(value: float | str | None, digits: int) -> str:
    return "–" if value is None else value if isinstance(value, str) else number(value, digits)


# ---- figures of evaluations


def read_ours(name: str, directory: Path, numbers: Json) -> list[dict[str, Any]]:
    """Return our figures for a table of the paper, from a directory of `evaluate policy` or `evaluate critic`.

    Raises:
        ConfigError: if there is no such table, or no evaluation fills it.
        DataError: if the directory holds no evaluation with a figure of the table.
    """
    filled = [key for key, one in numbers["tables"].items() if _is_filled(one)]
    check_known("--ours", name, filled)
    path, one = directory / "evaluation.json", numbers["tables"][name]
    if not path.exists():
        raise DataError(f"{directory} has no evaluation.json; give the directory in --out of: {one['command']}")
    found = _read(path)
    try:
        made = _of_reward(one, found) if "metrics" in found else _of_models(one, found)
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} has another form than an evaluation ({error!r}); evaluate again") from error
    if not any(row["values"] for row in made):
        columns = ", ".join(sorted({column.get("suite", column.get("metric", "")) for column in one["columns"]}))
        raise DataError(f"{path} has no figure of the table {name}, which needs: {columns}. Made by: {one['command']}")
    return made


def _is_filled(one: Json) -> bool:
    return any("suite" in column or "metric" in column for column in one["columns"])


def _of_models(one: Json, found: Json) -> list[dict[str, Any]]:
    """Return a row of each model of an evaluation of policies."""
    rows = []
    for model, about in found["models"].items():
        values = {}
        for column in one["columns"]:
            suite = found["suites"].get(column.get("suite"), {"models": {}})
            value = suite["models"].get(model, {}).get(column.get("measure"))
            if value is not None:
                values[column["name"]] = value
        counts = [
            f"{suite['questions']:,} questions of {name}"
            for name, suite in found["suites"].items()
            if name in [column.get("suite") for column in one["columns"]]
        ]
        sampling = found.get("sampling", {})
        how = f"temperature {sampling['temperature']:g}" if "temperature" in sampling else ""
        words = "; ".join(part for part in (f"model {about['path']}", ", ".join(counts), how) if part)
        rows.append({"name": model, "values": values, "differs": words})
    return rows


def _of_reward(one: Json, found: Json) -> list[dict[str, Any]]:
    """Return the row of an evaluation of a critic."""
    values = {c["name"]: found["metrics"][c["metric"]] for c in one["columns"] if c.get("metric") in found["metrics"]}
    words = f"critic {found['critic']}; annotations {Path(found['annotations']).name}; unit {found['unit']}"
    return [{"name": Path(str(found["critic"])).name, "values": values, "differs": words}]


def ours_json(kept: Json) -> bytes:
    """Return paper_ours.json."""
    return to_json(kept, indent=2) + b"\n"


def _ours(one: Json, rows: Sequence[Json]) -> Iterator[tuple[Row, str]]:
    """Yield our rows of a table, each with its differences in words."""
    for row in rows:
        values = [row["values"].get(column["name"]) for column in one["columns"]]
        cells = [_cell(value, column) for value, column in zip(values, one["columns"], strict=True)]
        if "mean" in one:
            scaled = [
                value["value"] * column.get("scale", 1)
                for value, column in zip(values, one["columns"], strict=True)
                if value
            ]
            cells.append(f"**{number(fmean(scaled), 1)}**" if len(scaled) == len(values) else "–")
        yield (row["name"], cells), row["differs"]


def _cell(found: Json | None, column: Json) -> str:
    if found is None:
        return "–"
    scale, digits = column.get("scale", 1), column["digits"]
    value, *bounds = (number(found[key] * scale, digits) for key in ("value", "low", "high") if key in found)
    return f"**{value}**" + (f" ({bounds[0]} to {bounds[1]})" if bounds else "")


# ---- figures of the built-in tasks


def _built_in(name: str, directory: Path) -> Iterator[tuple[Row, str]]:
    if name not in ("reward", "convergence"):
        return
    for task, file in _QUICKSTART.items():
        if (directory / file).exists():
            result = _read(directory / file)["tasks"][task]
            cells = _reward_cells(result) if name == "reward" else _convergence_cells(result)
            seeds = f"{len(result['seeds'])} seeds"
            words = f"a tiny Llama made here, the built-in task, its program as annotator, means of {seeds}, two cores"
            yield (f"built-in task {task}", cells), f"{words} ({file})"


def _reward_cells(result: Json) -> list[str]:
    names = ("precision/positive", "recall/positive", "precision/negative", "recall/negative", "unmatched_rate")
    means = [100 * fmean(one[name] for one in result["reward_model"]) for name in names]
    return [f"**{number(mean, place)}**" for mean, place in zip(means, (0, 0, 0, 0, 1), strict=True)]


def _convergence_cells(result: Json) -> list[str]:
    """Return when both methods have converged, and how much longer a run of Text2Grad takes."""
    shares = [converged(mean_curve(result["methods"][method]["curve"])) for method in ("text2grad", _RIVAL)]
    seconds = [[of_seed[method] for of_seed in result["seconds"]] for method in ("text2grad", _RIVAL)]
    longer = 100 * (fmean(mine / other for mine, other in zip(*seconds, strict=True)) - 1)
    return [*(f"**{number(100 * share, 0)}**" for share in shares), f"**{number(longer, 1)}**"]


def converged(curve: Sequence[tuple[int, float]]) -> float:
    """Return the share of the steps after which a curve has 95 % of its gain, for the first time.

    Example:
        >>> converged([(0, 0.0), (10, 0.5), (20, 0.96), (40, 1.0)])
        0.5
    """
    start, best = curve[0][1], max(value for _, value in curve)
    at = next(step for step, value in curve if value >= start + CONVERGED * (best - start))
    return at / curve[-1][0]


def merged_ours(directory: Path, given: Mapping[str, Path]) -> Json:
    """Return the figures that a directory keeps, with those of evaluations that are given for some tables.

    Raises:
        ConfigError, DataError: as `read_ours`.
    """
    numbers = _read(directory / NUMBERS)
    kept = dict(_read(directory / OURS)) if (directory / OURS).exists() else {}
    for name, path in given.items():
        if not path.is_dir():
            raise ConfigError(f"--ours {name}={path}: there is no such directory")
        made = read_ours(name, path, numbers)
        names = {row["name"] for row in made}
        kept[name] = [row for row in kept.get(name, []) if row["name"] not in names] + made
    return kept
