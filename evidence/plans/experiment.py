"""The work of a plan of studies: which models, trials and evaluations are missing, and the jobs that make them.

    RUNS/models/TASK/[program-][length-L-][faults-F-]seed-S/     models of the phases before RL
    RUNS/STUDY/TASK/CRITIC/tuning/METHOD/                       the search of one method, and the runs that confirm it
    RUNS/STUDY/TASK/CRITIC/seed-S/length-L-faults-F/METHOD[-N]/    an evaluation, with the N-th combination of `vary`

A run whose record exists is not run again, and an interrupted run is resumed. The tuning of a method is rebuilt from
its records where its directory is gone. The jobs of one seed are neighbours, so that they run on one machine.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from evidence.plans.experiment_plan import EVALUATION_ITEMS, Plan, Study, check_metric, tuning_study
from evidence.plans.frontier import value_of
from evidence.plans.jobs import Job, error_in, is_done
from evidence.plans.methods import METHODS
from evidence.plans.records import (
    START_DIGITS,
    Place,
    Record,
    append_record,
    key_of,
    read_records,
    recipe_digest,
    record_of,
    settings_between,
)
from evidence.plans.search_space import Trial, as_overrides, value_in
from evidence.plans.tuning import Tuning, loss_of, remove_run, run_command, run_failed, run_is_done
from evidence.tasks.lengths import PHASES, WITHOUT_REWARD_MODEL
from text2grad.config import Recipe, digest_of, load_recipe
from text2grad.errors import CheckpointError, ConfigError, DataError, TrainingError
from text2grad.files import to_json, write_atomically
from text2grad.progress import note
from text2grad.runs.metric import lower_is_better
from text2grad.runs.pipeline import Pipeline

RUN_SECONDS = {"program": 60.0, "reward_model": 190.0}
"""Of 60 steps of a quickstart's recipe on one thread, evaluations included; for studies without records."""

MODEL_SECONDS = {"program": 60.0, "reward_model": 240.0}
EVALUATIONS = 1.25  # seconds of a run with evaluations, per second of training
MOST_FAILURES = 3  # failed jobs that end the whole


