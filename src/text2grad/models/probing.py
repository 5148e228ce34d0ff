"""Log-probs of eight fixed tokens, by which a model is recognized: merged, saved and loaded, it computes the same.

probe.json      beside saved weights: log-probs [8, 8] when they were saved, and the eps of their type
"""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from text2grad.errors import ModelError, is_out_of_memory
from text2grad.files import readable, to_json

PROBE_FILE, TOKENS = "probe.json", 8
EQUAL = 1e-3  # nats; the KL divergence of two models is at most the square of their largest difference: 1e-6
OF_DEVICES = 0.02  # nats; devices add in other orders


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set evaluation mode, and compute no gradients; afterwards every module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def probe(model: Any) -> Tensor:
    """Return a model's log-probs after each of the ids 1 to 8, fp32 [8, V]; nothing is drawn, and its modes stay."""
    known = getattr(model.config.get_text_config(), "vocab_size", None) or TOKENS + 1
    ids = torch.arange(1, TOKENS + 1, device=model.device)[None] % known
    with evaluating(model):
        logits = model(input_ids=ids, use_cache=False).logits
    # the tokens of a prompt adapter stand before; tokens that do not exist have −∞
    return logits[0, -TOKENS:].float().log_softmax(-1).clamp(min=-1e4)  # type: ignore[no-any-return]


def apart(logp: Tensor, others: Tensor) -> float:
    """Return the largest difference of log-probs in nats; infinite between vocabularies of two sizes, or beside NaN."""
    if logp.shape != others.shape:
        return float("inf")
    return float((logp - others.to(logp)).abs().max().nan_to_num(nan=torch.inf))


def rounding(logp: Tensor, eps: float) -> float:
    """Return the most that rounding moves a log-prob: in 16 bits, where a merge rounds weights, 8 eps of it or 0.1."""
    return max(EQUAL if eps < 1e-4 else 0.1, 8 * eps * float(logp.abs().mean()))


def save_model(model: Any, directory: Path, *, logp: Tensor | None = None, **settings: Any) -> None:
    """Write a causal language model or its adapter, and its log-probs; `logp` are those of one in shards."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Could not find a config file")  # in an adapter that it stands on
        model.save_pretrained(directory, **settings)
    first = (probe(model) if logp is None else logp)[:, :TOKENS].nan_to_num()
    if first.numel():
        (directory / PROBE_FILE).write_bytes(to_json({"logp": first.tolist(), "eps": torch.finfo(model.dtype).eps}))


def check_probe(model: Any, directory: str | Path, base: str | None = None) -> None:
    """Raise a `ModelError` if a loaded model computes not what it did when it was saved; its adapter names `base`.

    Likewise if the file that tells so cannot be read.
    """
    file = Path(directory) / PROBE_FILE
    if not file.exists():
        return
    with readable(file, "Copy the model again, or remove this file, which tells another model from it", ModelError):
        saved = json.loads(file.read_bytes())
        before, eps = torch.tensor([list(map(float, row)) for row in saved["logp"]]), float(saved["eps"])
    logp = probe(model)
    far = apart(logp[:, :TOKENS], before)
    if far > max(OF_DEVICES, rounding(logp, max(eps, torch.finfo(model.dtype).eps))):
        where = f"its base {base!r}, which is not the one that it was trained on" if base else "its files"
        raise ModelError(
            f"{str(directory)!r} is not the model that was saved: its log-probs differ by {far:.2g} nats. The cause is "
            f"{where}, or damage: restore it. If you changed the model on purpose, remove {file}"
        )


@contextmanager
def model_errors(before: str, behind: str = "") -> Iterator[None]:
    """Raise a `ModelError` for any error of another library in the block, with its reason between two texts."""
    try:
        yield
    except Exception as error:  # each library and architecture has its own
        if is_out_of_memory(error) or isinstance(error, ModelError):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(f"{before}{reason}{behind}") from error


def refuse_unread(missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Raise a `ValueError` that names weights which files lack (a model makes them anew) or hold without a place."""
    for what, keys in (("lack", sorted(missing)), ("hold, without a place in the model,", sorted(unexpected))):
        if keys:
            named = ", ".join(keys[:5]) + ", …" * (len(keys) > 5)
            raise ValueError(f"the files {what} {len(keys)} of its weights: {named}; copy or download it again")


def not_finite(model: Any) -> str | None:
    """Return a sentence that names the weights of a model which hold NaN or infinity, None if there is none."""
    weights = [item for item in model.named_parameters() if item[1].is_floating_point() and item[1].itemsize > 1]
    names = [name for name, weight in weights if not weight.isfinite().all()]
    return f"{len(names)} of its weights hold NaN or infinity, the first {names[0]!r}" if names else None
