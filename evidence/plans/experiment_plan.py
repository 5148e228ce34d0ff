"""A plan of studies, read from TOML: which methods are tuned and evaluated on which tasks, lengths, faults and seeds.

runs = "runs/results"            # directory of models and runs
records = "evidence/results/runs"    # directory of the records of finished runs

[[study]]
name = "leading"
task = "qa"
recipe = "quickstart-qa.toml"    # beside the plan
methods = ["text2grad", "grpo"]
seeds = [0, 1, 2, 3, 4]
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from evidence.plans.methods import METHODS, PROGRAM_CRITIC, settings
from evidence.plans.search_space import CONFIRMED, as_overrides
from text2grad.config import Recipe, load_recipe
from text2grad.errors import ConfigError, DataError, check_known
from text2grad.feedback import load_callable
from text2grad.files import read_text
from text2grad.runs.metric import measure
from text2grad.runs.prompts import run_examples, world_of
from text2grad.tasks import built_in

EVALUATION_ITEMS = 10
"""`world.eval_seed` of an evaluation is its seed plus this."""

Seed = Annotated[int, Field(ge=0)]
Some = Field(min_length=1, strict=False)


class _Strict(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Study(_Strict):
    """Methods on one task; several studies may share a name, one for each task."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    """Of the file of its records."""
    task: str
    """Name of the task in records; `data.task` of the recipe."""
    recipe: str
    """The base recipe, a path from the directory of the plan."""
    critic: Literal["program", "reward_model"] = "reward_model"
    """The task's program critic, or the learned reward model."""
    model: str = ""
    """A pretrained policy; empty makes the policies by the phases before RL."""
    metric: str = ""
    """The metric that chooses trials and compares methods; empty is the task's main metric."""
    methods: Annotated[tuple[str, ...], Some]
    """Names of methods."""
    also_leading: tuple[str, ...] = Field(default=(), strict=False)
    """Methods with the seeds, trials and confirmations of a leading method here, such as the strongest rival."""
    seeds: Annotated[tuple[Seed, ...], Some]
    """Seeds of the evaluations, over all phases."""
    other_seeds: Annotated[tuple[Seed, ...], Some] | None = None
    """Seeds of the methods that are not leading; all of `seeds` if left out."""
    lengths: Annotated[tuple[int, ...], Some] = (0,)
    """Values of `length_setting`; 0 is the recipe's own."""
    length_setting: str = "world.length"
    """The setting that makes answers longer."""
    seeds_at: Mapping[str, Annotated[tuple[Seed, ...], Some]] = {}
    """Length → the seeds of its evaluations, in place of `seeds`."""
    with_length: Mapping[str, Annotated[tuple[str, ...], Field(strict=False)]] = {}
    """Length → further settings of its runs, such as a higher rollout.max_new_tokens."""
    faults: Annotated[tuple[float, ...], Some] = (1.0,)
    """Values of world.faults."""
    vary: Mapping[str, Annotated[tuple[Any, ...], Some]] = {}
    """ "section.key" → values; each evaluation is run with each combination, over the best settings."""
    trials: Seed = 12
    """Tuning trials of a leading method; 0 evaluates the default settings."""
    other_trials: Seed = 6
    """Tuning trials of the other methods."""
    confirm_seeds: Annotated[tuple[Seed, ...], Field(strict=False)] = ()
    """Further seeds on which the best trials are run again; the mean over `tune_seed` and these chooses the best."""
    confirmed: Annotated[int, Field(ge=1)] = CONFIRMED
    """Best trials of a leading method that are run again."""
    other_confirmed: Annotated[int, Field(ge=1)] = 2
    """Best trials of another method that are run again."""
    tuned_in: str = ""
    """Name of a study of the plan whose tuning of the same task is taken, for the methods that it has; of its studies
    the one with the same critic first."""
    tune_length: int | None = None
    """Length of the tuning; the last of `lengths` if left out."""
    tune_faults: float | None = None
    """Faults of the tuning; the first of `faults` if left out."""
    tune_seed: Seed = 100
    """Seed of the tuning's models and runs, and of the search."""
    tune_eval_seed: Seed = 1
    """world.eval_seed of the tuning."""
    tune_settings: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Settings of the tuning's runs over those of all runs, such as fewer steps: run.steps=8."""
    tune_at_kl: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """KL per token within which trials are compared, by the best value that their evaluations offer; left out: by the
    final value."""
    settings: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Settings of all runs, each as "section.key=value"."""
    apart: str = ""
    """Words in the name of its condition: its runs are compared with those of studies with the same words alone, such
    as runs from other start weights."""

    @model_validator(mode="after")
    def _apart(self) -> "Study":
        if self.tune_seed in self.seeds:
            raise ValueError(f"tune_seed = {self.tune_seed} is one of the seeds; tune on another")
        if shared := sorted({*self.confirm_seeds} & {*self.seeds, self.tune_seed}):
            raise ValueError(f"confirm_seeds = {list(self.confirm_seeds)}: {shared[0]} is used already; name another")
        if self.tune_eval_seed in [EVALUATION_ITEMS + seed for seed in self.seeds]:
            raise ValueError(
                f"tune_eval_seed = {self.tune_eval_seed} chooses held-out items of an evaluation (its seed + "
                f"{EVALUATION_ITEMS}); choose another"
            )
        if extra := {*(self.other_seeds or ())} - {*self.seeds}:
            raise ValueError(f"other_seeds chooses among seeds = {list(self.seeds)}, and has {sorted(extra)}")
        if few := [f"{length}: {list(seeds)}" for length, seeds in self.seeds_at.items() if set(seeds) - {*self.seeds}]:
            raise ValueError(f"seeds_at chooses among seeds = {list(self.seeds)}, and has {'; '.join(few)}")
        known = {str(length) for length in (*self.lengths, self.tuned_at[0])}
        for name, named in (("with_length", self.with_length), ("seeds_at", self.seeds_at)):
            if set(named) - known:
                raise ValueError(f"{name} names {sorted(set(named) - known)}, which no run has")
        for name in ("methods", "also_leading", "seeds", "other_seeds", "lengths", "faults", "confirm_seeds"):
            listed = getattr(self, name) or ()
            if len(set(listed)) < len(listed):
                raise ValueError(f"{name} = {list(listed)} names a value twice")
        return self

    @model_validator(mode="after")
    def _leads_of_its_methods(self) -> "Study":
        if extra := {*self.also_leading} - {*self.methods}:
            raise ValueError(f"also_leading chooses among methods = {list(self.methods)}, and has {sorted(extra)}")
        return self

    def _leads(self, method: str) -> bool:
        return METHODS[method].leading or method in self.also_leading

    @property
    def tuned_at(self) -> tuple[int, float]:
        """Length and faults of the tuning."""
        length = self.lengths[-1] if self.tune_length is None else self.tune_length
        return length, self.faults[0] if self.tune_faults is None else self.tune_faults

    @property
    def main_metric(self) -> str:
        """Name of the metric by which trials and methods are compared."""
        return self.metric or built_in(self.task).metric

    def places(self) -> list[tuple[int, int, float]]:
        """Return seed, length and faults of the evaluations of leading methods, those of a seed beside one another."""
        every = product(self.seeds, self.lengths, self.faults)
        return [one for one in every if one[0] in self.seeds_at.get(str(one[1]), self.seeds)]

    def seeds_of(self, method: str) -> tuple[int, ...]:
        """Return the seeds among which a method is evaluated."""
        return self.seeds if self._leads(method) or self.other_seeds is None else self.other_seeds

    def trials_of(self, method: str) -> int:
        """Return the number of a method's tuning trials; 0 for a method without searched settings."""
        if not METHODS[method].searched:
            return 0
        return self.trials if self._leads(method) else self.other_trials

    def confirmations(self, method: str) -> list[tuple[int, int]]:
        """Return the runs that confirm the best trials of a method: rank, from 0, and seed."""
        ranks = min(self.confirmed if self._leads(method) else self.other_confirmed, self.trials_of(method))
        return list(product(range(ranks), self.confirm_seeds))

    def variants(self) -> list[dict[str, Any]]:
        """Return the combinations of varied settings, after the best trial's own settings, by which methods compare."""
        varied = [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]
        return [{}, *varied] if self.vary else [{}]

    def evaluations(self) -> Iterator[tuple[str, tuple[int, int, float], int, dict[str, Any]]]:
        """Yield the evaluations, the methods of a seed beside one another.

        Each is method, place (seed, length and faults), and number and settings of the combination of `vary`.
        """
        for place, method, (number, variant) in product(self.places(), self.methods, enumerate(self.variants())):
            if place[0] in self.seeds_of(method):
                yield method, place, number, variant

    def of_method(self, method: str, models: Path) -> list[str]:
        """Return the settings of a method before its search, each as "section.key=value".

        Args:
            method: of the study.
            models: directory of the models of the phases before RL.
        """
        if self.critic == "reward_model":
            return settings(method, self.task, models)
        return [f"model.path='{self.model or models / 'start'}'", *PROGRAM_CRITIC, *METHODS[method].settings]

    def at(self, *, length: int, faults: float) -> list[str]:
        """Return the settings of all runs at a length and a rate of faults, each as "section.key=value"."""
        longer = [f"{self.length_setting}={length}"] if length else []
        longer += self.with_length.get(str(length), ())
        return [*self.settings, *longer, *([f"world.faults={faults}"] if faults != 1.0 else [])]

    def at_tuning(self, *, length: int, faults: float) -> list[str]:
        """Return the settings of the tuning's runs, each as "section.key=value"."""
        return [*self.at(length=length, faults=faults), *self.tune_settings]


