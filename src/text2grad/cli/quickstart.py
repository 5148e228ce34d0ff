"""`text2grad quickstart`: all three phases of Text2Grad on an embedded world, without downloads or a GPU."""

import argparse
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, at_least, name_values, print_lines, shorthands
from text2grad.errors import ConfigError, TrainingError
from text2grad.files import lock_directory
from text2grad.progress import CONSOLE, duration, note
from text2grad.runs.reports import write_page

PROCESSES = 2  # that train the models of phases 1 and 2 together; then each policy has one
WAY_OUT = "Continue with those settings, or choose another directory with --out DIR"

LABELS = {"text2grad": "Text2Grad", "scalar_ppo": "same spans, summed"}
"""The policies of the quickstart: Text2Grad, and PPO on one number, the same δ summed on the last token."""

METHODS = {"summarization": LABELS, "tools": {**LABELS, "process_lines": "one number per turn"}}
"""Task → its policies: with tools also PPO on the same δ, summed on the last token of each turn, which is one line."""

SETTINGS: Mapping[str, Sequence[str]] = {
    "text2grad": (),
    "scalar_ppo": ("reward.placement=last_token", "ppo.gamma=1.0", "ppo.whiten=full", "optim.lr=1e-3"),
    "process_lines": ("reward.placement=lines", "ppo.gamma=1.0", "optim.lr=1e-3"),
}
"""Name of a policy → settings by which it differs from the recipe."""

DESCRIPTION = """\
Run all three phases of Text2Grad on summaries of embedded posts: fine-tune a small Llama with random weights, annotate
its answers with critiques in words and quotes, train a generative reward model to write such critiques, and train the
policy with the critiques of the reward model. A rival gets one number per response: the same spans, summed. Nothing is
downloaded. Writes a table, results.json, curves.png, and report.html with all critiques. An interrupted run is
resumed.

With --task tools a policy answers questions over several turns: it looks prices up, calculates, and says a number. The
program critic of the task judges each turn in words; a second rival gets one number per turn.

With --model a pretrained model learns a lesson instead, from comments in words on 20 of its answers: begin (with the
answer), sentence (one, no lists), unknown (say "I don't know" where the passage does not say it) or folder (write so,
never "directory"). Writes lesson.json and report.html, with its answers to other questions before and after."""

EPILOG = """\
examples:
  text2grad quickstart
  text2grad quickstart --seeds 3 --out runs/three
  text2grad quickstart --model Qwen/Qwen2.5-Coder-0.5B-Instruct --lesson begin
  text2grad quickstart --task tools
  text2grad generate runs/quickstart/summarization/seed-0/text2grad --examples 3"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "a language model learns from words, from random weights, in minutes, without a GPU"
    add = add_command(commands, "quickstart", run, about, DESCRIPTION, EPILOG).add_argument
    add("--task", choices=list(METHODS), default="summarization", help="what is learned (default: %(default)s)")
    add("--seeds", type=at_least(1), default=1, metavar="N", help="run seeds 0 to N-1, each over all phases; default 1")
    add("--out", type=Path, default=Path("runs/quickstart"), metavar="DIR", help="(default: %(default)s)")
    add("--model", metavar="NAME", help="teach this pretrained model a lesson: a name of the hub, or a directory")
    add("--lesson", metavar="NAME", help="a ready lesson, or a JSONL file of marked answers; default: begin")
    weigh = "instead write the lessons of --model anew, this one at a weight: 1 as learned, 0 taken back; repeatable"
    add("--weigh", action="append", default=[], metavar="LESSON=W", help=weigh)
    add_shared(add, "--set")


def run(args: argparse.Namespace) -> int:
    """Make the models, train the policies, and write the report; or teach a lesson to a pretrained model.

    Raises:
        ConfigError: if there is a lesson, but no model.
    """
    if (args.lesson or args.weigh) and not args.model:
        option = "--lesson" if args.lesson else "--weigh"
        raise ConfigError(f"{option} is about a pretrained model: name it with --model NAME, or leave {option} out")
    if args.model:
        return weigh_lessons(args) if args.weigh else teach(args)
    from text2grad.models import prepare_processes

    prepare_processes()
    import torch
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from text2grad.config import load_recipe
    from text2grad.models import on_cpu
    from text2grad.runs import Pipeline

    lock_directory(args.out)
    started = time.perf_counter()
    disable_progress_bar()  # type: ignore[no-untyped-call]  # bars of loading and saving small models
    set_verbosity_error()  # type: ignore[no-untyped-call]  # a new head has random weights on purpose
    pipelines = []
    for seed in range(args.seeds):
        recipe = load_recipe(recipe_path(args.task), [*args.overrides, f"run.seed={seed}"])
        pipelines.append(Pipeline(recipe, args.out / args.task / f"seed-{seed}"))
        pipelines[seed].refuse_other_settings(WAY_OUT)
    torch.set_num_threads(pipelines[0].recipe.run.threads or 1)  # more threads gain little for small models
    for seed, pipeline in enumerate(pipelines):
        note(f"seed {seed}: models before the training of the policies")
        pipeline.run(PROCESSES if on_cpu() else 1)
        train(args.task, pipeline.out, [*args.overrides, f"run.seed={seed}"])
    report(args.task, args.out / args.task, range(args.seeds))
    CONSOLE.print(f"{duration(time.perf_counter() - started)} in all", style="dim")
    return 0


def teach(args: argparse.Namespace) -> int:
    """Teach a ready lesson, or a person's marks, to a pretrained model."""
    from text2grad.config import load_recipe
    from text2grad.evaluation import read_subjects
    from text2grad.runs import give_lesson
    from text2grad.tasks import LESSON_RECIPE, ready_lesson

    own = Path(args.lesson or "begin")
    lesson, out = own if own.is_file() else ready_lesson(str(own)), args.out / own.stem
    lock_directory(out)
    started = time.perf_counter()
    options = shorthands({"model.path": read_subjects([args.model])[0].path, "run.out": str(out)})
    figures = give_lesson(load_recipe(LESSON_RECIPE, [*options, *args.overrides]), lesson)
    print_lines([*figures.items(), ("page", out / "report.html"), ("adapter", out / "run")])
    CONSOLE.print(f"{duration(time.perf_counter() - started)} in all", style="dim")
    return 0


