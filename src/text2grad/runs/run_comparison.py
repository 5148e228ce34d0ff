"""Runs → one table, one picture, one page: curves, paired differences, settings that differ, samples side by side.

Runs that had the same feedback, and whose settings differ in `run.seed` and `run.out` only, are one method; paths
beside the run count as equal, so that the seeds of a quickstart are one method. The first method is the baseline of the
differences, within its task.

compare.json    {"step": step of the comparison, or null for the last evaluation of each run,
                 "methods": {NAME: {"task",
                                    "runs": [{"path", "seed", "steps", "planned_steps", "seconds", "evaluated_at"}],
                                    "metrics": {METRIC: {"value", "low", "high", "values": [of each run]}}}},
                 "settings": {"section.key": {NAME: value}},
                 "paired": {NAME: {"prompts": number, "metrics": {METRIC: {"value", "low", "high"}}}}}
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console

from text2grad.config import Recipe, recipe_of_run
from text2grad.errors import DataError
from text2grad.evaluation import Ratio, estimate, mean_interval
from text2grad.files import to_json, write_files
from text2grad.runs.lineage import read_lineage
from text2grad.runs.reports.html import Table, rollouts_page
from text2grad.runs.reports.plots import panels_png, pictures
from text2grad.runs.reports.run_report import Run, by_prompt, read_run, run_panels, side_by_side
from text2grad.runs.reports.terminal import plain, print_tables

TRAINED = {"reward/per_response": "training reward", "kl/per_token": "training KL"}
OF_A_RESPONSE = ("reward", "kl", "tokens")
PROMPT = ""  # name of the count of prompts beside the metrics, which no metric can have
SHOWN_PROMPTS = 8
_SEED = re.compile(r"[-_]?seed[-_]?\d+$|[-_]s?\d+$")


class Compared(NamedTuple):
    """A run, its recipe, and the evaluation that is compared, if it has one."""

    run: Run
    recipe: Recipe
    evaluation: Mapping[str, Any] | None


class Method(NamedTuple):
    """Runs with the same settings apart from the seed, and a name unlike the others'."""

    name: str
    runs: list[Compared]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """The compared evaluations of the runs that have one."""
        return [compared.evaluation for compared in self.runs if compared.evaluation is not None]

    @property
    def task(self) -> str:
        """The name of the built-in task, or "own data"."""
        return self.runs[0].recipe.data.task or "own data"


def compare_runs(paths: Sequence[Path], *, step: int | None = None) -> list[Method]:
    """Read runs, and group the seeds of the same settings; a run that is given twice counts once.

    Args:
        paths: directories of runs.
        step: compare the evaluations at this step; None takes the last evaluation of each run.

    Raises:
        DataError: if a path is no run or has no evaluation at `step`, or there is a single run.
    """
    groups: list[list[Compared]] = []
    different = {path.resolve(): path for path in paths}.values()
    for path in different:
        recipe, run = recipe_of_run(path), read_run(path)
        if "reward/per_response" not in run.metrics[0]:
            raise DataError(f"{path} is no run of `text2grad train`: its metrics have no reward/per_response")
        alike = (
            group
            for group in groups
            if not _differing(group[0].recipe, recipe)
            and read_lineage(group[0].run.directory).get("without") == read_lineage(path).get("without")
        )
        if (group := next(alike, None)) is None:
            groups.append(group := [])
        group.append(Compared(run, recipe, _evaluation(run, step)))
    if len(different) < 2:  # whatever is no run at all was refused above
        raise DataError(f"{paths[0]} is a single run; name at least two runs")
    directories = [[compared.run.directory for compared in group] for group in groups]
    return list(map(Method, _names(directories), groups))


def _evaluation(run: Run, step: int | None) -> Mapping[str, Any] | None:
    if step is None:
        return run.evaluations[-1] if run.evaluations else None
    by_step = {evaluation["step"]: evaluation for evaluation in run.evaluations}
    if step not in by_step:
        steps = ", ".join(map(str, by_step)) or "none"
        raise DataError(f"{run.directory} has no evaluation at step {step}. Its evaluations are at: {steps}")
    return by_step[step]


