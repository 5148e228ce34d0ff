"""The directory of a run: its recipe, inputs and versions, compared when the run is resumed.

A run is resumed only with what decided its finished steps: the settings, the prompts, the files and models that the
settings name. Other versions of Python, torch, transformers or text2grad, or other numbers of threads or processes, can
change the last bits of later steps; a warning names them. The settings in `FREE` may differ: they change memory, output
or the length of a run, but no finished step. Those in `INPUTS` name a file or the directory of a model.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from text2grad.config.recipe import Recipe, make_recipe
from text2grad.errors import CheckpointError, ConfigError, DataError
from text2grad.files import lock_directory, readable, to_json, write_atomically
from text2grad.progress import note

FREE = {
    ("rollout", "rows_at_once"),
    ("ppo", "micro_batch_tokens"),
    *((section, "out") for section in ("sft", "reward_model")),
    *(("run", key) for key in ("out", "save_every", "keep_checkpoints", "keep_best", "tracker")),
    ("data", "eval_every"),
    ("critic", "max_failure_rate"),
    *(("server", key) for key in ("base_url", "api_key_env", "concurrency", "timeout_s")),
    *(("engine", key) for key in ("gpu_memory_utilization", "sleep")),
}
STEPS = ("run", "steps")
INPUTS = (
    *(("data", "train"), ("data", "held_out"), ("refresh", "replay_from")),
    *(("model", "path"), ("critic", "model"), ("sft", "model"), ("reward_model", "model")),
)
OWN_FILES = ("metrics.jsonl", "rollouts", "checkpoints", "results.json", "report.html", "curves.png", "model")
BEST = "best.json"  # in `checkpoints`: step and value of the best evaluation
READ_WHOLE_BYTES = 64 * 2**20  # files up to this size are hashed whole, larger ones in blocks
BLOCK_BYTES, BLOCKS = 2**16, 256


def check_directory(directory: Path, *, resume: bool) -> None:
    """Check, before anything is loaded, that a run can begin in a directory, or can be resumed.

    Only the first process of a launch checks; it creates the run before others arrive.

    Raises:
        ConfigError: if the directory is a file or cannot be created or written, already holds a run and `resume` is
            False, or holds no run and `resume` is True.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    exists = (directory / "run.json").exists()
    if resume and not exists:
        raise ConfigError(f"{directory} holds no run to resume; start it without --resume, or name its directory")
    if exists and not resume:
        raise ConfigError(
            f"{directory} already holds a run. Go on with it by --resume, or choose another directory with --out DIR."
        )
    present = (path for path in map(directory.joinpath, OWN_FILES) if path.exists())
    odd = next((path.name for path in present if not path.is_dir() or any(path.rglob("*"))), None)
    if odd and not exists:  # a kill at the start leaves directories without files
        raise ConfigError(
            f"{directory} holds {odd}, which a run would overwrite, but no run.json; choose another directory with "
            "--set run.out=DIR, or remove the file"
        )
    place = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "no permission to write to it" if place.is_dir() else "it is a file"
        raise ConfigError(f"cannot write to {directory}: {place}: {reason}; choose another with --out DIR")


