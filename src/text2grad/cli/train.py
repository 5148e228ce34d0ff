"""`text2grad train RECIPE.toml`: train a policy with the critiques of a critic."""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, at_least, print_lines, push_if_asked, recipe_with, say
from text2grad.config import Recipe, best_checkpoint, idle_settings, latest_checkpoint, read_best
from text2grad.errors import ConfigError
from text2grad.feedback import load_callable
from text2grad.progress import CONSOLE, duration, note
from text2grad.runs import lower_is_better
from text2grad.runs.reports import Run, change_table, print_tables, write_page

LESS_DISTINCT = 0.5  # share of the distinct 2-grams at the start, below which a warning is printed
LOST = 0.5  # share of the best held-out gain that is left at the end, below which a warning is printed

NOTHING_LABELLED = 3
"""Exit status if every step has finished, but the critic labelled nothing in any of them."""

DOES_NOT_FIT = 1
"""Exit status of a dry run whose memory does not fit."""

NOTHING_SAID = (
    "the critic labelled no token in any step: the policy learned nothing from it. Look at its critiques in "
    "report.html, and at critic/unmatched_rate in metrics.jsonl"
)

DESCRIPTION = """\
Train a policy with critiques: rollouts, critiques with spans, δ per token, clipped PPO. Writes metrics.jsonl, every
rollout with its critique and per-token values, evaluations on held-out prompts, checkpoints that resume exactly, and at
the end results.json, curves.png and report.html."""

EPILOG = """\
examples:
  text2grad train my.toml --critic my_module:critic --set data.held_out=0.1 --set run.steps=20
  text2grad train my.toml --dry-run --judge
  text2grad train my.toml --dry-run --device h100 --processes 8
  text2grad train my.toml --resume
  torchrun --nproc-per-node 8 -m text2grad.cli train my.toml

exit status:
  0         the run is finished, or with --dry-run fits
  1         out of memory, with finished steps saved, or with --dry-run no fit
  2         another error, with an explanation
  3         the run is finished, but the critic labelled nothing in any step
  130, 143  stopped by Ctrl-C or SIGTERM; the finished steps are saved"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(commands, "train", run, "train a policy as a recipe says", DESCRIPTION, EPILOG).add_argument
    add_shared(add, "recipe", "--set", "--resume", "--push")
    add("--model", metavar="PATH", help="shorthand for --set model.path=PATH")
    add("--critic", metavar="MODULE:NAME", help="a Python critic; shorthand for --set critic.use=...")
    add("--out", metavar="DIR", help="shorthand for --set run.out=DIR")
    add("--dry-run", action="store_true", help="check input, memory and the critic's price; train and write nothing")
    add("--judge", action="store_true", help="dry run: judge 64 responses twice; is there a signal, and at what cost?")
    add("--device", metavar="NAME", help="dry run: plan for this GPU (h100, a100-40gb, 16GB, ...), not this machine")
    add("--processes", type=at_least(1), metavar="N", help="dry run: plan N processes, one GPU each; default 1")


def run(args: argparse.Namespace) -> int:
    """Load the recipe, refuse missing settings, then train and write the report."""
    given = [f"--{name}" for name in ("judge", "device", "processes") if getattr(args, name)]
    if given and not args.dry_run:
        raise ConfigError(f"{given[0]} belongs to --dry-run; add --dry-run, or leave {given[0]} out")
    if args.dry_run and args.resume:
        raise ConfigError("--dry-run looks at a run before it begins; leave --resume out")
    recipe = recipe_of(args)
    is_main = int(os.environ.get("RANK", "0")) == 0

    from text2grad.runs import check_push, run_recipe

    if args.push:
        check_push(args.push, recipe.model.path if recipe.model.lora_r else "")
    for name, reason in idle_settings(recipe).items() if is_main else ():
        if not (args.critic and name in ("critic.model", "critic.kind")):  # --critic says so itself
            note(f"{args.recipe}: {name} has no effect here: {reason}", warning=True)
    if args.dry_run:
        from text2grad.runs.dry_run import dry_run, print_report

        report = dry_run(recipe, device=args.device, processes=args.processes or 1, judge=args.judge)
        print_report(CONSOLE, report)
        return 0 if report.fits else DOES_NOT_FIT
    policy = run_recipe(recipe, resume=args.resume)
    if not is_main:
        return 0
    status = finish(recipe, policy)
    push_if_asked(args, Path(recipe.run.out))
    return status


def recipe_of(args: argparse.Namespace, **more: str) -> Recipe:
    """Return the recipe of a run with the options of its command line, and `more` settings of the command.

    Raises:
        ConfigError: if a setting is refused, or model, prompts or critic are not named.
    """
    options = {"model.path": args.model, "critic.use": args.critic, "run.out": args.out, **more}
    recipe = recipe_with(args, options)
    args.directory = Path(recipe.run.out)  # where a run that Ctrl-C ends can be resumed
    data, critic = recipe.data, recipe.critic
    if not recipe.model.path:
        raise ConfigError(f"{args.recipe}: [model] path is not set; set it, or give --model PATH")
    if not data.task and not data.train:
        raise ConfigError(f"{args.recipe}: [data] names neither a task nor a train file; set one of them")
    if not data.task and not critic.use and not critic.model:
        raise ConfigError(f"{args.recipe}: there is no critic; set [critic] use or model, or give --critic MODULE:NAME")
    return recipe


def finish(recipe: Recipe, policy: Path, *, title: str = "Text2Grad") -> int:
    """Report a finished run: numbers, files and the next commands; return the exit status of its command."""
    from text2grad.rl import said_nothing

    out = Path(recipe.run.out)
    quoted = shlex.quote(str(out))
    run, metric = write_page(out, title)
    print_tables(CONSOLE, [change_table(run)])
    print_account(run)
    tracker = [("tracker", f"tensorboard --logdir {quoted}")] if recipe.run.tracker == "tensorboard" else []
    print_lines(
        [
            ("policy", policy),
            *best_policy(recipe),
            ("report", out / "report.html"),
            ("curves", out / "curves.png"),
            ("numbers", out / "results.json"),
            ("answers", f"text2grad generate {quoted} --examples 3"),
            ("compare", f"text2grad compare {quoted} OTHER_RUN"),
            *tracker,
        ]
    )
    if len(run.evaluations) > 1:
        warn_of_repetition(run.evaluations)
        warn_of_loss(recipe, run.evaluations, metric)
    if not run.evaluations:
        say(
            "No prompts were held out, so these numbers are of prompts that the policy was trained on. For held-out "
            "numbers, train with --set data.held_out=0.1 in another --out.",
            style="dim",
        )
    if said_nothing(run.metrics):
        note(NOTHING_SAID, warning=True)
        return NOTHING_LABELLED
    return 0


def best_policy(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the line of the policy with the best evaluation, with `run.keep_best`, unless it is the last one."""
    directory = Path(recipe.run.out) / "checkpoints"
    best = best_checkpoint(directory)
    if best is None or best == latest_checkpoint(directory):
        return []
    known = read_best(directory)
    return [("best", f"{best / 'policy'} (held-out {known['value']:.3f} at step {known['step']})")]


