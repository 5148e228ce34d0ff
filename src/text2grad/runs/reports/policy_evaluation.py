"""An evaluation of models → table in the terminal, picture, and HTML page with answers side by side."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from text2grad.evaluation import Estimate, PolicyEvaluation, SuiteResult
from text2grad.runs.reports.html import count, rollouts_page
from text2grad.runs.reports.plots import COLOURS, INK, MARKERS, Draw, panels_png, pictures, style
from text2grad.runs.reports.terminal import plain, print_table

SHOWN = 8
"""Questions of each suite whose answers the page shows."""

_COLUMNS = 3  # panels side by side
NONE = "–"
CUT = {"length": "cut by the length limit", "too_long": "empty: the prompt leaves no room"}


def print_evaluation(console: Console, found: PolicyEvaluation) -> None:
    """Print one table for each suite."""
    for title, columns, rows in _tables(found):
        print_table(console, title, columns, rows)
    console.print(plain("[low, high]: 95 % bootstrap intervals over questions", style="dim"))


def evaluation_picture(found: PolicyEvaluation) -> bytes:
    """Return the figures with their intervals as a PNG file, one panel for each."""
    drawn = _panels(found)
    return panels_png(drawn, columns=min(_COLUMNS, len(drawn)), size=_size(found))


def policy_page(found: PolicyEvaluation) -> str:
    """Return the HTML page."""
    sampling = found.settings.sampling
    told = "the most likely token" if not sampling.temperature else f"temperature {sampling.temperature:g}"
    intro = (
        f"{count(len(found.subjects), 'model')}, {count(len(found.results), 'suite')}. Sampling: {told}, "
        f"{count(sampling.samples, 'answer')} per question, seed {sampling.seed}. In brackets: 95 % bootstrap "
        "intervals over questions."
    )
    if found.settings.baseline:
        intro += f" Differences are taken from {found.settings.baseline}, paired by question."
    groups = [(f"{one.suite.name}: answers", list(_records(one, found))) for one in found.results if one.answers]
    return rollouts_page(
        "Models side by side",
        intro=intro,
        summary=list(_summary(found)),
        groups=groups,
        images=[("Figures with 95 % intervals over questions", pictures(_panels(found), size=_size(found)))],
        tables=list(_tables(found, meanings=True)),
    )


def _summary(found: PolicyEvaluation) -> Iterator[tuple[str, str]]:
    """Yield the main figure of each suite for each model."""
    for one in found.results:
        main = next(iter(_shown(one)), None)
        for name, figures in one.figures.items():
            if main is not None and main in figures:
                yield f"{one.suite.name} {_words(main)}, {name}", _number(one, main, figures[main], small=True)


def _shown(one: SuiteResult) -> list[str]:
    """Return the names of the figures in table and picture."""
    return [name for name, measure in one.suite.measures.items() if measure.shown]


def _tables(
    found: PolicyEvaluation, *, meanings: bool = False
) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """Yield title, columns and rows of each table: figures, with their meanings, then differences from the baseline."""
    for one in found.results:
        head, rows = f"{one.suite.name}: {count(len(one.questions), 'question')}", _rows(one, one.figures)
        if meanings:
            told = [one.suite.measures[name].about for name in _shown(one)]
            rows = [[*row, about] for row, about in zip(rows, told, strict=True)]
        yield head, ["figure", *one.figures, *(["meaning"] if meanings else [])], rows
        if cut := list(_cut_answers(one)):
            yield f"{one.suite.name}: answers without an end of their own", ["model", *CUT.values()], cut
        if one.differences:
            title = f"{one.suite.name}: difference from {found.settings.baseline}, paired by question"
            yield title, ["figure", *one.differences], _rows(one, one.differences, signed=True)


def _cut_answers(one: SuiteResult) -> Iterator[list[str]]:
    """Yield the models with answers that the length limit cut, or that are empty for want of room."""
    for model in one.answers:
        found = one.endings(model)
        if any(how in found for how in CUT):
            yield [model, *(f"{found.get(how, 0):,} of {sum(found.values()):,}" for how in CUT)]


def _rows(one: SuiteResult, figures: Mapping[str, Mapping[str, Estimate]], *, signed: bool = False) -> list[list[str]]:
    """Return a row for each figure, with the values of all models."""
    return [
        [
            _words(name),
            *(_number(one, name, own[name], signed=signed) if name in own else NONE for own in figures.values()),
        ]
        for name in _shown(one)
    ]


def _number(one: SuiteResult, name: str, value: Estimate, *, signed: bool = False, small: bool = False) -> str:
    """Return a value with its interval."""
    form = "{:+.3f}" if signed else "{:.3f}"
    if max(map(abs, value)) >= 100:
        form = form.replace(".3f", ".1f")
    low, high = form.format(value.low), form.format(value.high)
    return f"{form.format(value.value)} ({low} to {high})" if small else f"{form.format(value.value)} [{low}, {high}]"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _panels(found: PolicyEvaluation) -> list[Draw]:
    panels = []
    for one in found.results:
        for name in _shown(one):
            points = [(model, own[name]) for model, own in one.figures.items() if name in own]
            if points:
                better = {"lower": " (lower is better)"}.get(one.suite.measures[name].better, "")
                panels.append(partial(_draw, points=points, title=f"{one.suite.name}: {_words(name)}{better}"))
    return panels


def _size(found: PolicyEvaluation) -> tuple[float, float]:
    """Return width and height of a panel in inches, by the number of models."""
    return 4.4, 0.9 + 0.5 * len(found.subjects)


def _draw(axis: Any, *, points: Sequence[tuple[str, Estimate]], title: str) -> None:
    """Draw one figure of all models, from above to below."""
    for place, (_, one) in enumerate(points):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axis.plot([one.low, one.high], [place, place], color=colour, linewidth=1.8)
        axis.plot([one.value], [place], color=colour, marker=marker, markersize=7, linestyle="none")
        axis.annotate(
            f"{one.value:.3g}", (one.value, place), xytext=(0, 7), textcoords="offset points", ha="center",
            fontsize=8.5, color=colour,
        )  # fmt: skip
    axis.set_yticks(range(len(points)), [name for name, _ in points], fontsize=9)
    axis.set_ylim(len(points) - 0.4, -0.7)
    if all(0.0 <= bound <= 1.0 for _, one in points for bound in one):
        axis.set_xlim(-0.03, 1.03)
    style(axis, title, grid="x")
    axis.tick_params(colors=INK, labelsize=9)


def _records(one: SuiteResult, found: PolicyEvaluation) -> Iterator[dict[str, Any]]:
    """Yield a record of the page for each of the first questions: the answers of all models side by side."""
    sampling = found.settings.sampling
    questions = {question.id: question for question in getattr(one.suite, "questions", ())}
    for row, name in enumerate(one.questions[:SHOWN]):
        prompt = questions[name].prompt
        text = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
        sides = []
        for model, answers in one.answers.items():
            answer, scores = answers[row * sampling.samples], one.scores[model][row * sampling.samples]
            told = ", ".join(f"{_words(key)} {_short(value)}" for key, value in scores.items() if "/" not in key)
            sides.append({"by": model, "response": "\n\n".join(answer.texts), "critique": _as_critique(told)})
        yield {"prompt": text, "record": name, **sides[0], "beside": sides[1:]}


def _as_critique(told: str) -> dict[str, Any]:
    return {"heading": "Scores", "feedback": told, "spans": [], "outcome": None, "status": "ok", "unmatched": []}


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if len(text) <= 200 else text[:198] + " …"
