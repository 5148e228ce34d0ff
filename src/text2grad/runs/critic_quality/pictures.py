"""An evaluation → bars with intervals as a PNG file, and a self-contained HTML page with prediction beside truth."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from text2grad.evaluation import Estimate
from text2grad.feedback import critique_to_json
from text2grad.runs.critic_quality.counting import BUCKETS
from text2grad.runs.critic_quality.evaluation import NONE, Evaluation, tables
from text2grad.runs.critic_quality.units import Marked, Marks
from text2grad.runs.reports.html import rollouts_page
from text2grad.runs.reports.plots import COLOURS, HATCHES, INK, PAPER, Draw, panels_png, pictures, style
from text2grad.types import LABELS, Critique

WORST, FIRST = 10, 20
"""How many responses the page shows: with the largest differences, then the first others."""

_COLOURS = {"positive": COLOURS[0], "negative": COLOURS[2]}

Bars = Sequence[tuple[str, Estimate | None]]


def evaluation_png(found: Evaluation) -> bytes:
    """Return rates by label with their intervals as a PNG file; a rate with denominator zero has no bar."""
    return panels_png(_panels(found))


def _panels(found: Evaluation) -> list[Draw]:
    panels = {
        f"{found.unit.split()[0]}: precision and recall": ("precision", "recall", "f1"),
        "spans and quotes": ("exact", "partial", "oui", "quote_exact", "quote_overlap_90"),
        "accuracy by span length": tuple(f"accuracy/{{}}/{bucket}" for bucket in BUCKETS),
    }
    words = [name for name in ("rouge1", "rouge2", "rougeL", "bertscore") if name in found.metrics]
    drawn = []
    for title, names in panels.items():
        by_label: dict[str, Bars] = {
            label: [(name.rpartition("/")[2].replace("_", " "), found.metrics.get(_of(name, label))) for name in names]
            for label in LABELS
        }
        drawn.append(partial(_bars, groups=by_label, title=title))
    if words:
        drawn.append(
            partial(_bars, groups={"critiques": [(name, found.metrics[name]) for name in words]}, title="words")
        )
    return drawn


def _of(name: str, label: str) -> str:
    return name.format(label) if "{}" in name else f"{name}/{label}"


def _bars(axis: Any, *, groups: Mapping[str, Bars], title: str) -> None:
    """Draw bars with intervals, one colour and one hatching per group."""
    from matplotlib.patches import Patch

    width, keys = 0.8 / len(groups), []
    for k, (label, bars) in enumerate(groups.items()):
        look: dict[str, Any] = {"facecolor": _COLOURS.get(label, COLOURS[5]), "hatch": HATCHES[k], "edgecolor": PAPER}
        keys.append(Patch(label=label, **look))
        for place, (_, one) in enumerate(bars):
            at = place + (k - (len(groups) - 1) / 2) * width
            if one is None:
                axis.text(at, 0.01, NONE, ha="center", color=INK)
                continue
            error = [[max(0.0, one.value - one.low)], [max(0.0, one.high - one.value)]]
            axis.bar(at, one.value, width * 0.92, **look)
            axis.errorbar(at, one.value, yerr=error, color=INK, linewidth=1, capsize=2)
    names = [name for name, _ in next(iter(groups.values()))]
    tilted = {"rotation": 20, "ha": "right"} if len(names) > 3 else {}
    axis.set_xticks(range(len(names)), names, fontsize=9, **tilted)
    axis.set_xlim(-0.5, len(names) - 0.5)
    axis.set_ylim(0, 1)
    style(axis, title)
    axis.tick_params(colors=INK)
    if len(groups) > 1:
        options = {"loc": "upper right", "bbox_to_anchor": (1, -0.3 if tilted else -0.14), "ncols": 2}
        axis.legend(handles=keys, frameon=False, labelcolor=INK, fontsize=9, **options)


def evaluation_page(found: Evaluation, critic: str, annotations: str) -> str:
    """Return the HTML page, with the names of the critic and of the annotation file."""
    order = sorted(found.marked, key=_disagreement, reverse=True)
    worst = [one for one in order[:WORST] if _disagreement(one)]
    rest = [one for one in found.marked if one not in worst][:FIRST]
    noun = found.unit.split()[0].removesuffix("s")  # token, word, character
    groups = {"Largest differences": worst, "Other responses, in the order of the file": rest}
    intro = (
        f"Critiques of {len(found.marked):,} responses by {critic}, compared with the annotations in {annotations}. "
        f"Unit: {found.unit}. In brackets: 95 % bootstrap intervals over responses."
    )
    return rollouts_page(
        "A critic compared with annotations",
        intro=intro,
        summary=_summary(found),
        groups=[(name, [_record(one, critic, noun) for one in some]) for name, some in groups.items() if some],
        images=[("Rates by label, with 95 % intervals over responses", pictures(_panels(found)))],
        tables=tables(found),
    )


def _disagreement(one: Marked) -> float:
    """Return the sum over units of |δ predicted − δ true|."""
    return sum(abs(a - b) for a, b in zip(one.predicted.delta, one.true.delta, strict=True))


def _summary(found: Evaluation) -> list[tuple[str, str]]:
    names = {
        **{f"{rate}/{label}": f"{rate}, {label}" for label in LABELS for rate in ("precision", "recall")},
        "failure_rate": "unreadable critiques",
        "unmatched_rate": "quotes not found",
    }
    rows = [(title, found.metrics.get(name)) for name, title in names.items()]
    shown = [(title, f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" if one else NONE) for title, one in rows]
    return shown + ([("responses left out", f"{len(found.left_out):,}")] if found.left_out else [])


def _record(one: Marked, critic: str, noun: str) -> dict[str, Any]:
    """Return a record of the page: the critic's marks, and the annotator's beside them."""
    return {
        **{"prompt": one.pair.prompt, "record": one.pair.where},
        **_side(one, one.predicted, one.pair.predicted, critic, noun),
        "beside": [_side(one, one.true, one.pair.true, "Annotation", noun)],
    }


def _side(one: Marked, marks: Marks, critique: Critique, by: str, noun: str) -> dict[str, Any]:
    offsets = [list(pair) for pair in one.offsets]
    return {
        **{"by": by, "unit": noun, "response": one.text, "critique": critique_to_json(critique)},
        **{"offsets": offsets, "delta": list(marks.delta)},
    }
