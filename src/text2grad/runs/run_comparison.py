"""Runs → one table, one picture, one page: curves, paired differences, settings that differ, samples side by side.

Runs whose settings differ in `run.seed` and `run.out` only are one method; paths beside the run count as equal, so that
the seeds of a quickstart are one method. The first method is the baseline of the differences, within its task.

compare.json    {"step": step of the comparison, or null for the last evaluation of each run,
                 "methods": {NAME: {"runs": [{"path", "seed", "steps", "planned_steps", "tokens", "seconds",
                                              "evaluated_at"}],
                                    "metrics": {METRIC: {"mean", "low", "high", "values": [of each run]}}}},
                 "tasks": {NAME: task},
                 "settings": {"section.key": {NAME: value}},
                 "paired": {NAME: {"prompts": number, "metrics": {METRIC: {"value", "low", "high"}}}},
                 "not_paired": {NAME: reason}}
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from text2grad.config import Recipe, recipe_of_run
from text2grad.errors import DataError
from text2grad.evaluation import Estimate, Ratio, estimate, mean_interval
from text2grad.files import to_json, write_files
from text2grad.runs.reports.html import count, rollouts_page
from text2grad.runs.reports.plots import Draw, Line, Points, curve_panel, panels_png, pictures, smoothed_points
from text2grad.runs.reports.run_report import Run, by_prompt, read_run
from text2grad.runs.reports.terminal import print_table
from text2grad.runs.run_examples import task_settings

OF_EVERY_RUN = {"kl_per_token", "mean_tokens", "truncated_share", "distinct_2", "failure_rate"}
"""Held-out metrics that runs of different tasks share, too."""

TRAINED = {"reward/per_response": "reward per response", "kl/per_token": "KL from the reference, nats per token"}
AXES = ("step", "tokens sampled", "seconds")
OF_A_RESPONSE = ("reward", "kl", "tokens")
PROMPT = ""  # name of the count of prompts beside the metrics, which no metric can have
SHOWN_PROMPTS = 8
_SEEDS = re.compile(r"[-_]?seed[-_]?\d+$|[-_]s?\d+$")
_MANY = 3


@dataclass(frozen=True, slots=True)
class Method:
    """Runs with the same settings apart from the seed.

    Attributes:
        name: short and unlike the others.
        runs: one per seed.
        recipe: of the first run.
        compared: of each run the evaluation that is compared, or None.
    """

    name: str
    runs: list[Run]
    recipe: Recipe
    compared: list[Mapping[str, Any] | None] = field(default_factory=list)


def compare_runs(paths: Sequence[Path], *, step: int | None = None) -> list[Method]:
    """Read runs, and group the seeds of the same settings.

    Args:
        paths: directories of runs, or of a task of the quickstart, which stands for all its runs.
        step: compare the evaluations at this step; None takes the last evaluation of each run.

    Raises:
        DataError: if a path is no run, is given twice, has no evaluation at `step`, or the runs have nothing in common.
    """
    groups: list[list[tuple[Run, Recipe]]] = []
    seen: dict[Path, Path] = {}
    for given in paths:
        for path in _runs_in(given):
            if path.resolve() in seen:
                raise DataError(f"{path} is given twice; name each run once")
            seen[path.resolve()] = path
            run, recipe = read_run(path), recipe_of_run(path)
            if "reward/per_response" not in run.metrics[0]:
                raise DataError(f"{path} is no run of `text2grad train`: its metrics have no reward/per_response")
            alike = (group for group in groups if not _differing(group[0][1], recipe))
            if (group := next(alike, None)) is None:
                groups.append(group := [])
            group.append((run, recipe))
    if len(seen) < 2:
        raise DataError(
            f"{paths[0]} is a single run; name at least two runs, or the directory of a task of a quickstart"
        )
    names = _names([[run.directory for run, _ in group] for group in groups])
    methods = [
        Method(name, [run for run, _ in group], group[0][1], [_evaluation(run, step) for run, _ in group])
        for name, group in zip(names, groups, strict=True)
    ]
    _check_common(methods)
    return methods


def _runs_in(given: Path) -> list[Path]:
    """Return the runs that a path stands for."""
    if (given / "run.json").exists():
        return [given]
    inside = sorted(path.parent for path in given.glob("seed-*/*/run.json"))
    tasks = sorted({path.parents[2] for path in given.glob("*/seed-*/*/run.json")})
    if inside:
        return sorted(inside, key=lambda path: (path.name != "text2grad", path.name, _number(path.parent.name)))
    if tasks:
        raise DataError(
            f"{given} holds the runs of a quickstart; name a task of it: {' or '.join(str(task) for task in tasks)}"
        )
    what = "does not exist" if not given.exists() else "is a file" if given.is_file() else "has no run.json"
    raise DataError(f"{given} is no run: it {what}. A run is the directory in run.out of `text2grad train`")


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings by "section.key" without seed and directory."""
    return {
        f"{section}.{key}": value
        for section, settings in recipe.model_dump(mode="json").items()
        for key, value in settings.items()
        if (section, key) not in (("run", "seed"), ("run", "out"))
    }