def open_run(
    directory: Path,
    recipe: Recipe,
    *,
    resume: bool,
    processes: int,
    inputs: Mapping[str, str] | None = None,
    fixed_steps: bool = False,
    sections: Sequence[str] = tuple(Recipe.model_fields),
) -> None:
    """Create a run's directory and write run.json (recipe, inputs, versions), or check it on resume.

    Only one process of a run calls this. Files and directories of models that the recipe names are inputs; `inputs`
    are digests of further ones by name. The settings of `sections` decide the result and are compared; `fixed_steps`
    says that `run.steps` decides finished steps, too, as the length of a learning rate schedule does.

    Raises:
        ConfigError: as `check_directory`, or if another process is writing to the directory.
        CheckpointError: if it holds a run of another recipe or of other inputs, or its run.json cannot be read.
    """
    import torch  # commands that only read a directory start without it

    check_directory(directory, resume=resume)
    lock_directory(directory)
    now: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json"),
        "inputs": {**inputs_of(recipe, sections, directory), **(inputs or {})},
        "text2grad": version("text2grad"),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "commit": _commit(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }
    if resume:
        before = read_run_file(directory)
        was = make_recipe(before["recipe"], where=str(directory / "run.json"), strict=False)
        compared = {section: now["recipe"][section] for section in sections}
        _refuse_other_recipe(was.model_dump(mode="json"), compared, directory, fixed_steps=fixed_steps)
        _refuse_other_inputs(before.get("inputs", {}), now["inputs"], directory)
        _warn_of_versions(before, now, directory)
    write_atomically(directory / "run.json", to_json(now))  # first: other files make a directory without it no run's
    (directory / "checkpoints").mkdir(exist_ok=True)


def read_run_file(directory: Path) -> dict[str, Any]:
    """Return the contents of a run's run.json.

    Raises:
        CheckpointError: if it cannot be read.
    """
    path = directory / "run.json"
    way_out = "Restore it from a backup, or begin again in another directory with --out DIR"
    with readable(path, way_out, CheckpointError):
        contents: dict[str, Any] = json.loads(path.read_bytes())
        if not isinstance(contents, dict) or not isinstance(contents.get("recipe"), dict):
            raise ValueError("no recipe in it")
    return contents


def recipe_of_run(directory: Path) -> Recipe:
    """Return the recipe of a run.

    Raises:
        DataError: if the directory holds no run.
        CheckpointError: if its run.json cannot be read.
    """
    path = directory / "run.json"
    if not path.exists():
        reason = "has no run.json" if directory.is_dir() else "is no directory"
        raise DataError(f"{directory} is no run: it {reason}. A run is the directory in run.out of `text2grad train`")
    return make_recipe(read_run_file(directory)["recipe"], where=str(path), strict=False)


def all_checkpoints(directory: Path) -> list[Path]:
    """Return the whole checkpoints in a run's `checkpoints`, the newest last."""
    return sorted(path.parent for path in directory.glob("step-*/state.json"))


def step_of(checkpoint: Path) -> int:
    """Return the number of finished steps of a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def best_checkpoint(directory: Path) -> Path | None:
    """Return the checkpoint of the best evaluation in a run's `checkpoints`; None without `run.keep_best`.

    Raises:
        CheckpointError: if its file cannot be read.
    """
    known = read_best(directory)
    return directory / f"step-{known['step']:06d}" if known else None


def read_best(directory: Path) -> dict[str, Any]:
    """Return `step` and `value` of the best evaluation, from a run's `checkpoints`; nothing if it was not kept.

    Raises:
        CheckpointError: if the file cannot be read.
    """
    path = directory / BEST
    if not path.exists():
        return {}
    with readable(path, "Remove it: the next evaluation names the best checkpoint again", CheckpointError):
        known = json.loads(path.read_bytes())
        best: dict[str, Any] = {"step": int(known["step"]), "value": float(known["value"])}
    return best if directory / f"step-{best['step']:06d}" in all_checkpoints(directory) else {}


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the newest whole checkpoint in a run's `checkpoints`, or None."""
    return max(all_checkpoints(directory), default=None)


