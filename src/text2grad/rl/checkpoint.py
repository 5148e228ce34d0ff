"""Checkpoints: written atomically, restored bit for bit.

    checkpoints/step-000010/
        policy/                    the policy as an ordinary Hugging Face directory (or a peft adapter)
        trainable.safetensors      every trainable parameter by name: policy and value function, bit for bit
        optimizer.safetensors      AdamW's moments, by parameter name
        state.json                 step, KL coefficient, random states, log positions

A directory is written under a hidden name, flushed to disk and renamed. Tensors are safetensors only; nothing is
unpickled.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from text2grad.config import all_checkpoints, latest_checkpoint
from text2grad.errors import CheckpointError
from text2grad.files import published, to_json
from text2grad.models import policy_only
from text2grad.rl.optimizers import Optimizers

STATE = ("step", "beta", "statuses", "log", "critic", "random")
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
        keep: number of checkpoints to keep.

    Raises:
        CheckpointError: if it cannot be written (a full disk, say). Earlier checkpoints are untouched.
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
    for old in all_checkpoints(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(path: Path, *, trainable: Mapping[str, nn.Parameter], optimizers: Optimizers) -> dict[str, Any]:
    """Restore parameters and optimizers in place and return the state.

    Raises:
        CheckpointError: if the checkpoint cannot be read or is one of other parameters.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    state, loaded = _read_state(path), {}
    for name in ("trainable.safetensors", "optimizer.safetensors"):
        try:
            loaded[name] = load_file(path / name)
        except (OSError, SafetensorError) as error:
            raise _damaged(path, f"{name}: {error}") from error
    weights, moments = loaded.values()
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


def checkpoint_critics(directory: Path) -> set[str]:
    """Return the names of the learned critics that the checkpoints go on with."""
    states = [_read_state(path) for path in all_checkpoints(directory)]
    return {state["critic"]["current"] for state in states if "critic" in state}


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / "state.json").read_bytes())
        missing = [key for key in STATE if key not in state]
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path, f"state.json: {error}") from error
    if missing:
        raise _damaged(path, f"state.json holds no {missing[0]!r}")
    return state  # type: ignore[no-any-return]


def _damaged(path: Path, error: object) -> CheckpointError:
    """Return the error for a checkpoint that cannot be read, with the checkpoint before it as the way out."""
    before = [other for other in all_checkpoints(path.parent) if other < path]
    rest = f"checkpoint {before[-1]}" if before else "the beginning"
    return CheckpointError(
        f"cannot read checkpoint {path}: {error}. Remove it, and --resume goes on from {rest}; critiques that are "
        "still on disk are not asked for again"
    )


def _names(trainable: Mapping[str, nn.Parameter]) -> dict[int, str]:
    return {id(parameter): name for name, parameter in trainable.items()}
