"""A program in place of `text2grad` whose runs take no time: `train` writes a finished run, its value by its settings.

    train RECIPE --out DIR --set SECTION.KEY=VALUE ... [--resume]
    experiment RECIPE --models-in DIR --phases MORE --set ...

The value is 1 − (log10(optim.lr) + 3)², best at a learning rate of 1e-3, and `rouge_l` is the same below zero; the KL
is 10 × optim.lr × steps. Each start is a line of the file in the environment variable JOURNAL; the file in FAULTS holds
{directory's name, or "models": [exit code, message, also when resumed]}; with the exit code 0 the message is the value.
Where a fourth value is given, the run has finished no step ("evaluated"), has not begun ("nothing"), or is finished
("whole"). `Process` takes the place of `subprocess.Popen`, and runs the program in this process.
"""

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import STDOUT
from types import SimpleNamespace
from typing import IO, Any

import pytest

from text2grad.config import Recipe, load_recipe
from text2grad.files import to_json

PROGRAM = ["text2grad"]
ITEMS = 4


def write_run(directory: Path, recipe: Recipe, values: list[float], *, finished: bool = True) -> None:
    """Write the files of a run, whose held-out items have these values at the end and 0 before."""
    (directory / "evaluations").mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"recipe": recipe.model_dump(mode="json"), "inputs": {"model.path": "ab" * 32}}
    about |= {"text2grad": "0.1.0", "torch": "2.13.0", "threads": 1, "commit": "c" * 40}
    (directory / "run.json").write_bytes(to_json(about))
    metric = "fact_f1" if recipe.data.task else "score"
    steps = recipe.run.steps
    lines = [
        {"step": n, "length/mean": 2.5, "seconds/rollout": 1.0, "seconds/update": 0.5, "entropy/per_token": float(n)}
        for n in range(steps)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, of_step in ((0, [0.0] * len(values)), (steps, values)) if finished else ((0, [0.0] * len(values)),):
        evaluation = {
            "step": step,
            "metric": metric,
            "metrics": {
                metric: sum(of_step) / len(of_step),
                "rouge_l": -sum(of_step) / len(of_step),
                "kl_per_token": 10 * recipe.optim.lr * step,
            },
            "responses": [{"prompt": "?", "metrics": {metric: value, "rouge_l": -value}} for value in of_step],
        }
        (directory / "evaluations" / f"{step:06d}.json").write_bytes(to_json(evaluation))


def pretend(argv: Sequence[str], log: IO[bytes]) -> int:
    """Pretend to train, or to make models; return the exit code."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("command")
    add("recipe", nargs="+")
    add("--out", type=Path)
    add("--models-in", type=Path)
    add("--phases")
    add("--set", dest="overrides", action="append", default=[])
    add("--resume", action="store_true")
    args = parser.parse_args(argv)
    recipe = load_recipe(args.recipe[-1], args.overrides)
    directory = args.out or args.models_in
    with Path(os.environ["JOURNAL"]).open("a") as file:
        file.write(json.dumps([args.command, str(directory), args.resume, args.overrides]) + "\n")
    if args.models_in:
        for name in args.phases.split(","):
            (directory / name.replace("annotations", "annotations.jsonl")).mkdir(parents=True, exist_ok=True)
        return int(json.loads(Path(os.environ.get("FAULTS", os.devnull)).read_text() or "{}").get("models", [0])[0])
    value = 1 - (math.log10(recipe.optim.lr) + 3) ** 2
    faults = Path(os.environ.get("FAULTS", os.devnull))
    known = json.loads(faults.read_text() or "{}")
    if known.get(directory.name, [1])[0] == 0:
        value = float(known[directory.name][1])
    elif directory.name in known:
        code, message, again, *reached = known.pop(directory.name)
        if reached != ["nothing"]:
            write_run(directory, recipe, [value] * ITEMS, finished=reached == ["whole"])
        if reached == ["whole"]:
            (directory / "results.json").write_text("{}")
        if reached == ["evaluated"]:
            (directory / "metrics.jsonl").unlink()
        if not again:
            faults.write_text(json.dumps(known))
        log.write(f"{message}\n".encode())
        return int(code)
    write_run(directory, recipe, [value] * ITEMS)
    return 0


def pretend_runs(monkeypatch: pytest.MonkeyPatch, directory: Path, *, words: int = 0) -> None:
    """Let jobs run the program, with journal and faults in a directory; a command has `words` before the program."""

    def start(command: Sequence[str], **more: Any) -> "Process":
        return Process(command[words:], **more)

    monkeypatch.setenv("JOURNAL", str(directory / "journal"))
    monkeypatch.setenv("FAULTS", str(directory / "faults"))
    monkeypatch.setattr("evidence.plans.jobs.POLL_SECONDS", 0.0)
    monkeypatch.setattr("evidence.plans.jobs.subprocess", SimpleNamespace(Popen=start, STDOUT=STDOUT))
    (directory / "faults").write_text("{}")


class Process:
    """A process that has ended when it starts."""

    def __init__(self, command: Sequence[str], *, stdout: IO[bytes], **_: Any) -> None:
        self.returncode = pretend(command[1:], stdout)

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None:
        """There is nothing to end."""

    def wait(self) -> int:
        return self.returncode
