"""`text2grad generate RUN`: talk to a policy that was trained, and hear what its critic says."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from text2grad.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="let a trained policy answer, and its critic judge the answer",
        description="Let the policy of a run answer a prompt, and print the answer, the critique in words, and the "
        "coloured spans. Without --prompt it answers held-out examples of the run's task.",
        epilog="example:\n  text2grad generate runs/quickstart/summarization/seed-0/text2grad --examples 3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="RUN", help="directory of a run of `text2grad train`")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="what to answer; may be repeated")
    parser.add_argument(
        "--examples", type=int, default=3, metavar="N", help="held-out examples, where no prompt is given"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the run's policy and critic, and print what they say."""
    from text2grad.config import make_recipe
    from text2grad.experiments import learned_critic
    from text2grad.experiments.reports import plain, print_critique
    from text2grad.feedback import ask
    from text2grad.models import (
        fitting_prompts,
        load_policy,
        load_tokenizer,
        make_rollouts,
        padding_id,
        sample,
        step_uniforms,
        stop_ids,
    )
    from text2grad.rl import latest_checkpoint
    from text2grad.tasks import built_in
    from text2grad.types import Example

    mark = args.directory / "run.json"
    checkpoint = latest_checkpoint(args.directory / "checkpoints")
    if not mark.exists() or checkpoint is None:
        raise ConfigError(f"{args.directory} holds no run with a checkpoint; name the directory that `train` wrote")
    recipe = make_recipe(json.loads(mark.read_bytes())["recipe"], where=str(mark), warn=False)
    examples = [Example(prompt) for prompt in args.prompt]
    if not examples:
        if not recipe.data.task:
            raise ConfigError("the run has no built-in task to take examples from; give one with --prompt TEXT")
        examples = built_in(recipe.data.task).held_out(args.examples, recipe.data.eval_seed)
    path, code = str(checkpoint / "policy"), recipe.model.trust_remote_code
    policy = load_policy(path, trust_remote_code=code).eval()
    tokenizer = load_tokenizer(path, trust_remote_code=code)
    settings, eos = recipe.rollout, stop_ids(policy, tokenizer, recipe.rollout.eos_token_ids)
    examples, prompts = fitting_prompts(
        policy,
        tokenizer,
        examples,
        prompt_format=settings.prompt_format,
        max_new_tokens=settings.max_new_tokens,
        too_long="refuse",
    )
    uniforms = step_uniforms(seed=args.seed, step=0, rows=len(prompts), tokens=settings.max_new_tokens)
    answers = sample(
        policy, prompts, uniforms, eos_ids=eos, pad_id=padding_id(tokenizer, eos), temperature=settings.temperature
    )
    rollouts = make_rollouts(tokenizer, examples, prompts, answers, eos)
    critic = learned_critic(recipe, args.directory, checkpoint)
    console = Console()
    critiques = critic and ask(critic, examples, [one.response for one in rollouts], match=recipe.critic.match)
    for row, rollout in enumerate(rollouts):
        console.print(plain(rollout.example.prompt_text, style="dim"))
        if critiques:
            print_critique(console, rollout.response, critiques[row])
        else:
            console.print(plain(rollout.response))
    return 0
