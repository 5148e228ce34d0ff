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
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from text2grad.config import Recipe, recipe_of_run
from text2grad.errors import DataError
from text2grad.evaluation import Ratio, estimate, mean_interval
from text2grad.files import to_json, write_files
from text2grad.runs.reports.html import Table, count, rollouts_page
from text2grad.runs.reports.plots import Draw, Line, Points, curve_panel, panels_png, pictures, smoothed_points
from text2grad.runs.reports.run_report import Run, by_prompt, read_run
from text2grad.runs.reports.terminal import print_table

OF_EVERY_RUN = {"kl_per_token", "mean_tokens", "truncated_share", "distinct_2", "failure_rate"}
"""Held-out metrics that runs of different tasks share, too."""

TRAINED = {"reward/per_response": "reward per response", "kl/per_token": "KL from the reference, nats per token"}
IN_TABLES = {"reward/per_response": "training reward", "kl/per_token": "training KL"}
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
    compared: list[Mapping[str, Any] | None]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """The compared evaluations of the runs that have one."""
        return [evaluation for evaluation in self.compared if evaluation is not None]

    @property
    def task(self) -> str:
        """The name of the built-in task, or "own data"."""
        return self.recipe.data.task or "own data"


def compare_runs(paths: Sequence[Path], *, step: int | None = None) -> list[Method]:
    """Read runs, and group the seeds of the same settings.

    Args:
        paths: directories of runs, or of a task of the quickstart, which stands for all its runs.
        step: compare the evaluations at this step; None takes the last evaluation of each run.

    Raises:
        DataError: if a path is no run, is given twice, has no evaluation at `step`, or the runs have nothing in common.
    """
    groups: list[list[tuple[Run, Recipe]]] = []
    seen = set[Path]()
    for path in (run for given in paths for run in _runs_in(given)):
        if path.resolve() in seen:
            raise DataError(f"{path} is given twice; name each run once")
        seen.add(path.resolve())
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
    methods = [
        Method(name, [run for run, _ in group], group[0][1], [_evaluation(run, step) for run, _ in group])
        for name, group in zip(_names([[run.directory for run, _ in g] for g in groups]), groups, strict=True)
    ]
    _check_common(methods)
    return methods


def _runs_in(given: Path) -> list[Path]:
    """Return the runs that a path stands for."""
    if (given / "run.json").exists():
        return [given]
    inside = [path.parent for path in given.glob("seed-*/*/run.json")]
    if inside:
        return sorted(inside, key=lambda path: (path.name != "text2grad", path.name, _number(path.parent.name)))
    tasks = sorted({str(path.parents[2]) for path in given.glob("*/seed-*/*/run.json")})
    if tasks:
        raise DataError(f"{given} holds the runs of a quickstart; name a task of it: {' or '.join(tasks)}")
    what = "does not exist" if not given.exists() else "is a file" if given.is_file() else "has no run.json"
    raise DataError(f"{given} is no run: it {what}. A run is the directory in run.out of `text2grad train`")


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


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 0)


def _names(groups: Sequence[Sequence[Path]]) -> list[str]:
    """Return a short name for each group of directories, none twice."""
    names = []
    for paths in groups:
        name = paths[0].name
        if len({path.name for path in paths}) > 1:  # lr-1e-3-seed-0, lr-1e-3-seed-1, ...
            name = _SEEDS.sub("", name) or name
        names.append(name)
    if len(set(names)) == len(names):
        return names
    longer = [f"{paths[0].parent.name}/{name}" for paths, name in zip(groups, names, strict=True)]
    return longer if len(set(longer)) == len(longer) else [str(paths[0]) for paths in groups]


def _evaluation(run: Run, step: int | None) -> Mapping[str, Any] | None:
    if step is None:
        return run.evaluations[-1] if run.evaluations else None
    by_step = {evaluation["step"]: evaluation for evaluation in run.evaluations}
    if step not in by_step:
        steps = ", ".join(map(str, by_step)) or "none"
        raise DataError(f"{run.directory} has no evaluation at step {step}. Its evaluations are at: {steps}")
    return by_step[step]


