"""`text2grad plan RECIPE`: memory, time and money of a run before anything is loaded."""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from text2grad.cli.log import configure_log
from text2grad.cli.options import add_command, add_set, require_named, shorthands
from text2grad.errors import ConfigError, DataError
from text2grad.progress import note

if TYPE_CHECKING:
    from text2grad.config import Recipe
    from text2grad.experiments.planning import Planner

DOES_NOT_FIT = 1
DEVICE_NAMES = ("h100", "h200", "a100-80gb", "a100-40gb", "l40s", "rtx-4090", "l4", "a10")
ANSWER_TOKENS = 400  # of one critique with reasoning, where the user names no other number

EPILOG = """\
examples:
  text2grad plan my.toml --device h100
  text2grad plan my.toml --device h100 --processes 8 --sharded
  text2grad plan my.toml --device a100-40gb --processes 8 --set model.lora_r=16
  text2grad plan my.toml --measure --memory 24GB

exit status:
  0   the run fits
  1   it does not fit; settings that make it fit are printed
  2   a setting or a file cannot be used"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "plan",
        run,
        "memory, time and money of a run before it starts",
        "Follow every allocation of one training step on tensors without data. Reads the policy's config.json and its "
        "tokenizer, no weights. Prints memory by role and phase, tokens and time per step, the price of annotation, "
        "and settings that make the run fit.",
        EPILOG,
    ).add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all of them")
    add("--model", metavar="PATH", help="shorthand for --set model.path=PATH; a directory with config.json is enough")
    add("--device", choices=DEVICE_NAMES, help="plan for this GPU; default: this machine")
    add("--memory", metavar="SIZE", help="memory that a process may use, such as 24GB; default: the device's")
    add("--processes", type=int, default=1, metavar="N", help="processes of the run, one GPU each; default 1")
    add("--sharded", action="store_true", help="the processes share weights, gradients and optimizer states (FSDP 2)")
    add("--measure", action="store_true", help="measure this machine for the estimate of time")
    add("--prompt-tokens", type=int, metavar="N", help="length of the prompts, instead of measuring the recipe's")
    add("--answer-tokens", type=int, default=ANSWER_TOKENS, metavar="N", help="tokens of a critique; %(default)s")
    add("--json", action="store_true", help="print the plan as JSON")
    add_set(add)


def run(args: argparse.Namespace) -> int:
    """Plan the recipe, print the plan, and give advice where it does not fit."""
    from text2grad.config import load_recipe
    from text2grad.experiments.planning import DEVICES, Planner, annotation_cost, measured, this_machine

    if args.json:
        configure_log(quiet=True, verbose=False)  # standard output holds JSON alone
    recipe = load_recipe(args.recipe, [*args.overrides, *shorthands({"model.path": args.model})])
    if not args.model and _made_by_sft(recipe):
        note(f"{recipe.model.path} is not there yet: planned with sft.model, {recipe.sft.model}")
        recipe = load_recipe(args.recipe, [*args.overrides, *shorthands({"model.path": recipe.sft.model})])
    require_named(recipe, args.recipe, prompts_and_critic=False)
    for name in ("processes", "prompt_tokens", "answer_tokens"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if args.device and args.measure:
        raise ConfigError("--measure measures this machine, and --device names another one; give one of the two")
    if args.sharded and args.processes == 1:
        raise ConfigError("--sharded shares the models between processes; give their number with --processes N")
    asked = parse_memory(args.memory) if args.memory else None
    device = DEVICES[args.device] if args.device else this_machine()
    if args.measure:
        device = measured(device, half=recipe.model.dtype in ("bfloat16", "float16"), threads=recipe.run.threads)
    try:
        planner = Planner(
            recipe, device, processes=args.processes, in_shards=args.sharded, prompt_tokens=args.prompt_tokens
        )
    except DataError as error:
        raise DataError(f"{error}; without the prompts, give their length with --prompt-tokens N") from error
    plan, memory = planner.plan(), asked or device.memory
    fits = plan.peak <= memory
    advice = [] if fits else planner.advice(memory)
    money = {
        "annotate": annotation_cost(
            recipe, plan.lengths, responses=plan.lengths.prompts, answer_tokens=args.answer_tokens
        ),
        "critic": annotation_cost(
            recipe,
            plan.lengths,
            responses=recipe.run.steps * recipe.rollout.batch_size,
            answer_tokens=args.answer_tokens,
        ),
    }
    found = {
        "device": device.name,
        "memory": memory,
        "processes": args.processes,
        "fits": fits,
        "peak": plan.peak,
        "peak_phase": plan.peak_phase,
        **asdict(plan),
        "money": {name: asdict(one) for name, one in money.items()},
        "advice": [asdict(one) for one in advice],
    }
    if args.json:
        print(json.dumps(found, indent=1))  # noqa: T201
    else:
        _print(Console(), recipe, planner, found)
    return 0 if fits else DOES_NOT_FIT


def _made_by_sft(recipe: "Recipe") -> bool:
    """Return True if the policy starts from the model that `text2grad sft` has yet to write."""
    path, out = recipe.model.path, recipe.sft.out
    return bool(out and recipe.sft.model) and Path(path).is_relative_to(out) and not Path(path).exists()


def parse_memory(text: str) -> int:
    """Return a size such as "24GB" or "80GiB" in bytes.

    Raises:
        ConfigError: if it is no size.

    Example:
        >>> parse_memory("24GB"), parse_memory("1.5 GiB"), parse_memory("512MB")
        (24000000000, 1610612736, 512000000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([MGT])(i?)B?\s*", text)
    if found is None or not float(found[1]):
        raise ConfigError(f"--memory is a size such as 24GB or 80GiB, got {text!r}")
    power = {"M": 2, "G": 3, "T": 4}[found[2]]
    return int(float(found[1]) * (1024**power if found[3] else 1000**power))


def _print(console: Console, recipe: "Recipe", planner: "Planner", found: dict[str, Any]) -> None:
    """Print the plan as tables."""
    from text2grad.experiments.planning import gigabytes

    phases, lengths = found["phases"], found["lengths"]
    roles = list(dict.fromkeys(role for own in phases.values() for role in own))
    title = f"Memory of one process on {found['device']}"
    if found["processes"] > 1:
        title += f", {found['processes']} processes{', FSDP 2' if planner.shards > 1 else ''}"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    table.add_column("")
    for phase in phases:
        table.add_column(phase, justify="right")
    for role in roles:
        table.add_row(role, *(gigabytes(own[role]) if role in own else "" for own in phases.values()))
    table.add_row("sum", *(gigabytes(sum(own.values())) for own in phases.values()), style="bold")
    console.print(table)
    verdict = "fits into" if found["fits"] else "does not fit into"
    peak = f"{gigabytes(found['peak'])} ({found['peak_phase']})"
    console.print(f"peak {peak} {verdict} {gigabytes(found['memory'])}", style="green" if found["fits"] else "bold red")
    if planner.device.kind == "cpu" and recipe.run.compact_memory is False:
        console.print("run.compact_memory = false: the heap of the run may grow to twice these tensors", style="yellow")
    for number, one in enumerate(found["advice"]):
        settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in one["settings"].items())
        console.print(f"{'or' if number else 'change'} {settings} → {gigabytes(one['peak'])}", highlight=False)
    if not found["fits"] and not found["advice"]:
        console.print(
            "no setting makes it fit in one process: take a smaller model, shorter responses, or more memory; "
            "--processes N --sharded plans shards over N GPUs (docs/scale.md)"
        )
    everything, trained = found["parameters"]
    console.print(
        f"parameters {everything:,}, trained {trained:,}; {lengths['prompts']:,} prompts of "
        f"{lengths['mean']:.0f} tokens (longest {lengths['longest']}); at most {found['sampled_tokens']:,} sampled "
        "tokens per step",
        highlight=False,
    )
    _print_time(console, recipe, planner, found["seconds"])
    _print_money(console, recipe, found["money"])