def _differing(first: Recipe, other: Recipe) -> list[str]:
    """Return the settings whose values differ; paths are also equal if they are so from the folder of their run."""
    mine, others = _settings(first), _settings(other)
    return [
        name
        for name in mine
        if mine[name] != others[name] and _beside(first, mine[name]) != _beside(other, others[name])
    ]


def _beside(recipe: Recipe, value: Any) -> Any:
    """Return a path beside the run without its folder; other values as they are."""
    folder = f"{Path(recipe.run.out).parent}/"
    return value.removeprefix(folder) if isinstance(value, str) and folder != "./" else value


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 0)


def _names(groups: Sequence[Sequence[Path]]) -> list[str]:
    """Return a short name for each group of directories, none twice."""
    names = []
    for paths in groups:
        ends = {path.name for path in paths}
        name = paths[0].name
        if len(paths) > 1 and len(ends) > 1:  # lr-1e-3-seed-0, lr-1e-3-seed-1, ...
            name = _SEEDS.sub("", name) or name
        names.append(name)
    if len(set(names)) == len(names):
        return names
    longer = [f"{paths[0].parent.name}/{name}" for paths, name in zip(groups, names, strict=True)]
    return longer if len(set(longer)) == len(longer) else [str(paths[0]) for paths in groups]


def _evaluation(run: Run, step: int | None) -> Mapping[str, Any] | None:
    if step is None:
        return run.evaluations[-1] if run.evaluations else None
    found = next((one for one in run.evaluations if one["step"] == step), None)
    if found is None:
        steps = ", ".join(str(one["step"]) for one in run.evaluations) or "none"
        raise DataError(f"{run.directory} has no evaluation at step {step}. Its evaluations are at: {steps}")
    return found


def _check_common(methods: Sequence[Method]) -> None:
    """Raise an error if methods with evaluations share no metric but those of every task."""
    evaluated = [(method.name, set(one["metrics"])) for method in methods for one in method.compared if one is not None]
    if len(evaluated) > 1 and not set.intersection(*(names for _, names in evaluated)) - OF_EVERY_RUN:
        (first, names), (other, differing) = (
            evaluated[0],
            next(one for one in evaluated[1:] if one[1] != evaluated[0][1]),
        )
        raise DataError(
            f"the runs have no held-out metric in common: {first} has {', '.join(sorted(names - OF_EVERY_RUN))}; "
            f"{other} has {', '.join(sorted(differing - OF_EVERY_RUN))}. Compare runs of the same task"
        )


def metric_names(methods: Sequence[Method]) -> list[str]:
    """Return the held-out metrics that every evaluated run has, the main metric first."""
    evaluated = [one["metrics"] for method in methods for one in method.compared if one is not None]
    if not evaluated:
        return []
    common = [name for name in evaluated[0] if all(name in metrics for metrics in evaluated)]
    main = _main(methods[0])
    return sorted(common, key=lambda name: name != main)


def _main(method: Method) -> str:
    return next((str(one["metric"]) for one in method.compared if one is not None), "reward")


def settings_that_differ(methods: Sequence[Method]) -> dict[str, dict[str, Any]]:
    """Return the settings that are not the same in all methods: "section.key" → name of the method → value."""
    names = {name for method in methods[1:] for name in _differing(methods[0].recipe, method.recipe)}
    settings = [(method.name, _settings(method.recipe)) for method in methods]
    return {name: {method: values[name] for method, values in settings} for name in settings[0][1] if name in names}


