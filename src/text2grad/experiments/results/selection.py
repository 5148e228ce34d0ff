"""Records → conditions, each with its methods, their tuned settings, their seeds, and the strongest rival.

A condition is a task at a length, with its faults and its critic. The strongest rival of a condition is the method of
another signal than spans with the highest mean of its best trial on the *tuning* items. It is not chosen by the
evaluation: the best of several noisy values is too high by chance.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.experiments.methods import METHODS
from text2grad.experiments.results.records import Record

OURS = "text2grad"
SEEDS, SEEDS_OF_OTHERS = 5, 3
"""Seeds of leading methods, and of the others."""

LOWER_IS_BETTER = frozenset({"invented_share", "stories_with_invented"})
"""Metrics whose best value is 0; the best value of the others is 1."""

_NOT_OF_THE_METHOD = ("run.", "data.")


class Condition(NamedTuple):
    """What the compared runs have in common."""

    study: str
    task: str
    critic: str
    faults: float | None
    length: int | None

    @property
    def name(self) -> str:
        """Return the condition in words."""
        parts = [self.task, *([f"length {self.length}"] if self.length is not None else [])]
        parts += [f"faults {self.faults:g}"] if self.faults is not None else []
        return ", ".join([*parts, f"{self.critic.replace('_', ' ')} as critic"])


class Trial(NamedTuple):
    """One trial of a method's tuning: its number, the settings, the value of each seed on tuning items."""

    number: int
    settings: Mapping[str, Any]
    values: Sequence[float]

    @property
    def mean(self) -> float:
        """Return the mean over the seeds."""
        return fmean(self.values)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The trials of one task and critic: at which length, and for each method the trials, the best first."""

    condition: Condition
    trials: Mapping[str, Sequence[Trial]]


@dataclass(frozen=True, slots=True)
class Group:
    """All finished runs of a condition.

    Attributes:
        condition: what they have in common.
        metric: name of the main metric.
        runs: method → seed → the run with the tuned settings.
        variants: method → all settings that were run, the tuned ones first; each seed → run.
        tuning: the trials of its task; None without records of tuning.
        reruns: repeated runs (same method, settings and seed), each with the run it repeats.
    """

    condition: Condition
    metric: str
    runs: Mapping[str, Mapping[int, Record]]
    variants: Mapping[str, Sequence[Mapping[int, Record]]]
    tuning: Tuning | None
    reruns: Sequence[tuple[Record, Record]] = field(default=())

    @property
    def sign(self) -> int:
        """Return -1 if a lower metric is better, else 1."""
        return -1 if self.metric in LOWER_IS_BETTER else 1

    @property
    def best(self) -> float:
        """Return the best value of the metric."""
        return 0.0 if self.sign < 0 else 1.0

    def final(self, method: str) -> float:
        """Return the mean over seeds of the final values."""
        return fmean(fmean(run.items) for run in self.runs[method].values())

    def strongest(self, signals: Sequence[str] = ("number", "words")) -> tuple[str | None, str]:
        """Return the strongest rival with one of the signals, and how it was chosen; None if there is none."""
        rivals = [name for name in self.runs if signal(name) in signals]
        tuned = {name: trials[0].mean for name, trials in self.tuning.trials.items()} if self.tuning else {}
        known = {name: self.sign * tuned[name] for name in rivals if name in tuned}
        if known:
            how = "the best mean on the tuning items"
            unknown = [name for name in rivals if name not in tuned]
            return max(known, key=known.__getitem__), f"{how} ({len(unknown)} rivals not tuned)" if unknown else how
        if not rivals:
            return None, "no rival has a finished run"
        best = max(rivals, key=lambda name: self.sign * self.final(name))
        return best, "the best mean on the evaluation's own items, because no tuning is recorded: too high by chance"


def signal(method: str) -> str:
    """Return what a method learns from; a method that is not in `METHODS` counts as a rival."""
    return METHODS[method].signal if method in METHODS else "words"


def label(method: str) -> str:
    """Return the name of a method in tables and pictures."""
    return METHODS[method].label if method in METHODS else method.replace("_", " ")


def ordered(methods: Iterable[str]) -> list[str]:
    """Return methods in the order of `METHODS`, unknown ones last."""
    places = {name: number for number, name in enumerate(METHODS)}
    return sorted(methods, key=lambda name: (places.get(name, len(places)), name))


def own_settings(record: Record) -> dict[str, Any]:
    """Return the settings of the method, without those of the seed and of the data."""
    return {name: value for name, value in sorted(record.settings.items()) if not name.startswith(_NOT_OF_THE_METHOD)}


def _key(record: Record) -> str:
    return json.dumps(own_settings(record), sort_keys=True)


def condition_of(record: Record) -> Condition:
    """Return the condition of a run."""
    return Condition(record.study, record.task, record.critic, record.faults, record.length)


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the conditions that have evaluations, in the order of study, task, critic, faults and length."""
    tunings = _tunings([record for record in records if record.purpose == "tuning"])
    evaluations = [record for record in records if record.purpose == "evaluation"]
    found = _by(evaluations, condition_of)
    order = sorted(found, key=lambda one: (*one[:3], one.faults or 0.0, one.length or 0))
    return [_group(condition, found[condition], _tuning_of(condition, tunings)) for condition in order]


