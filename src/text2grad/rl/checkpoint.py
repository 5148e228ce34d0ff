"""Checkpoints: written atomically, restored bit for bit.

    checkpoints/step-000010/
        policy/                    the policy as an ordinary Hugging Face directory (or a peft adapter)
        trainable.safetensors      every trainable parameter by name: policy and value function, bit for bit
        optimizer.safetensors      AdamW's moments, by parameter name; more of them in optimizer-00000.safetensors, ...
        state.json                 step, KL coefficient, random states of each process, log positions
    checkpoints/best.json          step and value of the best evaluation, with `run.keep_best`

A directory is written under a hidden name, flushed to disk and renamed. Tensors are safetensors only; nothing is
unpickled. Tensors are whole also where the run has them in shards, so a checkpoint loads in any number of processes.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from text2grad.config import all_checkpoints, best_checkpoint, latest_checkpoint
from text2grad.errors import CheckpointError
from text2grad.files import published, to_json
from text2grad.models import is_peft, policy_only
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.sharding import as_sharded, whole

STATE = ("step", "beta", "statuses", "log", "critic", "random")
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
PART_BYTES = 4 * 2**30  # largest file of moments, and the most that the first process gathers at once


def save_checkpoint(
    directory: Path,
    *,
    policy: Any,
    tokenizer: Any,
    trainable: Mapping[str, nn.Parameter],
    optimizers: Optimizers,
    state: Mapping[str, Any],
    keep: int,
    sharded: bool = False,
) -> Path:
    """Write a checkpoint for `state["step"]` and remove the oldest beyond `keep`, except the best.

    Where the model is in shards, all other processes call `join_checkpoint` meanwhile.

    Args:
        directory: the run's `checkpoints`.
        policy: the model to export.
        tokenizer: exported beside it.
        trainable: every trainable parameter by name.
        optimizers: the optimizers of these parameters.
        state: JSON data; `step` names the checkpoint.
        keep: number of the newest checkpoints to keep.
        sharded: each process holds a shard of the model.

    Raises:
        CheckpointError: if it cannot be written (a full disk, say). Earlier checkpoints are untouched.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    final = directory / f"step-{state['step']:06d}"
    try:
        with published(final) as temporary:
            weights = {name: _on_disk(tensor, sharded) for name, tensor in trainable.items()}
            exported = {"state_dict": _exported(policy, trainable, weights)} if sharded else {}
            policy.save_pretrained(temporary / "policy", **policy_only(policy), **exported)
            tokenizer.save_pretrained(temporary / "policy")
            save_file(weights, temporary / "trainable.safetensors")
            del weights, exported
            moments = _moments(trainable, optimizers)
            _save_parts(((name, _on_disk(tensor, sharded)) for name, tensor in moments), temporary / "optimizer")
            (temporary / "state.json").write_bytes(to_json(state))
    except (OSError, RuntimeError, SafetensorError) as error:
        before = latest_checkpoint(directory)
        raise CheckpointError(
            f"cannot write checkpoint {final}: {error}. Free some space and go on with --resume, from "
            f"{before if before else 'the beginning (critiques already given are kept)'}."
        ) from error
    remove_old_checkpoints(directory, keep)
    return final