def paired(methods: Sequence[Method]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the differences of methods from the first on the same held-out prompts, and why others have none.

    The value of a prompt is the mean over the method's seeds. The interval is a bootstrap over prompts.
    """
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    first, task = _responses(methods[0]), _task(methods[0])
    for method in methods[1:]:
        if _task(method) != task:
            reasons[method.name] = f"its task is {_task(method)}, and that of {methods[0].name} is {task}"
            continue
        own = _responses(method)
        missing = next((one for one in (first, own) if isinstance(one, str)), None)
        if missing is not None:
            reasons[method.name] = missing
            continue
        assert not isinstance(first, str)
        assert not isinstance(own, str)
        prompts = [key for key in first if key in own]
        if not prompts:
            reasons[method.name] = f"{methods[0].name} and {method.name} have no held-out prompt in common"
            continue
        names = [
            name for name in first[prompts[0]] if all(name in side[key] for side in (first, own) for key in prompts)
        ]
        rows = [{**{name: own[key][name] - first[key][name] for name in names}, PROMPT: 1.0} for key in prompts]
        metrics = estimate(rows, {name: Ratio((name,), (PROMPT,)) for name in names})
        found[method.name] = {"prompts": len(prompts), "metrics": {k: v._asdict() for k, v in metrics.items()}}
    return found, reasons


def _task(method: Method) -> str:
    """Return the name of a method's task, with the length of its answers if that is set."""
    length = task_settings(method.recipe).length
    return (method.recipe.data.task or "own data") + (f" of length {length}" if length else "")


def _responses(method: Method) -> dict[tuple[str, int], dict[str, float]] | str:
    """Return the numbers of each held-out prompt, means over the seeds; or the reason why there are none."""
    seeds = []
    for run, evaluation in zip(method.runs, method.compared, strict=True):
        if evaluation is None:
            return f"{run.directory} has no evaluation on held-out prompts"
        seeds.append({key: _of_response(one) for key, one in by_prompt(evaluation["responses"]).items()})
    common = [key for key in seeds[0] if all(key in seed for seed in seeds)]
    return {
        key: {
            name: fmean(seed[key][name] for seed in seeds)
            for name in seeds[0][key]
            if all(name in seed[key] for seed in seeds)
        }
        for key in common
    }


def _of_response(one: Mapping[str, Any]) -> dict[str, float]:
    metrics = one.get("metrics", {})  # a user's metric may be named "tokens" or "kl"
    more = {name: one[name] for name in OF_A_RESPONSE if name in one and name not in metrics}
    return {name: float(value) for name, value in {**metrics, **more}.items()}


def as_json(methods: Sequence[Method], step: int | None) -> dict[str, Any]:
    """Return the numbers of compare.json."""
    differences, reasons = paired(methods)
    names = metric_names(methods)
    return {
        "step": step,
        "methods": {method.name: _method_json(method, names) for method in methods},
        "tasks": {method.name: _task(method) for method in methods},
        "settings": settings_that_differ(methods),
        "paired": differences,
        "not_paired": reasons,
    }


def _method_json(method: Method, names: Sequence[str]) -> dict[str, Any]:
    runs = []
    for run, evaluation in zip(method.runs, method.compared, strict=True):
        recipe = recipe_of_run(run.directory)
        runs.append(
            {
                "path": str(run.directory),
                "seed": recipe.run.seed,
                "steps": len(run.metrics),
                "planned_steps": recipe.run.steps,
                "tokens": round(axis_values(run, recipe, "tokens sampled")[-1]),
                "seconds": round(axis_values(run, recipe, "seconds")[-1], 1),
                "evaluated_at": None if evaluation is None else evaluation["step"],
            }
        )
    values = {name: [one["metrics"][name] for one in method.compared if one is not None] for name in names}
    for key in TRAINED:
        values[key] = [run.metrics[-1][key] for run in method.runs if key in run.metrics[-1]]
    return {
        "runs": runs,
        "metrics": {name: {**_mean(mean_interval(found)), "values": found} for name, found in values.items() if found},
    }


def _mean(found: Estimate) -> dict[str, float]:
    return {"mean": found.value, "low": found.low, "high": found.high}


def axis_values(run: Run, recipe: Recipe, axis: str) -> list[float]:
    """Return the place of each finished step on an axis: its number, the tokens sampled or the seconds until then."""
    if axis == "step":
        return [line["step"] + 1 for line in run.metrics]
    total, found = 0.0, []
    for line in run.metrics:
        if axis == "seconds":
            total += sum(value for key, value in line.items() if key.startswith("seconds/"))
        else:
            total += line.get("length/mean", 0.0) * recipe.rollout.batch_size
        found.append(total)
    return found


def panels(methods: Sequence[Method]) -> list[Draw]:
    """Return the panels: a row for the main held-out metric, the reward and the KL, and a column per axis."""
    drawn = []
    names = metric_names(methods)[:1]
    for name in names:
        title = f"{name.replace('_', ' ')}, held-out"
        drawn += [curve_panel(title, axis, _lines(methods, axis, name, held_out=True)) for axis in AXES]
    for key, title in TRAINED.items():
        drawn += [curve_panel(title, axis, _lines(methods, axis, key, held_out=False)) for axis in AXES]
    return drawn


def _lines(methods: Sequence[Method], axis: str, name: str, *, held_out: bool) -> list[Line]:
    lines = []
    for look, method in enumerate(methods):
        found = [_points(run, method.recipe, axis, name, held_out=held_out) for run in method.runs]
        curves = [list(points.values()) for points in found if points]
        if mean := _mean_points([points for points in found if points]):
            shown = mean if held_out else smoothed_points(mean)
            faint = curves if len(curves) > 1 or not held_out else ()
            lines.append(Line(method.name, shown, faint, held_out, look))
    return lines


def _points(run: Run, recipe: Recipe, axis: str, name: str, *, held_out: bool) -> dict[int, tuple[float, float]]:
    """Return the points of a run's curve by step."""
    places = axis_values(run, recipe, axis)
    if not held_out:
        pairs = zip(places, run.metrics, strict=True)
        return {int(line["step"]): (x, line[name]) for x, line in pairs if name in line}
    before = [0.0, *places]  # an evaluation at step n follows n finished steps
    return {
        one["step"]: (before[one["step"]], one["metrics"][name])
        for one in run.evaluations
        if name in one["metrics"] and one["step"] < len(before)
    }


def _mean_points(curves: Sequence[Mapping[int, tuple[float, float]]]) -> Points:
    """Return the mean over the steps that all curves have."""
    steps = [step for step in curves[0] if all(step in curve for curve in curves)] if curves else []
    common = [[curve[step] for curve in curves] for step in steps]
    return [(fmean(x for x, _ in points), fmean(y for _, y in points)) for points in common]


def result_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of results: a column per method."""
    methods = results["methods"]
    names = dict.fromkeys(name for method in methods.values() for name in method["metrics"])
    rows = [["steps", *(_steps(method["runs"]) for method in methods.values())]]
    if any(len(method["runs"]) > 1 for method in methods.values()):
        rows.insert(0, ["seeds", *(", ".join(str(run["seed"]) for run in one["runs"]) for one in methods.values())])
    rows += [[_title(name), *(_with_interval(one["metrics"].get(name)) for one in methods.values())] for name in names]
    return ["", *methods], rows


def _title(name: str) -> str:
    return {"reward/per_response": "training reward", "kl/per_token": "training KL"}.get(name, name.replace("_", " "))


def _steps(runs: Sequence[Mapping[str, Any]]) -> str:
    said = dict.fromkeys(
        str(run["steps"]) if run["steps"] >= run["planned_steps"] else f"{run['steps']} of {run['planned_steps']}"
        for run in runs
    )
    return ", ".join(said)


def _with_interval(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    if len(found["values"]) == 1:
        return _rounded(found["mean"])
    return f"{_rounded(found['mean'])} [{_rounded(found['low'])}, {_rounded(found['high'])}]"


def _rounded(value: float) -> str:
    return (f"{value:.3f}" if abs(value) < _MANY else f"{value:.1f}").replace("-", "−")


def paired_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the paired differences: a column per method but the first."""
    found = results["paired"]
    names = dict.fromkeys(name for one in found.values() for name in one["metrics"])
    rows = [["prompts", *(str(one["prompts"]) for one in found.values())]]
    for name in names:
        cells = [one["metrics"].get(name) for one in found.values()]
        shown = [f"{_signed(c['value'])} [{_signed(c['low'])}, {_signed(c['high'])}]" if c else "–" for c in cells]
        rows.append([_title(name), *shown])
    return ["", *found], rows


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def setting_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the settings that differ: one row per setting, one column per method."""
    columns = ["setting", *results["methods"]]
    rows = [
        [key, *(json.dumps(v, ensure_ascii=False) for v in values.values())]
        for key, values in results["settings"].items()
    ]
    return columns, rows


def tables(results: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the tables of terminal and page: (caption, columns, rows)."""
    first = next(iter(results["methods"]))
    at = "at the last evaluation" if results["step"] is None else f"at step {results['step']}"
    several = any(len(method["runs"]) > 1 for method in results["methods"].values())
    over = "; brackets: Student's interval of 95 % over seeds" if several else ""
    evaluated = any(run["evaluated_at"] is not None for one in results["methods"].values() for run in one["runs"])
    held_out = f"Held-out metrics {at}, and training" if evaluated else "Training"
    made = [(f"{held_out} reward and KL of the last step{over}", *result_rows(results))]
    if results["paired"]:
        caption = (
            f"Difference from {first} on the same held-out prompts; brackets: 95 % bootstrap interval over prompts"
        )
        made.append((caption, *paired_rows(results)))
    if results["settings"]:
        made.append(("Settings that differ", *setting_rows(results)))
    return made


def warnings(results: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know before the tables: the tasks differ."""
    tasks: Mapping[str, str] = results["tasks"]
    if len(set(tasks.values())) < 2:
        return []
    listed = "; ".join(f"{name}: {task}" for name, task in tasks.items())
    return [f"The tasks differ, so the numbers are not comparable across them ({listed})."]


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return what the tables cannot say: missing pairs, unfinished runs, evaluations at different steps."""
    said = [f"No paired comparison of {name}: {reason}." for name, reason in results["not_paired"].items()]
    steps = {run["evaluated_at"] for method in results["methods"].values() for run in method["runs"]} - {None}
    if len(steps) > 1:
        listed = ", ".join(map(str, sorted(steps)))
        said.append(f"The runs are compared at different steps ({listed}); --step N compares them at the same step.")
    unfinished = sum(run["steps"] < run["planned_steps"] for one in results["methods"].values() for run in one["runs"])
    if unfinished:
        said.append(f"{count(unfinished, 'run')} of them {'is' if unfinished == 1 else 'are'} not finished.")
    if not results["settings"] and len(results["methods"]) > 1:
        said.append("No setting differs.")
    for name, method in results["methods"].items():
        repeated = [str(seed) for seed, runs in Counter(run["seed"] for run in method["runs"]).items() if runs > 1]
        if repeated:
            said.append(
                f"{name} has several runs of seed {', '.join(repeated)}: they are not independent, so that its "
                "intervals over seeds are too narrow."
            )
    return said


def samples(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return records of the page: a held-out prompt, and the response of each method's first run to it."""
    sides = [
        (method.name, method.compared[0]["step"], by_prompt(method.compared[0]["records"]))
        for method in methods
        if method.compared[0] is not None and method.compared[0].get("records")
    ]
    if len(sides) < 2:
        return []
    common = [key for key in sides[0][2] if all(key in found for _, _, found in sides)]
    shown = []
    for key in common[:SHOWN_PROMPTS]:
        first, *others = [{**found[key], "by": f"{name}, step {step}"} for name, step, found in sides]
        first.pop("step", None)  # the columns say it
        shown.append({**first, "beside": others})
    return shown


def write_compared(methods: Sequence[Method], out: Path, *, step: int | None = None) -> dict[str, Any]:
    """Write compare.json, compare.png and compare.html, and return the content of compare.json.

    Raises:
        DataError: if the directory holds another file named compare.json.
    """
    path = out / "compare.json"
    if path.exists() and not _is_ours(path):
        raise DataError(f"{path} was not written by `text2grad compare`; choose another --out")
    results, drawn = as_json(methods, step), panels(methods)
    shown = samples(methods)
    page = rollouts_page(
        "Runs compared",
        intro="\n\n".join([f"{' · '.join(results['methods'])}.", *warnings(results), *notes(results)]),
        groups=[("The same held-out prompts", shown)] if shown else [],
        images=[("Thin lines: single seeds, or values before smoothing.", pictures(drawn))],
        tables=tables(results),
    )
    picture = panels_png(drawn, columns=len(AXES))
    write_files(out, {"compare.json": to_json(results), "compare.png": picture, "compare.html": page.encode()})
    return results


def _is_ours(path: Path) -> bool:
    try:
        return {"methods", "paired", "not_paired"} <= set(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return False


def print_compared(console: Console, results: Mapping[str, Any]) -> None:
    """Print the warnings, the tables and the notes."""
    for warning in warnings(results):
        console.print(warning, markup=False, highlight=False, soft_wrap=True)
    for caption, columns, rows in tables(results):
        print_table(console, caption, columns, rows)
    for note in notes(results):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
