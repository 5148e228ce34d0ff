"""The search for the best settings of one method: trials, each a run in a process of its own.

    tuning.json        the method, the seed, and settings and value of every trial
    trial-000/         the run of a trial, and its log beside it
    trial-000-seed-1/  the run of one of the best trials on another seed, and its log beside it

The settings of a trial are written before it starts, unless the recipe refuses them, and its value when it ends. After
a kill at any moment the same search goes on: a finished trial is not run again, and a trial under way is resumed from
its last checkpoint.

A run that stops because its loss or gradient is not finite, because the critic cannot judge what the policy became, or
for want of memory is a failed trial, which counts as the worst of the finished ones, also where its process crashes at
the exit, behind this error. Any other error says nothing about the settings, and ends the search; so does a signal from
outside (SIGKILL, SIGTERM, ...), and a first round in which every trial fails. A run whose process is ended by a signal
when all its results are written counts as finished.

The best value of one seed is partly luck, and settings at the edge of a collapse look best there. With `confirm_seeds`
the best trials are run again on further seeds, and the mean over all seeds decides.

The value of a run is that of its last evaluation; with `at_kl` the best that its evaluations offer within a KL.
"""

import json
import shutil
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from evidence.plans.frontier import value_of
from evidence.plans.jobs import Job, error_in, is_done
from evidence.plans.methods import METHODS
from evidence.plans.records import curve_of
from evidence.plans.search_space import CONFIRMED, ROUND, SearchSpace, Trial, as_overrides
from evidence.rivals.rounds import USUAL_ROUNDS, rounds_of
from text2grad.config import Recipe, changed_settings, load_recipe, make_recipe
from text2grad.config.run_directory import inputs_of
from text2grad.errors import CheckpointError, ConfigError, TrainingError
from text2grad.files import to_json, write_atomically
from text2grad.progress import note
from text2grad.runs.reports.run_report import read_run

FILE = "tuning.json"
FAILURES = {2: ("TrainingError", "CriticError"), 1: ("OutOfMemory", "out of memory")}
"""By exit code, beginnings of the error of a run whose settings are at fault."""

CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))
"""Exit codes of a process that crashed; behind the error of a run it did so at the exit, as libraries may."""

SECTIONS = ("data", "model", "critic", "refresh")
"""Sections of a recipe whose files and models the trials share."""

RESULTS = "results.json"  # which a run writes when it is finished
FINISHED = (0, 3)  # exit codes of a finished run; 3: the critic labelled nothing

OnTrial = Callable[[Trial, Path], None]


def run_failed(code: int, log: Path) -> bool:
    """Return whether the exit code and the log of a run show a failure of its settings, as a divergence."""
    beginnings = sum(FAILURES.values(), ()) if code in CRASHES else FAILURES.get(code, ())
    return error_in(log).startswith(beginnings)


def run_is_done(name: str, code: int, directory: Path) -> bool:
    """Return whether a run is finished: by its exit code, or by its results, behind which its process may crash."""
    log = directory.with_suffix(".log")
    return is_done(
        name, code, complete=lambda: (directory / RESULTS).exists() and not run_failed(code, log), good=FINISHED
    )


def command_of(program: Sequence[str], method: str, recipe: Path, overrides: Sequence[str]) -> list[str]:
    """Return the command line of a method, without directory.

    Args:
        program: the command line of text2grad.
        method: a key of `METHODS`.
        recipe: TOML file.
        overrides: settings, each as "section.key=value".
    """
    command = METHODS[method].command
    words = [*program, command, *([method] if command == "rival" else []), str(recipe)]
    return [*words, *(word for setting in overrides for word in ("--set", setting))]


def run_command(
    program: Sequence[str], method: str, recipe: Path, directory: Path, overrides: Sequence[str]
) -> list[str]:
    """Return the command line that runs a method in a directory, or resumes its run; see `command_of`."""
    words = [*command_of(program, method, recipe, overrides), "--out", str(directory)]
    return [*words, "--resume"] if (directory / "run.json").exists() else words


