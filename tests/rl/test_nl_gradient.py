"""Definition 1 and section 3.5: spans' δ as a gradient, and as a reward."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from text2grad.errors import ShapeError
from text2grad.rl.nl_gradient import at_last_token, is_last_token, nl_gradient_loss, total_rewards

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30, -7.0]
derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def mask_of(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def test_the_loss_by_hand() -> None:
    logp = torch.tensor([[-1.0, -2.0, -4.0], [-0.5, -8.0, -16.0]])
    delta = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]])
    mask = mask_of([3, 1], 3)
    # row 0: 1·(−1) + (−1)·(−2) + 0 = 1; row 1: (−1)·(−0.5) = 0.5, the rest is padding; −(1 + 0.5)/2 = −0.75
    assert nl_gradient_loss(logp, delta, mask).item() == -0.75


def test_a_positive_token_is_pushed_up_and_a_negative_one_down() -> None:
    logp = torch.full((1, 3), -1.0, requires_grad=True)
    nl_gradient_loss(logp, torch.tensor([[1.0, -1.0, 0.0]]), mask_of([3], 3)).backward()
    # a step of gradient descent adds −grad to log π: +1 where δ = +1, −1 where δ = −1
    assert torch.equal(-logp.grad, torch.tensor([[1.0, -1.0, 0.0]]))


def test_the_gradient_by_the_logits_is_the_closed_form_of_the_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(7, (2, 4), generator=generator)
    delta = torch.tensor([[1.0, -1.0, 0.0, 1.0], [-1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    mask = mask_of([4, 2], 4)
    logp = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    nl_gradient_loss(logp, delta, mask).backward()
    # ∂/∂z_v of −(1/B) Σ_t δ_t log softmax(z)_y = −(δ_t/B) (1[v = y] − p_v), and nothing in padding
    one_hot = torch.nn.functional.one_hot(ids, 7).double()
    expected = -(delta * mask)[..., None] * (one_hot - logits.detach().softmax(-1)) / 2
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-15)


def test_one_delta_for_all_tokens_is_reinforce() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(6, (3, 5), generator=generator)
    mask = mask_of([5, 3, 1], 5)
    reward = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    logp = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0]
    (ours,) = torch.autograd.grad(nl_gradient_loss(logp, reward[:, None].expand(3, 5), mask), logits)
    # REINFORCE: −E[R · log π(y | x)], the log-prob of the whole response being the sum over its tokens
    whole = torch.stack([logits[i, :n].log_softmax(-1)[range(n), ids[i, :n]].sum() for i, n in enumerate([5, 3, 1])])
    (reinforce,) = torch.autograd.grad(-(reward * whole).mean(), logits)
    torch.testing.assert_close(ours, reinforce, rtol=0, atol=1e-15)


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("where", ["logp", "delta", "both"])
def test_garbage_in_padding_changes_neither_the_loss_nor_its_gradient(garbage: float, where: str) -> None:
    mask = mask_of([2, 0, 3], 3)
    delta = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.5, 1.0, -1.0]])
    values = torch.tensor([[-1.0, -2.0, 0.0], [0.0, 0.0, 0.0], [-0.1, -0.2, -0.3]])

    def loss_and_grad(logp: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = logp.clone().requires_grad_()
        loss = nl_gradient_loss(logp, delta, mask)
        return loss.detach(), torch.autograd.grad(loss, logp)[0]

    clean = loss_and_grad(values, delta)
    dirty_logp = values.masked_fill(~mask, garbage) if where != "delta" else values
    dirty_delta = delta.masked_fill(~mask, garbage) if where != "logp" else delta
    dirty = loss_and_grad(dirty_logp, dirty_delta)
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])
    assert torch.equal(dirty[1][~mask], torch.zeros(int((~mask).sum())))


def test_a_row_without_tokens_adds_nothing_but_counts_in_the_batch() -> None:
    logp, delta = torch.tensor([[-3.0], [-5.0]]), torch.ones(2, 1)
    # −(−3)/2: the empty row's log-prob is padding, its place in the mean is not
    assert nl_gradient_loss(logp, delta, mask_of([1, 0], 1)).item() == 1.5


def test_tensors_of_different_shapes_are_refused() -> None:
    with pytest.raises(ShapeError) as error:
        nl_gradient_loss(torch.zeros(2, 5), torch.zeros(2, 4), torch.ones(2, 5, dtype=torch.bool))
    assert str(error.value) == "expected one shape [B, T], got logp [2, 5], delta [2, 4], response_mask [2, 5]"


def test_tensors_that_are_no_batch_are_refused() -> None:
    with pytest.raises(ShapeError) as error:
        nl_gradient_loss(torch.zeros(5), torch.zeros(5), torch.ones(5, dtype=torch.bool))
    assert str(error.value) == "expected one shape [B, T], got logp [5], delta [5], response_mask [5]"


def test_a_last_shape_alone_that_differs_is_refused() -> None:
    with pytest.raises(ShapeError) as error:
        total_rewards(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.bool), beta=0.1)
    assert str(error.value) == "expected one shape [B, T], got delta [2, 3], kl [2, 3], response_mask [1, 3]"


def test_the_kl_is_subtracted_from_the_reward() -> None:
    delta = torch.tensor([[1.0, -1.0, 0.0]])
    kl = torch.tensor([[0.5, 2.0, -1.0]])
    # r = δ − 0.1·KL: 1 − 0.05, −1 − 0.2, 0 + 0.1; k1 may be negative and then pays
    rewards = total_rewards(delta, kl, mask_of([3], 3), beta=0.1)
    torch.testing.assert_close(rewards, torch.tensor([[0.95, -1.2, 0.1]]))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_rewards_outside_the_mask_are_zero_whatever_stands_there(garbage: float) -> None:
    mask = mask_of([1, 0], 2)
    rewards = total_rewards(torch.tensor([[1.0, garbage]] * 2), torch.tensor([[3.0, garbage]] * 2), mask, beta=0.5)
    assert torch.equal(rewards, torch.tensor([[-0.5, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rewards_are_computed_in_fp32(dtype: torch.dtype) -> None:
    mask = mask_of([1], 1)
    rewards = total_rewards(torch.ones(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype), mask, beta=2**-12)
    # 1 − 2⁻¹² has no bf16, which keeps 8 bits
    assert rewards.dtype == torch.float32
    assert rewards.item() == 1 - 2**-12


def test_the_judgement_as_one_number_stands_on_the_last_token() -> None:
    delta = torch.tensor([[1.0, -3.0, 5.0], [1.0, 2.0, 4.0], [9.0, 9.0, 9.0], [-2.0, 9.0, 9.0]])
    moved = at_last_token(delta, mask_of([2, 3, 0, 1], 3))
    # row 0: 1 − 3 on token 1; row 1: all seven on token 2; row 2 has no token; row 3 has one, which keeps its own
    assert torch.equal(moved, torch.tensor([[0.0, -2.0, 0.0], [0.0, 0.0, 7.0], [0.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_padding_does_not_reach_the_last_token(garbage: float) -> None:
    moved = at_last_token(torch.tensor([[1.0, garbage], [garbage, garbage]]), mask_of([1, 0], 2))
    assert torch.equal(moved, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


@derandomized
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 2))
def test_moving_a_judgement_to_the_last_token_keeps_its_sum(lengths: list[int], extra: int) -> None:
    width = max(lengths) + extra
    mask = mask_of(lengths, width)
    delta = torch.arange(len(lengths) * width, dtype=torch.float32).reshape(len(lengths), width) - 3
    moved = at_last_token(delta, mask)
    assert torch.equal(moved.sum(1), (delta * mask).sum(1))
    last = is_last_token(mask)
    assert last.sum(1).tolist() == [int(n > 0) for n in lengths]
    assert all(last[row, n - 1] for row, n in enumerate(lengths) if n)
    assert not moved[~last].any()


def test_at_last_token_refuses_different_shapes() -> None:
    with pytest.raises(ShapeError) as error:
        at_last_token(torch.zeros(1, 3), torch.ones(1, 2, dtype=torch.bool))
    assert str(error.value) == "expected one shape [B, T], got delta [1, 3], response_mask [1, 2]"
