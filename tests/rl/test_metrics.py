"""Numbers of a step, made by hand from three small responses."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from text2grad.feedback.turns import turns_to_json
from text2grad.models.policy import Scores
from text2grad.rl.metrics import (
    cornered_share,
    correlation,
    explained_variance,
    response_records,
    step_metrics,
    warning_of_corners,
)
from text2grad.types import Conversation, Critique, Example, Given, Rollout, Span, Turn


def record(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "prompt": "x",
        "ids": [5, 6, 7],
        "delta": [1.0, 0.0, -0.5],
        "reward": [1.0, 0.0, 0.5],
        "kl": [0.1, 0.2, 0.0],
        "truncated": False,
        "critique": {"spans": [[0, 1, "positive"], [2, 3, "negative"]], "unmatched": ["x"], "status": "ok"},
    }
    return base | changes


RECORDS = [
    record(),
    record(
        ids=[5],
        delta=[0.0],
        reward=[-0.5],
        kl=[-0.1],
        critique={"spans": [], "unmatched": ["y", "z"], "status": "timed_out"},
    ),
    record(
        ids=[5, 6],
        delta=[-1.0, 0.0],
        reward=[1.0, 1.0],
        kl=[0.3, 0.1],
        truncated=True,
        critique={"spans": [{"start": 0, "end": 1, "label": "negative"}], "unmatched": [], "status": "repaired"},
    ),
]
MASK = torch.tensor([[True, True, True], [True, False, False]])


def scores(entropy: torch.Tensor, values: torch.Tensor) -> Scores:
    zeros = torch.zeros_like(entropy)
    return Scores(zeros, zeros, zeros, entropy, values, torch.zeros(len(zeros)))


def test_the_metrics_of_a_step_by_hand() -> None:
    entropy = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]])
    returns = torch.tensor([[1.0, 2.0, 3.0], [4.0, -99.0, -99.0]])
    values = torch.tensor([[1.0, 2.0, 3.0], [3.0, 99.0, 99.0]])
    found = step_metrics(RECORDS, scores(entropy, values), returns, MASK)
    assert found == pytest.approx(
        {
            "reward/per_response": 1.0,  # (1.5 − 0.5 + 2) / 3
            "reward/nonzero_share": 1.0,
            "delta/positive_share": 1 / 6,
            "delta/negative_share": 2 / 6,
            "delta/labelled_share": 3 / 6,
            "delta/cornered_share": 0.0,  # of one prompt; its second response has no negative token
            "kl/per_token": 0.6 / 6,  # (0.3 − 0.1 + 0.4) / 6 tokens
            "kl/per_sequence": 0.2,  # ... / 3 responses
            "entropy/per_token": 2.5,
            "value/explained_variance": 0.85,  # residuals 0, 0, 0, 1: 1 − (0.75/3) / (5/3)
            "critic/failure_rate": 1 / 3,  # repaired is no failure
            "critic/unmatched_rate": 0.5,  # 3 quotes not found beside 3 spans
            "length/mean": 2.0,
            "length/truncated_share": 1 / 3,
            # lengths −2: 1, −1, 0; rewards −1: ½, −3/2, 1; r = (½ + 3/2) / √(2 · 3½)
            "length/reward_correlation": 2 / math.sqrt(7),
        }
    )
    assert all(type(value) is float for value in found.values())


def answers(prompt: str, *pairs: tuple[list[int], list[float]]) -> list[dict[str, Any]]:
    return [record(prompt=prompt, ids=ids, delta=delta) for ids, delta in pairs]


def test_a_prompt_is_cornered_where_all_responses_go_the_same_way_into_a_negative_token() -> None:
    two_bad_habits = answers("a", ([1, 9], [-1.0, 0.0]), ([2, 9], [-1.0, -1.0]), ([1, 8], [-0.5, 1.0]))
    after_the_same_words = answers("b", ([5, 6], [0.0, -1.0]), ([5, 7], [1.0, -1.0]))
    left_before = answers(
        "c", ([5, 6], [0.0, -1.0]), ([4, 6], [0.0, -1.0])
    )  # the second way was another from the start
    left_there = answers("d", ([5, 6], [0.0, -1.0]), ([5, 7], [0.0, 0.0]))
    negative_later = answers("e", ([5, 6], [-1.0, 0.0]), ([5, 7], [0.0, -1.0]))
    nothing_negative = answers("f", ([5], [0.0]), ([5], [1.0]))
    alone = answers("g", ([5], [-1.0]))
    assert cornered_share(two_bad_habits) == 1.0
    assert cornered_share(after_the_same_words) == 1.0
    for others in (left_before, left_there, negative_later, nothing_negative):
        assert cornered_share(others) == 0.0, others
    assert cornered_share(alone) is None
    assert cornered_share([*two_bad_habits, *left_there, *nothing_negative, *alone]) == 1 / 3
    assert cornered_share([*left_there, *left_before, *after_the_same_words, *two_bad_habits]) == 1 / 2


def test_a_run_without_groups_has_no_share_of_cornered_prompts() -> None:
    none = torch.zeros(1, 3)
    metrics = step_metrics([record()], scores(none, none), none, none.bool())
    assert "delta/cornered_share" not in metrics


def test_corners_are_told_where_most_prompts_are_cornered() -> None:
    steps = [{"delta/cornered_share": 1.0}, {"delta/cornered_share": 0.25}, {}]
    assert warning_of_corners(steps).startswith("for 62% of the prompts every response")  # (1 + 0.25) / 2
    assert warning_of_corners(steps[1:]) == ""
    assert warning_of_corners([{"delta/cornered_share": 0.5}]) == ""
    assert warning_of_corners([{}]) == ""


def test_rewards_that_cancel_are_rewards() -> None:
    # Σ r per response: 1, −1, 0 and 0.5 − 0.5; their mean is 0, and three of four have a reward
    rewards = ([0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.0], [0.5, -0.5, 0.0])
    none = torch.zeros(4, 3)
    given = [record(reward=reward) for reward in rewards]
    found = step_metrics(given, scores(none, none), none, none.bool())
    assert (found["reward/per_response"], found["reward/nonzero_share"]) == (0.0, 0.75)


def test_a_step_of_empty_responses_has_finite_metrics() -> None:
    empty = record(ids=[], delta=[], reward=[], kl=[], critique={"spans": [], "unmatched": [], "status": "ok"})
    none = torch.zeros(2, 0)
    found = step_metrics([empty, empty], scores(none, none), none, none.bool())
    assert set(found.values()) == {0.0}


def test_a_record_holds_what_a_response_was_judged_by() -> None:
    example = Example([{"role": "user", "content": "where?"}])
    rollouts = [Rollout(example, (1, 2), (5, 6), "ab", True), Rollout(Example("q"), (1,), (7,), "c", False)]
    critiques = [
        Critique("wrong", (Span(0, 1, "negative"),), -0.5, "repaired", ("zz",)),
        Critique("fine"),
    ]
    tokens = {"kl": torch.tensor([[0.123456789, -1.0], [2.0, 9.0]]), "value": torch.tensor([[1.0, 2.0], [3.0, 9.0]])}
    first, second = response_records(
        7, rollouts, critiques, [[0.0, -1 / 3], [1.0]], [[(0, 1), (1, 2)], [(0, 1)]], tokens
    )
    assert first == {
        "step": 7,
        "prompt": "where?",
        "response": "ab",
        "truncated": True,
        "critique": {
            "feedback": "wrong",
            "spans": [{"start": 0, "end": 1, "label": "negative"}],
            "outcome": -0.5,
            "status": "repaired",
            "unmatched": ["zz"],
        },
        "ids": [5, 6],
        "offsets": [[0, 1], [1, 2]],
        "delta": [0.0, -0.3333],
        "kl": [0.12346, -1.0],
        "value": [1.0, 2.0],
    }
    assert (second["kl"], second["value"], second["delta"], second["offsets"]) == ([2.0], [3.0], [1.0], [[0, 1]])
    assert json.loads(json.dumps([first, second], allow_nan=False)) == [first, second]


def test_explained_variance_is_one_for_a_perfect_value_and_zero_for_a_constant() -> None:
    returns = torch.tensor([1.0, 2.0, 4.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.full((3,), 7.0), returns) == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)  # Var(2R) / Var(R) = 4


@pytest.mark.parametrize("returns", [[], [1.0], [2.0, 2.0]])
def test_explained_variance_of_returns_that_do_not_vary_is_zero(returns: list[float]) -> None:
    assert explained_variance(torch.zeros(len(returns)), torch.tensor(returns)) == 0.0


def test_correlation_is_pearsons_and_zero_where_nothing_varies() -> None:
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([-1.0, -2.0, -3.0])) == pytest.approx(-1.0)
    assert correlation(np.array([1.0]), np.array([2.0])) == 0.0
    assert correlation(np.array([1.0, 1.0]), np.array([2.0, 3.0])) == 0.0
    assert correlation(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0.0


TALK = Conversation(  # a turn that is only a call, one without text, and one that was cut
    [
        Turn("user", "where?"),
        Turn("assistant", "<call>", True, "", ({"name": "look", "arguments": {"x": float("nan"), "y": (1,)}},)),
        Turn("tool", "there", name="look"),
        Turn("assistant", "", True),
        Turn("user", "so?"),
        Turn("assistant", "Hm. It", True, "Hm."),
    ]
)


def test_the_record_of_a_conversation_holds_its_turns() -> None:
    given = (Given(1, (3, 3)), Given(2, (4,)))
    rollouts = [
        Rollout(Example("where?"), (1,), (5, 6, 7), TALK, True, given=given),
        Rollout(Example("q"), (1,), (7,), "c", False),
    ]
    offsets = [[(0, 6), (6, 6), (6, 12)], [(0, 1)]]
    talk, plain = response_records(0, rollouts, [Critique("")] * 2, [[0.0] * 3, [1.0]], offsets, {})
    assert (talk["response"], talk["ids"]) == ("<call>Hm. It", [5, 6, 7])
    assert talk["turns"] == [
        {"role": "user", "text": "where?"},
        {
            "role": "assistant",
            "text": "<call>",
            "sampled": True,
            "tool_calls": [{"name": "look", "arguments": {"x": "NaN", "y": [1]}}],
        },
        {"role": "tool", "text": "there", "name": "look"},
        {"role": "assistant", "text": "", "sampled": True},
        {"role": "user", "text": "so?"},
        {"role": "assistant", "text": "Hm. It", "sampled": True, "thought": "Hm."},
    ]
    assert json.loads(json.dumps(talk, allow_nan=False)) == talk
    assert "turns" not in plain


def test_every_turn_of_the_policy_counts_and_only_conversations_have_turns() -> None:
    given = torch.zeros(3, 2)
    of_one = {"turns": [{"role": "assistant", "text": "x", "sampled": True}, {"role": "user", "text": "y"}]}
    of_three = {"turns": turns_to_json(TALK)}
    mask = torch.ones(3, 2, dtype=torch.bool)
    found = step_metrics([record(**of_three), record(**of_one), record()], scores(given, given), given, mask)
    assert found["turns/mean"] == pytest.approx((3 + 1 + 1) / 3)
    assert "turns/mean" not in step_metrics([record()], scores(given, given), given, mask)