def loss_of(values: Sequence[float | None], *, minimise: bool) -> float:
    """Return the mean over the runs of a trial, negated if a large value is good; infinite if a run failed (None)."""
    sign = 1.0 if minimise else -1.0
    return fmean(float("inf") if value is None else sign * value for value in values)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One of the best trials on another seed.

    Attributes:
        trial: its number.
        seed: run.seed.
        value: as in `Trial`; None for a run that failed.
        error: the message of a run that failed; "" for none.
    """

    trial: int
    seed: int
    value: float | None
    error: str = ""


@dataclass(slots=True)
class Tuning:
    """One search.

    Attributes:
        method: a key of `METHODS`.
        recipe: TOML file.
        overrides: settings that every method shares, each as "section.key=value"; ranges follow from them.
        of_method: settings of the method.
        out: directory of the search.
        count: number of trials.
        seed: of the search.
        program: the command line of text2grad.
        metric: name of the metric by which trials are compared; "" for the main metric of their runs.
        minimise: whether a small value of the metric is good.
        on_trial: called with each trial that ends and the directory of its run.
        confirm_seeds: further values of run.seed, with which the best trials are run again.
        confirmed: number of the best trials that are run again.
        at_kl: KL per token, in nats, within which the value of a run is the best one; None takes its final value.
        space: the searched settings.
        inputs: digests of the files and models that the recipe names, as far as they exist.
        trials: so far, by number.
        confirmations: so far, by trial and seed.
    """

    method: str
    recipe: Path
    overrides: Sequence[str]
    of_method: Sequence[str]
    out: Path
    count: int
    seed: int
    program: Sequence[str]
    metric: str = ""
    minimise: bool = False
    on_trial: OnTrial = lambda trial, directory: None
    confirm_seeds: Sequence[int] = ()
    confirmed: int = CONFIRMED
    at_kl: float | None = None
    space: SearchSpace = field(init=False)
    inputs: Mapping[str, str] = field(init=False)
    trials: dict[int, Trial] = field(default_factory=dict)
    confirmations: dict[tuple[int, int], Confirmation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Load the recipe, and the trials of an earlier process.

        Raises:
            ConfigError: if a setting is wrong, or the directory holds another search.
            CheckpointError: if its file cannot be read.
        """
        full = load_recipe(self.recipe, [*self.overrides, *self.of_method])
        refuse_no_items(full, self.recipe)
        if full.run.seed in self.confirm_seeds:
            raise ConfigError(
                f"--confirm-seeds {full.run.seed}: the trials themselves have this seed (run.seed); name another"
            )
        usual = {"rival.rounds": rounds_of(full, self.method)} if self.method in USUAL_ROUNDS else {}
        self.space = SearchSpace.of(
            METHODS[self.method].searched, load_recipe(self.recipe, self.overrides), full, usual
        )
        self.inputs = inputs_of(full, SECTIONS, self.out)
        path = self.out / FILE
        if path.exists():
            self._read(path, full)

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, the first of equal ones; None while no trial has a value.

        As soon as the best trials have been run on all of `confirm_seeds`: that with the best mean over all seeds.
        """
        again = self.to_confirm()
        if again and all(self._is_confirmed(trial, seed) for trial in again for seed in self.confirm_seeds):
            return min(again, key=lambda trial: loss_of(self.values_of(trial), minimise=self.minimise))
        return next((trial for trial in self.ranked() if trial.value is not None), None)

    @property
    def finished(self) -> bool:
        """Whether every trial has ended."""
        return self.ended == self.count

    @property
    def ended(self) -> int:
        """Number of the trials that have ended."""
        return sum(self.is_finished(number) for number in range(self.count))

    def ranked(self) -> list[Trial]:
        """Return the trials that have ended, the best first, failed ones last."""
        found = [trial for _, trial in sorted(self.trials.items()) if trial.finished]
        return sorted(found, key=lambda one: loss_of([one.value], minimise=self.minimise))

    def to_confirm(self) -> list[Trial]:
        """Return the trials that are run again on further seeds, the best first; none before all trials have ended."""
        if not self.confirm_seeds or not self.finished:
            return []
        return [trial for trial in self.ranked() if trial.value is not None][: self.confirmed]

    def values_of(self, trial: Trial) -> list[float | None]:
        """Return the values of a trial's runs that have ended, its own first, then those on `confirm_seeds`."""
        found = [self.confirmations.get((trial.number, seed)) for seed in self.confirm_seeds]
        return [trial.value, *(one.value for one in found if one)]

    def settings_of(self, trial: Trial) -> list[str]:
        """Return all settings of a trial's run, each as "section.key=value"."""
        return [*self.overrides, *self.of_method, *as_overrides(trial.settings)]

    def directory(self, number: int) -> Path:
        """Return the directory of a trial's run."""
        return self.out / f"trial-{number:03d}"

    def jobs(self, name: str = "trial", needs: Sequence[str] = ()) -> dict[str, Job]:
        """Return the jobs of all trials by name; a trial needs the trials of the round before.

        Args:
            name: begins the names of the jobs.
            needs: names of the jobs that all trials need.
        """
        names = [f"{name} {number}" for number in range(self.count)]
        found = {}
        for number, label in enumerate(names):
            before = number // ROUND * ROUND
            found[label] = Job(
                partial(self._command, number),
                self.directory(number).with_suffix(".log"),
                partial(self.is_finished, number),
                (*needs, *names[max(0, before - ROUND) : before]),
                on_end=partial(self._end, number),
            )
        return found

    def confirmation_jobs(self) -> dict[str, Job]:
        """Return the jobs that run the best trials on further seeds, by name; none before all trials have ended."""
        return {
            f"trial {trial.number} seed {seed}": Job(
                partial(self._confirmation_command, trial, seed),
                self._confirmation_directory(trial, seed).with_suffix(".log"),
                partial(self._is_confirmed, trial, seed),
                on_end=partial(self._end_of_confirmation, trial, seed),
            )
            for trial in self.to_confirm()
            for seed in self.confirm_seeds
        }

    def restore(self, trials: Sequence[Trial]) -> None:
        """Take finished trials from elsewhere, where this search has no finished trial of the number."""
        for trial in trials:
            if trial.number < self.count and not self.is_finished(trial.number):
                self.trials[trial.number] = trial

    def repeat_all_but(self, recorded: Collection[int]) -> None:
        """Run trials with a value again, with their settings, unless their numbers are in `recorded`."""
        for number, trial in self.trials.items():
            if trial.value is not None and number not in recorded:
                self.trials[number] = replace(trial, value=None)

    def write(self) -> None:
        """Write the file of the search."""
        best = self.best
        known = {
            "method": self.method,
            "seed": self.seed,
            "minimise": self.minimise,
            "at_kl": self.at_kl,
            "recipe": load_recipe(self.recipe, [*self.overrides, *self.of_method]).model_dump(mode="json"),
            "inputs": self.inputs,
            "space": {setting: asdict(one) for setting, one in self.space.searched.items()},
            "trials": [asdict(trial) for _, trial in sorted(self.trials.items())],
            "confirmations": [asdict(one) for _, one in sorted(self.confirmations.items())],
            "best": best.number if best else None,
            "at_edge": self.space.at_edge(best.settings) if best else [],
        }
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / FILE, to_json(known, indent=1) + b"\n")

    def is_finished(self, number: int) -> bool:
        """Return whether a trial has ended."""
        return number in self.trials and self.trials[number].finished

    def _command(self, number: int) -> list[str]:
        """Return the command of a trial, whose settings are on disk before it starts."""
        if number not in self.trials:
            self._propose(number)
        settings = self.settings_of(self.trials[number])
        return run_command(self.program, self.method, self.recipe, self.directory(number), settings)

    def _propose(self, number: int) -> None:
        """Propose the trials of a trial's round that are not known yet.

        Raises:
            ConfigError: if the recipe refuses the settings of a proposed trial; none of the round is kept.
        """
        start = number // ROUND * ROUND
        first = max(1, start)
        proposed = self.space.propose(
            [self.trials[earlier] for earlier in range(start)],
            seed=self.seed,
            first=first,
            count=start + ROUND - first,
            minimise=self.minimise,
        )
        of_round = {0: self.space.default} if start == 0 else {}
        of_round |= dict(enumerate(proposed, start=first))
        new = [Trial(n, one) for n, one in of_round.items() if n < self.count and n not in self.trials]
        for trial in new:
            if reason := self._refusal(trial):
                raise ConfigError(f"trial {trial.number} of {self.method} cannot be run: {reason}")
        self.trials |= {trial.number: trial for trial in new}
        self.write()

    def _refusal(self, trial: Trial) -> str:
        """Return the reason for which the recipe refuses the settings of a trial; "" if it accepts them."""
        try:
            load_recipe(self.recipe, self.settings_of(trial))
        except ConfigError as error:
            return str(error)
        return ""

    def _end(self, number: int, name: str, code: int) -> bool:
        """Note the value or the failure of a trial whose process has ended."""
        directory = self.directory(number)
        value, error = self._outcome(name, code, directory)
        if error and not self.best and self.ended >= min(ROUND, self.count) - 1:
            raise TrainingError(f"{_where(name, code, directory)}All trials so far failed: mend the recipe")
        trial = replace(self.trials[number], value=value, error=error)
        _note_failure(name, error)
        self.on_trial(trial, directory)
        self.trials[number] = trial
        self.write()
        return True

    def _is_confirmed(self, trial: Trial, seed: int) -> bool:
        return (trial.number, seed) in self.confirmations

    def _confirmation_directory(self, trial: Trial, seed: int) -> Path:
        return self.out / f"trial-{trial.number:03d}-seed-{seed}"

    def _confirmation_command(self, trial: Trial, seed: int) -> list[str]:
        directory, settings = self._confirmation_directory(trial, seed), [*self.settings_of(trial), f"run.seed={seed}"]
        return run_command(self.program, self.method, self.recipe, directory, settings)

    def _end_of_confirmation(self, trial: Trial, seed: int, name: str, code: int) -> bool:
        """Note the value or the failure of a run on another seed whose process has ended."""
        value, error = self._outcome(name, code, self._confirmation_directory(trial, seed))
        _note_failure(name, error)
        self.confirmations[trial.number, seed] = Confirmation(trial.number, seed, value, error)
        self.write()
        return True

    def _outcome(self, name: str, code: int, directory: Path) -> tuple[float | None, str]:
        """Return the value of a run whose process has ended, or None and the message of a failure of its settings.

        Raises:
            TrainingError: if it ended for another reason.
        """
        log = directory.with_suffix(".log")
        if run_is_done(name, code, directory):
            return self._value(directory), ""
        if not run_failed(code, log):
            raise TrainingError(f"{_where(name, code, directory)}The same command goes on with this trial")
        return None, error_in(log)

    def _value(self, directory: Path) -> float:
        """Return the value of a finished run on its held-out items."""
        evaluations = read_run(directory).evaluations
        metric = self.metric or evaluations[-1]["metric"]
        return value_of(curve_of(evaluations, metric), at_kl=self.at_kl, minimise=self.minimise)

    def _read(self, path: Path, recipe: Recipe) -> None:
        try:
            known = json.loads(path.read_bytes())
            trials = {trial["number"]: Trial(**trial) for trial in known["trials"]}
            again = [Confirmation(**one) for one in known.get("confirmations", [])]  # none in earlier versions
            before = make_recipe(known["recipe"], where=str(path), strict=False).model_dump(mode="json")
            told: dict[str, tuple[object, object]] = {
                "--method": (known["method"], self.method),
                "--seed": (known["seed"], self.seed),
                "--minimise": (known["minimise"], self.minimise),
                "--at-kl": (known.get("at_kl"), self.at_kl),  # not in files of earlier versions
            }
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(
                f"cannot read {path}: {error}. Restore it from a backup, or choose another directory with --out DIR"
            ) from error
        now = recipe.model_dump(mode="json")
        changed = [f"{option}: {was} → {wanted}" for option, (was, wanted) in told.items() if was != wanted]
        changed += changed_settings(before, now)
        if before["run"]["steps"] != now["run"]["steps"]:
            changed.append(f"run.steps: {before['run']['steps']} → {now['run']['steps']}")
        if self.at_kl is not None and before["data"]["eval_every"] != now["data"]["eval_every"]:
            changed.append(f"data.eval_every: {before['data']['eval_every']} → {now['data']['eval_every']}")
        before_inputs = known.get("inputs", {})  # not in files of earlier versions
        changed += [
            f"{name}: other contents"
            for name, digest in self.inputs.items()
            if before_inputs.get(name, digest) != digest
        ]
        if changed:
            raise ConfigError(
                f"{self.out} holds another search; {'; '.join(changed)}. Continue with the same settings, or choose "
                "another directory with --out DIR"
            )
        self.trials = {
            number: trial
            for number, trial in trials.items()
            if trial.finished or not self._refusal(trial)  # earlier versions wrote refused settings
        }
        self.confirmations = {(one.trial, one.seed): one for one in again}


def _note_failure(name: str, error: str) -> None:
    if error:
        note(f"{name} failed and counts as the worst: {error}", warning=True)


def _where(name: str, code: int, directory: Path) -> str:
    log = directory.with_suffix(".log")
    return f"{name} stopped with exit code {code}: {error_in(log)}\nAll its output is in {log}. "


def remove_run(directory: Path) -> None:
    """Remove the directory of a run and its log."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.with_suffix(".log").unlink(missing_ok=True)


def refuse_no_items(recipe: Recipe, path: Path) -> None:
    """Refuse a recipe whose runs have no held-out items.

    Raises:
        ConfigError: if it has none.
    """
    data = recipe.data
    own = data.task and not data.train
    if not data.eval_examples or not (own or data.held_out or data.held_out):
        raise ConfigError(
            f"{path} holds out no items, by which trials are compared: set data.held_out = 0.1 or data.held_out, "
            "and data.eval_examples above 0"
        )