def check_world_size(processes: int) -> None:
    """Refuse a launcher whose processes do not see each other: each would train on its own in the same directory.

    Raises:
        ConfigError: if the launcher's environment says another number than accelerate sees.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != processes:
        raise ConfigError(
            f"the launcher started {launched} processes (WORLD_SIZE), but accelerate sees {processes}; start one "
            "process, or launch with torchrun or `accelerate launch --multi_gpu`"
        )


def digest_of(path: Path) -> str:
    """Return a hash of a file, or of the names and contents of the files in a directory, pages about it left out.

    Files of up to 64 MiB are read whole, larger files in 256 blocks of 64 KiB at equal distances.
    """
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    hashed = sha256()
    for file in files:
        if path.is_dir() and (file.suffix in (".md", ".log", ".html", ".png") or file.name.startswith(".")):
            continue
        size = file.stat().st_size
        hashed.update(to_json([file.name if path.is_dir() else "", size]))
        with file.open("rb") as opened:
            if size <= READ_WHOLE_BYTES:
                hashed.update(opened.read())
                continue
            for number in range(BLOCKS):
                opened.seek(number * (size - BLOCK_BYTES) // (BLOCKS - 1))
                hashed.update(opened.read(BLOCK_BYTES))
    return hashed.hexdigest()


def inputs_of(recipe: Recipe, sections: Sequence[str], directory: Path) -> dict[str, str]:
    """Return the digests of the files and directories that sections of a recipe name, by setting.

    Files that the run writes to its own directory, and names of the hub, have no digest.
    """
    settings = recipe.model_dump(mode="json")
    named = {f"{section}.{key}": settings[section].get(key) for section, key in INPUTS if section in sections}
    return {
        name: digest_of(Path(value))
        for name, value in named.items()
        if isinstance(value, str) and value and Path(value).exists()
        if not Path(value).resolve().is_relative_to(directory.resolve())
    }


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return each setting that decides a result and differs between two recipes, as "section.key: old → new".

    Both are settings by section, as of `Recipe.model_dump(mode="json")`; `now` names the sections to compare.
    """
    return [
        f"{section}.{key}: {before[section][key]!r} → {value!r}"
        for section, values in now.items()
        for key, value in values.items()
        if (section, key) not in FREE | {STEPS} and before[section][key] != value
    ]


def _refuse_other_recipe(
    before: Mapping[str, Any], now: Mapping[str, Any], directory: Path, *, fixed_steps: bool
) -> None:
    way_out = "Resume with the settings it was started with"
    _refuse(f"{directory} holds a run of another recipe; these settings", changed_settings(before, now), way_out)
    if fixed_steps and before["run"]["steps"] != now["run"]["steps"]:
        steps, wanted, schedule = before["run"]["steps"], now["run"]["steps"], now["optim"]["schedule"]
        raise CheckpointError(
            f'{directory} holds a run of run.steps = {steps}, now {wanted}, and optim.schedule = "{schedule}" spreads '
            f"the learning rate over them. Resume with --set run.steps={steps}; to train further, start a run from its "
            "policy (--model DIR/checkpoints/step-N/policy --set run.out=DIR)."
        )


def _refuse_other_inputs(before: Mapping[str, str], now: Mapping[str, str], directory: Path) -> None:
    changed = [
        f"{name} (SHA-256 {before[name][:8]}… → {now[name][:8] + '…' if name in now else 'not found'})"
        for name in before
        if now.get(name) != before[name]
    ]
    _refuse(f"{directory} holds a run on other inputs; their contents", changed, "Restore them")


def _refuse(problem: str, changed: Sequence[str], way_out: str) -> None:
    if changed:
        listed = "; ".join(changed)
        raise CheckpointError(f"{problem} changed: {listed}. {way_out}, or choose another directory with --out DIR.")


def _warn_of_versions(before: Mapping[str, Any], now: Mapping[str, Any], directory: Path) -> None:
    """Warn of versions, threads and processes that differ from the time when the run was started or last resumed."""
    changed = [
        f"{name} {before[name]} → {now[name]}"
        for name in ("text2grad", "torch", "transformers", "python", "threads", "processes")
        if name in before and before[name] != now[name]
    ]
    if changed:
        note(
            f"{directory}: resumed with other versions ({', '.join(changed)}); the steps that follow may differ in "
            "their last bits from a run that was never stopped",
            warning=True,
        )


def _commit() -> str | None:
    command = ["git", "rev-parse", "HEAD"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip() or None
    return None