def _check_common(methods: Sequence[Method]) -> None:
    """Raise an error if methods with evaluations share no metric but those of every task."""
    evaluated = [(method.name, set(evaluation["metrics"])) for method in methods for evaluation in method.evaluations]
    if len(evaluated) > 1 and not set.intersection(*(names for _, names in evaluated)) - OF_EVERY_RUN:
        first, names = evaluated[0]
        other, differing = next(pair for pair in evaluated[1:] if pair[1] != names)
        raise DataError(
            f"the runs have no held-out metric in common: {first} has {', '.join(sorted(names - OF_EVERY_RUN))}; "
            f"{other} has {', '.join(sorted(differing - OF_EVERY_RUN))}. Compare runs of the same task"
        )


def metric_names(methods: Sequence[Method]) -> list[str]:
    """Return the held-out metrics that every evaluated run has, the main metric of the first method first."""
    metrics = [evaluation["metrics"] for method in methods for evaluation in method.evaluations]
    common = [name for name in metrics[0] if all(name in values for values in metrics)] if metrics else []
    main = next((evaluation["metric"] for evaluation in methods[0].evaluations), "reward")
    return sorted(common, key=lambda name: name != main)


def settings_that_differ(methods: Sequence[Method]) -> dict[str, dict[str, Any]]:
    """Return the settings that are not the same in all methods: "section.key" → name of the method → value."""
    names = {name for method in methods[1:] for name in _differing(methods[0].recipe, method.recipe)}
    settings = {method.name: _settings(method.recipe) for method in methods}
    ordered = [name for name in settings[methods[0].name] if name in names]
    return {name: {method: values[name] for method, values in settings.items()} for name in ordered}


