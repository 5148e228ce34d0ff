"""`text2grad generate RUN`: print answers of a trained policy, with critiques and spans."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.cli.options import add_command
from text2grad.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "generate",
        run,
        "print answers of a trained policy, with the critiques of its critic",
        "Sample an answer from the policy of a run, and print it with the critique of the run's learned "
        "critic, if it has one: words and coloured spans. Without --prompt, the prompts are held-out examples of the "
        "run's task.",
        "example:\n  text2grad generate runs/quickstart/summarization/seed-0/text2grad --examples 3",
    ).add_argument
    add("directory", type=Path, metavar="RUN", help="directory that `text2grad train` wrote")
    add("--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    add("--examples", type=int, default=3, metavar="N", help="number of held-out examples without --prompt; default 3")
    add("--seed", type=int, default=0, help="seed of the sampling; default 0")


def run(args: argparse.Namespace) -> int:
    """Load the run's policy and critic, and print answers and critiques."""
    from text2grad.config import make_recipe, read_run_file
    from text2grad.experiments import learned_critic, sample_by_recipe
    from text2grad.experiments.reports import plain, print_critique
    from text2grad.feedback import ask
    from text2grad.rl import latest_checkpoint
    from text2grad.tasks import built_in
    from text2grad.types import Example

    run_file = args.directory / "run.json"
    checkpoint = latest_checkpoint(args.directory / "checkpoints")
    if not run_file.exists() or checkpoint is None:
        raise ConfigError(f"{args.directory} holds no run with a checkpoint; name the directory that `train` wrote")
    recipe = make_recipe(read_run_file(args.directory)["recipe"], where=str(run_file), warn=False)
    examples = [Example(prompt) for prompt in args.prompt]
    if not examples:
        if not recipe.data.task:
            raise ConfigError("the run has no built-in task to take examples from; give one with --prompt TEXT")
        examples = built_in(recipe.data.task).held_out(args.examples, recipe.data.eval_seed)
    rollouts = sample_by_recipe(recipe, str(checkpoint / "policy"), examples, seed=args.seed)
    critic = learned_critic(recipe, args.directory, checkpoint)
    console = Console()
    critiques = critic and ask(critic, examples, [rollout.response for rollout in rollouts], match=recipe.critic.match)
    for row, rollout in enumerate(rollouts):
        console.print(plain(rollout.example.prompt_text, style="dim"))
        if critiques:
            print_critique(console, rollout.response, critiques[row])
        else:
            console.print(plain(rollout.response))
    return 0
