"""`python -m evidence experiment PLAN`: tune and evaluate methods by a plan of studies, with a record of each run."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from text2grad.cli.options import SHARED, add_command, at_least
from text2grad.errors import ConfigError, TrainingError
from text2grad.files import lock_directory
from text2grad.progress import CONSOLE, Progress, duration

if TYPE_CHECKING:
    from evidence.plans.experiment import Experiment

EPILOG = """\
examples:
  python -m evidence experiment evidence/recipes/results-short.toml
  python -m evidence experiment evidence/recipes/results.toml --list
  python -m evidence experiment evidence/recipes/results.toml --only rivals --at-once 2

Every finished run is a line of evidence/results/runs/STUDY.jsonl (`records` of the plan). A run that has a line is not
run again; an interrupted run goes on with the same command. evidence/results/README.md explains plans and records."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "experiment",
        run,
        "tune and evaluate methods by a plan of studies",
        "Make the models of the phases before RL, tune every method, evaluate it with its best settings on every seed "
        "and length, and keep a record of each run. Says first how many runs are missing and how long they will take.",
        EPILOG,
        extras=("train", "tune"),
    ).add_argument
    add("plan", type=Path, help="TOML file of studies")
    add("--only", action="append", default=[], metavar="STUDY", help="this study only; may be repeated")
    add("--at-once", type=at_least(1), default=1, metavar="N", help="most runs at a time; default %(default)s")
    add("--list", action="store_true", help="print what is missing and how long it will take, and run nothing")
    add("--models", type=Path, metavar="DIR", help="directory of the models; default: models in `runs` of the plan")
    hidden = argparse.SUPPRESS  # the jobs of the models: the plan is a recipe (`Experiment`)
    add("--models-in", type=Path, help=hidden)
    add("--phases", default="", help=hidden)
    add("--set", **{**SHARED["--set"], "help": hidden})


def run(args: argparse.Namespace) -> int:
    """Print what is missing, and run it."""
    if args.models_in is not None:
        make_models(args)
        return 0
    from evidence.plans.experiment import Experiment
    from evidence.plans.experiment_plan import load_plan
    from evidence.plans.jobs import run_jobs

    if args.overrides:
        raise ConfigError("--set: the settings of an experiment are in its plan; change `settings` of the study")
    plan = load_plan(args.plan)
    experiment = Experiment(plan, args.plan, [sys.executable, "-m", "evidence"], only=args.only, models=args.models)
    show(experiment, args.at_once)
    if args.list:
        return 0
    lock_directory(Path(plan.runs))
    jobs = experiment.jobs()
    with Progress("jobs", len(jobs), unit="job") as progress:
        ended = experiment.ended

        def on_poll(name: str) -> None:
            if len(ended) > progress.done:
                progress.advance(len(ended) - progress.done, last=ended[-1])

        run_jobs(jobs, on_poll, at_once=args.at_once)
    if experiment.failed:
        raise TrainingError(
            f"{len(experiment.failed)} jobs failed, and those that need them did not run. The same command runs the "
            "rest:\n" + "\n".join(experiment.failed)
        )
    CONSOLE.print(f"records {experiment.records}", markup=False, highlight=False, soft_wrap=True)
    return 0


def show(experiment: "Experiment", at_once: int) -> None:
    """Print the missing part of each study, and the expected time."""
    table = Table(title="missing", title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
    for column in ("study", "models", "trials", "runs", "of all", "time"):
        table.add_column(column, justify="left" if column == "study" else "right", no_wrap=column != "study")
    seconds = 0.0
    for study in experiment.studies:
        found = experiment.amount(study)
        seconds += found.seconds
        counts = (found.models, found.trials, found.evaluations, found.all_runs)
        name = f"{study.name}, {study.task}, {study.critic.replace('_', ' ')}"
        table.add_row(name, *map(str, counts), duration(found.seconds))
    CONSOLE.print(table)
    CONSOLE.print(
        f"expected: {duration(seconds)} in one process, {duration(seconds / at_once)} with --at-once {at_once}",
        highlight=False,
    )


def make_models(args: argparse.Namespace) -> None:
    """Make the models of one task and seed."""
    from evidence.baselines.phases import PHASES
    from evidence.tasks.lengths import LengthPipeline
    from text2grad.config import load_recipe

    lock_directory(args.models_in)
    recipe = load_recipe(args.plan, args.overrides)
    LengthPipeline(recipe, args.models_in, PHASES).run_phases(args.phases.split(","))
