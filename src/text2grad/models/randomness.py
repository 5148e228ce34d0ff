"""Random numbers as a function of (seed, step), and the states of the global generators."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CUDA: Any = torch.cuda  # partly without types


def batch_indices(examples: int, batch_size: int, *, step: int, seed: int) -> list[int]:
    """Return the indices of a step's examples: each epoch is a permutation that depends on seed and epoch alone.

    Args:
        examples: how many there are.
        batch_size: how many a step takes.
        step: number of the batch, from 0.
        seed: the run's.
    """
    chosen: list[int] = []
    position = step * batch_size
    while len(chosen) < batch_size:
        epoch, offset = divmod(position, examples)
        order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed * 7_919 + epoch)).tolist()
        chosen += order[offset : offset + batch_size - len(chosen)]
        position = step * batch_size + len(chosen)
    return chosen


def step_uniforms(*, seed: int, step: int, rows: int, tokens: int, turn: int = 0) -> Tensor:
    """Return the uniform numbers of one turn of a step, [rows, tokens] in [0, 1), from these numbers alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step + turn * 0x9E3779B97F4A7C15) % 2**63)
    return torch.rand(rows, tokens, generator=generator)


def sample_inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return one token id per row, int64 [B]: the first v with Σ_{u≤v} p_u > uniform.

    Args:
        logits: [B, V], already divided by the temperature.
        uniform: one number in [0, 1) per row, [B].
    """
    cdf = logits.float().softmax(-1).cumsum(-1)  # [B, V]
    threshold = uniform.to(cdf)[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, threshold, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def random_states() -> dict[str, Any]:
    """Return the states of the random generators a user's critic may draw from, as JSON data.

    Those of GPUs are included if this process uses CUDA.
    """
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    states = {
        "python": [version, list(internal), gauss],
        "numpy": {
            "key": numpy_state["state"]["key"].tolist(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state().tolist(),
    }
    if _CUDA.is_initialized():
        states["cuda"] = [state.tolist() for state in _CUDA.get_rng_state_all()]
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the states that `random_states` returned, without the states of GPUs that this machine lacks."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    saved = states["numpy"]
    np.random.set_state(
        ("MT19937", np.array(saved["key"], dtype=np.uint32), saved["pos"], saved["has_gauss"], saved["gauss"])
    )
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
    if "cuda" in states:  # not without a GPU, and not in older checkpoints
        for device, state in enumerate(states["cuda"][: _CUDA.device_count()]):
            _CUDA.set_rng_state(torch.tensor(state, dtype=torch.uint8), device)


@contextmanager
def draws_apart(seed: int) -> Iterator[None]:
    """Let the generators that a user's critic may draw from begin with a seed, and go on afterwards as before.

    Args:
        seed: of Python's, NumPy's and torch's generators.
    """
    before = random_states()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if _CUDA.is_initialized():
        _CUDA.manual_seed_all(seed)
    try:
        yield
    finally:
        restore_random_states(before)
