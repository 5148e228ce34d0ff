"""Analysed runs → tables, pictures, analysis.json and analysis.html.

analysis.json    {"runs": {NAME: see `run_analysis`, with "verdict"},
                  "formula": [{"gamma_lam", "span_tokens", "group", "runs": [NAME], "points": [[T, ratio]]}]}
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evidence.analysis.cases import case_groups
from evidence.analysis.explanation import CERTAIN
from evidence.analysis.formula import formula_line
from evidence.analysis.points import Measured, points_panel
from evidence.analysis.run_analysis import analyse_run
from evidence.analysis.signals import SIGNALS
from evidence.analysis.verdict import verdict
from text2grad.errors import DataError
from text2grad.files import to_json, write_files
from text2grad.runs.reports.html import Table, rollouts_page
from text2grad.runs.reports.plots import Draw, Line, curve_panel, pictures, smoothed_points
from text2grad.runs.reports.run_report import Run
from text2grad.runs.reports.terminal import plain, print_tables

NOT_LOGGED = (
    "No update of the policy was logged, so nothing is said of what the words did: set analysis.track_update = 10, "
    "say, and train."
)
SHOWN_LAGS = (1, 8)
DRAWN = ("spans", "number", "logged")
MOVED = {
    "tokens": "tokens",
    "still": "did not move",
    "mean_change": "mean change, nats",
    "right": "moved right",
    "far_right": "the same, |A| > σ/2",
    "open_right": f"the same, p ≤ {CERTAIN:g}",
    "open": "tokens of these",
    "far_distance": "distance to the right, |A| > σ/2",
}
"""Figures of a group of tokens → columns of the table."""

FRESH = {
    "fresh_right": "moved right, |A| > σ/2",
    "fresh_open_right": f"the same, p ≤ {CERTAIN:g}",
    "fresh_distance": "distance to the right, |A| > σ/2",
}
"""The same without the momentum of earlier updates."""

CAUSES = {
    "own": "own advantage",
    "kl": "KL term",
    "neighbours": "neighbours",
    "shared": "same token elsewhere",
    "certain": f"p > {CERTAIN:g} before",
    "momentum": "momentum of earlier updates",
    "drift": "all tokens",
    "unexplained": "unexplained",
}
SAME_SPANS = 1.25  # factor between the span lengths of runs that share a line of the formula
MOST_NAMES = 8  # points with names
PICTURE = (5.2, 3.7)  # inches


def analyse_runs(
    paths: Sequence[Path], *, gamma: float | None = None, lam: float | None = None
) -> tuple[dict[str, Run], dict[str, Any]]:
    """Return runs by name, and the content of analysis.json.

    Args:
        paths: directories of runs.
        gamma: γ of the spans; None takes each run's.
        lam: λ of the spans; None takes each run's.

    Raises:
        DataError: if a path is given twice, or is no run with rollouts.
    """
    twice = {path.resolve() for path in paths if [other.resolve() for other in paths].count(path.resolve()) > 1}
    if twice:
        raise DataError(f"{min(twice)} is given twice; name each run once")
    runs, found = {}, {}
    for name, path in zip(_names(paths), paths, strict=True):
        runs[name], found[name] = analyse_run(path, gamma=gamma, lam=lam)
        found[name]["verdict"] = verdict(found[name])
    return runs, {"runs": found, "formula": _lines_of_formula(found)}


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    parts = [path.resolve().parts for path in paths]
    depth = next(n for n in range(1, 100) if len({one[-n:] for one in parts}) == len(parts))
    return ["/".join(one[-depth:]) for one in parts]


def _lines_of_formula(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the formula's lines; runs with the same γλ and group, and spans of similar length, share one."""
    lines: list[dict[str, Any]] = []
    for name, one in found.items():
        settings, spans = one["settings"], one["span_tokens"]
        factor, group = settings["gamma"] * settings["lam"], settings["group"]
        line = next(
            (
                line
                for line in lines
                if (line["gamma_lam"], line["group"]) == (factor, group)
                and 1 / SAME_SPANS < spans / line["span_tokens"] < SAME_SPANS
            ),
            None,
        )
        if line is None:
            line = {"gamma_lam": factor, "span_tokens": spans, "group": group, "runs": [], "points": []}
            lines.append(line)
        line["runs"].append(name)
    longest = max(one["length"]["longest"] for one in found.values())
    for line in lines:
        points = formula_line(
            factor=line["gamma_lam"], span_tokens=line["span_tokens"], group=line["group"], longest=longest
        )
        line["points"] = [[length, ratio] for length, ratio in points if ratio not in (0.0, float("inf"))]
    return lines


