"""`text2grad serve critic:NAME`: a critic behind HTTP, which judges and rewards what other trainers sample."""

import argparse
import os
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, print_lines, recipe_with
from text2grad.critics import CachedCritic
from text2grad.errors import ConfigError
from text2grad.files import lock_directory

DESCRIPTION = """\
Serve a critic over HTTP: a request names a prompt and a response, as sampled ids or as text, and gets the critique in
words, its spans, and the reward of each id. Each critique is kept in --out before it is answered, and never made twice.

NAME is a built-in task, MODULE:NAME of a critic in Python, the directory of a reward model, or a recipe (FILE.toml)."""

EPILOG = """\
examples:
  text2grad serve critic:my_module:critic --tokenizer Qwen/Qwen2.5-0.5B-Instruct
  TEXT2GRAD_SERVE_TOKEN=... text2grad serve critic:my.toml --set reward.span_mass=span --listen 0.0.0.0:8322

docs/engines.md has the requests, and clients for verl and SkyRL. Ctrl-C ends after the call of the critic."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "judge and reward, over HTTP, what other trainers sample"
    add = add_command(commands, "serve", run, about, DESCRIPTION, EPILOG).add_argument
    add("critic", metavar="critic:NAME", help="the critic; one of a module named critic is critic:critic:NAME")
    add_shared(add, "--set")
    add("--tokenizer", metavar="PATH", help="the policy's, for requests with ids; shorthand for --set model.path=PATH")
    add("--listen", default="127.0.0.1:8322", metavar="HOST:PORT", help="0 is a free port (default: %(default)s)")
    add("--out", default="runs/serve", metavar="DIR", help="where critiques are kept (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C.

    Raises:
        Text2GradError: if the critic, the address or the directory cannot be used.
    """
    from text2grad.models import best_device, load_tokenizer
    from text2grad.reward_models import LocalRewardModel, critic_from_recipe
    from text2grad.runs import CriticServer, recipe_task
    from text2grad.runs.critic_quality import check_identity, identity_of

    host, _, port = args.listen.rpartition(":")
    if not port.isdecimal() or int(port) >= 2**16:
        raise ConfigError(f"--listen {args.listen}: an address is HOST:PORT, such as 127.0.0.1:8322")
    name, out = args.critic.removeprefix("critic:"), Path(args.out)
    key = "critic.use" if ":" in name else "critic.model" if "/" in name or Path(name).exists() else "data.task"
    args.recipe, named = (Path(name), {}) if name.endswith(".toml") else (None, {key: name})
    recipe = recipe_with(args, {"model.path": args.tokenizer, "run.out": args.out, **named})
    model, task = recipe.model, recipe_task(recipe)
    critic: Any = critic_from_recipe(recipe, task_critic=task.critic() if task else None)
    if isinstance(critic, LocalRewardModel):
        critic.model.to(best_device())
    tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code) if model.path else None
    lock_directory(out)
    named_there = recipe.critic.use or recipe.critic.model or f"data.task = {recipe.data.task}"
    check_identity(out, identity_of(critic, named_there, recipe))
    cached = CachedCritic(critic, out / "critiques.jsonl", **recipe.critic.asking())
    token = os.environ.get("TEXT2GRAD_SERVE_TOKEN", "").strip()
    with CriticServer((host, int(port)), cached, recipe, tokenizer, token) as server:
        words = model.path or "none: requests send texts, and get no rewards"
        kept = f"{cached.path}, {len(cached.known):,} critiques"
        ask = f"POST http://{host}:{server.server_port}/v1/critique   (Ctrl-C ends)"
        print_lines([("critic", name), ("tokenizer", words), ("kept", kept), ("ask", ask)])
        try:
            server.serve_forever()
        finally:
            server.queue.calls.shutdown(cancel_futures=True)
    return 0
