"""An evaluation of models → tables in the terminal, and an HTML page with answers side by side."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from text2grad.evaluation import Estimate, PolicyEvaluation, SuiteResult
from text2grad.runs.reports.html import Table, count, rollouts_page
from text2grad.runs.reports.terminal import plain, print_tables
from text2grad.types import Example

SHOWN = 8  # questions of each suite whose answers the page shows

CUT = {"length": "cut by the length limit", "empty": "empty", "too_long": "empty: the prompt leaves no room"}
REPEATED = "equal to the first answer"


def print_evaluation(console: Console, evaluation: PolicyEvaluation) -> None:
    """Print the tables of each suite."""
    print_tables(console, _tables(evaluation))
    console.print(plain("[low, high]: 95 % bootstrap intervals over questions", style="dim"))


def policy_page(evaluation: PolicyEvaluation) -> str:
    """Return the HTML page."""
    sampling, baseline = evaluation.settings.sampling, evaluation.settings.baseline
    told = f"temperature {sampling.temperature:g}" if sampling.temperature else "the most likely token"
    intro = (
        f"{count(len(evaluation.subjects), 'model')}, {count(len(evaluation.results), 'suite')}. Sampling: {told}, "
        f"{count(sampling.samples, 'answer')} per question, seed {sampling.seed}. In brackets: 95 % bootstrap "
        "intervals over questions."
    )
    if baseline:
        intro += f" Differences are taken from {baseline}, paired by question."
    answered = [result for result in evaluation.results if result.answers]
    return rollouts_page(
        "Models side by side",
        intro=intro,
        summary=list(_summary(evaluation)),
        groups=[(f"{result.suite.name}: answers", list(_records(result, sampling.samples))) for result in answered],
        tables=list(_tables(evaluation, meanings=True)),
    )


def _summary(evaluation: PolicyEvaluation) -> Iterator[tuple[str, str]]:
    """Yield the main figure of each suite for each model."""
    for result in evaluation.results:
        main = next(iter(result.suite.measures))
        for model, figures in result.figures.items():
            if main in figures:
                yield f"{result.suite.name} {_words(main)}, {model}", _number(figures[main], "{} ({} to {})")


def _tables(evaluation: PolicyEvaluation, *, meanings: bool = False) -> Iterator[Table]:
    """Yield the tables of each suite: figures, with their meanings, then differences from the baseline."""
    for result in evaluation.results:
        suite, rows = result.suite, _rows(result, result.figures)
        if meanings:
            rows = [[*row, measure.about] for row, measure in zip(rows, suite.measures.values(), strict=True)]
        columns = ["figure", *result.figures, *(["meaning"] if meanings else [])]
        yield Table(f"{suite.name}: {count(len(result.questions), 'question')}", columns, rows)
        if cut := list(_cut_answers(result)):
            yield Table(f"{suite.name}: answers without an end of their own", ["model", *CUT.values(), REPEATED], cut)
        if result.differences:
            title = f"{suite.name}: difference from {evaluation.settings.baseline}, paired by question"
            yield Table(title, ["figure", *result.differences], _rows(result, result.differences, "+"))


def _cut_answers(result: SuiteResult) -> Iterator[list[str]]:
    """Yield the models with answers that the length limit cut, that are empty, or that repeat the first one."""
    for model, answers in result.answers.items():
        endings, firsts = result.endings(model), {each.question.id: each.texts for each in answers if not each.sample}
        again = [each.texts == firsts[each.question.id] for each in answers if each.sample]
        if endings.keys() & CUT.keys() or any(again):
            shares = (f"{endings.get(how, 0):,} of {sum(endings.values()):,}" for how in CUT)
            yield [model, *shares, f"{sum(again):,} of {len(again):,}"]


def _rows(result: SuiteResult, by_model: Mapping[str, Mapping[str, Estimate]], sign: str = "") -> list[list[str]]:
    """Return a row for each figure, with the values of all models."""
    return [
        [_words(name), *(_number(own[name], "{} [{}, {}]", sign) if name in own else "–" for own in by_model.values())]
        for name in result.suite.measures
    ]


def _number(estimate: Estimate, form: str, sign: str = "") -> str:
    """Return a value with its interval."""
    digits = 1 if max(map(abs, estimate)) >= 100 else 3
    return form.format(*(f"{value:{sign}.{digits}f}" for value in estimate))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _records(result: SuiteResult, samples: int) -> Iterator[dict[str, Any]]:
    """Yield a record of the page for each of the first questions: the first answers of all models side by side."""
    questions = {question.id: question for question in getattr(result.suite, "questions", ())}
    for row, name in enumerate(result.questions[:SHOWN]):
        text = Example(questions[name].prompt).prompt_text
        sides = []
        for model, answers in result.answers.items():
            answer, scores = answers[row * samples], result.scores[model][row * samples]
            told = ", ".join(f"{_words(key)} {_short(value)}" for key, value in scores.items() if "/" not in key)
            critique = {"heading": "Scores", "feedback": told}
            sides.append({"by": model, "response": "\n\n".join(answer.texts), "critique": critique})
        yield {"prompt": text, "record": name, **sides[0], "beside": sides[1:]}


def _short(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else text[:198] + " …"
