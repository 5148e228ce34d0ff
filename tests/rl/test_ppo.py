"""Clipped losses by hand, the laws that tie them to Definition 1, the KL's estimators and its controller."""

import math

import pytest
import torch

from text2grad.errors import ShapeError
from text2grad.rl.nl_gradient import nl_gradient_loss
from text2grad.rl.ppo import KLController, TokenMean, kl_loss, masked_token_mean, policy_loss, value_loss

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


def mask_of(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def one(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


# --------------------------------------------------------------------------------------------------------- policy loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        # ε = 0.2; loss = −min(ρA, clip(ρ, 0.8, 1.2)·A); ∂ρ/∂logp = ρ, so the gradient is −ρA where ρA is the minimum
        (1.5, 2.0, -2.4, 0.0, 1),  # good token, already likelier by half: min(3, 2.4), a constant
        (0.5, 2.0, -1.0, -1.0, 0),  # good token became rarer: min(1, 1.6), pulled back up
        (1.5, -2.0, 3.0, 3.0, 0),  # bad token became likelier: min(−3, −2.4), pushed down
        (0.5, -2.0, 1.6, 0.0, 1),  # bad token, already half as likely: min(−1, −1.6), a constant
        (1.1, 2.0, -2.2, -2.2, 0),  # inside the range nothing is clipped
        (0.9, -2.0, 1.8, 1.8, 0),
        (1.5, 0.0, 0.0, 0.0, 0),  # nothing to learn, so nothing is clipped either
    ],
)
def test_the_clipped_surrogate_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int
) -> None:
    logp = one(math.log(ratio) - 3.0).requires_grad_()
    out = policy_loss(
        logp, one(-3.0), one(advantage), torch.ones(1, 1, dtype=torch.bool), clip_range=0.2, token_count=1
    )
    (grad,) = torch.autograd.grad(out.loss, logp)
    assert out.loss.item() == pytest.approx(loss, abs=1e-12)
    assert grad.item() == pytest.approx(gradient, abs=1e-12)
    assert out.clipped_count.item() == clipped


def test_what_the_policy_loss_saw_is_counted_over_the_mask_alone() -> None:
    ratios = torch.tensor([[0.5, 0.25, 7.0], [0.75, 7.0, 7.0]], dtype=torch.float64)
    advantages = torch.tensor([[-1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]], dtype=torch.float64)
    out = policy_loss(
        ratios.log(), torch.zeros(2, 3).double(), advantages, mask_of([2, 1], 3), clip_range=0.2, token_count=10
    )
    # −(−0.8 + 0.25 − 0.8)/10; tokens 0.5 and 0.75 are clipped (A < 0 and below 0.8), 0.25 is not (A > 0)
    assert out.loss.item() == pytest.approx(0.135)
    assert out.clipped_count.item() == 2
    assert out.ratio_sum.item() == pytest.approx(0.5 + 0.25 + 0.75)
    assert out.ratio_max.item() == pytest.approx(0.75)  # padding, whose ratio would be 1 or 7, is not looked at
    # k3 of π_old against π_θ: Σ (ρ − 1 − log ρ) = (−0.5 + log 2) + (−0.75 + log 4) + (−0.25 + log 4/3)
    assert out.approx_kl_sum.item() == pytest.approx(-1.5 + math.log(2 * 4 * 4 / 3))
    assert not any(seen.requires_grad for seen in out[1:])


def test_counts_carry_no_gradient() -> None:
    logp = torch.zeros(1, 2, requires_grad=True)
    out = policy_loss(
        logp, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), clip_range=0.2, token_count=2
    )
    assert out.loss.requires_grad
    assert not any(seen.requires_grad for seen in out[1:])


def test_at_ratio_one_the_gradient_of_the_surrogate_is_the_nl_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(6, (3, 4), generator=generator)
    delta = torch.randint(-1, 2, (3, 4), generator=generator).double()
    mask = mask_of([4, 1, 3], 4)
    logp = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    out = policy_loss(logp, logp.detach(), delta, mask, clip_range=0.2, token_count=8)
    (surrogate,) = torch.autograd.grad(out.loss, logits, retain_graph=True)
    (definition,) = torch.autograd.grad(nl_gradient_loss(logp, delta, mask), logits)
    # ρ = 1 has ∂ρ = ∂ log π. PPO divides by the 8 tokens, Definition 1 averages over the 3 responses.
    torch.testing.assert_close(surrogate * 8, definition * 3, rtol=0, atol=1e-14)
    assert out.clipped_count.item() == 0


