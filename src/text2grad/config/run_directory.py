"""The directory of a run: its recipe and versions, compared when the run is resumed."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from text2grad.config.recipe import Recipe, make_recipe
from text2grad.errors import CheckpointError, ConfigError
from text2grad.files import lock_directory, to_json, write_atomically

# Settings that may differ on resume: they change memory, output or the length of a run, but no finished step.
FREE = {
    ("rollout", "rows_at_once"),
    ("ppo", "micro_batch_tokens"),
    *((section, key) for section in ("sft", "reward_model") for key in ("out", "merge")),
    *(("run", key) for key in ("steps", "out", "save_every", "keep_checkpoints", "tracker")),
}


def open_run(
    directory: Path,
    recipe: Recipe,
    *,
    resume: bool,
    processes: int,
    sections: Sequence[str] = tuple(Recipe.model_fields),
) -> None:
    """Create a run's directory and write run.json (recipe, versions, threads, processes), or check it on resume.

    Only one process of a run calls this. `sections` of the recipe decide the result: they are compared.

    Raises:
        ConfigError: if it already holds a run and `resume` is False, holds no run and `resume` is True, or another
            process is writing to it.
        CheckpointError: if it holds a run of another recipe.
    """
    mark = directory / "run.json"
    settings = recipe.model_dump(mode="json")
    if resume and not mark.exists():
        raise ConfigError(f"{directory} holds no run to resume; start it without --resume, or name its directory")
    lock_directory(directory)
    if mark.exists():
        if not resume:
            raise ConfigError(
                f"{directory} already holds a run. Go on with it by --resume, or choose another directory with "
                "--out DIR."
            )
        before = make_recipe(json.loads(mark.read_bytes())["recipe"], where=str(mark), warn=False)
        compared = {section: settings[section] for section in sections}
        _refuse_other_recipe(before.model_dump(mode="json"), compared, directory)
    (directory / "checkpoints").mkdir(exist_ok=True)
    write_atomically(
        mark,
        to_json(
            {
                "recipe": settings,
                "text2grad": version("text2grad"),
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "commit": _commit(),
                "threads": torch.get_num_threads(),
                "processes": processes,
            }
        ),
    )


def check_world_size(processes: int) -> None:
    """Refuse a launcher whose processes do not see each other: each would train on its own in the same directory.

    Args:
        processes: number of processes that accelerate sees.

    Raises:
        ConfigError: if the launcher's environment says another number.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != processes:
        raise ConfigError(
            f"the launcher started {launched} processes (WORLD_SIZE), but accelerate sees {processes}; start one "
            "process, or launch with torchrun or `accelerate launch --multi_gpu`"
        )


def _refuse_other_recipe(before: Mapping[str, Any], now: Mapping[str, Any], directory: Path) -> None:
    changed = [
        f"{section}.{key}: {before[section][key]!r} → {value!r}"
        for section, values in now.items()
        for key, value in values.items()
        if (section, key) not in FREE and before[section][key] != value
    ]
    if changed:
        raise CheckpointError(
            f"{directory} holds a run of another recipe; these settings changed: {'; '.join(changed)}. Resume with the "
            "settings it was started with, or choose another directory with --out DIR."
        )


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10, cwd=Path.cwd()
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
