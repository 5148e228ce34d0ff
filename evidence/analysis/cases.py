"""One case, as in the paper's Figure 4: a response, its critique and spans, and what the update made of them.

A training case is a response with a negative span: δ, reward, advantage, and the change of log p if the step's update
was logged. With several runs, the responses of the others to the same prompt in the same step stand beside it. If seeds
and start weights are equal, those of the first step are the same: the columns differ in the signal alone.

A held-out case is a prompt of the evaluations: the response of each run before training, on the way, and after.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from evidence.analysis.rollouts import Record, steps_of
from text2grad.errors import DataError
from text2grad.runs.reports.html import COLUMNS, count
from text2grad.runs.reports.run_report import Run, by_prompt

SHOWN_STEPS = 4  # evaluations of a held-out case
FAINTEST = 0.1  # smaller numbers, as a share of the largest, are not coloured
Group = tuple[str, list[dict[str, Any]]]


def case_groups(runs: Mapping[str, Run], number: int) -> list[Group]:
    """Return the groups of a page about one case: of training, later in training, and held-out.

    Args:
        runs: by name; the first chooses the case.
        number: of the case, from 0 on, among the responses with a negative span.

    Raises:
        DataError: if there are not as many cases.
    """
    step, first = _first_logged(next(iter(runs.values())))
    cases = [key for key, record in by_prompt(first).items() if _negative(record)]
    if number >= len(cases):
        have = f"cases 0 to {len(cases) - 1}" if cases else "no response with a negative span"
        raise DataError(f"there is no case {number}: step {step} of {next(iter(runs))} has {have}")
    key = cases[number]
    sides = {name: by_prompt(_records_of(run, step)).get(key) for name, run in runs.items()}
    columns = [{**_shown(record), "by": name} for name, record in sides.items() if record is not None]
    logged = "" if any("change" in one for one in columns) else "; the update was not logged"
    cards = [_card(columns, step=step), *(_shaded(columns, name) for name in ("advantage", "change"))]
    groups = [
        (
            f"Case {number}: a response, its critique, and what the update of step {step} did{logged}",
            list(filter(None, cards)),
        )
    ]
    groups += _again(runs, key[0], after=step)
    return groups + _held_out(runs, number)


def _first_logged(run: Run) -> tuple[int, list[dict[str, Any]]]:
    """Return the first step whose update was logged, or else the first step, with its records."""
    first: tuple[int, list[dict[str, Any]]] | None = None
    for step, records in steps_of(run.directory, last=int(run.metrics[-1]["step"])):
        first = first or (step, records)
        if all("logp_after" in record for record in records):
            return step, records
    if first is None:
        raise DataError(f"{run.directory} holds no rollouts of a finished step")
    return first


def _records_of(run: Run, step: int) -> list[dict[str, Any]]:
    return next((records for number, records in steps_of(run.directory, last=step) if number == step), [])


def _negative(record: Record) -> bool:
    return any(value < 0 for value in record["delta"])


def _shown(record: Record) -> dict[str, Any]:
    """Return a record for the page, with the change of log p where it was logged."""
    shown = {name: value for name, value in record.items() if name != "step"}
    if "logp_after" in record:
        shown["change"] = [after - before for before, after in zip(record["logp"], record["logp_after"], strict=True)]
    return shown


def _shaded(columns: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Return the responses coloured by a number per token, in all columns on one scale; None where none has it."""
    having = [one for one in columns if name in one]
    if not having:
        return None
    largest = max(abs(value) for one in having for value in one[name]) or 1.0
    made = [
        {
            "response": one["response"],
            "offsets": one["offsets"],
            **{column: one[column] for column in COLUMNS if column in one},
            "shade": [value / largest if abs(value) > FAINTEST * largest else 0.0 for value in one[name]],
            "by": f"{one['by']}, coloured by {COLUMNS[name].name}",
        }
        for one in having
    ]
    return {**made[0], "beside": made[1:]}


def _card(columns: Sequence[dict[str, Any]], *, step: int) -> dict[str, Any]:
    return {**columns[0], "step": step, "beside": list(columns[1:])}


def _again(runs: Mapping[str, Run], prompt: str, *, after: int) -> list[Group]:
    """Return the last later response to the prompt in the training of each run, if there is one."""
    found = []
    for name, run in runs.items():
        later = [
            (step, record)
            for step, records in steps_of(run.directory, last=int(run.metrics[-1]["step"]))
            if step > after
            for record in records
            if record["prompt"] == prompt
        ]
        if later:
            step, record = later[-1]
            found.append({**_shown(record), "by": f"{name}, step {step}"})
    return (
        [("The same prompt, the last time it was sampled in training", [{**found[0], "beside": found[1:]}])]
        if found
        else []
    )


def _held_out(runs: Mapping[str, Run], number: int) -> list[Group]:
    """Return the responses to one held-out prompt over the evaluations that all runs have."""
    evaluations = {
        name: {one["step"]: by_prompt(one["records"]) for one in run.evaluations} for name, run in runs.items()
    }
    steps = sorted(set.intersection(*(set(found) for found in evaluations.values())))
    if not steps:
        return []
    start = next(iter(evaluations.values()))[steps[0]]
    common = [key for key in start if all(key in found[step] for found in evaluations.values() for step in steps)]
    poor = [key for key in common if _negative(start[key])] or common
    if not poor:
        return []
    key = poor[number % len(poor)]
    cards = []
    for step in _spread(steps):
        columns = [{**_shown(found[step][key]), "by": name} for name, found in evaluations.items()]
        cards.append(_card(columns, step=step))
    end = count(steps[-1], "step")
    return [(f"A held-out prompt before training, on the way, and after {end}", cards)]


def _spread(steps: Sequence[int]) -> list[int]:
    """Return at most `SHOWN_STEPS` of the steps, the first and the last among them.

    Example:
        >>> _spread([0, 5, 10, 15, 20, 25, 30])
        [0, 10, 20, 30]
    """
    last = len(steps) - 1
    places = [round(n * last / (SHOWN_STEPS - 1)) for n in range(SHOWN_STEPS)]
    return [steps[place] for place in sorted(set(places))]