class Plan(_Strict):
    """Studies, and where their runs and records are."""

    runs: str
    """Directory of models and runs."""
    records: str
    """Directory of the records of finished runs."""
    keep_runs: bool = False
    """Keep the directories of recorded runs; otherwise they are removed."""
    study: Annotated[tuple[Study, ...], Some]
    """The studies."""


def load_plan(path: Path) -> Plan:
    """Read a plan, and check its recipes, methods and settings.

    Raises:
        ConfigError: if something is wrong; names the study.
    """
    try:
        data = tomllib.loads(read_text(path))
    except (DataError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: no plan of studies: {error}") from error
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        items: list[dict[str, Any]] = [dict(item) for item in error.errors()]
        if any(item["loc"][:1] == ("study",) and len(item["loc"]) > 1 for item in items):
            items = [item for item in items if item["loc"] != ("study",)]  # without its faulty studies it seems empty
        raise ConfigError("\n".join(f"{path}: {_explain(item, data)}" for item in items)) from error
    places = [(study.name, study.task, study.critic) for study in plan.study]
    for study in plan.study:
        if places.count((study.name, study.task, study.critic)) > 1:
            raise ConfigError(
                f"{path}: two studies are named {study.name!r} with task {study.task!r} and critic {study.critic!r}; "
                "choose another name, or join them"
            )
        try:
            _check(study, plan, path)
        except ConfigError as error:
            raise ConfigError(f"{path}: study {study.name!r}, task {study.task!r}: {error}") from error
    return plan


def tuning_study(plan: Plan, study: Study, method: str) -> Study:
    """Return the study that tunes a method of a study."""
    others = [one for one in plan.study if one is not study and method in one.methods]
    found = [one for one in others if (one.name, one.task) == (study.tuned_in, study.task)]
    return min(found, key=lambda one: one.critic != study.critic, default=study)


def check_metric(study: Study, recipe: Recipe) -> None:
    """Refuse a metric that no evaluation will have, by scoring one reference; programs run in the sandbox.

    Raises:
        ConfigError: if neither the task nor `data.metric` has one of this name.
        DataError: if the files of a task on files cannot be read.
    """
    if not study.metric:
        return
    task = built_in(study.task, world_of(recipe)[0])
    examples = run_examples(recipe).held_out[:1] if recipe.data.train else task.held_out(1, 0)
    references = [example.reference or "" for example in examples]
    names = {name for one in task.measure(examples, references)[1] for name in one}
    if recipe.data.metric:
        metric = load_callable(recipe.data.metric, "metric")
        names |= {name for one in measure(metric, examples, references) for name in one}
    check_known("metric", study.metric, tuple(sorted(names)))


def _check(study: Study, plan: Plan, path: Path) -> None:
    recipe = load_recipe(path.parent / study.recipe)
    if recipe.data.task is None:
        raise ConfigError(
            f"{study.recipe} has no data.task: a study compares methods on a built-in task. For prompts and a critic "
            "of your own, `python -m evidence tune` searches the settings of a method, and `text2grad compare` "
            "compares runs"
        )
    if recipe.data.task != study.task:
        raise ConfigError(f"{study.recipe} has data.task = {recipe.data.task!r}; name its task")
    if study.tuned_in and study.tuned_in not in [one.name for one in plan.study if one is not study]:
        raise ConfigError(f"tuned_in = {study.tuned_in!r} is no other study of the plan")
    learned = study.critic == "reward_model"
    if learned and study.model:
        raise ConfigError(
            'a pretrained model has no learned reward model of the pipeline; set critic = "program", or leave model out'
        )
    for method in study.methods:
        check_known("methods", method, tuple(name for name, known in METHODS.items() if not known.recorded))
        if METHODS[method].needs and not learned:
            raise ConfigError(
                f'the method {method} needs a {METHODS[method].needs}, which critic = "program" does not make; '
                'leave it out, or set critic = "reward_model"'
            )
    for length, faults in {*product(study.lengths, study.faults), study.tuned_at}:
        for variant in study.variants():
            made = load_recipe(
                path.parent / study.recipe, [*study.at(length=length, faults=faults), *as_overrides(variant)]
            )
            _refuse_no_items(made)
            _refuse_own_critic(made)
            world_of(made)
    length, faults = study.tuned_at
    _refuse_no_items(load_recipe(path.parent / study.recipe, study.at_tuning(length=length, faults=faults)))


def _refuse_no_items(recipe: Recipe) -> None:
    if not recipe.data.eval_examples:
        raise ConfigError("data.eval_examples = 0 leaves no held-out items to compare methods on")


def _refuse_own_critic(recipe: Recipe) -> None:
    if recipe.critic.use:
        raise ConfigError(
            f"critic.use = {recipe.critic.use!r}, but the critic of a study is the task's program, or a reward model "
            "that learned from it; leave critic.use out. `text2grad compare` compares runs with a critic of your own"
        )


def _explain(item: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    place: Sequence[Any] = item["loc"]
    message = str(item["msg"]).removeprefix("Value error, ")
    if len(place) > 1 and place[0] == "study" and isinstance(place[1], int):
        study = data["study"][place[1]]
        named = f"study {study.get('name', place[1] + 1)!r}" if isinstance(study, Mapping) else f"study {place[1] + 1}"
        key = ".".join(map(str, place[2:]))
        known = f"; keys: {', '.join(Study.model_fields)}" if item["type"] == "extra_forbidden" else ""
        value = f" = {item['input']!r}" if item["type"] not in ("missing", "extra_forbidden") else ""
        return f"{named}: {f'{key}{value}: ' if key else ''}{message}{known}"
    known = f"; keys: {', '.join(Plan.model_fields)}" if item["type"] == "extra_forbidden" else ""
    return f"{'.'.join(map(str, place))}: {message}{known}"
