"""Hidden states → log-probabilities, entropy and KL, in tiles: no [N, V] tensor ever exists.

A tile is the logits of all N tokens over a few vocabulary entries. Each is folded into an online log-sum-exp (m the
running maximum, s the running Σ exp(z − m)) and thrown away. The forward pass also folds Σ_v p_v W_v, since

    ∂ log p(y) / ∂h = W_y − Σ_v p_v W_v

needs nothing else: with a frozen head (LoRA) the backward pass then multiplies by the incoming gradient and never
computes a logit again. With a trained head it computes each tile once more, for the gradient of W.

Shapes: N tokens (response tokens of a batch, packed), H hidden size, V vocabulary. Statistics are fp32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

# Width of a tile. On a CPU 1,024 columns of fp32 logits stay in the cache (measured: 1,024 tokens × 128,256 entries in
# 0.45 s, against 0.70 s for the bare matrix product written to memory); an accelerator wants larger products.
TILE_COLUMNS = {"cpu": 1_024}
TILE_COLUMNS_ELSEWHERE = 16_384
Value = Literal["value"]


@dataclass(frozen=True, slots=True)
class Head:
    """A language model's output layer: z = cap(scale · (h Wᵀ + b)), cap(z) = softcap · tanh(z / softcap).

    Attributes:
        weight: W, [V, H].
        bias: b, [V], or None.
        scale: factor on the logits (Cohere multiplies, Granite divides).
        softcap: Gemma's cap on the logits; None for no cap.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None


class TokenStats(NamedTuple):
    """Log-probs and entropies of N tokens in nats, each [N] fp32; the entropies are 0 unless requested."""

    logp: Tensor
    entropy: Tensor


def token_logprobs(
    hidden: Tensor, head: Head, targets: Tensor, *, temperature: float = 1.0, with_entropy: bool | Value = False
) -> TokenStats:
    """Return log π(target) for each token, and the entropy of π, both differentiable.

    Args:
        hidden: last hidden states at the positions that predict `targets`, [N, H].
        head: the output layer.
        targets: token ids, int64 [N].
        temperature: the rollout's; logits are divided by it, here as there.
        with_entropy: also return H(π) in nats; "value" without its gradient, which costs one more matrix product.
    """
    setting = (head, temperature, with_entropy)
    with _without_autocast(hidden):
        stats = _TokenLogprobs.apply(hidden, head.weight, head.bias, targets, setting)  # type: ignore[no-untyped-call]
    return TokenStats(*stats)


class PairStats(NamedTuple):
    """Policy beside reference on N tokens, each [N] fp32, in nats."""

    logp: Tensor
    logp_ref: Tensor
    kl: Tensor
    entropy: Tensor


@torch.no_grad()
def pair_logprobs(
    hidden: Tensor, head: Head, hidden_ref: Tensor, head_ref: Head, targets: Tensor, *, temperature: float = 1.0
) -> PairStats:
    """Return log-probs of policy and reference and the exact KL over the vocabulary (`kl = "full"`), no gradient.

    Args:
        hidden: the policy's hidden states, [N, H].
        head: the policy's output layer.
        hidden_ref: the reference's hidden states, [N, H'].
        head_ref: the reference's output layer, of the same vocabulary.
        targets: token ids, int64 [N].
        temperature: the rollout's.

    Returns:
        Log-probabilities, KL(π ‖ π_ref) and the policy's entropy.
    """
    policy, reference = _OnlineSoftmax(targets), _OnlineSoftmax(targets)
    sum_z, sum_diff = torch.zeros_like(policy.target_z), torch.zeros_like(policy.target_z)
    for start, end in _tiles(head.weight):
        with _without_autocast(hidden):
            z, _ = _logits(hidden, head, start, end, temperature)
            z_ref, _ = _logits(hidden_ref, head_ref, start, end, temperature)
        kept_z, diff = z.clone(), z - z_ref
        exp_z, rescale = policy.fold(z, start)
        sum_z = sum_z * rescale + kept_z.mul_(exp_z).sum(1)
        sum_diff = sum_diff * rescale + diff.mul_(exp_z).sum(1)
        reference.fold(z_ref, start)
    kl = sum_diff / policy.sum_exp - policy.log_z() + reference.log_z()
    return PairStats(policy.logp(), reference.logp(), kl, policy.log_z() - sum_z / policy.sum_exp)