def _names(groups: Sequence[Sequence[Path]]) -> list[str]:
    """Return a name for each group of directories: that of the first without its seed, or its path if two are equal."""
    names = []
    for first, *others in groups:
        apart = any(path.name != first.name for path in others)  # lr-1e-3-seed-0, lr-1e-3-seed-1, ...
        names.append((_SEED.sub("", first.name) if apart else "") or first.name)
    return names if len(set(names)) == len(names) else [str(paths[0]) for paths in groups]


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings by "section.key" without seed and directory."""
    sections = recipe.model_dump(mode="json")
    settings = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    return {name: value for name, value in settings.items() if name not in ("run.seed", "run.out")}


def _differing(first: Recipe, other: Recipe) -> list[str]:
    """Return the settings whose values differ; paths are also equal if they are so from the folder of their run."""
    mine, others = _settings(first), _settings(other)
    names = [name for name in mine if mine[name] != others[name]]
    return [name for name in names if _beside(first, mine[name]) != _beside(other, others[name])]


def _beside(recipe: Recipe, value: Any) -> Any:
    """Return a path beside the run without its folder; other values as they are."""
    folder = f"{Path(recipe.run.out).parent}/"
    return value.removeprefix(folder) if isinstance(value, str) and folder != "./" else value


def as_json(methods: Sequence[Method], step: int | None) -> dict[str, Any]:
    """Return the numbers of compare.json."""
    metrics = metric_names(methods)
    names = {name for method in methods[1:] for name in _differing(methods[0].runs[0].recipe, method.runs[0].recipe)}
    settings = {method.name: _settings(method.runs[0].recipe) for method in methods}
    return {
        "step": step,
        "methods": {method.name: _method_json(method, metrics) for method in methods},
        "settings": {
            name: {method: values[name] for method, values in settings.items()}
            for name in settings[methods[0].name]
            if name in names
        },
        "paired": paired(methods),
    }


def metric_names(methods: Sequence[Method]) -> list[str]:
    """Return the held-out metrics that every evaluated run has, the main metric of the first one first."""
    evaluations = [evaluation for method in methods for evaluation in method.evaluations]
    if not evaluations:
        return []
    first = evaluations[0]
    common = [name for name in first["metrics"] if all(name in other["metrics"] for other in evaluations)]
    return sorted(common, key=lambda name: name != first["metric"])


def _method_json(method: Method, names: Sequence[str]) -> dict[str, Any]:
    lasts = [compared.run.metrics[-1] for compared in method.runs]
    values = {name: [evaluation["metrics"][name] for evaluation in method.evaluations] for name in names}
    values |= {title: [last[name] for last in lasts if name in last] for name, title in TRAINED.items()}
    metrics = {
        name: {**mean_interval(of_runs)._asdict(), "values": of_runs} for name, of_runs in values.items() if of_runs
    }
    return {"task": method.task, "runs": list(map(_run_json, method.runs)), "metrics": metrics}


def _run_json(compared: Compared) -> dict[str, Any]:
    run, recipe, evaluation = compared
    return {
        "path": str(run.directory),
        "seed": recipe.run.seed,
        "steps": len(run.metrics),
        "planned_steps": recipe.run.steps,
        "seconds": round(run.seconds.total(), 1),
        "evaluated_at": None if evaluation is None else evaluation["step"],
    }


def paired(methods: Sequence[Method]) -> dict[str, Any]:
    """Return the differences of methods from the first on the same held-out prompts of the same task.

    The intervals are of the bootstrap over prompts. A method without such prompts has no difference.
    """
    first, *others = methods
    theirs, differences = _responses(first), {}
    for method in others:
        own = _responses(method) if method.task == first.task else {}
        prompts = [key for key in theirs if key in own]
        if not prompts:
            continue
        names = [n for n in theirs[prompts[0]] if all(n in side[key] for side in (theirs, own) for key in prompts)]
        rows = [{**{name: own[key][name] - theirs[key][name] for name in names}, PROMPT: 1.0} for key in prompts]
        metrics = estimate(rows, {name: Ratio((name,), (PROMPT,)) for name in names})
        figures = {name: figure._asdict() for name, figure in metrics.items()}
        differences[method.name] = {"prompts": len(prompts), "metrics": figures}
    return differences


def _responses(method: Method) -> dict[tuple[str, int], dict[str, float]]:
    """Return the numbers of each held-out prompt, means over the seeds; none if a seed was not evaluated."""
    keyed = [by_prompt(evaluation["responses"]) for evaluation in method.evaluations]
    if len(keyed) < len(method.runs):
        return {}
    responses = {}
    for key in keyed[0]:
        numbers = [_numbers(of_seed[key]) for of_seed in keyed if key in of_seed]
        if len(numbers) == len(keyed):
            names = [name for name in numbers[0] if all(name in of_seed for of_seed in numbers)]
            responses[key] = {name: fmean(of_seed[name] for of_seed in numbers) for name in names}
    return responses


def _numbers(response: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a response, and its numbers that no metric is named like."""
    numbers = {name: response[name] for name in OF_A_RESPONSE if name in response} | response.get("metrics", {})
    return {name: float(value) for name, value in numbers.items()}


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Return the tables of terminal and page: a column per method."""
    methods, differences = results["methods"], results["paired"]
    at = "at the last evaluation" if results["step"] is None else f"at step {results['step']}"
    several = any(len(method["runs"]) > 1 for method in methods.values())
    over = "; brackets: Student's interval of 95 % over seeds" if several else ""
    figures = {
        name: {
            "seeds": ", ".join(str(run["seed"]) for run in method["runs"]),
            "steps": ", ".join(dict.fromkeys(map(_steps, method["runs"]))),
            **{metric: _cell(figure) for metric, figure in method["metrics"].items()},
        }
        for name, method in methods.items()
    }
    made = [_by_method(f"Held-out metrics {at}, and training reward and KL of the last step{over}", figures)]
    if differences:
        caption = f"Difference from {next(iter(methods))} on the same held-out prompts"
        cells = {
            name: {
                "prompts": str(difference["prompts"]),
                **{metric: _cell(figure, "+") for metric, figure in difference["metrics"].items()},
            }
            for name, difference in differences.items()
        }
        made.append(_by_method(f"{caption}; brackets: 95 % bootstrap interval over prompts", cells))
    if results["settings"]:
        rows = [
            [key, *(json.dumps(value, ensure_ascii=False) for value in values.values())]
            for key, values in results["settings"].items()
        ]
        made.append(Table("Settings that differ", ["setting", *methods], rows))
    return made


def _by_method(caption: str, cells: Mapping[str, Mapping[str, str]]) -> Table:
    names = dict.fromkeys(name for of_method in cells.values() for name in of_method)
    rows = [[name.replace("_", " "), *(of_method.get(name, "–") for of_method in cells.values())] for name in names]
    return Table(caption, ["", *cells], rows)


def _steps(run: Mapping[str, Any]) -> str:
    made, planned = run["steps"], run["planned_steps"]
    return str(made) if made >= planned else f"{made} of {planned}"


def _cell(figure: Mapping[str, float], sign: str = "") -> str:
    """Return a value with its interval; a value of a single seed has none."""
    value, low, high = (
        f"{figure[name]:{sign}.{3 if abs(figure[name]) < 3 else 1}f}".replace("-", "−")
        for name in ("value", "low", "high")
    )
    return value if figure["low"] == figure["high"] else f"{value} [{low}, {high}]"


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know before the numbers: other tasks, other steps, methods without differences."""
    methods = results["methods"]
    first, *others = methods
    said = []
    if len({method["task"] for method in methods.values()}) > 1:
        listed = "; ".join(f"{name}: {method['task']}" for name, method in methods.items())
        said.append(f"The tasks differ, so the numbers are not comparable across them ({listed}).")
    if unpaired := [name for name in others if name not in results["paired"]]:
        said.append(
            f"{', '.join(unpaired)}: no paired difference, for want of held-out prompts in common with {first}."
        )
    steps = {run["evaluated_at"] for method in methods.values() for run in method["runs"]} - {None}
    if len(steps) > 1:
        listed = ", ".join(map(str, sorted(steps)))
        said.append(f"The runs are compared at different steps ({listed}); --step N compares them at the same step.")
    for name, method in methods.items():
        seeds = Counter(run["seed"] for run in method["runs"])
        if twice := [str(seed) for seed, count in seeds.items() if count > 1]:
            said.append(f"{name} has several runs of seed {', '.join(twice)}: its intervals over seeds are too narrow.")
    return said


