"""Numbers → panels of lines with matplotlib, as PNG.

A file holds all panels side by side; a page shows each panel as a separate picture, which fits a phone. Lines differ
by colour, dashes and markers, and are named beside the panel.
"""

import io
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

COLOURS = ("#0b7a75", "#6f7378", "#c8553d", "#6c5b9e", "#b08900", "#3d7ec8", "#2f3e46")
DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1)))
MARKERS = "osD^vPX"
INK, GRID, PAPER = "#24292f", "#e3e6ea", "#ffffff"

_PANEL = (4.4, 3.5)  # inches
_NAME_CHARS = 16  # most characters in a line of a name

Points = Sequence[tuple[float, float]]
Draw = partial[None]  # draws one panel on a matplotlib axis; has the keyword `title`


class Line(NamedTuple):
    """A line of a panel."""

    name: str  # beside the panel
    points: Points  # (x, y)
    faint: Sequence[Points] = ()  # further lines in the same colour, thin: single seeds, or values before smoothing
    marked: bool = False  # mark each point
    look: int = 0  # number of colour, dashes and marker; a line of the same thing looks the same in every panel
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high), shaded


class Picture(NamedTuple):
    """A panel as a PNG file; a page in dark mode inverts it."""

    title: str
    png: bytes


def method_lines(curves: Mapping[str, Sequence[Points]], *, smooth: bool = False) -> list[Line]:
    """Return a line for each method, from the curves of its seeds; a method without points has none."""
    lines = []
    for place, (name, of_seeds) in enumerate(curves.items()):
        seeds = [points for points in of_seeds if points]
        if mean := mean_curve(seeds):
            faint = seeds if smooth or len(seeds) > 1 else []
            lines.append(Line(name, smoothed_points(mean) if smooth else mean, faint, not smooth, place))
    return lines


def mean_curve(curves: Sequence[Points]) -> list[tuple[int, float]]:
    """Return the mean over seeds at the steps that all their curves have.

    Example:
        >>> mean_curve([[(0, 0.25), (10, 0.5)], [(0, 0.75), (5, 0.6), (10, 1.0)]])
        [(0, 0.5), (10, 0.75)]
    """
    seeds = [dict(points) for points in curves]
    steps = [step for step in seeds[0] if all(step in seed for seed in seeds)] if seeds else []
    return [(int(step), fmean(seed[step] for seed in seeds)) for step in steps]


def smoothed_points(points: Points) -> Points:
    """Return points whose y is an exponential moving average that starts at the first y.

    Example:
        >>> smoothed_points([(0, 0.0), (1, 1.0)])
        [(0, 0.0), (1, 0.19999999999999996)]
    """
    smoothed = accumulate(points, lambda before, point: (point[0], 0.8 * before[1] + (1 - 0.8) * point[1]))
    return list(smoothed)


def metric_words(metric: str) -> str:
    """Return the name of a metric as a reader sees it."""
    return metric.replace("_at_", "@").replace("_", " ")


def curve_panel(title: str, x: str, lines: Sequence[Line], *, level: tuple[str, float] | None = None) -> Draw:
    """Return a panel of lines; the names are drawn if there are several, or with a level, a named horizontal line."""
    return partial(_draw_curves, title=title, x=x, lines=lines, level=level)


def _draw_curves(axis: Any, *, title: str, x: str, lines: Sequence[Line], level: tuple[str, float] | None) -> None:
    if level is not None:
        axis.axhline(
            level[1], color=INK, linewidth=1, linestyle=(0, (1, 3)), label=textwrap.fill(level[0], _NAME_CHARS)
        )
    for line in lines:
        again, number = divmod(line.look, len(COLOURS))
        colour = COLOURS[number]
        if line.band:
            axis.fill_between(*zip(*line.band, strict=True), color=colour, alpha=0.15, linewidth=0)
        for points in line.faint:
            axis.plot(*zip(*points, strict=True), color=colour, linewidth=0.8, alpha=0.35)
        marker, every = MARKERS[(number + again) % len(MARKERS)], max(1, len(line.points) // 6)
        axis.plot(
            *zip(*line.points, strict=True),
            color=colour,
            linestyle=DASHES[(number + again) % len(DASHES)],
            linewidth=2,
            marker=marker,
            markersize=4,
            markevery=1 if line.marked else (line.look % every, every),
            label=textwrap.fill(line.name.lstrip("_"), _NAME_CHARS),  # a legend leaves out names that begin with it
        )
    style(axis, title)
    axis.set_xlabel(x, color=INK, fontsize=9)
    if x == "step":
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.tick_params(colors=INK, labelsize=9)
    axis.spines["bottom"].set_color(GRID)
    if len(lines) > 1 or level is not None:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8.5, labelcolor="linecolor")


def panels_png(panels: Sequence[Draw], *, size: tuple[float, float] = _PANEL) -> bytes:
    """Return panels side by side as one PNG file; `size` is the width and height of a panel, in inches."""
    if "matplotlib" not in sys.modules and (backend := os.environ.pop("MPLBACKEND", None)):
        import matplotlib

        os.environ["MPLBACKEND"] = (
            backend  # a notebook's for the commands that it starts: their environment may lack it
        )
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend
    from matplotlib.figure import Figure

    inches = (size[0] * len(panels), size[1])
    figure = Figure(figsize=inches, dpi=130, layout="constrained", facecolor=PAPER)
    for axis, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axis)
    return to_png(figure)


def pictures(panels: Sequence[Draw], *, size: tuple[float, float] = _PANEL) -> list[Picture]:
    """Return each panel as a separate picture."""
    return [Picture(draw.keywords["title"], panels_png([draw], size=size)) for draw in panels]


def to_png(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def style(axis: Any, title: str, *, grid: str = "y") -> None:
    """Set title, grid and frame of a panel."""
    axis.set_facecolor(PAPER)
    axis.set_title(title, loc="left", fontsize=10.5, color=INK)
    axis.grid(axis=grid, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
