"""Checkpoints: written atomically, restored bit for bit.

    checkpoints/step-000010/
        policy/                    the policy as an ordinary Hugging Face directory (or a peft adapter)
        trainable.safetensors      every trainable parameter by name: policy and value function, bit for bit
        optimizer.safetensors      AdamW's moments and number of steps, and a self-teacher's weights, by parameter name
        state.json                 step, KL coefficient, random states of each process, log positions, SHA-256 of both
    checkpoints/best.json          step and value of the best evaluation, with `run.keep_best`

A directory is written under a hidden name, flushed to disk and renamed. Tensors are safetensors only; nothing is
unpickled. Tensors are whole also where the run has them in shards, so a checkpoint loads in any number of processes.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from text2grad.config import all_checkpoints, best_checkpoint, latest_checkpoint
from text2grad.errors import CheckpointError, is_out_of_memory
from text2grad.files import changed_since, published, sha256_of, to_json
from text2grad.models import is_peft, policy_only, probe, random_states, save_model
from text2grad.rl.sharding import as_sharded, whole
from text2grad.rl.start import PreparedRun

STATE = ("step", "beta", "statuses", "log", "critic", "random")
TENSORS = ("trainable.safetensors", "optimizer.safetensors")


def save_checkpoint(run: PreparedRun, step: int) -> None:
    """Write a checkpoint of the last finished step, and remove the oldest ones; all processes call this.

    Raises:
        CheckpointError: if it cannot be written (a full disk, say). Earlier checkpoints are untouched.
    """
    drawn, *of_others = gather_object([random_states()])  # each process's critic draws its own random numbers
    names: dict[Tensor, str] = {parameter: name for name, parameter in run.trainable.items()}
    states = run.optimizers.states().items()
    moments = {f"{names[p]}.{key}": moment for p, state in states for key, moment in state.items()}
    moments |= {f"{name}.teacher": weight for name, weight in run.teacher.items()}
    with run.whole_policy() as policy:
        try:
            logp = probe(policy)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            logp = torch.zeros(0, 0)  # the step that memory ends is saved, without a probe
    if run.accelerator.is_main_process:
        state = {
            "step": step,
            "beta": run.kl.beta,
            "statuses": list(run.failures.statuses),
            "log": run.log.position(),
            "sizes": run.sizes.state(),
            "critic": run.refresher.state(),
            "random": drawn,
            "random_of_others": of_others,
        }
        directory = run.directory / "checkpoints"
        _write(directory / f"step-{step:06d}", run, moments, state, logp)
        remove_old_checkpoints(directory, run.recipe.run.keep_checkpoints)
        run.log.forget_critiques(step)
        run.refresher.prune(checkpoint_critics(directory))
    elif run.sharding is not None:  # the first process needs the shards of all
        for tensors in (_exported(run.model.policy), run.trainable, moments):
            for tensor in _unique(tensors):
                whole(tensor.detach())
    run.sizes.changed = False
    run.accelerator.wait_for_everyone()


def _write(path: Path, run: PreparedRun, moments: Mapping[str, Tensor], state: dict[str, Any], logp: Tensor) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    policy = run.model.policy
    try:
        with published(path) as temporary:
            exported = {"state_dict": _gathered(_exported(policy))} if run.sharding else {}
            save_model(policy, temporary / "policy", logp=logp, **policy_only(policy), **exported)
            del exported
            run.tokenizer.save_pretrained(temporary / "policy")
            for name, tensors in zip(TENSORS, (run.trainable, moments), strict=True):
                save_file(_gathered(tensors), temporary / name)
            state["sha256"] = {name: sha256_of(temporary / name) for name in TENSORS}
            (temporary / "state.json").write_bytes(to_json(state))
    except (OSError, RuntimeError, SafetensorError) as error:
        before = latest_checkpoint(path.parent)
        raise CheckpointError(
            f"cannot write checkpoint {path}: {error}. Free some space and go on with --resume, from "
            f"{before if before else 'the beginning (critiques already given are kept)'}."
        ) from error


def remove_old_checkpoints(directory: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ones and the best, where a run names a best one."""
    best = best_checkpoint(directory)
    for old in all_checkpoints(directory)[:-keep]:
        if old != best:
            shutil.rmtree(old, ignore_errors=True)


def _exported(policy: Any) -> dict[str, Tensor]:
    """Return the weights of the files of a sharded policy: of an adapter, these alone."""
    weights = policy.state_dict(keep_vars=True).items()
    return {name: w for name, w in weights if w.requires_grad or "lora_" in name or not is_peft(policy)}


def _unique(tensors: Mapping[str, Tensor]) -> Iterable[Tensor]:
    """Return the tensors, tied ones once, in the order in which all processes gather them."""
    return {id(tensor): tensor for tensor in tensors.values()}.values()


def _gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whole, shards on the CPU, as safetensors takes them; tied ones stay one."""
    gathered: dict[int, Tensor] = {}
    for tensor in _unique(tensors):
        full = whole(tensor.detach())
        gathered[id(tensor)] = (full.cpu() if isinstance(tensor, DTensor) else full).contiguous()
    return {name: gathered[id(tensor)] for name, tensor in tensors.items()}


def load_checkpoint(path: Path, run: PreparedRun) -> dict[str, Any]:
    """Restore parameters and optimizers in place and return the state.

    Raises:
        CheckpointError: if the checkpoint cannot be read or holds other parameters than the run trains.
    """
    state, trainable = _read_state(path), run.trainable
    weights, moments = (_opened(path / name) for name in TENSORS)
    if changed := changed_since(path, state.get("sha256", {})):
        raise _damaged(path, changed)
    shapes = {name: list(p.shape) for name, p in trainable.items()}
    saved = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118  no dict
    if saved != shapes:
        odd = sorted(set(saved).symmetric_difference(shapes)) or [n for n in shapes if saved[n] != shapes[n]]
        raise CheckpointError(
            f"checkpoint {path} is of another model: {len(odd)} parameters differ, the first is {odd[0]!r}. Resume "
            "with the model, LoRA and value settings it was made with."
        )
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(as_sharded(weights.get_tensor(name), parameter))
    states: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
    for key in moments.keys():  # noqa: SIM118  no dict
        name, _, moment = key.rpartition(".")
        parameter, tensor = trainable[name], moments.get_tensor(key)
        states[parameter][moment] = tensor if moment == "step" else as_sharded(tensor, parameter)
    for name, weight in run.teacher.items():
        weight.copy_(states[trainable[name]].pop("teacher"))
    run.optimizers.restore(states)
    return state


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise _damaged(path.parent, f"{path.name}: {error}") from error


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