def samples(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return records of the page: a held-out prompt, and the response of each method's first run to it."""
    firsts = {method.name: method.runs[0].evaluation for method in methods}
    sides = {f"{name}, step {first['step']}": first["records"] for name, first in firsts.items() if first is not None}
    return side_by_side(sides)[:SHOWN_PROMPTS] if len(sides) > 1 else []


def write_compared(methods: Sequence[Method], out: Path, *, step: int | None = None) -> dict[str, Any]:
    """Write compare.json, compare.png and compare.html, and return the content of compare.json."""
    results, shown = as_json(methods, step), samples(methods)
    metric = next(iter(metric_names(methods)), "")
    panels = run_panels({method.name: [compared.run for compared in method.runs] for method in methods}, metric)
    page = rollouts_page(
        "Runs compared",
        intro="\n\n".join([f"{' · '.join(results['methods'])}.", *notes(results)]),
        groups=[("The same held-out prompts", shown)] if shown else [],
        images=[("Thin lines: single seeds, or values before smoothing.", pictures(panels))],
        tables=tables(results),
    )
    files = {"compare.json": to_json(results), "compare.png": panels_png(panels), "compare.html": page.encode()}
    write_files(out, files)
    return results


def print_compared(console: Console, results: Mapping[str, Any]) -> None:
    """Print the notes and the tables."""
    for note in notes(results):
        console.print(plain(note), soft_wrap=True)
    print_tables(console, tables(results))
