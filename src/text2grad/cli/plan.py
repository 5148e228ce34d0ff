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
    from text2grad.runs.planning import Device, FineTuningPlanner, Lengths, Planner

DOES_NOT_FIT = 1
MODELS = {"sft": "sft.model", "reward": "reward_model.model", "train": "model.path"}
"""Command → the setting of the model that it trains."""
DEVICE_NAMES = ("h100", "h200", "a100-80gb", "a100-40gb", "l40s", "rtx-4090", "l4", "a10")
ANSWER_TOKENS = 400  # of one critique with reasoning, where the user names no other number

EPILOG = """\
examples:
  text2grad plan my.toml --device h100
  text2grad plan my.toml --device h100 --processes 8 --sharded
  text2grad plan my.toml --device a100-40gb --processes 8 --set model.lora_r=16
  text2grad plan my.toml --measure --memory 24GB
  text2grad plan my.toml --phase reward --device h100

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
        "and settings that make the run fit. With --phase it plans `text2grad sft` or `text2grad reward`.",
        EPILOG,
    ).add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all of them")
    add("--model", metavar="PATH", help="the model to train; a directory with config.json is enough")
    add("--phase", choices=("sft", "reward", "train"), default="train", help="the command to plan; default train")
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
    from text2grad.runs.planning import DEVICES, FineTuningPlanner, Plan, measured, this_machine

    if args.json:
        configure_log(quiet=True, verbose=False)  # standard output holds JSON alone
    recipe = _recipe(args)
    _check(args)
    asked = parse_memory(args.memory) if args.memory else None
    device = DEVICES[args.device] if args.device else this_machine()
    if args.measure:
        device = measured(device, half=recipe.model.dtype in ("bfloat16", "float16"), threads=recipe.run.threads)
    spread = {"processes": args.processes, "in_shards": args.sharded}
    planner = (
        _of_policy(recipe, device, args.prompt_tokens, spread)
        if args.phase == "train"
        else FineTuningPlanner(recipe, args.phase, device, **spread)
    )
    plan, memory = planner.plan(), asked or device.memory
    fits = plan.peak <= memory
    found = {
        "phase": args.phase,
        "device": device.name,
        "memory": memory,
        "processes": args.processes,
        "fits": fits,
        "peak": plan.peak,
        "peak_phase": plan.peak_phase,
        **asdict(plan),
        "money": _money(recipe, plan.lengths, args.answer_tokens) if isinstance(plan, Plan) else {},
        "advice": [asdict(one) for one in ([] if fits else planner.advice(memory))],
    }
    if args.json:
        print(json.dumps(found, indent=1))  # noqa: T201
    else:
        _print(Console(), recipe, planner, found)
    return 0 if fits else DOES_NOT_FIT


def _recipe(args: argparse.Namespace) -> "Recipe":
    """Return the recipe with the model that the planned command trains."""
    from text2grad.config import load_recipe

    recipe = load_recipe(args.recipe, [*args.overrides, *shorthands({MODELS[args.phase]: args.model})])
    if {"sft": recipe.sft.model, "reward": recipe.reward_model.model, "train": ""}[args.phase]:
        return recipe
    if not args.model and _made_by_sft(recipe):
        note(f"{recipe.model.path} is not there yet: planned with sft.model, {recipe.sft.model}")
        recipe = load_recipe(args.recipe, [*args.overrides, *shorthands({"model.path": recipe.sft.model})])
    require_named(recipe, args.recipe, prompts_and_critic=False)
    return recipe


def _check(args: argparse.Namespace) -> None:
    """Refuse values below 1, and options that exclude each other."""
    for name in ("processes", "prompt_tokens", "answer_tokens"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if args.device and args.measure:
        raise ConfigError("--measure measures this machine, and --device names another one; give one of the two")
    if args.sharded and args.processes == 1:
        raise ConfigError("--sharded shares the models between processes; give their number with --processes N")
    if args.prompt_tokens and args.phase != "train":
        raise ConfigError(
            f"--prompt-tokens is the length of a rollout's prompts; the rows of --phase {args.phase} have "
            f"{MODELS[args.phase].partition('.')[0]}.max_tokens tokens. Leave it out"
        )


def _of_policy(recipe: "Recipe", device: "Device", prompt_tokens: int | None, spread: dict[str, Any]) -> "Planner":
    """Return the planner of `text2grad train`; an error in reading the prompts names the way without them."""
    from text2grad.runs.planning import Planner

    try:
        return Planner(recipe, device, prompt_tokens=prompt_tokens, **spread)
    except DataError as error:
        raise DataError(f"{error}; without the prompts, give their length with --prompt-tokens N") from error


def _money(recipe: "Recipe", lengths: "Lengths", answer_tokens: int) -> dict[str, Any]:
    """Return the price of annotation, and of a critic at its prices in the run."""
    from text2grad.runs.planning import annotation_cost

    responses = {"annotate": lengths.prompts, "critic": recipe.run.steps * recipe.rollout.batch_size}
    return {
        name: asdict(annotation_cost(recipe, lengths, responses=number, answer_tokens=answer_tokens))
        for name, number in responses.items()
    }


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


def _print(console: Console, recipe: "Recipe", planner: "Planner | FineTuningPlanner", found: dict[str, Any]) -> None:
    """Print the plan as tables."""
    from text2grad.runs.planning import gigabytes

    phases = found["phases"]
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
    _print_sizes(console, found)
    _print_time(console, recipe, planner.device, found)
    if found["money"]:
        _print_money(console, recipe, found["money"])


def _print_sizes(console: Console, found: dict[str, Any]) -> None:
    """Print the number of parameters and the size of a step."""
    everything, trained = found["parameters"]
    text = f"parameters {everything:,}, trained {trained:,}; "
    if found["phase"] == "train":
        lengths = found["lengths"]
        text += (
            f"{lengths['prompts']:,} prompts of {lengths['mean']:.0f} tokens (longest {lengths['longest']}); at most "
            f"{found['sampled_tokens']:,} sampled tokens per step"
        )
    else:
        known = f"; {found['learned']:,} rows to train on" if found["learned"] else ""
        text += f"{found['rows']:,} rows of at most {found['row_tokens']:,} tokens at once{known}"
    console.print(text, highlight=False)


def _print_time(console: Console, recipe: "Recipe", device: "Device", found: dict[str, Any]) -> None:
    """Print the time of a step and of all steps."""
    seconds = found["seconds"]
    if not seconds:
        console.print("time: unknown; name a --device, or --measure this machine")
        return
    total = sum(seconds.values())
    shares = ", ".join(f"{phase} {value / total:.0%}" for phase, value in seconds.items())
    if found["phase"] == "train":
        steps = recipe.run.steps
        said = "critiques at their longest" if "critic" in seconds else "without the critic"
    else:
        batch = (recipe.sft if found["phase"] == "sft" else recipe.reward_model).batch_size
        steps = found["steps"] or round(1000 / batch)
        said = "rows at their longest" + ("" if found["steps"] else ", a pass over 1,000 of them")
    console.print(
        f"time: {total:.3g} s per step ({shares}), {total * steps / 3600:.3g} h for {steps} "
        f"steps, {said}; assumed: {device.mfu:.0%} of {device.flops / 1e12:.3g} TFLOP/s, "
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
