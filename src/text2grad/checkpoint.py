"""Checkpoints: whole or not there at all, and exact.

    checkpoints/step-000010/
        policy/                    the policy as an ordinary Hugging Face directory (or a peft adapter)
        trainable.safetensors      every trainable parameter by name: policy and value function, bit for bit
        optimizer.safetensors      AdamW's moments, by parameter name
        state.json                 step, KL coefficient, random states, log positions

A directory is written under a hidden name, flushed to disk and renamed. Tensors are safetensors only; nothing is
unpickled.
"""

import json
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from text2grad.adapters import policy_only
from text2grad.errors import CheckpointError
from text2grad.optim import Optimizers
from text2grad.runlog import to_json

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(
    directory: Path,
    *,
    policy: Any,
    tokenizer: Any,
    trainable: Mapping[str, nn.Parameter],
    optimizers: Optimizers,
    state: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write a checkpoint for `state["step"]` and remove the oldest beyond `keep`.

    Args:
        directory: the run's `checkpoints`.
        policy: the model to export.
        tokenizer: exported beside it.
        trainable: every trainable parameter by name.
        optimizers: their optimizers.
        state: JSON data; `step` names the checkpoint.
        keep: how many checkpoints stay.

    Raises:
        CheckpointError: if it cannot be written (a full disk, say). What was there before is untouched.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    final = directory / f"step-{state['step']:06d}"
    try:
        weights = {name: p.detach().contiguous() for name, p in trainable.items()}
        moments = {
            f"{name}.{key}": moment[key].detach().contiguous()
            for name, moment in optimizers.states(_names(trainable)).items()
            for key in MOMENTS
        }
        with published(final) as temporary:
            policy.save_pretrained(temporary / "policy", **policy_only(policy))
            tokenizer.save_pretrained(temporary / "policy")
            save_file(weights, temporary / "trainable.safetensors")
            save_file(moments, temporary / "optimizer.safetensors")
            (temporary / "state.json").write_bytes(to_json(state))
    except (OSError, RuntimeError, SafetensorError) as error:
        before = latest_checkpoint(directory)
        raise CheckpointError(
            f"cannot write checkpoint {final}: {error}. Free some space and go on with --resume, from "
            f"{before if before else 'the beginning (critiques already given are kept)'}."
        ) from error
    for old in _all_checkpoints(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


@contextmanager
def published(final: Path) -> Iterator[Path]:
    """Yield where to make a directory; it gets its name once it is whole and on disk, or goes if that fails."""
    temporary = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        yield temporary
        _publish(temporary, final)
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _publish(temporary: Path, final: Path) -> None:
    flush(temporary)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _flush_directory(final.parent)


def load_checkpoint(path: Path, *, trainable: Mapping[str, nn.Parameter], optimizers: Optimizers) -> dict[str, Any]:
    """Restore parameters and optimizers in place and return the state.

    Raises:
        CheckpointError: if the checkpoint cannot be read or is one of other parameters.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path / "trainable.safetensors")
        moments = load_file(path / "optimizer.safetensors")
        state: dict[str, Any] = json.loads((path / "state.json").read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error}") from error
    shapes = {name: p.shape for name, p in trainable.items()}
    if {name: w.shape for name, w in weights.items()} != shapes:
        odd = sorted(set(weights).symmetric_difference(shapes)) or [n for n in shapes if weights[n].shape != shapes[n]]
        raise CheckpointError(
            f"checkpoint {path} is of another model: {len(odd)} parameters differ, the first is {odd[0]!r}. Resume "
            "with the model, LoRA and value settings it was made with."
        )
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(weights[name])
    states: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in moments.items():
        name, _, moment = key.rpartition(".")
        states[name][moment] = tensor
    optimizers.restore(_names(trainable), states)
    return state


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the newest whole checkpoint, or None."""
    found = _all_checkpoints(directory)
    return found[-1] if found else None


def checkpoint_critics(directory: Path) -> set[str]:
    """Return the names of the learned critics that the checkpoints go on with."""
    states = [json.loads((path / "state.json").read_bytes()) for path in _all_checkpoints(directory)]
    return {state["critic"]["current"] for state in states if "critic" in state}


def random_states() -> dict[str, Any]:
    """Return the states of the random generators a user's critic may draw from, as JSON data."""
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    return {
        "python": [version, list(internal), gauss],
        "numpy": {
            "key": numpy_state["state"]["key"].tolist(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state().tolist(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Undo `random_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    saved = states["numpy"]
    np.random.set_state(
        ("MT19937", np.array(saved["key"], dtype=np.uint32), saved["pos"], saved["has_gauss"], saved["gauss"])
    )
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))


def _names(trainable: Mapping[str, nn.Parameter]) -> dict[int, str]:
    return {id(parameter): name for name, parameter in trainable.items()}


def _all_checkpoints(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("step-*") if (path / "state.json").exists())


def flush(directory: Path) -> None:
    """Flush every file below a directory to disk."""
    for root, _, files in os.walk(directory):
        for name in files:
            descriptor = os.open(Path(root) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        _flush_directory(Path(root))


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
