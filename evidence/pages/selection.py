"""Records → conditions, each with its methods, their tuned settings, their seeds, and the strongest rival.

A condition is a task at a length, with its faults and its critic. The strongest rival of a condition is the method,
no variant of Text2Grad, whose best trial has the highest value on the *tuning* items. It is not chosen by the
evaluation: the best of several noisy values is too high by chance.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from evidence.pages.records import Record
from evidence.plans.experiment_plan import Plan, Study, tuning_study
from evidence.plans.frontier import value_of
from evidence.plans.methods import METHODS
from evidence.plans.records import recipe_digest
from evidence.plans.search_space import SEARCH_SPACE, SearchSpace
from text2grad.config import Recipe, load_recipe
from text2grad.runs.metric import lower_is_better

OURS = "text2grad"
SEEDS, SEEDS_OF_OTHERS = 5, 3
"""Seeds of leading methods, and of the others."""


class Condition(NamedTuple):
    """What the compared runs have in common; runs of several studies may have the same condition."""

    task: str
    critic: str
    recipe: str
    faults: float
    apart: str
    length: int

    @property
    def name(self) -> str:
        """Return the condition in words, without a length of 0 (the recipe's own) and the usual share of faults, 1."""
        parts = [self.task, *([f"length {self.length}"] if self.length else [])]
        parts += [f"faults {self.faults:g}"] if self.faults != 1 else []
        parts.append(f"{self.critic.replace('_', ' ')} as critic")
        return ", ".join([*parts, *([self.apart] if self.apart else [])])


class Trial(NamedTuple):
    """One trial of a method's tuning.

    Attributes:
        number: of the trial.
        settings: "section.key" → value, where it differs from the base recipe.
        value: on the tuning items, the mean over its seeds.
        error: message of a run that failed; "" for none. A failed trial is the worst.
        seeds: number of seeds; more than one for the best trials, where the plan confirms them.
        at_kl: KL per token within which the value is the best one; None for a final value.
    """

    number: int
    settings: Mapping[str, Any]
    value: float
    error: str = ""
    seeds: int = 1
    at_kl: float | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """The trials of each method, the best first, the condition in which they were made, and their held-out items."""

    trials: Mapping[str, Sequence[Trial]]
    where: Mapping[str, Condition]
    items: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """All finished runs of a condition.

    Attributes:
        condition: what they have in common.
        metric: name of the main metric.
        runs: method → seed → the run with the tuned settings.
        variants: method → all settings that were run, the tuned ones first; each seed → run.
        tuning: the trials of its task.
        reruns: pairs of a run and the same run (method, settings, seed) of another study; the first counts.
    """

    condition: Condition
    metric: str
    runs: Mapping[str, Mapping[int, Record]]
    variants: Mapping[str, Sequence[Mapping[int, Record]]]
    tuning: Tuning
    reruns: Sequence[tuple[Record, Record]] = ()

    @property
    def studies(self) -> list[str]:
        """Return the names of the studies."""
        all_runs = [run for of_method in self.variants.values() for runs in of_method for run in runs.values()]
        return sorted({run.study for run in all_runs})

    @property
    def sign(self) -> int:
        """Return -1 if a lower metric is better, else 1."""
        return -1 if lower_is_better(self.metric) else 1

    @property
    def best(self) -> float:
        """Return the best value of the metric."""
        return 0.0 if self.sign < 0 else 1.0

    @property
    def leading_spans(self) -> list[str]:
        """Return the leading methods with spans that have runs."""
        return [name for name, one in METHODS.items() if one.leading and is_variant(name) and name in self.runs]

    @property
    def ours(self) -> str:
        """Return the leading method with spans that has the best value on the tuning items, as rivals are chosen."""
        leading = self.leading_spans
        trials = {name: self.tuning.trials[name][0] for name in leading if name in self.tuning.trials}
        critics = {self.tuning.where[name].critic for name in trials}
        if len(trials) < len(leading) or len(critics) > 1:
            return OURS
        return max(trials, key=lambda name: self.sign * trials[name].value, default=OURS)

    def final(self, method: str) -> float:
        """Return the mean over seeds of the final values."""
        return fmean(fmean(run.items) for run in self.runs[method].values())

    def strongest(self, *, number: bool = False) -> tuple[str | None, str]:
        """Return the strongest rival (that learns from one number), and how it was chosen; None if there is none."""
        rivals = [name for name in self.runs if not is_variant(name) and (signal(name) == "number" or not number)]
        tuned = {name: trials[0].value for name, trials in self.tuning.trials.items() if not trials[0].error}
        known = {name: self.sign * tuned[name] for name in rivals if name in tuned}
        critics = {self.tuning.where[name].critic for name in known}
        if len(critics) == 1:
            how = "the best mean on the tuning items"
            unknown = [name for name in rivals if name not in tuned]
            return max(known, key=known.__getitem__), f"{how} ({len(unknown)} not tuned)" if unknown else how
        if not rivals:
            return None, "no rival has a finished run"
        best = max(rivals, key=lambda name: self.sign * self.final(name))
        why = "the rivals were tuned with different critics" if critics else "no tuning is recorded"
        return best, f"the best mean on the evaluation's own items, because {why}: too high by chance"

    def highest_number(self) -> str | None:
        """Return the method that learns from one number and ends best, whatever its tuning said; None if none ran."""
        numbers = [name for name in self.runs if not is_variant(name) and signal(name) == "number"]
        return max(numbers, key=lambda name: self.sign * self.final(name), default=None)


def is_variant(method: str) -> bool:
    """Whether a method is Text2Grad with other settings, as its label says: an ablation, no rival."""
    return label(method).startswith(label(OURS))


def signal(method: str) -> str:
    """Return what a method learns from; a method that is not in `METHODS` counts as a rival."""
    return METHODS[method].signal if method in METHODS else "words"


def learns_in_rounds(method: str) -> bool:
    """Whether a method has a new policy at the ends of rounds only; its curve then has no values between."""
    return method in METHODS and METHODS[method].command == "rival"


def label(method: str) -> str:
    """Return the name of a method in tables and pictures."""
    return METHODS[method].label if method in METHODS else method.replace("_", " ")


def ordered(methods: Iterable[str]) -> list[str]:
    """Return methods in the order of `METHODS`, unknown ones last."""
    places = {name: number for number, name in enumerate(METHODS)}
    return sorted(methods, key=lambda name: (places.get(name, len(places)), name))


def _key(record: Record) -> str:
    return json.dumps(dict(record.settings), sort_keys=True)


def condition_of(record: Record) -> Condition:
    """Return the condition of a run."""
    return Condition(record.task, record.critic, record.recipe, record.faults, record.apart, record.length)


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the conditions that have evaluations, in the order of task, critic, recipe, faults and length."""
    tuning = [record for record in records if record.purpose == "tuning"]
    found = _by([record for record in records if record.purpose == "evaluation"], condition_of)
    return [_group(condition, found[condition], _tuning_of(condition, tuning)) for condition in sorted(found)]


def _by(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def _group(condition: Condition, records: Sequence[Record], tuning: Tuning) -> Group:
    reruns: list[tuple[Record, Record]] = []
    variants: dict[str, list[Mapping[int, Record]]] = {}
    of_methods = _by(records, lambda record: record.method)
    for method in ordered(of_methods):
        of_studies = _by(of_methods[method], lambda record: record.study)
        by_settings: dict[str, dict[int, Record]] = {}
        for study in sorted(of_studies, key=lambda name: (-len(of_studies[name]), name)):
            for record in of_studies[study]:
                first = by_settings.setdefault(_key(record), {}).setdefault(record.seed, record)
                if first is not record:
                    reruns.append((first, record))
        best = tuning.trials[method][0].settings if method in tuning.trials else {}
        chosen = sorted(by_settings, key=lambda key: (_differing(json.loads(key), best), -len(by_settings[key]), key))
        variants[method] = [dict(sorted(by_settings[key].items())) for key in chosen]
    runs = {method: of_method[0] for method, of_method in variants.items()}
    return Group(condition, records[0].metric, runs, variants, tuning, reruns)


def _differing(settings: Mapping[str, Any], others: Mapping[str, Any]) -> int:
    """Return the number of settings with different values."""
    return sum(settings.get(name) != others.get(name) for name in {*settings, *others})


def _tuning_of(condition: Condition, records: Sequence[Record]) -> Tuning:
    """Return each method's trials of the task: in the same condition if there are some, else the longest.

    Trials of the studies that are apart together come first, then those with the same critic; without them, those with
    the other one (`tuned_in` of a plan).
    """
    fitting = [one for one in records if one.task == condition.task]

    def distance(one: Condition) -> tuple[bool, bool, bool, bool, bool, int]:
        same_recipe, same_length = one.recipe == condition.recipe, one.length == condition.length
        same_faults = one.faults == condition.faults
        other = one.apart != condition.apart, one.critic != condition.critic
        return *other, not same_recipe, not same_length, not same_faults, -one.length

    trials, where, items = {}, {}, {}
    of_methods = _by(fitting, lambda record: record.method)
    for method in ordered(of_methods):
        of_conditions = _by(of_methods[method], condition_of)
        where[method] = min(of_conditions, key=distance)
        runs = of_conditions[where[method]]
        items[method] = frozenset(item for run in runs for item in run.item_ids)
        sign = -1 if lower_is_better(runs[0].metric) else 1
        made = [(_trial(ran), ran[0]) for ran in _by(runs, lambda run: (run.study, run.trial)).values()]
        trials[method] = [trial for trial, _ in sorted(made, key=lambda one: _rank(*one, sign=sign))]
    return Tuning(trials, where, items)


def _rank(trial: Trial, first: Record, *, sign: int) -> tuple[int, bool, float, int]:
    """Return the place of a trial among those of its method, as `Experiment.best` chooses: confirmed ones first.

    Of those that stopped with an error on a seed, each as bad as the next, the first is that of the better first run.
    """
    value = _value(first) if trial.error else trial.value
    return -trial.seeds, trial.error != "", -sign * value, trial.number


def _trial(runs: Sequence[Record]) -> Trial:
    """Return a trial with the mean over the seeds on which it was run."""
    errors = [run.error for run in runs if run.error]
    value = fmean(map(_value, runs))
    return Trial(runs[0].trial or 0, runs[0].settings, value, errors[0] if errors else "", len(runs), runs[0].at_kl)


def _value(run: Record) -> float:
    """Return the value of a trial's run by which its search compares."""
    return value_of(run.curve, at_kl=run.at_kl, minimise=lower_is_better(run.metric))


def shared_items(group: Group) -> tuple[int, int]:
    """Return how many items of the evaluations the search of the compared methods saw, and how many it saw in all."""
    seen = {item for name in group.runs for item in group.tuning.items.get(name, ())}
    evaluated = {item for runs in group.runs.values() for run in runs.values() for item in run.item_ids}
    return len(seen & evaluated), len(evaluated)


def edges(tuning: Tuning, method: str) -> list[str]:
    """Return the settings whose best values are at an edge of their range.

    The range of a rate that is searched around the recipe's own is not in the records: there the edges are the lowest
    and the highest rate tried.
    """
    trials = tuning.trials[method]
    best, found = trials[0].settings, []
    names = METHODS[method].searched if method in METHODS else SEARCH_SPACE
    for searched in map(SEARCH_SPACE.__getitem__, names):
        name = searched.setting
        if name in best and not searched.of_recipe:
            found += SearchSpace({name: searched}, {}).at_edge(best)
        tried = {trial.settings[name] for trial in trials if _is_number(trial.settings.get(name))}
        if searched.of_recipe and len(tried) > 1 and best.get(name) in (min(tried), max(tried)):
            end = "lowest" if best[name] == min(tried) else "highest"
            found.append(f"{name} = {best[name]:g} (the {end} of {len(tried)} tried)")
    return found


def searched_settings(method: str, trial: Trial) -> dict[str, Any]:
    """Return the settings of a trial that the search has chosen; all, if the method is not in `METHODS`."""
    if method not in METHODS:
        return dict(trial.settings)
    names = [SEARCH_SPACE[name].setting for name in METHODS[method].searched]
    return {name: trial.settings[name] for name in names if name in trial.settings}


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


def missing_of_plan(plan: Plan, path: Path, records: Sequence[Record]) -> list[str]:
    """Return the studies of a plan of which evaluations or trials have no record, in words.

    Records of another base recipe, and of runs that the plan does not name, do not count.

    Args:
        plan: of `load_plan`.
        path: its file.
        records: of all studies.
    """
    tunings: dict[Condition, Tuning] = {}
    trials_of_all = [one for one in records if one.purpose == "tuning"]

    def confirmed(record: Record) -> list[Mapping[str, Any]]:
        """Return the settings of the trials of the most seeds, from which an evaluation may have its own."""
        where = condition_of(record)
        if where not in tunings:
            tunings[where] = _tuning_of(where, trials_of_all)
        trials = tunings[where].trials.get(record.method, ())
        most = max((one.seeds for one in trials), default=0)
        return [one.settings for one in trials if one.seeds == most]

    found = []
    for study in plan.study:
        recipe = path.parent / study.recipe
        base = load_recipe(recipe)
        place, digest = (study.name, study.task, study.critic), recipe_digest(base)
        mine = [one for one in records if (one.study, one.task, one.critic, one.recipe) == (*place, digest)]
        lacking, total = [], 0
        for method in study.methods:
            runs = [one for one in mine if one.method == method]
            planned = _Planned(study, method, base, _usual(recipe, study, method) if study.vary else base)
            evaluations = planned.evaluations()
            total += len(evaluations)
            evaluated = [(one, confirmed(one)) for one in runs if one.purpose == "evaluation"]
            done = sum(any(planned.is_made(*one, *ran) for ran in evaluated) for one in evaluations)
            if done < len(evaluations):
                owns = tuning_study(plan, study, method) is study
                trials = study.trials_of(method) + len(study.confirmations(method)) if owns else 0
                tried = planned.tried([one for one in runs if one.purpose == "tuning"])
                more = f" and {tried} of {trials} trials" if tried < trials else ""
                lacking.append(f"{label(method)} {done} of {len(evaluations)} evaluations{more}")
        name = f"{study.name}, {study.task}, {study.critic.replace('_', ' ')} as critic"
        if lacking and not mine:
            found.append(f"{name}: none of {total} evaluations")
        elif lacking:
            found.append(f"{name}: {'; '.join(lacking)}")
    return found


def _usual(recipe: Path, study: Study, method: str) -> Recipe:
    """Return the recipe of a method in a study, before its search."""
    return load_recipe(recipe, [*study.settings, *study.of_method(method, Path())])


class _Planned(NamedTuple):
    """The runs of one method in a study; `usual` is the recipe of the method, before its search."""

    study: Study
    method: str
    base: Recipe
    usual: Recipe

    def evaluations(self) -> list[tuple[tuple[int, int, float], Mapping[str, Any]]]:
        """Return seed, length and faults of each evaluation, and its varied settings."""
        return [(place, variant) for method, place, _, variant in self.study.evaluations() if method == self.method]

    def is_made(
        self,
        place: tuple[int, int, float],
        variant: Mapping[str, Any],
        record: Record,
        confirmed: Sequence[Mapping[str, Any]],
    ) -> bool:
        """Return whether a record is that of an evaluation: at its place, with its varied settings.

        Its searched settings are those of one of the confirmed trials, if there are some.
        """
        if (record.seed, record.length, record.faults) != place:
            return False
        searched = {SEARCH_SPACE[name].setting for name in METHODS[self.method].searched} if confirmed else set()
        own = {name: _value_in(self.usual, name) for name in self.study.vary if name not in searched}
        wanted = {**own, **variant}
        if any(record.settings.get(name, _value_in(self.base, name)) != value for name, value in wanted.items()):
            return False
        names = searched - set(variant)
        return not names or any(all(record.settings.get(name) == one.get(name) for name in names) for one in confirmed)

    def tried(self, records: Sequence[Record]) -> int:
        """Return the number of the planned trials, and of the runs that confirm them, that have a record."""
        study = self.study
        ran = {(one.seed, one.trial or 0) for one in records if (one.length, one.faults) == study.tuned_at}
        first = sum(seed == study.tune_seed and number < study.trials_of(self.method) for seed, number in ran)
        again = sum(seed in study.confirm_seeds for seed, _ in ran)
        return first + min(again, len(study.confirmations(self.method)))


def _value_in(recipe: Recipe, setting: str) -> Any:
    """Return a recipe's value of "section.key" as it stands in records."""
    section, key = setting.split(".")
    return getattr(recipe, section).model_dump(mode="json")[key]
