"""GAE against the double sum of its definition, Appendix A's law, and whitening."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st

from text2grad.config import PPOConfig
from text2grad.errors import ShapeError
from text2grad.models.batch import collate
from text2grad.rl.advantages import GROUP_EPS, advantages_over_baseline, discounts, gae, group_advantages, whiten
from text2grad.rl.nl_gradient import at_last_token
from text2grad.types import Example, Given, Rollout

GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]
derandomized = settings(derandomize=True, deadline=None, max_examples=100)


def mask_of(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def double_sum(
    rewards: list[float], values: list[float], gamma: float, lam: float, bootstrap: float = 0.0
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one unpadded response, as the definition prints them: O(T²), Python floats."""
    after = [*values[1:], bootstrap] if values else []
    td_error = [r + gamma * v_next - v for r, v_next, v in zip(rewards, after, values, strict=True)]
    steps = range(len(rewards))
    advantages = [sum((gamma * lam) ** (k - t) * td_error[k] for k in steps if k >= t) for t in steps]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def test_advantages_and_returns_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0, 2.0, 99.0]])
    values = torch.tensor([[0.5, 1.0, -1.0, 99.0]])
    out = gae(rewards, values, mask_of([3], 4), gamma=0.5, lam=0.5)
    # δ^TD: 1 + ½·1 − ½ = 1; 0 + ½·(−1) − 1 = −1.5; 2 + 0 + 1 = 3; γλ = ¼
    # A: 3; −1.5 + ¾ = −0.75; 1 − 0.1875 = 0.8125;   R = A + V
    assert torch.equal(out.advantages, torch.tensor([[0.8125, -0.75, 3.0, 0.0]]))
    assert torch.equal(out.returns, torch.tensor([[1.3125, 0.25, 2.0, 0.0]]))


numbers = st.floats(-4, 4, width=32)
shares = st.one_of(st.sampled_from([0.0, 1.0, 0.95, 0.5]), st.floats(0, 1))


@derandomized
@given(st.data(), st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(0, 2), shares, shares, st.booleans())
def test_gae_equals_the_double_sum_of_its_definition(
    data: st.DataObject, lengths: list[int], extra: int, gamma: float, lam: float, cut: bool
) -> None:
    width = max(lengths) + extra
    rows = st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=len(lengths), max_size=len(lengths))
    rewards, values = data.draw(rows), data.draw(rows)
    bootstrap = data.draw(st.lists(numbers, min_size=len(lengths), max_size=len(lengths)))
    out = gae(
        torch.tensor(rewards).reshape(len(lengths), width),
        torch.tensor(values).reshape(len(lengths), width),
        mask_of(lengths, width),
        gamma=gamma,
        lam=lam,
        bootstrap=torch.tensor(bootstrap) if cut else None,
    )
    for row, n in enumerate(lengths):
        end = bootstrap[row] if cut else 0.0
        advantages, returns = double_sum(rewards[row][:n], values[row][:n], gamma, lam, end)
        padding = [0.0] * (width - n)
        for ours, oracle in ((out.advantages, advantages), (out.returns, returns)):
            expected = torch.tensor(oracle + padding, dtype=torch.float64)
            torch.testing.assert_close(ours[row].double(), expected, rtol=1e-5, atol=1e-5)
            assert not ours[row, n:].any()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_at_lambda_one_the_returns_are_discounted_sums_of_rewards(gamma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 5, generator=generator), torch.randn(2, 5, generator=generator)
    lengths, bootstrap = [5, 3], torch.tensor([2.0, 0.0])
    out = gae(rewards, values, mask_of(lengths, 5), gamma=gamma, lam=1.0, bootstrap=bootstrap)
    for row, n in enumerate(lengths):
        for t in range(n):
            # R_t = Σ_k γ^(k−t) r_k + γ^(n−t) · bootstrap: the values telescope away
            expected = sum(gamma ** (k - t) * rewards[row, k].item() for k in range(t, n))
            expected += gamma ** (n - t) * bootstrap[row].item()
            assert out.returns[row, t].item() == pytest.approx(expected, abs=1e-5)


def test_at_lambda_zero_the_advantage_is_the_one_step_error() -> None:
    rewards, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    out = gae(rewards, values, mask_of([2], 2), gamma=1.0, lam=0.0)
    # 1 + 5 − 3 = 3; 2 + 0 − 5 = −3
    assert torch.equal(out.advantages, torch.tensor([[3.0, -3.0]]))


