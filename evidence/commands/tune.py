"""`python -m evidence tune RECIPE --method NAME`: search the settings of a method on held-out items."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from evidence.plans.jobs import run_jobs
from evidence.plans.methods import METHODS, settings
from evidence.plans.search_space import CONFIRMED
from text2grad.cli.options import add_command, add_shared, at_least, finite
from text2grad.errors import ConfigError
from text2grad.files import lock_directory
from text2grad.progress import CONSOLE, Progress, note

if TYPE_CHECKING:
    from evidence.plans.jobs import Job
    from evidence.plans.tuning import Tuning

EPILOG = """\
examples:
  python -m evidence tune my.toml --method text2grad --set world.eval_seed=1 --confirm-seeds 1,2
  python -m evidence tune evidence/recipes/quickstart-qa.toml --method grpo --models runs/quickstart/qa/seed-0

Every trial is a run of `text2grad train` or `python -m evidence rival` in DIR/trial-NNN. The first has the default
settings of the method. DIR/tuning.json holds all trials. After Ctrl-C or a kill the same command goes on; no finished
trial is run again. Report on other held-out items than those of the tuning (world.eval_seed): the best of many trials
is partly luck. With --confirm-seeds the best trials are run again with these seeds, and the best mean decides.
evidence/docs/tune.md has the ranges."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "tune",
        run,
        "search the settings of a method on held-out items",
        "Search learning rates, β, γ and further settings of a method, the same ranges and number of trials for every "
        "method. A trial is a whole run; its value is the mean of the main metric over the held-out items at the end.",
        EPILOG,
        extras=("train", "tune"),
    ).add_argument
    add_shared(add, "recipe", "--set")
    add(
        "--method",
        default="text2grad",
        choices=tuple(METHODS),
        metavar="NAME",
        help=f"one of {', '.join(METHODS)}; default %(default)s",
    )
    add("--trials", type=at_least(1), default=12, metavar="N", help="number of trials; default %(default)s")
    add("--out", type=Path, metavar="DIR", help="directory of the search; default: run.out with -tune-METHOD")
    add("--seed", type=at_least(0), default=0, metavar="N", help="seed of the search; default %(default)s")
    add(
        "--confirm-seeds",
        type=_seeds,
        default=(),
        metavar="N,N",
        help="further values of run.seed with which the best trials are run again; the mean over all seeds decides",
    )
    add(
        "--confirm",
        type=at_least(1),
        default=CONFIRMED,
        metavar="N",
        help="number of the best trials that are run again; default %(default)s",
    )
    add("--models", type=Path, metavar="DIR", help="models of the phases before RL, as TASK/seed-N of a quickstart")
    add("--at-once", type=at_least(1), default=1, metavar="N", help="most trials at a time; default %(default)s")
    add(
        "--at-kl",
        type=finite(0.0001),
        metavar="KL",
        help="compare trials by the best value that their evaluations (data.eval_every) offer at a KL per token, in "
        "nats, of at most KL, in place of the final value",
    )
    add("--minimise", action="store_true", help="a small value of the main metric is good")


