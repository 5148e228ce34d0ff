"""Tiles against plain torch in fp64, against TRL's kernel, and against memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trl.kernels import ChunkedLogProbFunction

from text2grad.models import logprobs
from text2grad.models.logprobs import Head, pair_logprobs, sampled_pair, token_logprobs

N, H, V = 9, 5, 37

# softcap, scale, temperature, bias: every factor alone and all at once
SETTINGS = [
    (None, 1.0, 1.0, False),
    (None, 1.0, 1.0, True),
    (None, 0.25, 1.0, True),
    (None, 1.0, 0.6, False),
    (2.0, 1.0, 1.0, False),
    (2.0, 1.5, 0.6, True),
    (None, 3.0, 1.7, True),
]
TILES = [1, 7, 36, 37, 1024]  # one column; V not a multiple; one column left over; exact; wider than V


@pytest.fixture(params=TILES)
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(logprobs.TILE_COLUMNS, "cpu", request.param)
    return request.param


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(logprobs.TILE_COLUMNS, "cpu", 7)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def targets_of(n: int = N, vocab: int = V) -> Tensor:
    ids = torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(99))
    ids[0], ids[1], ids[2] = 0, vocab - 1, 7 % vocab  # both ends, and the first column of a second tile
    return ids


def plain_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None, scale: float, temperature: float
) -> Tensor:
    """Return the logits the long way, [N, V] fp64: what the tiles never hold."""
    z = hidden.double() @ weight.double().t()
    z = (z if bias is None else z + bias.double()) * scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    return z / temperature


def plain(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logp = logits.log_softmax(-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def inputs(with_bias: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    made = [1.5 * draw(0, N, H, dtype=dtype), draw(1, V, H, dtype=dtype), draw(2, V, dtype=dtype)]
    return [x.requires_grad_() for x in made[: 3 if with_bias else 2]]


@pytest.mark.parametrize(("softcap", "scale", "temperature", "with_bias"), SETTINGS)
@pytest.mark.parametrize("with_entropy", [False, True])
def test_log_probs_entropy_and_every_gradient_equal_plain_torch(
    softcap: float | None, scale: float, temperature: float, with_bias: bool, with_entropy: bool, tile: int
) -> None:
    leaves, targets = inputs(with_bias), targets_of()
    hidden, weight, bias = [*leaves, None][:3]
    head = Head(weight, bias, scale, softcap)
    ours = token_logprobs(hidden, head, targets, temperature=temperature, with_entropy=with_entropy)
    logp, entropy = plain(plain_logits(hidden, weight, bias, softcap, scale, temperature), targets)
    assert ours.logp.dtype == ours.entropy.dtype == torch.float32
    torch.testing.assert_close(ours.logp.double(), logp, rtol=1e-5, atol=1e-5)
    expected_entropy = entropy if with_entropy else torch.zeros_like(entropy)
    torch.testing.assert_close(ours.entropy.double(), expected_entropy, rtol=1e-5, atol=1e-5)

    g_logp, g_entropy = draw(3, N), draw(4, N) if with_entropy else torch.zeros(N)
    got = torch.autograd.grad((g_logp * ours.logp).sum() + (g_entropy * ours.entropy).sum(), leaves)
    want = torch.autograd.grad((g_logp * logp).sum() + (g_entropy * entropy).sum(), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("wanted", ["logp", "entropy"])
@pytest.mark.parametrize(("softcap", "scale", "temperature", "with_bias"), SETTINGS[-2:])
def test_each_output_alone_has_its_own_gradient(
    wanted: str, softcap: float | None, scale: float, temperature: float, with_bias: bool, narrow: None
) -> None:
    leaves, targets = inputs(with_bias), targets_of()
    hidden, weight, bias = leaves
    ours = token_logprobs(
        hidden, Head(weight, bias, scale, softcap), targets, temperature=temperature, with_entropy=True
    )
    logp, entropy = plain(plain_logits(hidden, weight, bias, softcap, scale, temperature), targets)
    incoming = draw(3, N)
    got = torch.autograd.grad((incoming * getattr(ours, wanted)).sum(), leaves)
    want = torch.autograd.grad((incoming * {"logp": logp, "entropy": entropy}[wanted]).sum(), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trained", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}])
def test_only_what_is_trained_gets_a_gradient(trained: set[int], narrow: None) -> None:
    leaves = [x.detach().requires_grad_(k in trained) for k, x in enumerate(inputs(True))]
    targets = targets_of()
    ours = token_logprobs(leaves[0], Head(leaves[1], leaves[2], 1.5, 2.0), targets, with_entropy=True)
    (ours.logp + 0.3 * ours.entropy).sum().backward()
    got = [x.grad for x in leaves]
    for leaf in leaves:
        leaf.grad = None
    logp, entropy = plain(plain_logits(*leaves, 2.0, 1.5, 1.0), targets)
    (logp + 0.3 * entropy).sum().backward()
    for k, (ours_grad, leaf) in enumerate(zip(got, leaves, strict=True)):
        assert (ours_grad is not None) == (k in trained)
        if ours_grad is not None:
            torch.testing.assert_close(ours_grad, leaf.grad, rtol=2e-5, atol=2e-5)


def test_a_tied_weight_gets_the_gradients_of_both_its_uses(narrow: None) -> None:
    weight, targets = draw(1, V, H).requires_grad_(), targets_of()
    (ours,) = torch.autograd.grad(token_logprobs(weight[targets], Head(weight), targets.flip(0)).logp.sum(), weight)
    logp, _ = plain(plain_logits(weight[targets], weight, None, None, 1.0, 1.0), targets.flip(0))
    (expected,) = torch.autograd.grad(logp.sum(), weight)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("softcap", "scale", "temperature", "with_bias"), SETTINGS)
def test_trls_kernel_agrees(
    softcap: float | None, scale: float, temperature: float, with_bias: bool, narrow: None
) -> None:
    leaves, targets = inputs(with_bias), targets_of()
    hidden, weight, bias = [*leaves, None][:3]
    ours = token_logprobs(
        hidden, Head(weight, bias, scale, softcap), targets, temperature=temperature, with_entropy=True
    )
    theirs = ChunkedLogProbFunction.apply(hidden, weight, bias, targets, temperature, 16, softcap, scale, ("entropy",))
    torch.testing.assert_close(ours.logp, theirs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.entropy, theirs[1], rtol=1e-5, atol=1e-5)
    incoming = draw(3, N)
    got = torch.autograd.grad((incoming * (ours.logp + 0.5 * ours.entropy)).sum(), leaves)
    want = torch.autograd.grad((incoming * (theirs[0] + 0.5 * theirs[1])).sum(), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def test_the_gradient_is_the_limit_of_a_difference(narrow: None) -> None:
    leaves, targets = [x.detach() for x in inputs(True)], targets_of()
    way = [draw(10 + k, *x.shape) for k, x in enumerate(leaves)]

    def total(step: float) -> Tensor:
        hidden, weight, bias = (x + step * w for x, w in zip(leaves, way, strict=True))
        stats = token_logprobs(hidden, Head(weight, bias, 1.5, 2.0), targets, temperature=0.6, with_entropy=True)
        return stats.logp.double().sum() + stats.entropy.double().sum()

    for x in leaves:
        x.requires_grad_()
    slope = sum(
        (g * w).sum().item() for g, w in zip(torch.autograd.grad(total(0.0), leaves), way, strict=True)
    )  # along `way`
    assert slope == pytest.approx((total(1e-2) - total(-1e-2)).item() / 2e-2, rel=1e-2)


@pytest.mark.parametrize(("softcap", "scale", "temperature", "with_bias"), SETTINGS)
def test_policy_beside_reference_equals_plain_torch(
    softcap: float | None, scale: float, temperature: float, with_bias: bool, tile: int
) -> None:
    hidden, weight, bias = [*(x.detach() for x in inputs(with_bias)), None][:3]
    hidden_ref, weight_ref, targets = draw(5, N, H + 2), draw(6, V, H + 2), targets_of()
    head, head_ref = Head(weight, bias, scale, softcap), Head(weight_ref, None, 0.7, None)
    logits = plain_logits(hidden, weight, bias, softcap, scale, temperature)
    logits_ref = plain_logits(hidden_ref, weight_ref, None, None, 0.7, temperature)
    logp, entropy = plain(logits, targets)
    logp_ref, _ = plain(logits_ref, targets)
    log_p, log_q = logits.log_softmax(-1), logits_ref.log_softmax(-1)
    exact = (log_p.exp() * (log_p - log_q)).sum(-1)

    full = pair_logprobs(hidden, head, hidden_ref, head_ref, targets, temperature=temperature)
    sampled = sampled_pair(hidden, head, hidden_ref, head_ref, targets, temperature=temperature)
    for pair, kl in ((full, exact), (sampled, logp - logp_ref)):
        for ours, expected in zip(pair, (logp, logp_ref, kl, entropy), strict=True):
            assert ours.dtype == torch.float32
            assert not ours.requires_grad
            torch.testing.assert_close(ours.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("measure", [pair_logprobs, sampled_pair])
def test_a_policy_that_is_its_reference_has_a_kl_of_exactly_zero(measure: Callable[..., Any], tile: int) -> None:
    hidden, weight, bias = (x.detach() for x in inputs(True))
    head = Head(weight, bias, 1.5, 2.0)
    pair = measure(hidden, head, hidden.clone(), head, targets_of(), temperature=0.6)
    assert torch.equal(pair.kl, torch.zeros(N))
    assert torch.equal(pair.logp, pair.logp_ref)


def test_all_ways_to_a_log_prob_give_the_same_bits(tile: int) -> None:
    hidden, weight, bias = (x.detach() for x in inputs(True))
    head, targets = Head(weight, bias, 1.5, 2.0), targets_of()
    trained = token_logprobs(hidden.clone().requires_grad_(), head, targets, temperature=0.6).logp.detach()
    with_entropy = token_logprobs(hidden, head, targets, temperature=0.6, with_entropy=True).logp
    full = pair_logprobs(hidden, head, hidden + 1, head, targets, temperature=0.6).logp
    sampled = sampled_pair(hidden, head, hidden + 1, head, targets, temperature=0.6).logp
    # so that the first ratio of an update is 1 and not 1 ± noise
    assert torch.equal(trained, with_entropy)
    assert torch.equal(trained, full)
    assert torch.equal(trained, sampled)


def test_an_entropy_that_is_a_value_alone_has_the_same_bits_and_no_gradient(narrow: None) -> None:
    grads, stats = [], []
    for with_entropy in (True, "value"):
        hidden, weight = inputs(with_bias=False)
        head = Head(weight.detach())
        found = token_logprobs(hidden, head, targets_of(), with_entropy=with_entropy)  # type: ignore[arg-type]
        both = found.logp + found.entropy if with_entropy == "value" else found.logp
        both.sum().backward()
        grads.append(hidden.grad)
        stats.append(found)
    assert all(torch.equal(*pair) for pair in zip(*stats, strict=True))
    assert torch.equal(grads[0], grads[1])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_logits_of_ten_thousand_neither_overflow_nor_lose_a_nat(order: list[int], tile: int) -> None:
    # z = h·W with h = 1: −10⁴, 10⁴, 10⁴ + 1, 0 in some order; p = (0, 1, e, 0)/(1 + e)
    logits = torch.tensor([-1e4, 1e4, 1e4 + 1, 0.0])
    weight = logits[order][:, None].clone().requires_grad_()
    hidden = torch.ones(4, 1, requires_grad=True)
    targets = torch.tensor([order.index(k) for k in range(4)])
    stats = token_logprobs(hidden, Head(weight), targets, with_entropy=True)
    log_sum = torch.tensor(1e4, dtype=torch.float64) + torch.tensor(1.0, dtype=torch.float64).exp().log1p()
    torch.testing.assert_close(stats.logp.double(), logits.double() - log_sum, rtol=1e-6, atol=1e-6)
    entropy = plain(logits.double()[None], torch.tensor([0]))[1].item()
    torch.testing.assert_close(stats.entropy, torch.full((4,), entropy), rtol=0, atol=4e-3)  # fp32 at 10⁴: 10⁻³ apart
    stats.logp.sum().backward()
    assert torch.isfinite(hidden.grad).all()
    # ∂/∂W_v of Σ log p(y) over four targets, one each: 1 − 4 p_v
    expected = 1 - 4 * torch.tensor([0, 1, torch.e, 0])[order] / (1 + torch.e)
    torch.testing.assert_close(weight.grad[:, 0], expected, rtol=0, atol=2e-3)


def test_a_saturated_soft_cap_lets_no_gradient_through(narrow: None) -> None:
    hidden, weight = torch.full((1, 1), 1e4, requires_grad=True), torch.linspace(-1, 1, V)[:, None].requires_grad_()
    stats = token_logprobs(hidden, Head(weight, None, 1.0, 30.0), torch.tensor([0]), with_entropy=True)
    # all logits stand at ±30 but the one in the middle, at 0: p(y) = e^−30 / (18 e^−30 + 1 + 18 e^30)
    assert stats.logp.item() == pytest.approx(-60 - torch.tensor(18.0).log().item(), abs=1e-4)
    stats.logp.sum().backward()
    assert hidden.grad.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("softcap", "scale", "temperature", "with_bias"), SETTINGS[-2:])
def test_other_dtypes_come_out_as_fp32_and_gradients_in_their_own(
    dtype: torch.dtype, softcap: float | None, scale: float, temperature: float, with_bias: bool, narrow: None
) -> None:
    leaves, targets = inputs(with_bias, dtype), targets_of()
    hidden, weight, bias = leaves
    head = Head(weight, bias, scale, softcap)
    ours = token_logprobs(hidden, head, targets, temperature=temperature, with_entropy=True)
    logp, entropy = plain(plain_logits(hidden, weight, bias, softcap, scale, temperature), targets)
    # the products are made in fp32 from what is stored, so bf16 costs nothing here
    assert ours.logp.dtype == ours.entropy.dtype == torch.float32
    torch.testing.assert_close(ours.logp.double(), logp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    pair = pair_logprobs(hidden, head, hidden + 1, head, targets, temperature=temperature)
    torch.testing.assert_close(pair.logp.double(), logp, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad((ours.logp + 0.5 * ours.entropy).sum(), leaves)
    want = torch.autograd.grad((logp + 0.5 * entropy).sum(), leaves)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 2e-5  # bf16 keeps eight bits of a gradient
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


def test_autocast_does_not_round_the_products(narrow: None) -> None:
    hidden, weight, bias = inputs(True)
    head, targets = Head(weight, bias, 1.5, 2.0), targets_of()
    outside = token_logprobs(hidden, head, targets, with_entropy=True)
    outside_grads = torch.autograd.grad(outside.logp.sum() + outside.entropy.sum(), (hidden, weight, bias))
    outside_pair = pair_logprobs(hidden, head, hidden + 1, head, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = token_logprobs(hidden, head, targets, with_entropy=True)
        inside_pair = pair_logprobs(hidden, head, hidden + 1, head, targets)
        inside_grads = torch.autograd.grad(inside.logp.sum() + inside.entropy.sum(), (hidden, weight, bias))
    for a, b in zip((*outside, *outside_grads, *outside_pair), (*inside, *inside_grads, *inside_pair), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_no_tokens_at_all_are_no_tokens(narrow: None) -> None:
    leaves = inputs(True)
    hidden = leaves[0][:0]
    head, none = Head(leaves[1], leaves[2], 1.5, 2.0), torch.zeros(0, dtype=torch.int64)
    stats = token_logprobs(hidden, head, none, with_entropy=True)
    (stats.logp.sum() + stats.entropy.sum()).backward()
    assert list(stats.logp.shape) == list(stats.entropy.shape) == [0]
    assert all(not leaf.grad.any() for leaf in leaves)
    for measure in (pair_logprobs, sampled_pair):
        assert all(list(x.shape) == [0] for x in measure(hidden, head, hidden, head, none))


# -------------------------------------------------------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """Remembers the shapes of every tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.shapes += [tuple(x.shape) for x in tree_leaves(out) if isinstance(x, Tensor)]
        return out

    def numel(self) -> int:
        return max(torch.Size(shape).numel() for shape in self.shapes)


