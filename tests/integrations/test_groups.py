"""What groups teach by one number and by rewards of tokens: shares by hand."""

import torch

from text2grad.integrations import group_shares, one_number
from text2grad.types import Critique


def test_the_number_of_a_response_is_its_outcome_or_the_sum_of_its_rewards() -> None:
    rewards = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, 0.0]])
    assert one_number(rewards, [Critique(""), Critique("", outcome=-3.0)]) == [1.5, -3.0]


def test_shares_of_groups_by_hand() -> None:
    # Groups of two with γ = 1; returns are sums of the rewards from a token on.
    rewards = torch.tensor(
        [
            *([1.0, 0.0], [0.0, 1.0]),  # numbers 1 and 1; returns (1, 0) and (1, 1): tokens differ from their mean
            *([0.0, 0.1], [0.0, 0.1]),  # numbers 0.1 and 0.1; all returns are 0.1: nothing teaches
            *([0.0, 1.0], [0.0, 2.0]),  # numbers 1 and 2: one number teaches
            *([-1.0, 1.0], [0.0, 0.0]),  # numbers 0 and 0; returns (0, 1) and (0): tokens differ
        ]
    )
    mask = torch.tensor([[True, True]] * 7 + [[True, False]])
    numbers = rewards.sum(dim=1)
    shares = group_shares(numbers, rewards, mask, group_size=2, gamma=1.0)
    assert shares == (3 / 4, 2 / 4)
    # Where the loss has no token of the last group, the first one is left.
    learned = torch.tensor([[True]] * 6 + [[False]] * 2)
    assert group_shares(numbers, rewards, mask, group_size=2, gamma=1.0, learned=learned) == (3 / 4, 1 / 4)
    # With γ = 0 the returns are the rewards: those of the second group, (0, 0.1) twice, differ, too.
    assert group_shares(numbers, rewards, mask, group_size=2, gamma=0.0) == (3 / 4, 3 / 4)
    assert group_shares(numbers, rewards, mask, group_size=2, gamma=1.0, lam=0.0) == (3 / 4, 3 / 4)


def test_rounding_teaches_nothing() -> None:
    # Six responses of seven tokens with the number 0.3: their mean differs from it in the last bit.
    rewards = torch.zeros(6, 7)
    rewards[:, -1] = 0.3
    mask = torch.ones(6, 7, dtype=torch.bool)
    assert group_shares(rewards.sum(dim=1), rewards, mask, group_size=6, gamma=1.0) == (1.0, 0.0)