def _print_time(console: Console, recipe: "Recipe", planner: "Planner", seconds: dict[str, float]) -> None:
    device = planner.device
    if not seconds:
        console.print("time: unknown; name a --device, or --measure this machine")
        return
    total = sum(seconds.values())
    critic = "critiques at their longest" if "critic" in seconds else "without the critic"
    shares = ", ".join(f"{phase} {value / total:.0%}" for phase, value in seconds.items())
    console.print(
        f"time: {total:.3g} s per step ({shares}), {total * recipe.run.steps / 3600:.3g} h for {recipe.run.steps} "
        f"steps, {critic}; assumed: {device.mfu:.0%} of {device.flops / 1e12:.3g} TFLOP/s, "
        f"{device.bandwidth / 1e9:.3g} GB/s, {device.call_s * 1e6:.2g} µs per operation",
        highlight=False,
    )


def _print_money(console: Console, recipe: "Recipe", money: dict[str, Any]) -> None:
    settings = recipe.annotate
    if not settings.input_price and not settings.output_price:
        console.print("money: no prices; set annotate.input_price and annotate.output_price")
        return
    names = {"annotate": "text2grad annotate, one response per prompt", "critic": "a critic at these prices in the run"}
    for key, one in money.items():
        console.print(
            f"money: {names[key]}: {one['responses']:,} responses, {one['prompt_tokens']:,} + {one['answer_tokens']:,} "
            f"tokens, ${one['cost']:,.2f}",
            highlight=False,
        )