BIG_N, BIG_H, BIG_V, BIG_TILE = 128, 8, 1_024, 64


@pytest.fixture
def big(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor]:
    monkeypatch.setitem(logprobs.TILE_COLUMNS, "cpu", BIG_TILE)
    return draw(0, BIG_N, BIG_H).requires_grad_(), draw(1, BIG_V, BIG_H), targets_of(BIG_N, BIG_V)


def test_the_watcher_sees_the_tensor_that_plain_torch_makes(big: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, weight, targets = big
    with Largest() as seen:
        plain(plain_logits(hidden, weight, None, None, 1.0, 1.0), targets)[0].sum().backward()
    assert seen.numel() == BIG_N * BIG_V


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("frozen", [True, False])
def test_no_tensor_is_larger_than_a_tile_or_the_weight(
    softcap: float | None, frozen: bool, big: tuple[Tensor, Tensor, Tensor]
) -> None:
    hidden, weight, targets = big
    weight.requires_grad_(not frozen)
    head = Head(weight, draw(2, BIG_V), 1.5, softcap)
    with Largest() as seen:
        stats = token_logprobs(hidden, head, targets, temperature=0.6, with_entropy=True)
        (stats.logp + 0.1 * stats.entropy).sum().backward()
    assert hidden.grad is not None
    assert (weight.grad is None) == frozen
    assert seen.numel() == max(BIG_N * BIG_TILE, BIG_V * BIG_H) == BIG_N * BIG_V // 16


@pytest.mark.parametrize("measure", [pair_logprobs, sampled_pair])
def test_policy_beside_reference_needs_no_larger_tensor(
    measure: Callable[..., Any], big: tuple[Tensor, Tensor, Tensor]
) -> None:
    hidden, weight, targets = big
    head = Head(weight, None, 1.0, 2.0)
    with Largest() as seen:
        measure(hidden.detach(), head, hidden.detach() + 1, head, targets)
    assert seen.numel() == BIG_N * BIG_TILE


def test_a_frozen_head_computes_no_logit_again_in_the_backward_pass(big: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, weight, targets = big
    stats = token_logprobs(hidden, Head(weight), targets, with_entropy=True)
    with Largest() as seen:
        (stats.logp + 0.1 * stats.entropy).sum().backward()
    assert seen.numel() == BIG_N * BIG_H


def test_no_gradient_asked_no_jacobian_kept(big: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, weight, targets = big
    hidden = hidden.detach()
    with Largest() as seen:
        token_logprobs(hidden, Head(weight), targets, with_entropy=True)
    assert (BIG_N, BIG_H) not in seen.shapes


def test_an_accelerator_takes_wider_tiles() -> None:
    weight = torch.empty(40_000, 1, device="meta")
    # no entry for its device: 16,384 columns at a time
    assert list(logprobs._tiles(weight)) == [(0, 16_384), (16_384, 32_768), (32_768, 40_000)]
    assert list(logprobs._tiles(torch.empty(1_025, 1))) == [(0, 1_024), (1_024, 1_025)]