@pytest.mark.parametrize("parts", [[[0], [1], [2], [3]], [[0, 3], [1, 2]], [[2], [0, 1, 3]]])
def test_micro_batches_change_no_gradient(parts: list[list[int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [5, 0, 2, 3]
    mask, count = mask_of(lengths, 5), float(sum(lengths))
    x = [torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(6)]
    weight = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)

    def loss(rows: list[int]) -> torch.Tensor:
        logp = -2 + 0.3 * weight[0] * x[0][rows]
        values = weight[1] * x[1][rows]
        policy = policy_loss(logp, -2 + 0.1 * x[2][rows], x[3][rows], mask[rows], clip_range=0.2, token_count=count)
        value = value_loss(values, x[4][rows], x[5][rows], mask[rows], clip_range=0.5, token_count=count)
        bonus = masked_token_mean(logp.exp(), mask[rows], token_count=count)
        return policy.loss + 0.1 * value - 0.01 * bonus

    (whole,) = torch.autograd.grad(loss([0, 1, 2, 3]), weight)
    split = sum(torch.autograd.grad(loss(rows), weight)[0] for rows in parts)
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_padding_changes_neither_the_policy_loss_nor_its_gradient(garbage: float) -> None:
    mask = mask_of([2, 0, 3], 3)
    generator = torch.Generator().manual_seed(0)
    clean = [torch.randn(3, 3, generator=generator).masked_fill(~mask, 0.0) for _ in range(3)]

    def run(logp: torch.Tensor, logp_old: torch.Tensor, advantages: torch.Tensor) -> list[torch.Tensor]:
        logp = logp.clone().requires_grad_()
        out = policy_loss(logp, logp_old, advantages, mask, clip_range=0.2, token_count=5)
        return [*(x.detach() for x in out), *torch.autograd.grad(out.loss, logp)]

    for where in range(3):
        dirty = [x.masked_fill(~mask, garbage) if k == where else x for k, x in enumerate(clean)]
        assert all(torch.equal(a, b) for a, b in zip(run(*clean), run(*dirty), strict=True))
    dirty = [x.masked_fill(~mask, garbage) for x in clean]
    assert all(torch.equal(a, b) for a, b in zip(run(*clean), run(*dirty), strict=True))


@pytest.mark.parametrize(("gap", "limit"), [(1000.0, 20.0), (-1000.0, -20.0)])
def test_a_ratio_beyond_all_bounds_is_cut_before_it_overflows(gap: float, limit: float) -> None:
    logp = one(gap).requires_grad_()
    out = policy_loss(logp, one(0.0), one(-1.0), torch.ones(1, 1, dtype=torch.bool), clip_range=0.2, token_count=1)
    # A = −1: −min(−ρ, −clip(ρ)) = max(ρ, clip(ρ)), that is e^20 above and 0.8 below
    assert out.loss.item() == pytest.approx(max(math.exp(limit), 0.8))
    assert out.ratio_max.item() == pytest.approx(math.exp(limit))
    assert torch.isfinite(torch.autograd.grad(out.loss, logp)[0]).all()


@pytest.mark.parametrize("width", [0, 2])
def test_a_batch_of_empty_responses_has_no_policy_loss(width: int) -> None:
    logp = torch.zeros(2, width, requires_grad=True)
    out = policy_loss(
        logp, torch.zeros(2, width), torch.ones(2, width), mask_of([0, 0], width), clip_range=0.2, token_count=1
    )
    out.loss.backward()
    assert [x.item() for x in out] == [0.0, 0.0, 1.0, 0, 0.0]  # with no token to differ, the largest ratio is 1
    assert not logp.grad.any()


def test_policy_loss_refuses_different_shapes() -> None:
    a = torch.zeros(2, 3)
    with pytest.raises(ShapeError) as error:
        policy_loss(a, a, torch.zeros(2, 1), a.bool(), clip_range=0.2, token_count=1)
    assert str(error.value) == (
        "expected one shape [B, T], got logp [2, 3], logp_old [2, 3], advantages [2, 1], response_mask [2, 3]"
    )


# ---------------------------------------------------------------------------------------------------------- value loss


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        (1.0, 0.9, 3.0, 0.2, 2.0, -2.0),  # moved by 0.1 < 0.2: ½(1 − 3)²; gradient V − R
        (2.0, 0.0, 3.0, 0.5, 3.125, 0.0),  # ran 2 towards R: ½ max(1, (0.5 − 3)²) is a constant
        (-2.0, 0.0, 3.0, 0.5, 12.5, -5.0),  # ran away from R: ½ max(25, (−0.5 − 3)²), pulled back
        (2.0, 0.0, 3.0, None, 0.5, -1.0),  # unclipped: ½(2 − 3)²
        (4.0, 0.0, 0.0, 0.5, 8.0, 4.0),  # the other side: ½ max(16, 0.25)
        (-1.0, 0.0, -3.0, 0.5, 3.125, 0.0),  # ran towards R downwards: ½ max(4, (−0.5 + 3)²)
    ],
)
def test_the_clipped_value_loss_by_hand(
    value: float, old: float, target: float, clip: float | None, loss: float, gradient: float
) -> None:
    values = one(value).requires_grad_()
    mask = torch.ones(1, 1, dtype=torch.bool)
    got = value_loss(values, one(old), one(target), mask, clip_range=clip, token_count=1)
    (grad,) = torch.autograd.grad(got, values)
    assert got.item() == pytest.approx(loss, abs=1e-12)
    assert grad.item() == pytest.approx(gradient, abs=1e-12)