def run(args: argparse.Namespace) -> int:
    """Run the missing trials, and print the best settings."""
    from evidence.plans.tuning import Tuning
    from text2grad.config import load_recipe
    from text2grad.runs import lower_is_better
    from text2grad.tasks import built_in

    if not METHODS[args.method].searched:
        raise ConfigError(f"the method {args.method} has no settings to search; train it once with its defaults")
    recipe = load_recipe(args.recipe, args.overrides)
    of_method = list(METHODS[args.method].settings)
    if args.models is not None:
        if not recipe.data.task:
            raise ConfigError("--models takes models of an embedded task; name yours with --set model.path=DIR")
        of_method = settings(args.method, recipe.data.task, args.models)
    full = load_recipe(args.recipe, [*args.overrides, *of_method])
    if not full.model.path:
        raise ConfigError(f"{args.recipe}: [model] path is not set; give --set model.path=DIR, or --models DIR")
    if METHODS[args.method].needs and args.models is None and not recipe.critic.model:
        raise ConfigError(
            f"the method {args.method} needs a model of its own ({METHODS[args.method].needs}); name it with --set "
            "critic.model=DIR and critic.kind, or give --models DIR"
        )
    out = args.out or Path(f"{recipe.run.out}-tune-{args.method}")
    lock_directory(out)
    minimise = args.minimise or lower_is_better(built_in(recipe.data.task).metric if recipe.data.task else "")
    program = [sys.executable, "-m", "evidence"]
    tuning = Tuning(
        args.method,
        args.recipe,
        args.overrides,
        of_method,
        out,
        args.trials,
        args.seed,
        program,
        minimise=minimise,
        confirm_seeds=args.confirm_seeds,
        confirmed=args.confirm,
        at_kl=args.at_kl,
    )
    tuning.write()
    _run(tuning, tuning.jobs(), "trials", at_once=args.at_once)
    _run(tuning, tuning.confirmation_jobs(), "trials on further seeds", at_once=args.at_once)
    show(tuning, args)
    return 0


def _run(tuning: "Tuning", jobs: Mapping[str, "Job"], phase: str, *, at_once: int) -> None:
    """Run the missing jobs, and show how many have ended and the best value so far."""

    def ended() -> int:
        return sum(job.finished() for job in jobs.values())

    with Progress(phase, len(jobs), unit="trial", done=ended(), enabled=bool(jobs)) as progress:

        def on_poll(name: str) -> None:
            new = ended() - progress.done
            if new > 0:
                best = tuning.best
                progress.advance(new, **({"best": float(best.value or 0.0)} if best else {}))

        run_jobs(jobs, on_poll, at_once=at_once)


def show(tuning: "Tuning", args: argparse.Namespace) -> None:
    """Print all trials, the best first, and the command that trains with the best settings."""
    from evidence.plans.search_space import as_overrides
    from evidence.plans.tuning import command_of

    best = tuning.best
    table = Table(
        title=f"{METHODS[tuning.method].label}: {len(tuning.trials)} trials",
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=SIMPLE_HEAD,
    )
    again = [trial.number for trial in tuning.to_confirm()]
    value = "value" if tuning.at_kl is None else f"at KL {tuning.at_kl:g}"
    for column in ("trial", value, *([f"{len(tuning.confirm_seeds) + 1} seeds"] if again else [])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("settings")
    for trial in tuning.ranked():
        values = tuning.values_of(trial)
        shown = [_mean(values[:1]), *([_mean(values) if trial.number in again else ""] if again else [])]
        named = ", ".join(f"{name.partition('.')[2]} {_short(one)}" for name, one in trial.settings.items())
        table.add_row(str(trial.number), *shown, named, style="bold" if trial is best else "")
    CONSOLE.print(table)
    if best is None:
        return
    for edge in tuning.space.at_edge(best.settings):
        note(f"the best value is at the edge of its range: {edge}", warning=True)
    overrides = [*args.overrides, *tuning.of_method, *as_overrides(best.settings)]
    words = command_of(["python", "-m", "evidence"], tuning.method, args.recipe, overrides)
    CONSOLE.print(f"trials  {tuning.out / 'tuning.json'}", markup=False, highlight=False, soft_wrap=True)
    CONSOLE.print(f"best    {shlex.join(words)}", markup=False, highlight=False, soft_wrap=True)


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean over the runs of a trial, or that one of them failed."""
    found = [value for value in values if value is not None]
    return f"{fmean(found):.4f}" if len(found) == len(values) else "failed"


def _seeds(text: str) -> tuple[int, ...]:
    """Read whole numbers between commas, each a seed."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise argparse.ArgumentTypeError(f"expected different whole numbers between commas, as 1,2,3, got {text!r}")
    return tuple(int(part) for part in parts)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
