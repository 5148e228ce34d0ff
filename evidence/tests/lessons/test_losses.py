"""The losses of rivals: by hand, and against formulas on logits of transformers."""

import pytest
import torch
from torch.nn.functional import cross_entropy as torch_cross_entropy, logsigmoid

from evidence.lessons.losses import DPO_BETA, GRPO_BETA, cross_entropy, dpo, grpo, reinforce
from text2grad.models import collate, response_logprobs
from tiny_models import own_logits, own_logp, rollouts, tiny

PAIRS = ((3, 4), (3, 2), (5, 1), (5, 6))  # tokens of prompt and response: chosen, rejected, chosen, rejected


def scored(first: int, second: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = collate(rollouts(PAIRS), pad_id=0)
    policy, start = (response_logprobs(tiny("qwen2", seed=seed), batch)[0].detach() for seed in (first, second))
    return policy, start, batch.response_mask


def test_reinforce_weighs_the_log_prob_of_an_answer_by_its_reward() -> None:
    logp, mask = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]]), torch.tensor([[True, True], [True, False]])
    # -(0.5 · (-1 - 2) + (-1.5) · (-3)) / 2 = -(-1.5 + 4.5) / 2
    assert reinforce(logp, logp, mask, torch.tensor([0.5, -1.5])).item() == pytest.approx(-1.5)


def test_dpo_is_half_decided_at_the_start_and_follows_its_formula_by_hand() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    start, rewards = torch.tensor([[-1.0, -2.0], [-3.0, 7.0]]), torch.tensor([1.0, -1.0])
    assert dpo(start, start, mask, rewards).item() == pytest.approx(0.6931, abs=1e-4)  # -log σ(0) = log 2
    logp = torch.tensor([[-0.5, -1.0], [-5.0, -7.0]])
    # 0.1 · ((0.5 + 1) - (-2)) = 0.35;   -log σ(0.35) = log(1 + e^-0.35) = 0.5334
    assert dpo(logp, start, mask, rewards).item() == pytest.approx(0.5334, abs=1e-4)


def test_dpo_is_trls_formula_on_the_logits_of_transformers() -> None:
    logp, start, mask = scored(1, 2)
    policy, reference, given = tiny("qwen2", seed=1), tiny("qwen2", seed=2), rollouts(PAIRS)
    ratios = torch.stack([(own_logp(policy, each) - own_logp(reference, each)).sum() for each in given])
    chosen, rejected = ratios[0::2], ratios[1::2]
    expected = -logsigmoid(DPO_BETA * (chosen - rejected)).mean()
    loss = dpo(logp, start, mask, torch.tensor([1.0, -1.0, 1.0, -1.0]))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)
    assert abs(loss.item() - 0.6931) > 0.01


def test_cross_entropy_is_that_of_torch_over_all_tokens() -> None:
    logp, start, mask = scored(1, 2)
    given, policy = rollouts(PAIRS), tiny("qwen2", seed=1)
    logits = torch.cat([own_logits(policy, each) for each in given])
    expected = torch_cross_entropy(logits, torch.tensor([token for each in given for token in each.response_ids]))
    noise = torch.where(mask, logp, -9.0)
    assert cross_entropy(noise, start, mask, torch.ones(4)).item() == pytest.approx(expected.item(), abs=1e-4)


def test_grpo_weighs_an_answer_by_its_place_in_the_group_and_each_token_by_the_length() -> None:
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    start = torch.full((4, 2), -1.0)
    logp = start.clone().requires_grad_()
    grpo(logp, start, mask, torch.tensor([1.0, 1.0, -1.0, -1.0])).backward()
    # mean 0; deviation √(4 / 3) = 1.1547; advantages ±0.8660; four answers, the first of two tokens:
    # -0.8660 / (4 · 2) and ∓0.8660 / 4; the KL term has no gradient at the start
    expected = torch.tensor([[-0.1083, -0.1083], [-0.2165, 0.0], [0.2165, 0.0], [0.2165, 0.0]])
    assert logp.grad is not None
    assert torch.allclose(logp.grad, expected, atol=1e-4)


def test_grpo_stops_at_its_clip_range_where_only_the_kl_term_is_left() -> None:
    mask, start = torch.ones(4, 1, dtype=torch.bool), torch.full((4, 1), -1.0)
    logp = (start + torch.tensor([[0.5], [-0.5], [0.0], [0.0]])).requires_grad_()
    grpo(logp, start, mask, torch.tensor([1.0, -1.0, -1.0, -1.0])).backward()
    # e^0.5 > 1.2 at a positive advantage, e^-0.5 < 0.8 at a negative one; β (1 - e^(ref - log π)) / 4
    expected = GRPO_BETA * (1 - torch.tensor([-0.5, 0.5]).exp()) / 4
    assert logp.grad is not None
    assert torch.allclose(logp.grad[:2, 0], expected, atol=1e-5)
    assert torch.allclose(logp.grad[2:, 0], torch.tensor([0.125, 0.125]), atol=1e-4)


def test_a_group_of_equal_thumbs_teaches_nothing() -> None:
    mask, start = torch.ones(4, 3, dtype=torch.bool), torch.full((4, 3), -1.0)
    logp = start.clone().requires_grad_()
    grpo(logp, start, mask, torch.full((4,), -1.0)).backward()
    assert logp.grad is not None
    assert logp.grad.abs().max() == 0
