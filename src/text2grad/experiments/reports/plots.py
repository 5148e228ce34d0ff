"""Metrics of runs → PNG curves over the steps: held-out metric of the task, reward, negative tokens, KL."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

COLOURS = ("#0b7a75", "#8a8d91", "#c8553d", "#6c5b9e", "#b08900", "#3d7ec8", "#2f3e46")
INK, GRID = "#24292f", "#e3e6ea"

PANELS = (
    ("reward/per_response", "reward per response"),
    ("delta/negative_share", "share of tokens in negative spans"),
    ("kl/per_token", "KL from the reference, nats per token"),
)


@dataclass(frozen=True, slots=True)
class RunCurves:
    """Name, metrics per training step, and evaluations of a run: (step, value of the task's metric), held-out."""

    name: str
    metrics: Sequence[Mapping[str, float]]
    evaluations: Sequence[tuple[int, float]] = ()


def curves_png(runs: Sequence[RunCurves], *, metric: str = "") -> bytes:
    """Return the curves of at most seven runs as a PNG file; the panel of the task's metric needs evaluations."""
    with_metric = any(run.evaluations for run in runs)
    figure = new_figure(4.4 * (len(PANELS) + with_metric), 3.5)
    axes = figure.subplots(1, len(PANELS) + with_metric)
    if with_metric:
        for colour, run in zip(COLOURS, runs, strict=False):
            points = [point[0] for point in run.evaluations], [point[1] for point in run.evaluations]
            axes[0].plot(*points, color=colour, marker="o", markersize=3.5, linewidth=2, label=run.name)
        _finish(axes[0], f"{metric}, held-out")
    for axis, (key, label) in zip(axes[with_metric:], PANELS, strict=True):
        for colour, run in zip(COLOURS, runs, strict=False):
            steps, values = [line["step"] for line in run.metrics], [line[key] for line in run.metrics]
            axis.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35)
            axis.plot(steps, smoothed(values), color=colour, linewidth=2, label=run.name)
        _finish(axis, label)
    if len(runs) > 1:
        axes[0].legend(frameon=False, labelcolor=INK)
    return to_png(figure)


def comparison_png(tasks: Mapping[str, Any], names: Mapping[str, str]) -> bytes:
    """Return the held-out metric of each task over the steps, one panel each, as a PNG file.

    Args:
        tasks: as in results.json: for each task its metric, and for each method a curve per seed.
        names: method → label, for the methods to draw.
    """
    figure = new_figure(5.2 * len(tasks) + 2.4, 3.6)
    for axis, (task, result) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
        sft = result["methods"]["sft"]["final"]
        axis.axhline(sum(sft) / len(sft), color=INK, linewidth=1, linestyle=":", label="fine-tuned")
        for colour, (method, label) in zip(COLOURS, names.items(), strict=False):
            curves = result["methods"].get(method, {"curve": []})["curve"]
            for curve in curves:
                axis.plot(*zip(*curve, strict=True), color=colour, linewidth=0.8, alpha=0.4)
            if curves:
                means = zip(*mean_curve(curves), strict=True)
                axis.plot(*means, color=colour, linewidth=2.2, marker="o", markersize=3.5, label=label)
        _finish(axis, f"{task}: {result['metric']}, held-out")
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right upper", frameon=False, labelcolor=INK, fontsize=9)
    return to_png(figure)


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[int, float]]:
    """Return the mean over seeds of curves with the same steps.

    Example:
        >>> mean_curve([[[0, 0.2], [10, 0.4]], [[0, 0.4], [10, 0.8]]])
        [(0, 0.30000000000000004), (10, 0.6000000000000001)]
    """
    return [(int(points[0][0]), fmean(point[1] for point in points)) for points in zip(*curves, strict=True)]


def smoothed(values: Sequence[float], weight: float = 0.8) -> list[float]:
    """Return an exponential moving average that starts at the first value.

    Example:
        >>> smoothed([0.0, 1.0], weight=0.5)
        [0.0, 0.5]
    """
    result: list[float] = []
    for value in values:
        result.append(weight * result[-1] + (1 - weight) * value if result else value)
    return result


def to_png(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout="constrained", facecolor="white")


def style(axis: Any, title: str, *, grid: str = "y") -> None:
    """Set title, grid and frame of a panel."""
    axis.set_title(title, loc="left", fontsize=10.5, color=INK)
    axis.grid(axis=grid, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _finish(axis: Any, title: str) -> None:
    style(axis, title)
    axis.set_xlabel("step", color=INK, fontsize=9)
    axis.tick_params(colors=INK, labelsize=9)
    axis.spines["bottom"].set_color(GRID)