def _by(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def _group(condition: Condition, records: Sequence[Record], tuning: Tuning | None) -> Group:
    reruns: list[tuple[Record, Record]] = []
    variants: dict[str, list[Mapping[int, Record]]] = {}
    of_methods = _by(records, lambda record: record.method)
    for method in ordered(of_methods):
        by_settings: dict[str, dict[int, Record]] = {}
        for record in of_methods[method]:
            first = by_settings.setdefault(_key(record), {}).setdefault(record.seed, record)
            if first is not record:
                reruns.append((first, record))
        best = tuning.trials[method][0].settings if tuning and method in tuning.trials else None
        wanted = json.dumps(best, sort_keys=True)
        chosen = sorted(by_settings, key=lambda key: (key != wanted, -len(by_settings[key])))
        variants[method] = [dict(sorted(by_settings[key].items())) for key in chosen]
    runs = {method: of_method[0] for method, of_method in variants.items()}
    return Group(condition, records[0].metric, runs, variants, tuning, reruns)


def _tunings(records: Sequence[Record]) -> list[Tuning]:
    found = []
    for condition, of_condition in _by(records, condition_of).items():
        sign = -1 if of_condition[0].metric in LOWER_IS_BETTER else 1
        trials = {}
        for method, runs in _by(of_condition, lambda record: record.method).items():
            made = [
                Trial(number, own_settings(same[0]), [run.curve[-1]["value"] for run in same])
                for number, same in _by(runs, lambda run: -1 if run.trial is None else run.trial).items()
            ]
            trials[method] = sorted(made, key=lambda trial: (-sign * trial.mean, trial.number))
        found.append(Tuning(condition, {method: trials[method] for method in ordered(trials)}))
    return found


def _tuning_of(condition: Condition, tunings: Sequence[Tuning]) -> Tuning | None:
    """Return the tuning of the task and critic: at the same length if there is one, else at the longest."""
    fitting = [
        one for one in tunings if (one.condition.task, one.condition.critic) == (condition.task, condition.critic)
    ]

    def distance(one: Tuning) -> tuple[bool, bool, int]:
        same = one.condition.length == condition.length, one.condition.faults == condition.faults
        return not same[0], not same[1], -(one.condition.length or 0)

    return min(fitting, key=distance, default=None)


def edges(tuning: Tuning, method: str) -> list[str]:
    """Return the settings whose best value is the least or the greatest of those tried, with the values tried."""
    trials = tuning.trials[method]
    found = []
    for name, value in trials[0].settings.items():
        tried = {trial.settings[name] for trial in trials if _is_number(trial.settings.get(name))}
        if _is_number(value) and len(tried) > 1 and value in (min(tried), max(tried)):
            end = "lowest" if value == min(tried) else "highest"
            found.append(f"{name} = {value:g}: the {end} of {len(tried)} values")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def missing(group: Group) -> list[str]:
    """Return the methods with too few seeds, in words; leading methods without a run included."""
    seeds = sorted({seed for of_method in group.runs.values() for seed in of_method})
    expected = sorted({*seeds, *range(SEEDS)})[: max(SEEDS, len(seeds))]
    leading = [name for name, method in METHODS.items() if method.leading]
    found = []
    for method in ordered({*group.runs, *leading}):
        have = group.runs.get(method, {})
        needed = SEEDS if method in leading else SEEDS_OF_OTHERS
        if not have:
            found.append(f"{label(method)}: no run")
        elif len(have) < needed:
            lacking = [str(seed) for seed in expected[:needed] if seed not in have]
            found.append(f"{label(method)}: {len(have)} of {needed} seeds (missing: {', '.join(lacking)})")
    return found