def test_a_cut_response_goes_on_with_the_bootstrap_after_its_last_token_only() -> None:
    zeros = torch.zeros(3, 3)
    bootstrap = torch.tensor([8.0, 8.0, 8.0])
    out = gae(zeros, zeros, mask_of([3, 1, 0], 3), gamma=0.5, lam=1.0, bootstrap=bootstrap)
    # row 0: ½·8 on the last token, then halved per step back; row 1 ends at token 0; row 2 has no token to pay
    assert torch.equal(out.advantages, torch.tensor([[1.0, 2.0, 4.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))


def test_a_bootstrap_of_zero_is_the_end_of_an_episode() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 3, generator=generator), torch.randn(2, 3, generator=generator)
    mask = mask_of([3, 2], 3)
    ended = gae(rewards, values, mask, gamma=0.9, lam=0.9)
    zero = gae(rewards, values, mask, gamma=0.9, lam=0.9, bootstrap=torch.zeros(2))
    assert torch.equal(ended.advantages, zero.advantages)
    assert torch.equal(ended.returns, zero.returns)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_padding_changes_no_advantage(garbage: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = mask_of([2, 0, 4], 4)
    rewards = torch.randn(3, 4, generator=generator).masked_fill(~mask, 0.0)
    values = torch.randn(3, 4, generator=generator).masked_fill(~mask, 0.0)
    bootstrap = torch.tensor([1.0, 0.0, 2.0])
    clean = gae(rewards, values, mask, gamma=0.9, lam=0.8, bootstrap=bootstrap)
    dirty_bootstrap = torch.tensor([1.0, garbage, 2.0])  # an empty response has no token after which to go on
    dirty = gae(
        rewards.masked_fill(~mask, garbage),
        values.masked_fill(~mask, garbage),
        mask,
        gamma=0.9,
        lam=0.8,
        bootstrap=dirty_bootstrap,
    )
    assert torch.equal(clean.advantages, dirty.advantages)
    assert torch.equal(clean.returns, dirty.returns)


def test_half_precision_inputs_are_summed_in_fp32() -> None:
    # 1 + 2⁻⁹ needs ten bits: in bf16 the running sum would lose the last reward
    rewards = torch.tensor([[1.0, 2**-9]], dtype=torch.bfloat16)
    values = torch.zeros(1, 2, dtype=torch.bfloat16)
    out = gae(rewards, values, mask_of([2], 2), gamma=1.0, lam=1.0, bootstrap=torch.zeros(1, dtype=torch.bfloat16))
    assert out.advantages.dtype == out.returns.dtype == torch.float32
    assert out.advantages[0, 0].item() == 1 + 2**-9


def test_double_precision_inputs_give_fp32_too() -> None:
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    for rewards, values in ((zeros, zeros.float()), (zeros.float(), zeros), (zeros, zeros)):
        out = gae(rewards, values, mask_of([2], 2), gamma=1.0, lam=1.0, bootstrap=zeros[:, 0])
        assert out.advantages.dtype == out.returns.dtype == torch.float32


def test_a_batch_of_empty_responses_has_no_advantages() -> None:
    none = torch.zeros(2, 0)
    out = gae(none, none, none.bool(), gamma=1.0, lam=1.0, bootstrap=torch.ones(2))
    assert list(out.advantages.shape) == list(out.returns.shape) == [2, 0]


def test_gae_refuses_different_shapes() -> None:
    with pytest.raises(ShapeError) as error:
        gae(torch.zeros(2, 3), torch.zeros(2, 4), torch.ones(2, 3, dtype=torch.bool), gamma=1.0, lam=1.0)
    assert str(error.value) == "expected one shape [B, T], got rewards [2, 3], values [2, 4], response_mask [2, 3]"


def test_appendix_a_a_token_reward_weighs_more_than_the_same_at_the_end() -> None:
    # One judged token, 20 before the last: A puts δ there, B puts the same δ at the end of the sequence (3.6, App. A).
    width, k = 31, 10
    delta = torch.zeros(1, width)
    delta[0, k] = 1.0
    mask = torch.ones(1, width, dtype=torch.bool)
    none = torch.zeros(1, width)
    token = gae(delta, none, mask, gamma=1.0, lam=0.95).advantages
    end = gae(at_last_token(delta, mask), none, mask, gamma=1.0, lam=0.95).advantages
    for t in range(k + 1):
        # A_t^A = (γλ)^(k−t) and A_t^B = (γλ)^(T−t), so their ratio is (γλ)^−(T−k) = 0.95^−20 at every t
        assert token[0, t].item() == pytest.approx(0.95 ** (k - t), rel=1e-5)
        assert end[0, t].item() == pytest.approx(0.95 ** (width - 1 - t), rel=1e-5)
        assert (token[0, t] / end[0, t]).item() == pytest.approx(0.95**-20, rel=1e-5)
    assert round(0.95**-20, 1) == 2.8
    # And what the end of the sequence cannot know: which token it was about.
    assert not token[0, k + 1 :].any()
    assert end[0, k + 1 :].all()


def test_appendix_a_holds_for_many_judged_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    delta = torch.randint(-1, 2, (3, 12), generator=generator).float()
    mask = mask_of([12, 7, 1], 12)
    none, decay = torch.zeros(3, 12), 0.95 * 0.9
    token = gae(delta, none, mask, gamma=0.95, lam=0.9).advantages
    end = gae(at_last_token(delta, mask), none, mask, gamma=0.95, lam=0.9).advantages
    for row, n in enumerate([12, 7, 1]):
        for t in range(n):
            # A_t^A = Σ_k (γλ)^(k−t) δ_k; the end sees the whole sum, discounted as one
            own = sum(decay ** (k - t) * delta[row, k].item() for k in range(t, n))
            assert token[row, t].item() == pytest.approx(own, abs=1e-5)
            assert end[row, t].item() == pytest.approx(decay ** (n - 1 - t) * delta[row, :n].sum().item(), abs=1e-5)


@pytest.mark.parametrize("scale", [0.1, 1.0, 300.0])
def test_whitened_advantages_have_mean_zero_and_deviation_one(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = mask_of([6, 0, 1, 4], 6)
    x = scale * (torch.randn(4, 6, generator=generator) + 2)
    white = whiten(x, mask)
    kept = white[mask].double()
    assert white.dtype == torch.float32
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.std(unbiased=True).item() == pytest.approx(1.0, abs=1e-5)
    assert not white[~mask].any()
    expected = (x[mask].double() - x[mask].double().mean()) / x[mask].double().std(unbiased=True)
    torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-5)


def test_without_centering_the_sign_of_every_advantage_is_kept() -> None:
    x = torch.tensor([[5.0, 1.0, 4.0], [2.0, -0.5, 9.0]])
    mask = mask_of([3, 2], 3)
    white = whiten(x, mask, center=False)
    # scaled by the deviation around the mean, the mean left in
    torch.testing.assert_close(white[mask], x[mask] / x[mask].std(unbiased=True))
    assert torch.equal(white[mask].sign(), x[mask].sign())
    assert not white[~mask].any()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_padding_changes_no_whitened_advantage(garbage: float) -> None:
    x, mask = torch.tensor([[1.0, 2.0, 0.0], [4.0, 0.0, 0.0]]), mask_of([2, 1], 3)
    assert torch.equal(whiten(x, mask), whiten(x.masked_fill(~mask, garbage), mask))


@pytest.mark.parametrize("lengths", [[0, 0], [1, 0]])
@pytest.mark.parametrize("center", [True, False])
def test_fewer_than_two_tokens_cannot_be_scaled_and_come_back_as_they_are(lengths: list[int], center: bool) -> None:
    x, mask = torch.full((2, 2), 3.7), mask_of(lengths, 2)
    assert torch.equal(whiten(x, mask, center=center), x * mask)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("constant", [0.0, 0.1, -3.7, 1e4])
@pytest.mark.parametrize("tokens", [2, 3, 7, 997])
def test_equal_advantages_cannot_be_scaled_and_come_back_as_they_are(
    constant: float, tokens: int, center: bool
) -> None:
    # 997 squares of −3.7 do not add up exactly even in fp64: what is left over is no deviation
    x, mask = torch.full((1, 999), constant), mask_of([tokens], 999)
    assert torch.equal(whiten(x, mask, center=center), x * mask)


@pytest.mark.parametrize("center", [True, False])
def test_advantages_far_from_zero_are_whitened_still(center: bool) -> None:
    x, mask = torch.tensor([[1000.0, 1000.5, 1001.0]]), mask_of([3], 3)
    # mean 1000.5 and unbiased deviation ½
    expected = torch.tensor([[-1.0, 0.0, 1.0]]) if center else x / 0.5
    torch.testing.assert_close(whiten(x, mask, center=center), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("center", [True, False])
def test_processes_that_share_their_moments_whiten_as_one(center: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(5, 4, generator=generator), mask_of([4, 2, 0, 3, 1], 4)
    whole = whiten(x, mask, center=center)
    parts = [slice(0, 2), slice(2, 3), slice(3, 5)]  # the middle process has no token at all
    shares: list[torch.Tensor] = []

    def seen(moments: torch.Tensor) -> torch.Tensor:
        shares.append(moments)
        return moments

    for part in parts:
        whiten(x[part], mask[part], add_up=seen)
    split = torch.cat([whiten(x[p], mask[p], center=center, add_up=lambda _: sum(shares)) for p in parts])
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-7)


def test_moments_by_hand() -> None:
    x, seen = torch.tensor([[1.0, -2.0, float("nan")], [3.0, float("inf"), 8.0]]), list[torch.Tensor]()
    whiten(x, mask_of([2, 1], 3), add_up=lambda moments: seen.append(moments) or moments)  # type: ignore[func-returns-value]
    # three tokens; 1 − 2 + 3; 1 + 4 + 9
    assert seen[0].tolist() == [3.0, 2.0, 14.0]
    assert seen[0].dtype == torch.float64


def test_whiten_refuses_different_shapes() -> None:
    with pytest.raises(ShapeError) as error:
        whiten(torch.zeros(2, 3), torch.ones(3, 2, dtype=torch.bool))
    assert str(error.value) == "expected one shape [B, T], got x [2, 3], response_mask [3, 2]"


# --- Groups of responses to one prompt --------------------------------------------------------------------------------


def test_one_number_over_its_group_is_grpo_by_hand() -> None:
    # two prompts, two responses each; numbers 1, 3 and 2, 2 on the last token
    rewards = torch.tensor([[0.0, 1.0], [3.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    out = group_advantages(rewards, mask_of([2, 1, 2, 2], 2), group_size=2, gamma=1.0, lam=1.0, scale=True)
    # mean 2; deviation √((1 + 1)/1) = √2; −1/√2 and 1/√2 on every token; equal numbers teach nothing
    half = 1 / (math.sqrt(2.0) + GROUP_EPS)
    expected = torch.tensor([[-half, -half], [half, 0.0], [0.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(out.advantages, expected)


def test_rloo_subtracts_the_mean_of_the_others_by_hand() -> None:
    rewards = torch.tensor([[0.0, 6.0], [0.0, 3.0], [0.0, 0.0]])
    out = group_advantages(rewards, mask_of([2, 2, 2], 2), group_size=3, gamma=1.0, lam=1.0, leave_one_out=True)
    # 6 − (3 + 0)/2, 3 − (6 + 0)/2, 0 − (6 + 3)/2
    assert torch.equal(out.advantages, torch.tensor([[4.5, 4.5], [0.0, 0.0], [-4.5, -4.5]]))


def test_spans_are_compared_with_the_average_token_of_the_group_by_hand() -> None:
    # γλ = 0: G = r. Means 1/3 and −1 (one token): the group's is −1/3, whatever the lengths
    rewards = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 7.0, 7.0]])
    out = group_advantages(rewards, mask_of([3, 1], 3), group_size=2, gamma=0.0, lam=1.0)
    third = 1 / 3
    torch.testing.assert_close(out.advantages, torch.tensor([[1 + third, third, third], [-1 + third, 0.0, 0.0]]))
    assert torch.equal(out.returns, torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))


@derandomized
@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_laws_of_group_advantages(size: int, groups: int, seed: int, gamma: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(size * groups, 5, generator=generator)
    lengths = torch.randint(1, 6, (size * groups,), generator=generator)
    mask = mask_of(lengths.tolist(), 5)
    plain, others, scaled = (
        group_advantages(rewards, mask, group_size=size, gamma=gamma, lam=1.0, **more).advantages
        for more in ({}, {"leave_one_out": True}, {"scale": True})
    )
    per_response = plain.sum(1) / lengths
    torch.testing.assert_close(per_response.view(groups, size).sum(1), torch.zeros(groups), atol=1e-5, rtol=0)
    # the mean of the others moves each response's mean by size / (size − 1) times its distance from the group's mean
    torch.testing.assert_close(others.sum(1) / lengths, per_response * size / (size - 1), atol=1e-4, rtol=1e-4)
    spread = (scaled.square().sum(1) / lengths).view(groups, size).sum(1) / (size - 1)
    torch.testing.assert_close(spread, torch.ones(groups), atol=2e-2, rtol=0)  # GROUP_EPS
    shifted = group_advantages(rewards.roll(size, 0), mask.roll(size, 0), group_size=size, gamma=gamma, lam=1.0)
    assert torch.equal(shifted.advantages, plain.roll(size, 0))  # groups do not see each other


def test_rows_that_are_no_groups_are_refused() -> None:
    rewards, mask = torch.zeros(4, 2), mask_of([2] * 4, 2)
    for size in (1, 3):
        with pytest.raises(ShapeError, match=f"4 responses are not groups of {size}"):
            group_advantages(rewards, mask, group_size=size, gamma=1.0, lam=1.0)


# --- Turns ------------------------------------------------------------------------------------------------------------


def test_each_token_may_have_a_discount_of_its_own_by_hand() -> None:
    rewards, values = torch.tensor([[1.0, 0.0, 2.0, 99.0]]), torch.tensor([[0.5, 1.0, -1.0, 99.0]])
    gamma = torch.tensor([[0.5, 0.25, 0.5, 0.5]], dtype=torch.float64)
    out = gae(rewards, values, mask_of([3], 4), gamma=gamma, lam=0.5, bootstrap=torch.tensor([8.0]))
    # δ^TD: 1 + ½·1 − ½ = 1; 0 + ¼·(−1) − 1 = −1.25; 2 + ½·8 + 1 = 7
    # A: 7; −1.25 + ⅛·7 = −0.375; 1 + ¼·(−0.375) = 0.90625
    assert out.advantages.tolist() == [[0.90625, -0.375, 7.0, 0.0]]
    alone = gae(rewards, values, mask_of([3], 4), gamma=0.7, lam=0.3)
    everywhere = gae(rewards, values, mask_of([3], 4), gamma=torch.full((1, 4), 0.7, dtype=torch.float64), lam=0.3)
    assert torch.equal(alone.advantages, everywhere.advantages)


TALKS = collate(
    [  # three turns of 2, 1 and 1 tokens; one that was cut behind its first turn, and one that was cut in its only turn
        Rollout(Example("x"), (1,), (5, 6, 7, 8), "", False, given=(Given(2, (2, 2)), Given(3, (2,)))),
        Rollout(Example("x"), (1,), (5, 6), "", True, given=(Given(2, (2, 2)),)),
        Rollout(Example("x"), (1,), (5, 6), "", True),
    ],
    pad_id=0,
)


def test_the_discount_of_turns_stands_at_the_last_token_of_each_that_is_followed() -> None:
    settings = {"gamma": 0.5, "lam": 0.5}
    assert discounts(PPOConfig(**settings), TALKS) == 0.5
    ppo = PPOConfig(**settings, gamma_turn=0.25)
    half, turn = 0.5, 0.25
    assert discounts(ppo, TALKS).tolist() == [  # type: ignore[union-attr]
        [half, turn, turn, half],
        [half, turn, half, half],
        [half, half, half, half],
    ]
    rewards, values, bootstrap = torch.zeros(3, 4), torch.zeros(3, 4), torch.tensor([0.0, 8.0, 8.0])
    rewards[0, 3] = 64.0
    out = advantages_over_baseline(ppo, rewards, values, TALKS, bootstrap=bootstrap).advantages
    # 64, ⅛ of it one turn before, ⅛ of that another, ¼ of that a token before; λ = ½ at each of them.
    # ¼ of 8 behind a turn, ½ of 8 in a turn, and ¼ of either a token before.
    assert out.tolist() == [[0.25, 1.0, 8.0, 64.0], [0.5, 2.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0]]
    group = PPOConfig(gamma=0.5, lam=0.5, gamma_turn=0.25, baseline="group")
    returns = advantages_over_baseline(group, rewards[:2], values[:2], TALKS.rows(torch.tensor([0, 1])), group_size=2)
    assert returns.returns.tolist() == [[0.25, 1.0, 8.0, 64.0], [0.0] * 4]


# A game of one or two turns. In the first the policy stops, for a reward of 1, or goes on, for 2, with p = ¼; then it
# takes right, for 4, with q = ¾, or wrong, for −8. π(on) and π(right) are logistic functions of θ_1 and θ_2:
#   J = (1 − p) + p (2 + 4 q − 8 (1 − q));   ∂J/∂θ_1 = p (1 − p) (3 − 1) = ⅜;   ∂J/∂θ_2 = p q (1 − q) 12 = 9/16
GO, RIGHT = 0.25, 0.75
GAMES = [  # probability, rewards of the turns, and ∂ log π / ∂θ of each turn
    (1 - GO, [1.0], [(-GO, 0.0)]),
    (GO * RIGHT, [2.0, 4.0], [(1 - GO, 0.0), (0.0, 1 - RIGHT)]),
    (GO * (1 - RIGHT), [2.0, -8.0], [(1 - GO, 0.0), (0.0, -RIGHT)]),
]
PAIRS = list(product(GAMES, repeat=2))  # all groups of two
TRUE = (3 / 8, 9 / 16)


def mean_gradient(advantages: torch.Tensor) -> tuple[float, float]:
    """The expectation of Σ_t A_t ∂ log π / ∂θ of one game of a group, over all pairs of games, [18, 2], in fp64."""
    total = [0.0, 0.0]
    for row, advantage in enumerate(advantages.double().tolist()):
        pair = PAIRS[row // 2]
        for number, score in enumerate(pair[row % 2][2]):
            for parameter in (0, 1):
                total[parameter] += pair[0][0] * pair[1][0] / 2 * advantage[number] * score[parameter]
    return total[0], total[1]


def games(*, at_the_end: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and mask of all pairs, [18, 2]; each number of a turn at its token, or all at the last token."""
    rows = [game[1] for pair in PAIRS for game in pair]
    rows = [[*[0.0] * (len(row) - 1), sum(row)] if at_the_end else row for row in rows]
    mask = mask_of(list(map(len, rows)), 2)
    return torch.tensor([row + [0.0] * (2 - len(row)) for row in rows]), mask


def test_a_baseline_of_the_group_has_no_bias_where_the_number_of_turns_depends_on_the_policy() -> None:
    kind = {"group_size": 2, "gamma": 1.0, "lam": 1.0}
    for at_the_end in (False, True):  # the mean of the others depends on nothing that a game does
        others = group_advantages(*games(at_the_end=at_the_end), **kind, leave_one_out=True)  # type: ignore[arg-type]
        assert mean_gradient(others.advantages) == TRUE
        any_value = torch.tensor([[3.0, -5.0]]).expand(18, 2)  # a function of what came before alone
        values = gae(games(at_the_end=at_the_end)[0], any_value, games()[1], gamma=1.0, lam=1.0)
        assert mean_gradient(values.advantages) == TRUE
    # The mean of both holds half of a game's own number, in its first turn as in its second.
    both = group_advantages(*games(at_the_end=True), **kind)  # type: ignore[arg-type]
    assert mean_gradient(both.advantages) == (TRUE[0] / 2, TRUE[1] / 2)


def test_a_baseline_of_each_turn_would_have_a_bias_in_closed_form() -> None:
    # The mean over the games that have an n-th turn: a first turn has half of itself subtracted, since both games have
    # one. A second turn has half of itself subtracted with probability p, that the other game has one, else all of it:
    # E = ½ ∂J/∂θ_1 and p/2 ∂J/∂θ_2, a bias of −(1 − p)/2 ∂J/∂θ_2 beside one half of the gradient.
    rewards, mask = games(at_the_end=True)
    returns = gae(rewards, torch.zeros_like(rewards), mask, gamma=1.0, lam=1.0).advantages.view(9, 2, 2)
    having = mask.view(9, 2, 2)
    of_turn = returns.sum(1, keepdim=True) / having.sum(1, keepdim=True).clamp(min=1)
    found = mean_gradient(((returns - of_turn) * having).view(18, 2))
    assert found == (TRUE[0] / 2, GO / 2 * TRUE[1])
    assert found[1] - TRUE[1] / 2 == -(1 - GO) / 2 * TRUE[1]


def test_a_trajectory_without_tokens_counts_as_one_of_its_group() -> None:
    rewards = torch.tensor([[0.0, 4.0], [9.0, 9.0]])
    out = group_advantages(rewards, mask_of([2, 0], 2), group_size=2, gamma=1.0, lam=1.0)
    # means 4 and 0: their mean is 2
    assert out.advantages.tolist() == [[2.0, 2.0], [0.0, 0.0]]