def weigh_lessons(args: argparse.Namespace) -> int:
    """Write the lessons of a policy anew, each at its weight."""
    from text2grad.evaluation import read_subjects
    from text2grad.runs import weigh

    if args.lesson:
        raise ConfigError("--weigh writes lessons anew, and --lesson gives one; give them one after the other")
    given = name_values("--weigh", args.weigh, form="LESSON=W")
    try:
        weights = {name: float(weight) for name, weight in given.items()}
    except ValueError as error:
        raise ConfigError(f"--weigh: {error}; write LESSON=W, for example begin=0.5") from error
    print_lines([("adapter", weigh(read_subjects([args.model])[0].path, weights, args.out))])
    return 0


def train(task: str, models: Path, overrides: Sequence[str]) -> None:
    """Train the policies of a task from the models in a directory, or resume: the rivals' in processes of their own."""
    from text2grad.config import load_recipe
    from text2grad.runs import run_recipe

    ours, *rivals = (models / method for method in METHODS[task])
    named = " and ".join(f"{METHODS[task][own.name]}, whose output is in {own}.log" for own in rivals)
    note(f"{models.name}: policy of {METHODS[task][ours.name]}; beside it {named}")
    with ExitStack() as others:
        for rival in (rival for rival in rivals if not (rival / "results.json").exists()):
            command = ["train", str(recipe_path(task))]
            command += [part for setting in settings(rival, overrides) for part in ("--set", setting)]
            command += ["--resume"] if (rival / "run.json").exists() else []
            others.enter_context(beside(command, rival.with_suffix(".log")))
        if not (ours / "results.json").exists():
            recipe = load_recipe(recipe_path(task), settings(ours, overrides))
            run_recipe(recipe, resume=(ours / "run.json").exists())
            write_page(ours, METHODS[task][ours.name])


@contextmanager
def beside(command: Sequence[str], log: Path) -> Iterator[None]:
    """Run a command of text2grad in a process of its own, with its output in a log, and wait for its end.

    The process is forked from the one that has made the imports (`prepare_processes`).

    Raises:
        TrainingError: if it fails.
    """
    process = multiprocessing.get_context("forkserver").Process(target=_logged, args=(command, log))
    process.start()
    try:
        yield
        process.join()
    finally:
        process.terminate()  # after an error or Ctrl-C here: a run of `train` finishes its step and saves it
        process.join()
    if process.exitcode:
        raise TrainingError(
            f"the process of {log.stem} stopped with exit code {process.exitcode}; its output is in {log}. "
            "The same command goes on from its last step"
        )


def _logged(command: Sequence[str], log: Path) -> None:
    """Run a command in this process, out of reach of the terminal's Ctrl-C, and end with its exit code."""
    os.setsid()
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["text2grad", *command]
    runpy.run_module("text2grad.cli", run_name="__main__")


def settings(out: Path, overrides: Sequence[str]) -> list[str]:
    """Return the settings of a method's run in a directory, which bears its name and lies beside the models."""
    models = {"model.path": "start", "critic.model": "reward_model", "refresh.replay_from": "annotations.jsonl"}
    made = {setting: path for setting, name in models.items() if (path := out.parent / name).exists()}
    paths = made | {"run.out": out}
    return [*overrides, *(f"{setting}='{path}'" for setting, path in paths.items()), *SETTINGS[out.name]]


def report(task: str, out: Path, seeds: Sequence[int]) -> None:
    """Write the results of a task into its directory, which holds its seeds, and print them."""
    from text2grad.runs import collect, quickstart_tables, write_comparison
    from text2grad.runs.reports import print_tables
    from text2grad.tasks import built_in

    world, labels = built_in(task), METHODS[task]
    result = collect(out, world.metric, seeds, list(labels))
    write_comparison(task, result, out, labels)
    CONSOLE.print()
    print_tables(CONSOLE, quickstart_tables(task, result, labels))
    files = {"numbers": "results.json", "curves": "curves.png", "page": "report.html"}
    answers = [("answers", f"text2grad generate {out / 'seed-0' / 'text2grad'}")]
    print_lines([*((name, out / file) for name, file in files.items()), *([] if world.tools else answers)])


def recipe_path(task: str) -> Path:
    """Return the recipe of a task, from the installed package or the checkout."""
    package, name = Path(__file__).parents[1], f"quickstart{'' if task == 'summarization' else f'-{task}'}.toml"
    installed = package / "recipes" / name
    return installed if installed.exists() else package.parents[1] / "recipes" / name