@dataclass(frozen=True, slots=True)
class Models:
    """The models that one run starts from.

    Attributes:
        directory: of the models.
        overrides: settings by which they are made, each as "section.key=value".
        more: further models of phase 2.
    """

    directory: Path
    overrides: tuple[str, ...]
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a method with its best settings."""

    study: Study
    method: str
    length: int
    faults: float
    seed: int
    variant: Mapping[str, Any]
    number: int

    @property
    def name(self) -> str:
        """The name of its job."""
        varied = "".join(f" {setting}={value}" for setting, value in self.variant.items())
        study = self.study
        return f"{_named(study)} seed {self.seed} length {self.length} faults {self.faults} {self.method}{varied}"


@dataclass(frozen=True, slots=True)
class Amount:
    """The missing part of a study: counts, and seconds of one process."""

    models: int
    trials: int
    evaluations: int
    all_runs: int
    seconds: float


class Experiment:
    """A plan, its records, and the jobs of its missing runs."""

    def __init__(
        self, plan: Plan, path: Path, program: Sequence[str], *, only: Sequence[str] = (), models: Path | None = None
    ) -> None:
        """Read the records.

        Args:
            plan: of `load_plan`.
            path: its file.
            program: the command line of text2grad.
            only: names of studies; empty for all.
            models: directory of the models; None for one in `plan.runs`.

        Raises:
            ConfigError: if a name in `only` is no study, or a search in the directory is another one.
            DataError: if a file of records is damaged.
        """
        names = list(dict.fromkeys(study.name for study in plan.study))
        unknown = [name for name in only if name not in names]
        if unknown:
            raise ConfigError(f"{path} has no study {unknown[0]!r}; studies: {', '.join(names)}")
        self.plan, self.path, self.program = plan, path, list(program)
        self.studies = [study for study in plan.study if not only or study.name in only]
        self.runs, self.records = Path(plan.runs), Path(plan.records)
        self.models = models or self.runs / "models"
        self.known: dict[str, Record] = {}
        if self.records.exists():
            self.known = {key_of(record): record for record in read_records(self.records)}
        self.tunings: dict[tuple[str, str, str, str], Tuning] = {}
        self.failed: list[str] = []
        self.ended: list[str] = []

    def jobs(self) -> dict[str, Job]:
        """Return the jobs of the missing runs by name, in order.

        Raises:
            ConfigError: if models in the directory were made by other settings, a pretrained model is missing, the
                records were made with another pretrained model or metric, or the task lacks the metric of its study.
        """
        found: dict[str, Job] = {}
        for study in self.studies:
            if study.model and not Path(study.model).exists():
                raise ConfigError(
                    f"study {study.name!r}: model = {study.model!r} does not exist; the path starts at the working "
                    "directory"
                )
            check_metric(study, load_recipe(self._recipe(study), study.settings))
            self._refuse_other_records(study)
            for method in study.methods:
                owner = tuning_study(self.plan, study, method)
                tuning = self.tuning(owner, method)
                if tuning.count and not tuning.finished:
                    length, faults = owner.tuned_at
                    needs = self._add_models(found, owner, length, faults, owner.tune_seed)
                    found |= {
                        name: job._replace(on_end=partial(self._end_of_trial, job))
                        for name, job in tuning.jobs(_trials_named(owner, method), needs).items()
                    }
                found |= self._confirmation_jobs(found, owner, method)
            for evaluation in self._evaluations(study):
                if self._record(evaluation) is None:
                    needs = self._add_models(found, study, evaluation.length, evaluation.faults, evaluation.seed)
                    owner = tuning_study(self.plan, study, evaluation.method)
                    trials = [n for n in found if n.startswith(f"{_trials_named(owner, evaluation.method)} ")]
                    found[evaluation.name] = Job(
                        partial(self._command, evaluation),
                        self._directory(evaluation).with_suffix(".log"),
                        partial(self._has_record, evaluation),
                        (*needs, *trials),
                        on_end=partial(self._end_of_evaluation, evaluation),
                    )
        return found

    def _refuse_other_records(self, study: Study) -> None:
        """Refuse a pretrained policy or a metric that is not that of the study's records.

        Raises:
            ConfigError: if it is another one.
        """
        start = digest_of(Path(study.model))[:START_DIGITS] if study.model else None
        same = (study.name, study.task, study.critic)
        for record in self.known.values():
            if (record["study"], record["task"], record["critic"]) != same:
                continue
            before = f"the records of study {study.name!r} hold runs on {study.task}"
            way_out = "give the study another name, or remove the records"
            if start is not None and record["start"] != start:
                raise ConfigError(
                    f"{before} that began at other weights than model = {study.model!r} (digest {record['start']} → "
                    f"{start}); {way_out}"
                )
            if record["metric"] != study.main_metric:
                raise ConfigError(f"{before} with another metric ({record['metric']} → {study.main_metric}); {way_out}")

    def amount(self, study: Study) -> Amount:
        """Return the missing part of a study; models and trials that another study shares count for both."""
        models, seconds, trials, evaluations, total = set[Path](), 0.0, 0, 0, 0
        for method in study.methods:
            owner = tuning_study(self.plan, study, method)
            tuning = self.tuning(owner, method)
            confirmations = owner.confirmations(method)
            seeds = [owner.tune_seed] * (tuning.count - tuning.ended)
            seeds += [seed for rank, seed in confirmations if self._confirmed(owner, method, rank, seed) is None]
            trials, total = trials + len(seeds), total + tuning.count + len(confirmations)
            seconds += len(seeds) * self._seconds(owner, method)
            models |= {self._models(owner, *owner.tuned_at, seed).directory for seed in seeds}
        for one in self._evaluations(study):
            total += 1
            if self._record(one) is None:
                evaluations, seconds = evaluations + 1, seconds + self._seconds(study, one.method)
                models.add(self._models(study, one.length, one.faults, one.seed).directory)
        missing_models = [] if study.model else [path for path in models if not (path / "start").exists()]
        seconds += len(missing_models) * MODEL_SECONDS[study.critic]
        return Amount(len(missing_models), trials, evaluations, total, seconds)

    def tuning(self, study: Study, method: str) -> Tuning:
        """Return the search of a method, with the trials of its directory and of its records."""
        key = (study.name, study.task, study.critic, method)
        if key not in self.tunings:
            length, faults = study.tuned_at
            shared = _shared_by_trials(study, study.tune_seed)
            models = self._models(study, length, faults, study.tune_seed)
            of_method = study.of_method(method, models.directory)
            tuning = Tuning(
                method,
                self._recipe(study),
                shared,
                of_method,
                self.runs / study.name / study.task / study.critic / "tuning" / method,
                study.trials_of(method),
                study.tune_seed,
                self.program,
                metric=study.main_metric,
                minimise=lower_is_better(study.main_metric),
                at_kl=study.tune_at_kl,
                on_trial=partial(self._keep_trial, study, method),
            )
            recorded = list(self._recorded_trials(study, method, tuning))
            tuning.restore(recorded)
            tuning.repeat_all_but({trial.number for trial in recorded})
            self.tunings[key] = tuning
        return self.tunings[key]

    def _recorded_trials(self, study: Study, method: str, tuning: Tuning) -> Iterator[Trial]:
        """Yield the trials of a search that have records.

        Raises:
            ConfigError: if a record was made with another recipe or other settings than the plan's.
        """
        base, fixed = self._base(study), load_recipe(self._recipe(study), [*tuning.overrides, *tuning.of_method])
        searched, digest = set(tuning.space.searched), recipe_digest(base)
        wanted = {name: value for name, value in settings_between(base, fixed).items() if name not in searched}
        wanted |= {"tune_at_kl": study.tune_at_kl} if study.tune_at_kl else {}
        for record in self.known.values():
            place = Place(*(record[name] for name in Place._fields))
            if place._replace(trial=None) != self._place(study, method, *study.tuned_at, study.tune_seed, trial=True):
                continue
            if record["recipe"] != digest:
                raise ConfigError(
                    f"the records of study {study.name!r} hold trials of {method} on {study.task} with another "
                    f"{study.recipe} (digest {record['recipe']} → {digest}); restore the recipe, give the study "
                    "another name, or remove the records"
                )
            there = {name: value for name, value in record["settings"].items() if name not in searched}
            there |= {"tune_at_kl": record["at_kl"]} if "at_kl" in record else {}
            if there != wanted:
                raise ConfigError(
                    f"the records of study {study.name!r} hold trials of {method} on {study.task} with other settings "
                    f"({_differences(there, wanted)}); give the study another name, or remove the records"
                )
            values = {
                name: record["settings"].get(name, value_in(base, one)) for name, one in tuning.space.searched.items()
            }
            yield Trial(int(place.trial or 0), values, _value(study, record), record.get("error", ""))

    def best(self, study: Study, method: str) -> Trial | None:
        """Return the best trial of a method: of the confirmed ones by the mean over its seeds; None without trials."""
        tuning = self.tuning(study, method)

        def loss(rank: int) -> float:
            runs = [self._confirmed(study, method, rank, seed) for seed in study.confirm_seeds]
            values = [tuning.ranked()[rank].value, *(_value(study, run) for run in runs if run)]
            return loss_of(values, minimise=tuning.minimise)

        ranks = sorted({rank for rank, _ in study.confirmations(method) if rank < len(tuning.ranked())}, key=loss)
        return tuning.ranked()[ranks[0]] if ranks and tuning.best else tuning.best

    def _confirmed(self, study: Study, method: str, rank: int, seed: int) -> Record | None:
        """Return the record of one of the best trials on another seed; None if there is none yet."""
        tuning = self.tuning(study, method)
        if not tuning.finished:
            return None
        place = self._place(study, method, *study.tuned_at, seed, trial=True)
        number = tuning.ranked()[rank].number
        found = (one for one in self.known.values() if Place(*(one[name] for name in Place._fields))[:-2] == place[:-2])
        return next((one for one in found if (one["trial"], one["seed"]) == (number, seed)), None)

    def _confirmation_jobs(self, jobs: dict[str, Job], study: Study, method: str) -> dict[str, Job]:
        """Return the missing runs of the best trials on the confirming seeds; the models that they need join `jobs`."""
        found = {}
        trials = [name for name in jobs if name.startswith(f"{_trials_named(study, method)} ")]
        for rank, seed in study.confirmations(method):
            if self._confirmed(study, method, rank, seed) is None:
                needs = self._add_models(jobs, study, *study.tuned_at, seed)
                one = (study, method, rank, seed)
                found[f"{_trials_named(study, method)} best {rank + 1} seed {seed}"] = Job(
                    partial(self._confirmation_command, *one),
                    self._confirmation_directory(*one).with_suffix(".log"),
                    lambda: False,
                    (*needs, *trials),
                    on_end=partial(self._end_of_confirmation, *one),
                )
        return found

    def _confirmation_directory(self, study: Study, method: str, rank: int, seed: int) -> Path:
        return self.tuning(study, method).out / f"best-{rank + 1}-seed-{seed}"

    def _confirmation_settings(self, study: Study, method: str, rank: int, seed: int) -> list[str]:
        length, faults = study.tuned_at
        models = self._models(study, length, faults, seed)
        shared = _shared_by_trials(study, seed)
        trial = self.tuning(study, method).ranked()[rank]
        return [*shared, *study.of_method(method, models.directory), *as_overrides(trial.settings)]

    def _confirmation_command(self, study: Study, method: str, rank: int, seed: int) -> list[str]:
        one = (study, method, rank, seed)
        directory, settings = self._confirmation_directory(*one), self._confirmation_settings(*one)
        self._set_aside(directory, study, settings)
        return run_command(self.program, method, self._recipe(study), directory, settings)

    def _end_of_confirmation(self, study: Study, method: str, rank: int, seed: int, name: str, code: int) -> bool:
        """Keep the record of a confirming run whose process has ended."""
        one = (study, method, rank, seed)
        place = self._place(study, method, *study.tuned_at, seed, trial=True)
        place = place._replace(trial=self.tuning(study, method).ranked()[rank].number)
        return self._end_of_run(
            name, code, study, self._confirmation_directory(*one), place, self._confirmation_settings(*one)
        )

    def _evaluations(self, study: Study) -> Iterator[Evaluation]:
        """Yield the evaluations of a study, the methods of a seed beside one another."""
        for method, (seed, length, faults), number, variant in study.evaluations():
            yield Evaluation(study, method, length, faults, seed, variant, number)

    def _overrides(self, one: Evaluation) -> list[str]:
        """Return the settings of an evaluation, each as "section.key=value"; those of the best trial are last."""
        study = one.study
        models = self._models(study, one.length, one.faults, one.seed)
        found = _shared(study, one.length, one.faults, one.seed, EVALUATION_ITEMS + one.seed)
        found += study.of_method(one.method, models.directory)
        best = self.best(tuning_study(self.plan, study, one.method), one.method)
        return [*found, *as_overrides(best.settings if best else {}), *as_overrides(one.variant)]

    def _record(self, one: Evaluation) -> Record | None:
        """Return the record of an evaluation with the best settings so far; None if the search is not finished."""
        owner = tuning_study(self.plan, one.study, one.method)
        tuning = self.tuning(owner, one.method)
        if tuning.count and not tuning.finished:
            return None
        if not all(
            self._confirmed(owner, one.method, *confirmation) for confirmation in owner.confirmations(one.method)
        ):
            return None
        recipe = load_recipe(self._recipe(one.study), self._overrides(one))
        place = self._place(one.study, one.method, one.length, one.faults, one.seed)
        base = self._base(one.study)
        key = key_of({**place._asdict(), "recipe": recipe_digest(base), "settings": settings_between(base, recipe)})
        return self.known.get(key)

    def _has_record(self, one: Evaluation) -> bool:
        return self._record(one) is not None

    def _command(self, one: Evaluation) -> list[str]:
        directory, overrides = self._directory(one), self._overrides(one)
        self._set_aside(directory, one.study, overrides)
        return run_command(self.program, one.method, self._recipe(one.study), directory, overrides)

    def _set_aside(self, directory: Path, study: Study, overrides: Sequence[str]) -> None:
        """Rename a directory whose run has other settings, such as those of a trial that was the best before."""
        told = directory.with_suffix(".json")
        settings = settings_between(self._base(study), load_recipe(self._recipe(study), overrides))
        if (directory / "run.json").exists() and told.exists() and json.loads(told.read_bytes()) != settings:
            free = (directory.with_name(f"{directory.name}-before-{number}") for number in count(1))
            aside = next(path for path in free if not path.exists())
            note(f"{directory} holds a run with other settings; it is kept as {aside.name}", warning=True)
            directory.rename(aside)
        directory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(told, to_json(settings))

    def _end_of_models(self, log: Path, complete: Callable[[], bool], name: str, code: int) -> bool:
        self.ended.append(name)
        return is_done(name, code, complete=complete) or self._failure(name, code, log)

    def _end_of_evaluation(self, one: Evaluation, name: str, code: int) -> bool:
        """Keep the record of an evaluation whose process has ended."""
        place = self._place(one.study, one.method, one.length, one.faults, one.seed)
        return self._end_of_run(name, code, one.study, self._directory(one), place, self._overrides(one))

    def _end_of_run(
        self, name: str, code: int, study: Study, directory: Path, place: Place, settings: Sequence[str]
    ) -> bool:
        """Keep the record of a run that is no trial; return whether it has one."""
        self.ended.append(name)
        log = directory.with_suffix(".log")
        done = run_is_done(name, code, directory)
        if not done and not run_failed(code, log):
            return self._failure(name, code, log)
        try:
            record = record_of(
                directory,
                place,
                self._base(study),
                asked=load_recipe(self._recipe(study), settings),
                metric=study.main_metric,
                error="" if done else error_in(log),
            )
        except (CheckpointError, DataError):  # it failed before its first evaluation
            return self._failure(name, code, log)
        self._keep(study, record)
        if not self.plan.keep_runs:
            remove_run(directory)
        return True

    def _end_of_trial(self, job: Job, name: str, code: int) -> bool:
        """Note the end of a trial; then its directory may go."""
        self.ended.append(name)
        try:
            ended = bool(job.on_end and job.on_end(name, code))
        except TrainingError:
            return self._failure(name, code, job.log)
        if not self.plan.keep_runs:
            remove_run(job.log.with_suffix(""))
        return ended

    def _keep_trial(self, study: Study, method: str, trial: Trial, directory: Path) -> None:
        place = self._place(study, method, *study.tuned_at, study.tune_seed, trial=True)._replace(trial=trial.number)
        tuning = self.tuning(study, method)
        asked = load_recipe(self._recipe(study), tuning.settings_of(trial))
        try:
            base, metric = self._base(study), study.main_metric
            self._keep(study, record_of(directory, place, base, asked=asked, metric=metric, error=trial.error))
        except (CheckpointError, DataError):
            if not trial.error:
                raise
            note(f"{directory}: the trial failed before its first evaluation, and has no record", warning=True)

    def _keep(self, study: Study, record: Record) -> None:
        if study.apart:
            record = {**record, "apart": study.apart}
        if study.tune_at_kl and record["purpose"] == "tuning":
            record = {**record, "at_kl": study.tune_at_kl}
        append_record(self.records, record)
        self.known[key_of(record)] = record

    def _failure(self, name: str, code: int, log: Path) -> bool:
        """Count a job that failed for another reason than its settings; the third ends the work.

        Raises:
            TrainingError: if it is the third.
        """
        self.failed.append(f"{name} stopped with exit code {code}: {error_in(log)} (all its output is in {log})")
        note(self.failed[-1], warning=True)
        if len(self.failed) == MOST_FAILURES:
            raise TrainingError(f"{MOST_FAILURES} jobs failed:\n" + "\n".join(self.failed))
        return False

    def _add_models(self, jobs: dict[str, Job], study: Study, length: int, faults: float, seed: int) -> tuple[str, ...]:
        """Add the job that makes the models of a run, if they are missing; return the names of the needed jobs."""
        if study.model:
            return ()
        made = self._models(study, length, faults, seed)
        name = f"models {made.directory.relative_to(self.models)}"
        recipe = load_recipe(self._recipe(study), made.overrides)
        Pipeline(recipe, made.directory).refuse_other_settings(
            "Name another directory with --models DIR, or in runs of the plan"
        )

        def complete() -> bool:
            return all((made.directory / file).exists() for file in _files(study, made))

        if complete():
            return ()
        words = [*self.program, "experiment", str(self._recipe(study)), "--models-in", str(made.directory)]
        words += [word for setting in made.overrides for word in ("--set", setting)]
        words += ["--phases", ",".join(_phases(study, made))]
        log = made.directory.with_name(f"{made.directory.name}.log")  # the name may hold a dot, as in faults-0.5-seed-3
        jobs[name] = Job(partial(list, words), log, lambda: False, on_end=partial(self._end_of_models, log, complete))
        return (name,)

    def _models(self, study: Study, length: int, faults: float, seed: int) -> Models:
        """Return the models of a run, which all studies of the task and the critic share."""
        program = ["quickstart.after_reward_model=0"] if study.critic == "program" else []
        parts = ["program"] if program else []
        parts += [f"length-{length}"] if length else []
        parts += [f"faults-{faults:g}"] if faults != 1.0 else []
        name = "-".join([*parts, f"seed-{seed}"])
        overrides = (*study.at(length=length, faults=faults), *program, f"run.seed={seed}")
        sharing = [
            one
            for one in self.plan.study
            if (one.task, one.critic) == (study.task, study.critic)
            and seed in (*one.seeds, one.tune_seed, *one.confirm_seeds)
        ]
        more = sorted({METHODS[method].needs for one in sharing for method in one.methods} - {""})
        return Models(self.models / study.task / name, overrides, tuple(more))

    def _directory(self, one: Evaluation) -> Path:
        study = one.study
        name = f"{one.method}-{one.number}" if one.study.vary else one.method
        place = self.runs / study.name / study.task / study.critic / f"seed-{one.seed}"
        return place / f"length-{one.length}-faults-{one.faults:g}" / name

    def _seconds(self, study: Study, method: str) -> float:
        """Return the expected seconds of a run: the median of recorded runs of the study, of the method if it has any.

        On a busy machine a few runs take many times as long as the others, so their mean would be too high.
        """
        same = [
            record
            for record in self.known.values()
            if (record["study"], record["task"], record["critic"]) == (study.name, study.task, study.critic)
        ]
        spent = [record["seconds"] for record in same if record["method"] == method] or [r["seconds"] for r in same]
        if spent:
            return EVALUATIONS * float(median(spent))
        steps = load_recipe(self._recipe(study), study.settings).run.steps
        return RUN_SECONDS[study.critic] * steps / 60

    def _recipe(self, study: Study) -> Path:
        return self.path.parent / study.recipe

    def _base(self, study: Study) -> Recipe:
        return load_recipe(self._recipe(study))

    @staticmethod
    def _place(study: Study, method: str, length: int, faults: float, seed: int, *, trial: bool = False) -> Place:
        purpose = "tuning" if trial else "evaluation"
        return Place(study.name, study.task, length, faults, study.critic, method, purpose, None, seed)


def _shared(study: Study, length: int, faults: float, seed: int, eval_seed: int) -> list[str]:
    """Return the settings that all methods of a run share, each as "section.key=value"."""
    return [*study.at(length=length, faults=faults), *_seeds(seed, eval_seed)]


def _shared_by_trials(study: Study, seed: int) -> list[str]:
    """Return the settings that all trials share, and all runs that confirm them."""
    length, faults = study.tuned_at
    return [*study.at_tuning(length=length, faults=faults), *_seeds(seed, study.tune_eval_seed)]


def _seeds(seed: int, eval_seed: int) -> list[str]:
    return [f"run.seed={seed}", f"world.eval_seed={eval_seed}"]


def _value(study: Study, record: Record) -> float | None:
    """Return the value of a trial by which its study compares; None if it stopped with an error."""
    if record.get("error"):
        return None
    return value_of(record["curve"], at_kl=study.tune_at_kl, minimise=lower_is_better(study.main_metric))


def _named(study: Study) -> str:
    return f"{study.name} {study.task} {study.critic}"


def _trials_named(study: Study, method: str) -> str:
    return f"{_named(study)} {method} trial"


def _phases(study: Study, made: Models) -> tuple[str, ...]:
    """Return the phases before RL that a study needs."""
    return WITHOUT_REWARD_MODEL if study.critic == "program" else (*PHASES, *made.more)


def _files(study: Study, made: Models) -> list[str]:
    """Return the files and directories of finished models."""
    return ["annotations.jsonl" if phase == "annotations" else phase for phase in _phases(study, made)]


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    names = sorted({*there, *wanted})
    return "; ".join(
        f"{name}: {there.get(name, 'as the recipe')} → {wanted.get(name, 'as the recipe')}"
        for name in names
        if there.get(name) != wanted.get(name)
    )