def paired(methods: Sequence[Method]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the differences of methods from the first on the same held-out prompts, and why others have none."""
    differences: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for method in methods[1:]:
        try:
            differences[method.name] = _difference(methods[0], method)
        except DataError as reason:
            reasons[method.name] = str(reason)
    return differences, reasons


def _difference(first: Method, other: Method) -> dict[str, Any]:
    """Return the difference of the second method from the first, with bootstrap intervals over prompts.

    Raises:
        DataError: if there is nothing to compare.
    """
    if other.task != first.task:
        raise DataError(f"its task is {other.task}, and that of {first.name} is {first.task}")
    theirs, own = _responses(first), _responses(other)
    prompts = [key for key in theirs if key in own]
    if not prompts:
        raise DataError(f"{first.name} and {other.name} have no held-out prompt in common")
    names = [n for n in theirs[prompts[0]] if all(n in side[key] for side in (theirs, own) for key in prompts)]
    rows = [{**{name: own[key][name] - theirs[key][name] for name in names}, PROMPT: 1.0} for key in prompts]
    metrics = estimate(rows, {name: Ratio((name,), (PROMPT,)) for name in names})
    return {"prompts": len(prompts), "metrics": {name: figure._asdict() for name, figure in metrics.items()}}


def _responses(method: Method) -> dict[tuple[str, int], dict[str, float]]:
    """Return the numbers of each held-out prompt, means over the seeds.

    Raises:
        DataError: if a run has none.
    """
    seeds = []
    for run, evaluation in zip(method.runs, method.compared, strict=True):
        if evaluation is None:
            raise DataError(f"{run.directory} has no evaluation on held-out prompts")
        responses = by_prompt(evaluation["responses"])
        seeds.append({key: _numbers(response) for key, response in responses.items()})
    return {
        key: {
            name: fmean(seed[key][name] for seed in seeds)
            for name in seeds[0][key]
            if all(name in seed[key] for seed in seeds)
        }
        for key in seeds[0]
        if all(key in seed for seed in seeds)
    }


def _numbers(response: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a response, and its numbers that no metric is named like."""
    numbers = {name: response[name] for name in OF_A_RESPONSE if name in response} | response.get("metrics", {})
    return {name: float(value) for name, value in numbers.items()}


def as_json(methods: Sequence[Method], step: int | None) -> dict[str, Any]:
    """Return the numbers of compare.json."""
    differences, reasons = paired(methods)
    names = metric_names(methods)
    return {
        "step": step,
        "methods": {method.name: _method_json(method, names) for method in methods},
        "tasks": {method.name: method.task for method in methods},
        "settings": settings_that_differ(methods),
        "paired": differences,
        "not_paired": reasons,
    }


def _method_json(method: Method, names: Sequence[str]) -> dict[str, Any]:
    values = {name: [evaluation["metrics"][name] for evaluation in method.evaluations] for name in names}
    values |= {key: [run.metrics[-1][key] for run in method.runs if key in run.metrics[-1]] for key in TRAINED}
    metrics = {}
    for name, of_runs in values.items():
        if of_runs:
            mean = mean_interval(of_runs)
            metrics[name] = {"mean": mean.value, "low": mean.low, "high": mean.high, "values": of_runs}
    return {"runs": list(map(_run_json, method.runs, method.compared)), "metrics": metrics}


def _run_json(run: Run, evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    recipe = recipe_of_run(run.directory)
    seconds = sum(value for line in run.metrics for key, value in line.items() if key.startswith("seconds/"))
    return {
        "path": str(run.directory),
        "seed": recipe.run.seed,
        "steps": len(run.metrics),
        "planned_steps": recipe.run.steps,
        "tokens": round(sum(line.get("length/mean", 0.0) for line in run.metrics) * recipe.rollout.batch_size),
        "seconds": round(seconds, 1),
        "evaluated_at": None if evaluation is None else evaluation["step"],
    }


def panels(methods: Sequence[Method]) -> list[Draw]:
    """Return the panels: the main held-out metric, the reward and the KL, each over the steps."""
    drawn = []
    for name in metric_names(methods)[:1]:
        curves = [
            [[(e["step"], e["metrics"][name]) for e in run.evaluations if name in e["metrics"]] for run in method.runs]
            for method in methods
        ]
        drawn.append(curve_panel(f"{name.replace('_', ' ')}, held-out", "step", _lines(methods, curves, held_out=True)))
    for key, title in TRAINED.items():
        curves = [
            [[(int(line["step"]), line[key]) for line in run.metrics if key in line] for run in method.runs]
            for method in methods
        ]
        drawn.append(curve_panel(title, "step", _lines(methods, curves, held_out=False)))
    return drawn


def _lines(
    methods: Sequence[Method], curves: Sequence[Sequence[Sequence[tuple[int, float]]]], *, held_out: bool
) -> list[Line]:
    """Return a line for each method: the mean over the steps that the curves of all its seeds have."""
    lines = []
    for look, (method, of_seeds) in enumerate(zip(methods, curves, strict=True)):
        seeds = [dict(points) for points in of_seeds if points]
        steps = [step for step in seeds[0] if all(step in seed for seed in seeds)] if seeds else []
        if steps:
            mean: Points = [(step, fmean(seed[step] for seed in seeds)) for step in steps]
            faint = [list(seed.items()) for seed in seeds] if len(seeds) > 1 or not held_out else []
            lines.append(Line(method.name, mean if held_out else smoothed_points(mean), faint, held_out, look))
    return lines


def result_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of results: a column per method."""
    methods = results["methods"]
    names = dict.fromkeys(name for method in methods.values() for name in method["metrics"])
    rows = [["steps", *(_steps(method["runs"]) for method in methods.values())]]
    if any(len(method["runs"]) > 1 for method in methods.values()):
        seeds = [", ".join(str(run["seed"]) for run in method["runs"]) for method in methods.values()]
        rows.insert(0, ["seeds", *seeds])
    for name in names:
        rows.append([_title(name), *(_with_interval(method["metrics"].get(name)) for method in methods.values())])
    return ["", *methods], rows


def _title(name: str) -> str:
    return IN_TABLES.get(name, name.replace("_", " "))


def _steps(runs: Sequence[Mapping[str, Any]]) -> str:
    made = {run["steps"]: run["planned_steps"] for run in runs}
    return ", ".join(str(steps) if steps >= planned else f"{steps} of {planned}" for steps, planned in made.items())


def _with_interval(metric: Mapping[str, Any] | None) -> str:
    if metric is None:
        return "–"
    if len(metric["values"]) == 1:
        return _rounded(metric["mean"])
    return f"{_rounded(metric['mean'])} [{_rounded(metric['low'])}, {_rounded(metric['high'])}]"


def _rounded(value: float) -> str:
    return (f"{value:.3f}" if abs(value) < _MANY else f"{value:.1f}").replace("-", "−")


def paired_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the paired differences: a column per method but the first."""
    differences = results["paired"]
    names = dict.fromkeys(name for difference in differences.values() for name in difference["metrics"])
    rows = [["prompts", *(str(difference["prompts"]) for difference in differences.values())]]
    for name in names:
        cells = [difference["metrics"].get(name) for difference in differences.values()]
        shown = [f"{_signed(c['value'])} [{_signed(c['low'])}, {_signed(c['high'])}]" if c else "–" for c in cells]
        rows.append([_title(name), *shown])
    return ["", *differences], rows


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Return the tables of terminal and page: (caption, columns, rows)."""
    methods = results["methods"]
    at = "at the last evaluation" if results["step"] is None else f"at step {results['step']}"
    several = any(len(method["runs"]) > 1 for method in methods.values())
    over = "; brackets: Student's interval of 95 % over seeds" if several else ""
    evaluated = any(run["evaluated_at"] is not None for method in methods.values() for run in method["runs"])
    held_out = f"Held-out metrics {at}, and training" if evaluated else "Training"
    made: list[Table] = [Table(f"{held_out} reward and KL of the last step{over}", *result_rows(results))]
    if results["paired"]:
        first = f"Difference from {next(iter(methods))} on the same held-out prompts"
        made.append(Table(f"{first}; brackets: 95 % bootstrap interval over prompts", *paired_rows(results)))
    if results["settings"]:
        rows = [
            [key, *(json.dumps(value, ensure_ascii=False) for value in values.values())]
            for key, values in results["settings"].items()
        ]
        made.append(Table("Settings that differ", ["setting", *methods], rows))
    return made


def warnings(results: Mapping[str, Any]) -> list[str]:
    """Return the warnings above the tables: the tasks differ."""
    tasks: Mapping[str, str] = results["tasks"]
    if len(set(tasks.values())) < 2:
        return []
    listed = "; ".join(f"{name}: {task}" for name, task in tasks.items())
    return [f"The tasks differ, so the numbers are not comparable across them ({listed})."]


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return notes on missing pairs, unfinished runs, and evaluations at different steps."""
    said = [f"No paired comparison of {name}: {reason}." for name, reason in results["not_paired"].items()]
    runs = [run for method in results["methods"].values() for run in method["runs"]]
    steps = {run["evaluated_at"] for run in runs} - {None}
    if len(steps) > 1:
        listed = ", ".join(map(str, sorted(steps)))
        said.append(f"The runs are compared at different steps ({listed}); --step N compares them at the same step.")
    unfinished = sum(run["steps"] < run["planned_steps"] for run in runs)
    if unfinished:
        said.append(f"{count(unfinished, 'run')} of them {'is' if unfinished == 1 else 'are'} not finished.")
    for name, method in results["methods"].items():
        repeated = [str(seed) for seed, times in Counter(run["seed"] for run in method["runs"]).items() if times > 1]
        if repeated:
            said.append(
                f"{name} has several runs of seed {', '.join(repeated)}: they are not independent, so that its "
                "intervals over seeds are too narrow."
            )
    return said


def samples(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return records of the page: a held-out prompt, and the response of each method's first run to it."""
    sides = [
        (f"{method.name}, step {first['step']}", by_prompt(first["records"]))
        for method in methods
        if (first := method.compared[0]) is not None and first.get("records")
    ]
    common = [key for key in sides[0][1] if all(key in records for _, records in sides)] if len(sides) > 1 else []
    shown = []
    for key in common[:SHOWN_PROMPTS]:
        first, *others = [{**records[key], "by": name} for name, records in sides]
        first.pop("step", None)  # the columns say it
        shown.append({**first, "beside": others})
    return shown


def write_compared(methods: Sequence[Method], out: Path, *, step: int | None = None) -> dict[str, Any]:
    """Write compare.json, compare.png and compare.html, and return the content of compare.json.

    Raises:
        DataError: if the directory holds another file named compare.json.
    """
    path = out / "compare.json"
    if path.exists() and b'"not_paired"' not in path.read_bytes():
        raise DataError(f"{path} was not written by `text2grad compare`; choose another --out")
    results, drawn, shown = as_json(methods, step), panels(methods), samples(methods)
    page = rollouts_page(
        "Runs compared",
        intro="\n\n".join([f"{' · '.join(results['methods'])}.", *warnings(results), *notes(results)]),
        groups=[("The same held-out prompts", shown)] if shown else [],
        images=[("Thin lines: single seeds, or values before smoothing.", pictures(drawn))],
        tables=tables(results),
    )
    files = {"compare.json": to_json(results), "compare.png": panels_png(drawn), "compare.html": page.encode()}
    write_files(out, files)
    return results


def print_compared(console: Console, results: Mapping[str, Any]) -> None:
    """Print the warnings, the tables and the notes."""
    for warning in warnings(results):
        console.print(warning, markup=False, highlight=False, soft_wrap=True)
    for caption, columns, rows in tables(results):
        print_table(console, caption, columns, rows)
    for note in notes(results):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
