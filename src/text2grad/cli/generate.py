"""`text2grad generate RUN`: print answers of a trained policy, with critiques and spans."""

import argparse
import shlex
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.cli.options import add_command, print_lines, say
from text2grad.config import Recipe, latest_checkpoint, recipe_of_run, step_of
from text2grad.errors import ConfigError, DataError, Text2GradError
from text2grad.feedback import read_examples
from text2grad.progress import CONSOLE, note
from text2grad.runs.reports import print_critique, print_response
from text2grad.tasks import ProgramCritic
from text2grad.types import Conversation, Critique, Example, Rollout

DESCRIPTION = """\
Sample answers from the policy of a run, and print each with the critique of the run's critic: words, coloured spans,
and the numbers of data.metric. The prompts are held-out prompts of the run, if no others are named; a run that held out
none answers prompts of its training."""

EPILOG = """\
examples:
  text2grad generate runs/quickstart/summarization/seed-0/text2grad --examples 3
  text2grad generate runs/mine --examples other_prompts.jsonl --no-critic
  text2grad generate runs/mine --prompt "One day, Lily" --prompt "Tom had a dog" --seed 1"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "print answers of a trained policy, with the critiques of its critic"
    parser = add_command(commands, "generate", run, about, DESCRIPTION, EPILOG)
    add, prompts = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("directory", type=Path, metavar="RUN", help="directory that `text2grad train` wrote")
    prompts("--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    examples = "number of prompts of the run, or a JSONL file of prompts like data.train; default 3"
    prompts("--examples", default="3", metavar="N|FILE", help=examples)
    add("--seed", type=int, default=0, help="seed of the sampling; default 0")
    add("--no-critic", action="store_true", help="print the answers alone, and do not ask the critic")


def run(args: argparse.Namespace) -> int:
    """Load the run's policy and critic, and print answers and critiques."""
    from text2grad.runs import PolicySampler, critic_of_run

    if (checkpoint := latest_checkpoint(args.directory / "checkpoints")) is None:
        raise ConfigError(f"{args.directory} holds no run with a checkpoint; name the directory that `train` wrote")
    recipe = recipe_of_run(args.directory)
    examples = _examples(args, recipe)
    try:
        critic = None if args.no_critic else critic_of_run(recipe, args.directory, checkpoint)
    except Text2GradError as error:
        raise type(error)(f"{error}. With --no-critic the answers are printed alone") from error
    if args.prompt and isinstance(critic, ProgramCritic):
        note("the critic of a built-in task judges answers to the task's own prompts only: no critiques", warning=True)
        critic = None
    policy = PolicySampler(recipe, str(checkpoint / "policy"))
    rollouts = policy(examples, seed=args.seed)
    critiques, figures = list[Critique](), dict[str, float]()
    try:
        if not args.prompt:
            figures = policy.measure(rollouts)
        if critic is not None:
            critiques, rewards = policy.judge(rollouts, critic)
            figures |= rewards
    finally:  # the answers are printed, even if the metric or the critic fails
        _print_answers([policy.with_turns(rollout) for rollout in rollouts], rollouts, critiques)
    figures["mean tokens"] = fmean(len(rollout.response_ids) for rollout in rollouts)
    figures["truncated share"] = fmean(rollout.truncated for rollout in rollouts)
    count = "1 answer" if len(rollouts) == 1 else f"{len(rollouts):,} answers"
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in figures.items())
    say(f"{count}: {shown}")
    named = recipe.critic.use or recipe.critic.model or f"of the task {recipe.data.task}"
    step = step_of(checkpoint)
    report = args.directory / "report.html"
    more = f"text2grad generate {shlex.quote(str(args.directory))} --seed {args.seed + 1}"
    lines = [("policy", f"{checkpoint / 'policy'} (step {step})"), *([("critic", named)] if critic is not None else [])]
    print_lines([*lines, *([("report", report)] if report.exists() else []), ("more", more)])
    return 0


def _print_answers(answers: Sequence[str], rollouts: Sequence[Rollout], critiques: Sequence[Critique]) -> None:
    """Print prompts and answers, as conversations those that are, with the critiques if there are some."""
    for answer, rollout, critique in zip_longest(answers, rollouts, critiques):
        if not isinstance(answer, Conversation):
            say(rollout.example.prompt_text, style="dim")
        if critique is not None:
            print_critique(CONSOLE, answer, critique)
        elif isinstance(answer, Conversation):
            print_response(CONSOLE, answer, Critique(""))
        else:
            say(answer)


def _examples(args: argparse.Namespace, recipe: Recipe) -> list[Example]:
    """Return the examples that the command line names."""
    if args.prompt:
        return [Example(prompt) for prompt in args.prompt]
    if not args.examples.lstrip("+-").isdigit():
        return read_examples(args.examples)
    from text2grad.runs import recipe_task, run_examples, world_of

    count, others = int(args.examples), "give prompts with --prompt TEXT or --examples FILE.jsonl"
    if count < 1:
        raise ConfigError(f"--examples {args.examples}: at least one prompt is needed")
    if not recipe.data.task and not recipe.data.train:
        raise ConfigError(f"the run names no prompts; {others}")
    try:
        if (task := recipe_task(recipe)) is not None and not recipe.data.train:
            return task.held_out(count, world_of(recipe)[1])
        examples = run_examples(recipe)
    except DataError as error:
        raise DataError(f"the run's prompts cannot be read: {error}; {others}") from error
    if not examples.held_out:
        note("the run held out no prompts: these are answers to prompts of its training")
    return (examples.held_out or examples.train)[:count]
