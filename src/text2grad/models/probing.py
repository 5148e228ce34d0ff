"""The log-probs of eight fixed tokens, by which a model is recognized: merged, saved and loaded, it is the same.

probe.json, beside a saved model or adapter: log-probs [8, 8] when it was saved, and the eps of their type. An adapter
on another base than the one that it was trained on has others, and is refused when it is loaded.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from text2grad.errors import ModelError
from text2grad.files import to_json

PROBE_FILE, TOKENS = "probe.json", 8
EQUAL = 1e-3  # nats; the KL divergence of two models is at most the square of their largest difference: 1e-6


def probe_ids(model: Any) -> Tensor:
    """Return the ids 1 to 8, or as many as the model knows, int64 [1, 8]."""
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None) or TOKENS + 1
    return torch.arange(1, TOKENS + 1, device=model.device)[None] % vocabulary


@torch.no_grad()
def probe(model: Any) -> Tensor:
    """Return a causal language model's logits after each of eight fixed tokens, fp32 [8, V], in evaluation mode.

    Nothing is drawn, and the model stays as it is.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        logits = model.eval()(input_ids=probe_ids(model), use_cache=False).logits
    finally:
        for module, training in modes:
            module.training = training
    return logits[0, -TOKENS:].float()  # type: ignore[no-any-return]  # virtual tokens of a prompt adapter stand before


def apart(logits: Tensor, others: Tensor) -> float:
    """Return the largest difference of log-probs in nats; infinite between vocabularies of two sizes, or beside NaN."""
    if logits.shape != others.shape:
        return float("inf")
    one_logp, other_logp = (x.log_softmax(-1).clamp(min=-1e4) for x in (logits, others.to(logits)))
    return float((one_logp - other_logp).abs().max().nan_to_num(nan=torch.inf))


def rounding(logits: Tensor, eps: float) -> float:
    """Return the most that rounding alone moves a log-prob, in nats.

    In 32 bits it is `EQUAL`. In 16 bits each layer rounds by eps of its values, and so are the weights that a merge
    writes: it is 8 eps of the typical log-prob, and at least 0.1.
    """
    return max(EQUAL if eps < 1e-4 else 0.1, 8 * eps * float(logits.log_softmax(-1).clamp(min=-1e4).abs().mean()))


def eps_of(model: Any) -> float:
    """Return the largest eps of the types of a model's weights."""
    types = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(torch.finfo(dtype).eps for dtype in types if dtype.itemsize > 1)


def write_probe(logits: Tensor, eps: float, directory: Path) -> None:
    """Write the log-probs of a model beside its weights."""
    logp = logits.log_softmax(-1).clamp(min=-1e4)[:, :TOKENS]
    if logp.isfinite().all():
        (directory / PROBE_FILE).write_bytes(to_json({"logp": logp.tolist(), "eps": eps}) + b"\n")


def save_model(model: Any, directory: Path, **settings: Any) -> None:
    """Write a causal language model, or its adapter, and the log-probs by which it is recognized."""
    model.save_pretrained(directory, **settings)
    write_probe(probe(model), eps_of(model), directory)


def check_probe(model: Any, directory: str | Path, base: str | None) -> None:
    """Check that a loaded model computes what it did when it was saved; without the file, nothing is checked.

    Raises:
        ModelError: if it does not; `base` is the base that its adapter names.
    """
    file = Path(directory) / PROBE_FILE
    if not file.exists():
        return
    saved, logits = json.loads(file.read_bytes()), probe(model)
    before = torch.tensor(saved["logp"], device=logits.device)
    far = float((logits.log_softmax(-1).clamp(min=-1e4)[:, :TOKENS] - before).abs().max().nan_to_num(nan=torch.inf))
    if far > max(0.02, rounding(logits, max(saved["eps"], eps_of(model)))):  # 0.02: devices compute in other orders
        where = f"its base {base!r}, which is not the one that it was trained on" if base else "its files"
        raise ModelError(
            f"{str(directory)!r} is not the model that was saved: its log-probs differ by {far:.2g} nats. The cause is "
            f"{where}, or damage: restore it. If you changed the model on purpose, remove {file}"
        )


def refuse_unread(missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Refuse files that lack weights of a model, which it would make anew, or hold weights without a place in it.

    Raises:
        ValueError: naming them.
    """
    for what, keys in (("lack", sorted(missing)), ("hold, without a place in the model,", sorted(unexpected))):
        if keys:
            named = ", ".join(keys[:5]) + ", …" * (len(keys) > 5)
            raise ValueError(
                f"the files {what} {len(keys)} of its weights: {named}. Copy or download it again, with the "
                "config.json that belongs to it"
            )
