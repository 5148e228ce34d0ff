"""fp32 products of wide models on AMD's CPUs: oneDNN in place of MKL, where a command line owns the process.

torch's wheels compute fp32 products with MKL, which on AMD's CPUs uses half of the AVX-512 units: 107 against 235
GFLOP/s per core (Zen 5, 1720 × 576 × 1536). torch's only switch to oneDNN for fp32 is the permission to round to bf16
(`torch.backends.mkldnn.matmul.fp32_precision`). oneDNN uses that permission with AMX alone; so the switch is made where
there is no AMX, and only after a product has come out with the error of fp32.

The decision is a rule on the machine and the model, never a timing: a resumed run computes as before. oneDNN makes a
program for each new shape (0.6 ms), so models narrower than `NARROWEST` keep MKL. Each of its products costs 10 µs to
start, and those of attention copy the keys, which lie in a buffer with room. torch's own attention starts two products
for each row and query head. For a single new token attention is therefore computed by MKL, with the query heads of a
key head in one product.

Shapes: B rows, H query heads, G key heads, L positions, D head size.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from text2grad.progress import LOG, note

VARIABLE = "TEXT2GRAD_FAST_PRODUCTS"
"""Environment variable; "0" leaves torch's products as they are."""
NARROWEST = 256  # hidden size
LARGEST_ERROR = 1e-5  # of a product with 512 terms, relative; fp32 has 1e-6, bf16 4e-3

_owned = False  # whether the process may be changed
_changed = False  # whether it was


@contextmanager
def fast_products() -> Iterator[None]:
    """Let models that are loaded in the block change the process's fp32 products; afterwards all is as before.

    For programs that own their process; importing or using the library without this block changes nothing.
    """
    global _owned
    before, _owned = _owned, os.environ.get(VARIABLE, "1") != "0"
    try:
        yield
    finally:
        _owned = before
        if not before and _changed:
            _leave_to_mkl()


def use_fast_products(model: Any) -> bool:
    """Compute this process's fp32 products with oneDNN if that is allowed, faster and exact; return whether it is so.

    Args:
        model: a Hugging Face model that was loaded.
    """
    global _changed
    if not _owned or _changed or not _wide_fp32_on_cpu(model) or not slow_mkl():
        return _changed
    import torch

    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    if matmul.fp32_precision != "none":  # somebody else has decided
        return False
    matmul.fp32_precision, _changed = "bf16", True
    _set_attention(attention)
    error = product_error()
    if error > LARGEST_ERROR:
        _leave_to_mkl()
        LOG.debug("fp32 products stay with MKL: by oneDNN their relative error is %.1g", error)
    else:
        LOG.debug("fp32 products by oneDNN (relative error %.1g); %s=0 leaves them with MKL", error, VARIABLE)
    return _changed


def warn_of_slow_halves(model: Any) -> None:
    """Warn where a wide model in 16 bits will compute on an x86 CPU without AVX-512; asked where there is no GPU.

    torch has no fast product in 16 bits there: 1.2 GFLOP/s per core beside 60 in fp32 (Zen 3, 1024 × 576 × 1536).

    Args:
        model: a Hugging Face model that was loaded.
    """
    import torch

    if (
        torch.backends.cpu.get_cpu_capability() == "AVX2"
        and _width(model) >= NARROWEST
        and model.dtype in (torch.bfloat16, torch.float16)
    ):
        name = str(model.dtype).removeprefix("torch.")
        note(
            f"the weights are in {name}, and this CPU, without AVX-512, has no fast products in 16 bits: in 32 bits "
            'they take about a fiftieth of the time. Choose "float32" as their dtype (of a policy: model.dtype)',
            warning=True,
        )


def _leave_to_mkl() -> None:
    global _changed
    import torch

    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    matmul.fp32_precision, _changed = "none", False
    _set_attention(None)


def _set_attention(function: Any) -> None:
    """Put a function in the place of transformers' "sdpa", or its own one back."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if function is not None:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = function
    else:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]  # type: ignore[no-untyped-call]


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *, scaling: float | None = None, **more: Any
) -> tuple[Any, None]:
    """Compute attention as transformers' "sdpa" does; for a single new token by MKL, with few products.

    Args:
        module: the attention layer.
        query: [B, H, L', D]; L' = 1 is a single new token.
        key: [B, G, L, D].
        value: [B, G, L, D].
        attention_mask: bool or additive, [B, 1 or H, L', L]; None for none.
        scaling: factor on the scores; None for 1 / √D.
        more: as transformers passes it.

    Returns:
        The result, [B, L', H, D], and None in place of weights.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows, heads, tokens, size = query.shape
    others = any(more.get(name) is not None for name in ("position_bias", "cache", "s_aux", "softcap"))
    if tokens != 1 or others or torch.is_grad_enabled() or query.dtype != torch.float32:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    keys, values = (part.reshape(-1, *part.shape[2:]) for part in (key, value))  # [B · G, L, D]
    shared = (query * (size**-0.5 if scaling is None else scaling)).reshape(len(keys), -1, size)  # [B · G, H / G, D]
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, "none"
    try:
        scores = torch.bmm(shared, keys.transpose(1, 2)).view(rows, heads, 1, -1)
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        elif attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(-1).view(len(keys), -1, keys.shape[1])
        return torch.bmm(weights, values).view(rows, 1, heads, size), None
    finally:
        matmul.fp32_precision = before


def _wide_fp32_on_cpu(model: Any) -> bool:
    import torch

    return _width(model) >= NARROWEST and model.dtype == torch.float32 and model.device.type == "cpu"


def _width(model: Any) -> int:
    return getattr(model.config.get_text_config(), "hidden_size", 0) or 0


def slow_mkl(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether torch computes with MKL on a CPU of AMD with AVX-512 and without AMX, and on nothing else."""
    import torch

    backends: Any = torch.backends
    if torch.accelerator.is_available() or not (backends.mkl.is_available() and backends.mkldnn.is_available()):
        return False
    try:
        lines = cpuinfo.read_text("utf-8").partition("\n\n")[0].splitlines()  # of the first core
    except OSError:
        return False
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    return facts.get("vendor_id") == "AuthenticAMD" and "avx512bw" in flags and "amx_tile" not in flags


def product_error() -> float:
    """Return the largest error of an fp32 product as the process computes it now, relative to its largest entry."""
    import torch

    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(128, 512, generator=generator), torch.randn(512, 128, generator=generator)
    exact = a.double() @ b.double()
    return float(((a @ b) - exact).abs().max() / exact.abs().max())