def warn_of_loss(recipe: Recipe, evaluations: Sequence[dict[str, Any]], metric: str) -> None:
    """Print a warning if the policy lost more than half of its best held-out gain before the end of the run."""
    keep, users = recipe.run.keep_best, recipe.data.metric
    stated = getattr(load_callable(users, "metric"), "lower_is_better", None) if users else lower_is_better(metric)
    lower = keep == "lowest" if keep != "none" else stated
    if lower is None:  # nobody knows which way a user's metric should go; a reward should rise
        metric = "reward"
    sign = -1.0 if lower else 1.0
    values = [(sign * each["metrics"][metric], each["step"]) for each in evaluations if metric in each["metrics"]]
    (best, step), (end, _), start = max(values), values[-1], values[0][0]
    if end - start < LOST * (best - start):
        way = f' run.keep_best = "{"lowest" if lower else "highest"}" keeps that policy;'
        way = "" if keep != "none" or lower is None else way
        note(
            f"held-out {metric.replace('_', ' ')} was {sign * best:.3f} at step {step}, and is {sign * end:.3f} at the "
            f"end:{way} a larger ppo.beta or a smaller optim.lr keeps the policy closer to its start.",
            warning=True,
        )


def warn_of_repetition(evaluations: Sequence[dict[str, Any]]) -> None:
    """Print a warning if the held-out responses became much more alike."""
    start, end = (evaluations[at]["metrics"]["distinct_2"] for at in (0, -1))
    if end < LESS_DISTINCT * start:
        note(
            f"distinct 2-grams fell from {start:.2f} to {end:.2f}: the policy repeats what the critic likes. Read the "
            "answers; a larger ppo.beta, a smaller optim.lr or fewer positive spans keep it closer to its start.",
            warning=True,
        )


def print_account(run: Run) -> None:
    """Print the number of steps, and the time of each phase of a step."""
    seconds, total = run.seconds, run.seconds.total()
    shares = ", ".join(f"{phase} {value / total:.0%}" for phase, value in seconds.items() if value >= 0.005 * total)
    steps = "1 step" if len(run.metrics) == 1 else f"{len(run.metrics):,} steps"
    say(f"{steps} of training, {duration(total)}: {shares}")
