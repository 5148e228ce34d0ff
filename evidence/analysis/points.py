"""Points with intervals over lines, on logarithmic axes."""

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from text2grad.runs.reports.plots import COLOURS, DASHES, GRID, INK, MARKERS, Draw, Line, style

_NAME_CHARS = 16  # in a line


class Measured(NamedTuple):
    """A point with an interval.

    Attributes:
        name: beside the point; empty for none.
        x: its place.
        y: its value.
        low: end of the interval, or None.
        high: the other end, or None.
        look: number of colour and marker.
    """

    name: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    look: int = 0


def points_panel(title: str, x: str, points: Sequence[Measured], lines: Sequence[Line]) -> Draw:
    """Return a panel of points over lines, both axes logarithmic; values must be above 0."""
    return partial(_draw_points, title=title, x=x, points=points, lines=lines)


def _draw_points(axis: Any, *, title: str, x: str, points: Sequence[Measured], lines: Sequence[Line]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    for line in lines:
        colour, dashes = COLOURS[line.look % len(COLOURS)], DASHES[line.look % len(DASHES)]
        axis.plot(*zip(*line.points, strict=True), color=colour, linestyle=dashes, linewidth=1.6, label=line.name)
    for point in points:
        colour, marker = COLOURS[point.look % len(COLOURS)], MARKERS[point.look % len(MARKERS)]
        if point.low is not None and point.high is not None:
            axis.plot([point.x, point.x], [point.low, point.high], color=colour, linewidth=1.4)
        axis.plot([point.x], [point.y], color=colour, marker=marker, markersize=6, linestyle="none")
        axis.annotate(
            "\n".join(textwrap.wrap(point.name, _NAME_CHARS)),
            (point.x, point.y),
            xytext=(7, -3),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
            color=colour,
        )
    style(axis, title, grid="both")
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        one.set_minor_formatter(NullFormatter())
    axis.set_xlabel(x, color=INK, fontsize=9)
    axis.tick_params(which="both", colors=INK, labelsize=9)
    axis.spines["bottom"].set_color(GRID)
    if lines:
        axis.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left")
