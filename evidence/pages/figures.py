"""Pictures of the pages: learning curves, gain against KL, values against length.

A method has the same colour, dashes and marker in every picture; the paper is white, also in dark mode.
"""

from collections.abc import Sequence
from functools import partial
from math import inf, nan
from typing import Any

import numpy as np

from evidence.pages.bootstrap import Interval
from evidence.pages.markdown import words
from evidence.pages.measures import Frontiers, band, final, mean_curve
from evidence.pages.selection import Group, is_variant, label, learns_in_rounds
from evidence.plans.methods import METHODS
from text2grad.runs.reports import plots
from text2grad.runs.reports.plots import COLOURS, PAPER, Draw, Line, curve_panel, panels_png

MOST_LINES = 6
_OF_FORMULA = 1  # look of a line that is no method
_SIZE = (5.4, 3.6)  # inches


def look(method: str) -> int:
    """Return the look of a method in every picture: its place in `METHODS`."""
    return look_at(list(METHODS).index(method) if method in METHODS else len(METHODS))


def look_at(place: int) -> int:
    """Return the look of the method in a place of the list of methods; no other has the colour of the first.

    Example:
        >>> [look_at(place) for place in (0, 1, 6, 7)]
        [0, 1, 6, 8]
    """
    again, number = divmod(place - 1, len(COLOURS) - 1)
    return again * len(COLOURS) + number + 1 if place else 0


def shown(group: Group) -> list[str]:
    """Return the methods that a picture shows: ours, the strongest rival and number, and the best final values."""
    others = [name for name in group.runs if name != group.ours and (not is_variant(name) or METHODS[name].leading)]
    first = [group.strongest()[0], group.strongest(number=True)[0]]
    others.sort(key=lambda name: (name not in first, -group.sign * group.final(name)))
    return [name for name in (group.ours, *others) if name in group.runs][:MOST_LINES]


def learners(group: Group) -> list[str]:
    """Return the shown methods that have a learning curve: those that sample responses in training."""
    return [name for name in shown(group) if all(run.curve[-1]["rollouts"] for run in group.runs[name].values())]


def learning_curves(groups: Sequence[Group]) -> bytes:
    """Return a panel of learning curves with bands for each condition."""
    return _in_two_columns([_learning_curve(group) for group in groups])


def _in_two_columns(panels: Sequence[Draw]) -> bytes:
    """Return panels as one PNG file, two in a row."""
    from matplotlib.figure import Figure

    width = min(2, len(panels))
    height = -(-len(panels) // width)
    figure = Figure(figsize=(_SIZE[0] * width, _SIZE[1] * height), dpi=130, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(height, width, squeeze=False).ravel()
    for axis, draw in zip(axes, panels, strict=False):
        draw(axis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return plots.to_png(figure)


def _learning_curve(group: Group) -> Draw:
    lines = []
    for method in learners(group):
        runs = group.runs[method]
        mean, low, high = band(runs)
        rollouts = mean_curve(runs, "rollouts").mean(axis=0)
        if learns_in_rounds(method):  # until the end of a round the policy is the one before
            rollouts = np.repeat(rollouts, 2)[1:]
            mean, low, high = (np.repeat(one, 2)[:-1] for one in (mean, low, high))
        points, shaded = list(zip(rollouts, mean, strict=True)), list(zip(rollouts, low, high, strict=True))
        lines.append(Line(label(method), points, (), True, look(method), shaded))
    return curve_panel(f"{_title(group)}: {words(group.metric)}", "rollouts", lines)


def kl_frontiers(groups: Sequence[Group], rivals: Sequence[str], found: Sequence[Frontiers]) -> bytes:
    """Return a panel of gain against KL for each condition: Text2Grad and its strongest rival."""
    panels = [_frontier_panel(*one) for one in zip(groups, rivals, found, strict=True)]
    return _in_two_columns(panels)


def _frontier_panel(group: Group, rival: str, found: Frontiers) -> Draw:
    lines = []
    for number, method in enumerate((group.ours, rival)):
        points = list(zip(found.grid, found.gains[number], strict=True))
        shaded = list(zip(found.grid, found.low[number], found.high[number], strict=True))
        lines.append(Line(label(method), points, (), False, look(method), shaded))
    return curve_panel(f"{_title(group)}: gain in {words(group.metric)}", "KL, nats per token", lines)


def against_length(
    groups: Sequence[Group], leads: Sequence[Interval], ratios: Sequence[Interval], predicted: Sequence[float | None]
) -> bytes:
    """Return three panels over the length: final values, the lead over the strongest number, the share of rollouts.

    Args:
        groups: conditions that differ in length alone.
        leads: of each condition.
        ratios: of each condition; an infinite one is a gap.
        predicted: shares of rollouts by the formula; None where it is unknown.
    """
    lengths = [float(group.condition.length) for group in groups]
    methods = [name for name in shown(groups[-1]) if all(name in group.runs for group in groups)]
    values = [length_line(lengths, [final(group.runs[name]) for group in groups], name) for name in methods]
    task, metric = groups[0].condition.task, words(groups[0].metric)
    panels = [
        _over_lengths(f"{task}: {metric} at the end", lengths, values, None),
        _over_lengths(
            "ahead of the strongest number", lengths, [length_line(lengths, leads, groups[-1].ours)], ("equal", 0.0)
        ),
    ]
    reached = [number for number, ratio in enumerate(ratios) if ratio.value < inf]
    if reached:
        until = reached[-1] + 1
        line = length_line(lengths[:until], ratios[:until], groups[-1].ours)
        formula = [(length, share) for length, share in zip(lengths, predicted, strict=True) if share]
        lines = [line, *([Line("formula", formula, (), True, _OF_FORMULA)] if formula else [])]
        title = "share of the number's rollouts" + ("; gap: never" if len(reached) < len(lengths) else "")
        panels.append(
            partial(_draw_over_lengths, title=title, lengths=lengths, lines=lines, level=("equal", 1.0), log=True)
        )
    return panels_png(panels, size=_SIZE)


def length_line(lengths: Sequence[float], found: Sequence[Interval], method: str) -> Line:
    """Return the line of a method; an infinite value is a gap, an infinite limit the largest finite number."""
    largest = max(number for one in found for number in (one.value, one.high) if number < inf)
    points, shaded = list[tuple[float, float]](), list[tuple[float, float, float]]()
    for x, one in zip(lengths, found, strict=True):
        known = one.value < inf
        points.append((x, one.value if known else nan))
        shaded.append((x, one.low, min(one.high, largest)) if known else (x, nan, nan))
    return Line(label(method), points, (), True, look(method), shaded)


def _over_lengths(title: str, lengths: Sequence[float], lines: Sequence[Line], level: tuple[str, float] | None) -> Draw:
    return partial(_draw_over_lengths, title=title, lengths=lengths, lines=lines, level=level)


def _draw_over_lengths(
    axis: Any,
    *,
    title: str,
    lengths: Sequence[float],
    lines: Sequence[Line],
    level: tuple[str, float] | None,
    log: bool = False,
) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log" if log else "linear")
    curve_panel(title, "length", lines, level=level)(axis)
    axis.set_xticks(lengths, labels=[f"{length:g}" for length in lengths])
    axis.minorticks_off()
    if log:
        axis.yaxis.set_major_formatter("{x:g}")


def _title(group: Group) -> str:
    length = f", length {group.condition.length}" if group.condition.length else ""
    return f"{group.condition.task}{length}"