def remove_old_checkpoints(directory: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ones and the best, where a run names a best one."""
    best = best_checkpoint(directory)
    for old in all_checkpoints(directory)[:-keep]:
        if old != best:
            shutil.rmtree(old, ignore_errors=True)


def join_checkpoint(policy: Any, trainable: Mapping[str, nn.Parameter], optimizers: Optimizers) -> None:
    """Give this process's shards to the first process, while that process runs `save_checkpoint`."""
    for parameter in trainable.values():
        whole(parameter.detach())
    _exported(policy, trainable, None)
    for _, tensor in _moments(trainable, optimizers):
        whole(tensor)


def _moments(trainable: Mapping[str, nn.Parameter], optimizers: Optimizers) -> Iterator[tuple[str, Tensor]]:
    for name, moment in optimizers.states(_names(trainable)).items():
        for key in MOMENTS:
            yield f"{name}.{key}", moment[key]


def _exported(
    policy: Any, trainable: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """Return the gathered weights of a sharded policy, for peft's files; empty without `weights`."""
    known = {id(parameter): name for name, parameter in trainable.items()}
    kept: dict[int, Tensor] = {}  # tied weights stay one tensor
    exported = {}
    for name, tensor in policy.state_dict(keep_vars=True).items():
        if is_peft(policy) and not tensor.requires_grad and "lora_" not in name:
            continue
        if id(tensor) not in known and id(tensor) not in kept:
            kept[id(tensor)] = _on_disk(tensor, weights is not None)
        if weights is not None:
            exported[name] = weights[known[id(tensor)]] if id(tensor) in known else kept[id(tensor)]
    return exported


def _on_disk(tensor: Tensor, sharded: bool) -> Tensor:
    """Return a contiguous tensor for safetensors; a sharded tensor is gathered, and moved to the CPU."""
    full = whole(tensor.detach())
    return (full.cpu() if sharded else full).contiguous()


def _save_parts(tensors: Iterable[tuple[str, Tensor]], stem: Path) -> None:
    """Write tensors to STEM.safetensors, and first to STEM-00000.safetensors and so on where they are large."""
    from safetensors.torch import save_file

    part: dict[str, Tensor] = {}
    size = number = 0
    for name, tensor in tensors:
        if part and size + tensor.nbytes > PART_BYTES:
            save_file(part, stem.with_name(f"{stem.name}-{number:05d}.safetensors"))
            part, size, number = {}, 0, number + 1
        part[name] = tensor
        size += tensor.nbytes
    save_file(part, stem.with_suffix(".safetensors"))


def load_checkpoint(path: Path, *, trainable: Mapping[str, nn.Parameter], optimizers: Optimizers) -> dict[str, Any]:
    """Restore parameters and optimizers in place and return the state.

    Raises:
        CheckpointError: if the checkpoint cannot be read or holds other parameters than the run trains.
    """
    state = _read_state(path)
    with ExitStack() as opened:
        weights, moments = (_open_parts(path, name, opened) for name in ("trainable", "optimizer"))
        shapes = {name: tuple(p.shape) for name, p in trainable.items()}
        saved = {name: tuple(file.get_slice(name).get_shape()) for name, file in weights.items()}
        if saved != shapes:
            odd = sorted(set(saved).symmetric_difference(shapes)) or [n for n in shapes if saved[n] != shapes[n]]
            raise CheckpointError(
                f"checkpoint {path} is of another model: {len(odd)} parameters differ, the first is {odd[0]!r}. Resume "
                "with the model, LoRA and value settings it was made with."
            )
        with torch.no_grad():
            for name, parameter in trainable.items():
                parameter.copy_(as_sharded(weights[name].get_tensor(name), parameter))
        states: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, file in moments.items():
            name, _, moment = key.rpartition(".")
            tensor = file.get_tensor(key)
            states[name][moment] = tensor if moment == "step" else as_sharded(tensor, trainable[name])
    optimizers.restore(_names(trainable), states)
    return state


def _open_parts(path: Path, stem: str, opened: ExitStack) -> dict[str, Any]:
    """Return the open file of each tensor that `_save_parts` wrote.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    files: dict[str, Any] = {}
    for part in (*sorted(path.glob(f"{stem}-*.safetensors")), path / f"{stem}.safetensors"):
        try:
            file = opened.enter_context(safe_open(part, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise _damaged(path, f"{part.name}: {error}") from error
        files |= dict.fromkeys(file.keys(), file)
    return files


def checkpoint_critics(directory: Path) -> set[str]:
    """Return the names of the learned critics that a run resumed from one of the checkpoints needs."""
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