def sampled_pair(
    hidden: Tensor, head: Head, hidden_ref: Tensor, head_ref: Head, targets: Tensor, *, temperature: float = 1.0
) -> PairStats:
    """Return the same with the sampled KL of `kl = "k1"`: log π(y) − log π_ref(y). Arguments as `pair_logprobs`.

    The policy's log-probs are differentiable.
    """
    ours = token_logprobs(hidden, head, targets, temperature=temperature, with_entropy="value")
    with torch.no_grad():
        logp_ref = token_logprobs(hidden_ref, head_ref, targets, temperature=temperature).logp
    return PairStats(ours.logp, logp_ref, ours.logp - logp_ref, ours.entropy)


class _TokenLogprobs(torch.autograd.Function):
    """`token_logprobs` with its gradient; see the module's first lines."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        setting: tuple[Head, float, bool | Value],
    ) -> tuple[Tensor, Tensor]:
        head, temperature, with_entropy = setting
        ctx.set_materialize_grads(False)
        jacobian = ctx.needs_input_grad[0]
        online = _OnlineSoftmax(targets)
        sum_z = torch.zeros_like(online.target_z)
        sum_w = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device) if jacobian else None
        sum_zw = torch.zeros_like(sum_w) if sum_w is not None and with_entropy is True else None
        for start, end in _tiles(weight):
            z, slope = _logits(hidden, head, start, end, temperature)
            kept_z = z.clone() if with_entropy else z
            exp_z, rescale = online.fold(z, start)
            weighted_z = kept_z.mul_(exp_z) if with_entropy else None
            if weighted_z is not None:
                sum_z = sum_z * rescale + weighted_z.sum(1)
            if sum_w is not None:
                _fold_product(sum_w, rescale, _times(exp_z, slope), weight[start:end])
            if sum_zw is not None and weighted_z is not None:
                _fold_product(sum_zw, rescale, _times(weighted_z, slope), weight[start:end])
        log_z = online.log_z()
        entropy = log_z - sum_z / online.sum_exp if with_entropy else torch.zeros_like(log_z)
        jac_logp = jac_entropy = None
        if sum_w is not None:
            mean_w = sum_w / online.sum_exp[:, None]
            jac_logp = _target_rows(hidden, head, targets, temperature) - mean_w
            if sum_zw is not None:
                jac_entropy = (log_z - entropy)[:, None] * mean_w - sum_zw / online.sum_exp[:, None]
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy, jac_logp, jac_entropy)
        ctx.head, ctx.temperature = head, temperature
        return online.logp(), entropy

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy, jac_logp, jac_entropy = ctx.saved_tensors
        grad_hidden = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
            if grad_logp is not None:
                grad_hidden += grad_logp[:, None] * jac_logp
            if grad_entropy is not None and jac_entropy is not None:
                grad_hidden += grad_entropy[:, None] * jac_entropy
            grad_hidden = grad_hidden.to(hidden.dtype)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            grad_bias = torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device)
            head = Head(weight, bias, ctx.head.scale, ctx.head.softcap)
            for start, end in _tiles(weight):
                with _without_autocast(hidden):
                    z, slope = _logits(hidden, head, start, end, ctx.temperature)
                    grad = _logit_grad(z - log_z[:, None], entropy, targets - start, grad_logp, grad_entropy) * slope
                    grad_weight[start:end] = grad.t() @ hidden.float()
                grad_bias[start:end] = grad.sum(0)
            grad_weight = grad_weight.to(weight.dtype)
            grad_bias = grad_bias.to(bias.dtype) if bias is not None else None
        return grad_hidden, grad_weight, grad_bias, None, None


class _OnlineSoftmax:
    """Running log-sum-exp and target logit over consecutive tiles; each field is [N] fp32."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets
        self.target_z = torch.zeros(targets.shape, dtype=torch.float32, device=targets.device)
        self.maximum = torch.full_like(self.target_z, -torch.inf)
        self.sum_exp = torch.zeros_like(self.target_z)

    def fold(self, z: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Take one tile z, [N, columns from `start`]; turn it into exp(z − m) in place, and return it.

        The second value returned is the factor for sums kept so far, [N].
        """
        local = self.targets - start
        inside = (local >= 0) & (local < z.shape[1])
        at_target = z.gather(1, local.clamp(0, z.shape[1] - 1)[:, None])[:, 0]
        self.target_z = torch.where(inside, at_target, self.target_z)
        maximum = torch.maximum(self.maximum, z.amax(1))
        rescale = (self.maximum - maximum).exp()
        exp_z = z.sub_(maximum[:, None]).exp_()
        self.sum_exp = self.sum_exp * rescale + exp_z.sum(1)
        self.maximum = maximum
        return exp_z, rescale

    def log_z(self) -> Tensor:
        return self.maximum + self.sum_exp.log()

    def logp(self) -> Tensor:
        return (self.target_z - self.maximum) - self.sum_exp.log()


@contextmanager
def tiles_as_on(device_type: str) -> Iterator[None]:
    """Give the tiles of CPU tensors the width that they have on another device, to plan for it."""
    before = TILE_COLUMNS["cpu"]
    TILE_COLUMNS["cpu"] = TILE_COLUMNS.get(device_type, TILE_COLUMNS_ELSEWHERE)
    try:
        yield
    finally:
        TILE_COLUMNS["cpu"] = before


def _tiles(weight: Tensor) -> Iterator[tuple[int, int]]:
    width = TILE_COLUMNS.get(weight.device.type, TILE_COLUMNS_ELSEWHERE)
    for start in range(0, weight.shape[0], width):
        yield start, min(start + width, weight.shape[0])


def _without_autocast(x: Tensor) -> torch.autocast:
    """Return a context that disables autocast, so that products keep the precision of their inputs."""
    return torch.autocast(x.device.type, enabled=False)


def _matmul_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in fp32, without rounding to half precision on the way out."""
    if a.dtype == b.dtype == torch.float32:
        return a @ b
    if a.device.type == "cuda" and a.dtype == b.dtype and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _logits(hidden: Tensor, head: Head, start: int, end: int, temperature: float) -> tuple[Tensor, Tensor | float]:
    """Return the tile z / temperature, [N, end − start], and its derivative by the raw product h Wᵀ."""
    raw = _matmul_fp32(hidden, head.weight[start:end].t())
    if head.bias is not None:
        raw += head.bias[start:end].float()
    slope = head.scale / temperature
    if head.softcap is None:
        return (raw.mul_(slope) if slope != 1.0 else raw), slope
    tanh = raw.mul_(head.scale / head.softcap).tanh_()
    return tanh * (head.softcap / temperature), (1 - tanh.square()).mul_(slope)


def _fold_product(total: Tensor, rescale: Tensor, exp_z: Tensor, weight: Tensor) -> None:
    """Total ← rescale · total + exp_z @ weight, in place."""
    total.mul_(rescale[:, None])
    if weight.dtype == torch.float32:
        total.addmm_(exp_z, weight)
    else:
        total.add_(_matmul_fp32(exp_z.to(weight.dtype), weight))


def _times(x: Tensor, slope: Tensor | float) -> Tensor:
    return x if isinstance(slope, float) and slope == 1.0 else x * slope


def _target_rows(hidden: Tensor, head: Head, targets: Tensor, temperature: float) -> Tensor:
    """Return ∂z_y / ∂h for each token's own target, [N, H]."""
    rows = head.weight[targets].float()
    slope: Tensor | float = head.scale / temperature
    if head.softcap is not None:
        raw = (hidden.float() * rows).sum(1)
        if head.bias is not None:
            raw = raw + head.bias[targets].float()
        slope = ((1 - (raw * head.scale / head.softcap).tanh().square()) * slope)[:, None]
    return rows * slope


def _logit_grad(
    log_p: Tensor, entropy: Tensor, local_targets: Tensor, grad_logp: Tensor | None, grad_entropy: Tensor | None
) -> Tensor:
    """Return the loss's gradient by the tile's logits: g (1[v = y] − p_v) − g_H p_v (log p_v + H), [N, columns]."""
    p = log_p.exp()
    grad = torch.zeros_like(p)
    if grad_logp is not None:
        grad -= grad_logp[:, None] * p
        inside = (local_targets >= 0) & (local_targets < p.shape[1])
        at_target = grad_logp.masked_fill(~inside, 0.0)[:, None]
        grad.scatter_add_(1, local_targets.clamp(0, p.shape[1] - 1)[:, None], at_target)
    if grad_entropy is not None:
        grad -= grad_entropy[:, None] * p * (log_p + entropy[:, None])
    return grad