def test_the_value_loss_divides_by_the_tokens_of_the_whole_batch() -> None:
    values, none = torch.tensor([[2.0, 4.0, 9.0]]), torch.zeros(1, 3)
    # ½(4 + 16)/8; the third is padding, eight is what the caller counts over all processes
    assert value_loss(values, none, none, mask_of([2], 3), clip_range=None, token_count=8).item() == 1.25


@pytest.mark.parametrize("clip", [0.2, None])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_padding_changes_neither_the_value_loss_nor_its_gradient(garbage: float, clip: float | None) -> None:
    mask = mask_of([2, 0, 3], 3)
    generator = torch.Generator().manual_seed(0)
    clean = [torch.randn(3, 3, generator=generator).masked_fill(~mask, 0.0) for _ in range(3)]

    def run(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor) -> list[torch.Tensor]:
        values = values.clone().requires_grad_()
        loss = value_loss(values, old, returns, mask, clip_range=clip, token_count=5)
        return [loss.detach(), *torch.autograd.grad(loss, values)]

    for where in range(3):
        dirty = [x.masked_fill(~mask, garbage) if k == where else x for k, x in enumerate(clean)]
        assert all(torch.equal(a, b) for a, b in zip(run(*clean), run(*dirty), strict=True))


def test_value_loss_refuses_different_shapes() -> None:
    a = torch.zeros(2, 3)
    with pytest.raises(ShapeError) as error:
        value_loss(a, torch.zeros(2, 2), a, a.bool(), clip_range=None, token_count=1)
    assert str(error.value) == (
        "expected one shape [B, T], got values [2, 3], values_old [2, 2], returns [2, 3], response_mask [2, 3]"
    )


# ------------------------------------------------------------------------------------------------------- entropy bonus


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_token_mean_divides_by_the_callers_count_and_ignores_padding(garbage: float) -> None:
    x = torch.tensor([[1.0, 2.0], [4.0, garbage]], requires_grad=True)
    mean = masked_token_mean(x, mask_of([2, 1], 2), token_count=14)
    mean.backward()
    assert mean.item() == 0.5  # (1 + 2 + 4)/14
    assert torch.equal(x.grad, torch.tensor([[1.0, 1.0], [1.0, 0.0]]) / 14)


def test_subtracting_the_entropy_bonus_from_a_loss_flattens_the_policy() -> None:
    logits = torch.tensor([[[2.0, 0.0, -1.0]]], dtype=torch.float64, requires_grad=True)

    def entropy() -> torch.Tensor:
        logp = logits.log_softmax(-1)
        return -(logp.exp() * logp).sum(-1)

    before = entropy()
    bonus = masked_token_mean(before, torch.ones(1, 1, dtype=torch.bool), token_count=1)
    (gradient,) = torch.autograd.grad(-bonus, logits)
    with torch.no_grad():
        logits -= 0.1 * gradient
    assert entropy().item() > before.item()