def write_analysis(
    runs: Mapping[str, Run], results: Mapping[str, Any], out: Path, *, case: int | None = None
) -> dict[str, Path]:
    """Write analysis.json and analysis.html, and return their paths.

    Args:
        runs: by name.
        results: of `analyse_runs`.
        out: directory.
        case: number of the case that the page shows; None shows the first if there is any.

    Raises:
        DataError: if there is no such case, or the directory holds another file named analysis.json.
    """
    path = out / "analysis.json"
    if path.exists() and not _is_ours(path):
        raise DataError(f"{path} was not written by `python -m evidence analyse`; choose another --out")
    page = rollouts_page(
        "Words and numbers",
        intro="\n\n".join(notes(results)),
        summary=_tiles(results),
        images=_images(results),
        tables=tables(results),
        groups=_cases(runs, case),
    )
    write_files(out, {"analysis.json": to_json(results, indent=1), "analysis.html": page.encode()})
    return {"numbers": path, "page": out / "analysis.html"}


def _is_ours(path: Path) -> bool:
    try:
        return {"runs", "formula"} <= set(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return False


def _cases(runs: Mapping[str, Run], case: int | None) -> list[tuple[str, list[dict[str, Any]]]]:
    try:
        return case_groups(runs, case or 0)
    except DataError:
        if case is not None:
            raise
        return []


def print_analysis(console: Console, results: Mapping[str, Any]) -> None:
    """Print the tables and, at the end, the verdicts."""
    print_tables(console, tables(results))
    for note in notes(results):
        console.print(plain(note), soft_wrap=True)


def notes(results: Mapping[str, Any]) -> list[str]:
    """Return missing logs, and the verdict of each run last."""
    found = results["runs"]
    several = len(found) > 1
    missing = [name for name, one in found.items() if one["update"] is None]
    said = [f"{', '.join(missing)}: {NOT_LOGGED}" if several else NOT_LOGGED] if missing else []
    return said + [f"{name}: {one['verdict']}" if several else one["verdict"] for name, one in found.items()]


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Return the tables of terminal and page: a column per run."""
    found = results["runs"]
    made = [
        Table("Rollouts", ["", *found], _rollout_rows(found)),
        Table("Signal-to-noise ratio of advantages on the same rollouts", ["", *found], _signal_rows(found)),
        Table("Variance and autocorrelation of these advantages", ["", *found], _moment_rows(found)),
    ]
    logged = {name: one["update"] for name, one in found.items() if one["update"] is not None}
    if logged:
        made.append(Table("Log-probs of tokens after the update", ["", *MOVED.values()], _update_rows(logged)))
        if fresh := {name: one for name, one in logged.items() if one["all"]["fresh_right"] is not None}:
            made.append(
                Table("The same without the momentum of earlier updates", ["", *FRESH.values()], _fresh_rows(fresh))
            )
        made.append(Table("Gradient of the update", ["", *logged], _gradient_rows(logged)))
        made.append(Table("Causes of the changes of log-probs", ["", *logged], _cause_rows(logged)))
    return made


def _rollout_rows(found: Mapping[str, Any]) -> list[list[str]]:
    def row(name: str, cell: Any) -> list[str]:
        return [name, *(cell(one) for one in found.values())]

    return [
        row("responses", lambda one: f"{one['responses']:,}"),
        row("steps", lambda one: str(one["steps"])),
        row("tokens per response", lambda one: f"{one['length']['mean']:.1f}"),
        row("tokens labelled", lambda one: f"{one['labelled_share']:.0%}"),
        row("spans per response", lambda one: f"{one['spans_per_response']:.2f}"),
        row("of these negative", lambda one: f"{one['faults_per_response']:.2f}"),
        row("tokens per span, weighted", lambda one: f"{one['span_tokens']:.1f}"),
        row("γ, λ of the spans", lambda one: f"{one['settings']['gamma']:g}, {one['settings']['lam']:g}"),
        row("responses per prompt", lambda one: str(one["settings"]["group"])),
    ]


def _signal_rows(found: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        [f"signal-to-noise, {label}", *(_number(one["signals"][name]["signal_to_noise"]) for one in found.values())]
        for name, label in SIGNALS.items()
    ]
    rows.append(["spans / one number, measured", *(_interval(one["ratio"]) for one in found.values())])
    rows.append(["the same, by the token's own reward", *(_number(one["ratio_by_reward"]) for one in found.values())])
    rows.append(["spans / one number, formula", *(_number(one["predicted"]) for one in found.values())])
    alpha = [one["amplification"] for one in found.values()]
    shown = [f"{a['factor']:.3g} ({a['tokens_to_end']:.0f} tokens)" if a["factor"] else "–" for a in alpha]
    rows.append(["α of Appendix A at the median label", *shown])
    return rows


def _moment_rows(found: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        [f"variance, {label}", *(_number(one["signals"][name]["variance"]) for one in found.values())]
        for name, label in SIGNALS.items()
    ]
    for name in ("spans", "number", "logged"):
        for lag in SHOWN_LAGS:
            values = [one["signals"][name]["autocorrelation"] for one in found.values()]
            cells = [f"{one[lag - 1]:.2f}".replace("-", "−") if len(one) >= lag else "–" for one in values]
            rows.append([f"autocorrelation, {lag} apart, {SIGNALS[name]}", *cells])
    return rows


def _update_rows(logged: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, figures in _named_parts(logged):
        shown = {key: _share(figures[key]) for key in MOVED}
        shown |= {key: f"{figures[key]:,}" for key in ("tokens", "open")}
        shown["mean_change"] = _signed(figures["mean_change"])
        rows.append([name, *shown.values()])
    return rows


def _fresh_rows(logged: Mapping[str, Any]) -> list[list[str]]:
    return [[name, *(_share(figures[key]) for key in FRESH)] for name, figures in _named_parts(logged)]


def _named_parts(logged: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the groups of tokens of each run: name, with that of the run if there are several, and figures."""
    for run, one in logged.items():
        for title, keys in _parts(one):
            yield f"{run}: {title}" if len(logged) > 1 else title, _at(one, keys)


def _gradient_rows(logged: Mapping[str, Any]) -> list[list[str]]:
    gradient = [one["gradient"] for one in logged.values()]
    names = {"norm": "all tokens", "norm_labelled": "labelled tokens", "norm_unlabelled": "unlabelled tokens"}
    norms = [[f"norm, {title}", *(_number(one and one[name]) for one in gradient)] for name, title in names.items()]
    return [*norms, ["share of labelled tokens", *(_share(one and one["labelled_share"]) for one in gradient)]]


def _parts(update: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the groups of tokens: name, and keys that lead to their figures."""
    lengths = update["lengths"] if len(update["lengths"]) > 1 else ()
    return [
        ("all", ("all",)),
        *((name, ("labels", name)) for name in update["labels"]),
        *((f"{name} tokens", ("lengths", name)) for name in lengths),
    ]


def _at(found: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any]:
    for key in keys:
        found = found.get(key, {})
    return found


def _cause_rows(logged: Mapping[str, Any]) -> list[list[str]]:
    explanations = [one["explanation"] for one in logged.values()]
    rows = [["variance explained, R²", *(f"{one['r2']:.2f}" for one in explanations)]]
    rows += [
        [f"of it: {CAUSES[name]}", *(f"{one['parts'][name]:.2f}" for one in explanations)]
        for name in ("own", "kl", "neighbours", "shared")
    ]
    for key, title in (("wrong", "moved wrong"), ("far_wrong", "moved wrong, |A| > σ/2")):
        rows.append([f"{title}: tokens", *(f"{one[key]['tokens']:,}" for one in explanations)])
        for name in ("certain", "momentum", "neighbours", "shared", "kl", "drift", "unexplained"):
            rows.append([f"{title}: {CAUSES[name]}", *(f"{one[key]['causes'][name]:.0%}" for one in explanations)])
    return rows


def _tiles(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the main figures of the first run."""
    one = next(iter(results["runs"].values()))
    made = [
        ("signal-to-noise, spans", _number(one["signals"]["spans"]["signal_to_noise"])),
        ("signal-to-noise, one number", _number(one["signals"]["number"]["signal_to_noise"])),
        ("spans / one number", f"{_number(one['ratio']['value'])} (formula: {_number(one['predicted'])})"),
    ]
    if one["update"] is not None:
        every = one["update"]["all"]
        shares = f"{_share(every['open_right'])} (any p: {_share(every['far_right'])})"
        made.append((f"moved right, |A| > σ/2, p ≤ {CERTAIN:g}", shares))
    return made


def _images(results: Mapping[str, Any]) -> list[tuple[str, Any]]:
    length, steps, lags = _ratio_panel(results), _step_panels(results), _lag_panels(results)
    caption = (
        "Signal-to-noise ratio of spans over that of one number, by the length of responses: points and their 95 % "
        "interval over steps are measured, lines are the formula; and the ratios of each step."
    )
    made = [(caption, pictures([*length, *steps], size=PICTURE))] if length or steps else []
    logged = {name: one["update"] for name, one in results["runs"].items() if one["update"] is not None}
    caption = "Autocorrelation of the advantages within a response."
    if logged:
        caption += " Share of tokens whose log-prob moved in the direction of their advantage; mean change by label."
    if drawn := lags + (_update_panels(logged) if logged else []):
        made.append((caption, pictures(drawn, size=PICTURE)))
    return made


def _ratio_panel(results: Mapping[str, Any]) -> list[Draw]:
    """Return the panel of the ratio by length: the runs, and the formula's lines in their colours."""
    found = results["runs"]
    looks = {name: look for look, line in enumerate(results["formula"]) for name in line["runs"]}
    measured = [
        Measured(
            name if len(found) <= MOST_NAMES else "",
            one["length"]["mean"],
            one["ratio"]["value"],
            one["ratio"]["low"] or None,
            one["ratio"]["high"],
            looks[name],
        )
        for name, one in found.items()
        if one["ratio"]["value"]
    ]
    lines = [
        Line(_name_of_line(line), line["points"], look=look)
        for look, line in enumerate(results["formula"])
        if line["points"]
    ]
    return [points_panel("spans / one number", "tokens per response", measured, lines)] if measured else []


def _step_panels(results: Mapping[str, Any]) -> list[Draw]:
    name, first = next(iter(results["runs"].items()))
    lines = [
        Line(SIGNALS[signal], points, look=look)
        for look, signal in enumerate(DRAWN)
        if (points := _by_step(first, signal))
    ]
    return [curve_panel(f"signal-to-noise ratio, {name}", "step", lines)] if lines else []


def _lag_panels(results: Mapping[str, Any]) -> list[Draw]:
    name, first = next(iter(results["runs"].items()))
    lines = [
        Line(SIGNALS[signal], list(enumerate(values, start=1)), look=look)
        for look, signal in enumerate(DRAWN)
        if (values := first["signals"][signal]["autocorrelation"])
    ]
    return [curve_panel(f"autocorrelation, {name}", "tokens apart", lines)] if lines else []


def _name_of_line(line: Mapping[str, Any]) -> str:
    group = f", groups of {line['group']}" if line["group"] > 1 else ""
    return f"γλ = {line['gamma_lam']:.3g}, spans of {line['span_tokens']:.2g}{group}"


def _by_step(found: Mapping[str, Any], signal: str) -> list[tuple[float, float]]:
    points = [(one["step"], one[signal]["signal_to_noise"]) for one in found["by_step"]]
    return list(smoothed_points([(step, value) for step, value in points if value is not None]))


def _update_panels(logged: Mapping[str, Any]) -> list[Draw]:
    panels = []
    for key, title in (
        ("open_right", f"moved right, |A| > σ/2, p ≤ {CERTAIN:g}"),
        ("far_right", "moved right, |A| > σ/2"),
    ):
        lines = []
        for look, (name, one) in enumerate(logged.items()):
            points = [(int(step), found[key]) for step, found in one["steps"].items() if found[key] is not None]
            if points:
                lines.append(Line(name, points, marked=True, look=look))
        panels += [curve_panel(title, "step", lines)] if lines else []
    name, first = next(iter(logged.items()))
    changes = []
    for look, label in enumerate(("positive", "unlabelled", "negative")):
        found = [(int(step), one[f"change_{label}"]) for step, one in first["steps"].items()]
        if points := [(step, value) for step, value in found if value is not None]:
            changes.append(Line(label, points, marked=True, look=look))
    return panels + ([curve_panel(f"mean change of log p, {name}", "step", changes)] if changes else [])


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _interval(found: Mapping[str, float | None]) -> str:
    if found["low"] is None:
        return _number(found["value"])
    high = "∞" if found["high"] is None else _number(found["high"])
    return f"{_number(found['value'])} [{_number(found['low'])}, {high}]"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}".replace("-", "−")