def test_a_token_mean_refuses_different_shapes() -> None:
    with pytest.raises(ShapeError) as error:
        masked_token_mean(torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool), token_count=1)
    assert str(error.value) == "expected one shape [B, T], got x [2, 3], response_mask [2, 2]"


# ------------------------------------------------------------------------------------------------------------------ KL


@pytest.mark.parametrize(
    ("kl", "responses", "beta"),
    [
        (12.0, 1_000, 0.204),  # twice the target: error 1, clipped to 0.2; 0.2·(1 + 0.2·0.1)
        (0.0, 1_000, 0.196),  # error −1, clipped to −0.2
        (6.6, 1_000, 0.202),  # error 0.1: 0.2·(1 + 0.1·0.1)
        (5.4, 1_000, 0.198),
        (6.0, 1_000, 0.2),
        (1e9, 10**9, 0.24),  # never by more than a fifth a step
        (-50.0, 10**9, 0.16),  # sampled KL can be negative
    ],
)
def test_the_controller_steers_beta_by_hand(kl: float, responses: int, beta: float) -> None:
    controller = KLController(beta=0.2, target_kl=6.0, horizon=10_000)
    controller.update(kl, responses)
    assert controller.beta == pytest.approx(beta, rel=1e-12)


def test_without_a_target_beta_stays_where_it_is() -> None:
    controller = KLController(beta=0.2)
    controller.update(1e9, 10**9)
    assert controller.beta == 0.2


def test_the_controller_brings_the_kl_to_its_target() -> None:
    controller = KLController(beta=0.01, target_kl=2.0, horizon=100)
    for _ in range(400):
        controller.update(1 / controller.beta, 20)  # a policy whose KL is 1/β; its target is met at β = ½
    assert controller.beta == pytest.approx(0.5, rel=1e-3)


# --- Means over tokens, and the KL term in the loss -------------------------------------------------------------------


def test_the_three_means_by_hand() -> None:
    x = torch.tensor([[1.0, 3.0, 9.0], [5.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    # tokens: (1 + 3 + 5)/3; responses: ((1 + 3)/2 + 5)/2; constant: (1 + 3 + 5)/(2 · 4)
    for mean, expected in ((TokenMean(), 3.0), (TokenMean("response"), 3.5), (TokenMean("constant", 4), 9 / 8)):
        weights = mean.weights(mask, token_count=3.0, row_count=2.0)
        assert float((weights * x).sum() / 3.0) == pytest.approx(expected)


def test_the_kl_term_of_the_loss_by_hand() -> None:
    logp = torch.log(torch.tensor([[0.5, 0.2]])).requires_grad_()
    logp_ref = torch.log(torch.tensor([[0.25, 0.2]]))
    mask, weights = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[3.0, 1.0]])
    loss = kl_loss(logp, logp_ref, mask, weights, token_count=2.0)
    # k3 = ½ − 1 − log ½ = 0.1931 on the first token, 0 on the second; · 3 / 2
    assert float(loss.detach()) == pytest.approx(3 * (0.5 - 1 - math.log(0.5)) / 2)
    loss.backward()
    # d k3 / d log π = 1 − π_ref/π: lowering π towards π_ref lowers the loss
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, torch.tensor([[3 * 0.5 / 2, 0.0]]))


@pytest.mark.parametrize("wrong", range(4))
def test_a_kl_loss_of_other_shapes_is_refused(wrong: int) -> None:
    given = [torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3)]
    given[wrong] = given[wrong][:1]  # it would be spread over both rows
    with pytest.raises(ShapeError):
        kl_loss(*given, token_count=6.0)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_padding_changes_no_kl_loss(garbage: float) -> None:
    mask = torch.tensor([[True, False]])
    weights = TokenMean("response").weights(mask, token_count=1.0, row_count=1.0)
    values = [
        kl_loss(torch.tensor([[-1.0, x]]), torch.tensor([[-2.0, x]]), mask, weights, token_count=1.0)
        for x in (0.0, garbage)
    ]
    assert torch.equal(*values)
