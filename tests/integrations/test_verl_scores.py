"""The reward of each token id of a response in verl, and the settings of verl that would lose it; without verl."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from text2grad.errors import ConfigError, CriticError
from text2grad.integrations.verl_scores import example_of, judge_response, refuse_scalar_settings, shared_judge
from text2grad.rl import OutsideJudge, single_turn
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Example, Span


def made(critic: str, reward: str = "{}", match: Any = "exact", limit: float = 0.2) -> OutsideJudge:
    """Return a judge of its own for each test: `shared_judge` keeps one for equal settings."""
    return shared_judge.__wrapped__(f"verl_critics:{critic}", reward, match, limit)


def judged(judge: OutsideJudge, text: str = "please yes or later", *, truncated: bool = False) -> Any:
    tokenizer = word_tokenizer(["please yes or later no"])
    example = Example("Well?", meta={"n": 1})
    return judge_response(judge, tokenizer, example, tokenizer(text).input_ids, truncated=truncated)


def test_each_id_gets_the_reward_of_its_spans() -> None:
    judge = made("critic", '{"positive": 2.0, "negative": -3.0, "unlabelled": 0.125, "truncated": -1.0}')
    # please | yes or | later: 0.125, 2, 2, -3, and on the last token the outcome 0.5
    scores, critique = judged(judge)
    assert (scores, critique.feedback) == ([0.125, 2.0, 2.0, -2.5], "{'n': 1}")
    assert judged(judge, truncated=True)[0] == [0.125, 2.0, 2.0, -3.5]
    assert judged(judge, "")[0] == []
    assert judged(made("critic", '{"span_mass": "span"}'))[0] == [0.0, 0.5, 0.5, -0.5]


def test_quotes_in_texts_are_matched_as_asked() -> None:
    assert judged(made("quoting", limit=1.0))[0] == [0.0] * 4
    assert judged(made("quoting", match="normalized", limit=1.0))[0] == [0.0, 1.0, 1.0, 0.0]


def test_a_critic_that_cannot_be_read_stops_the_run() -> None:
    judge = made("silent")
    assert [judged(judge)[0] for _ in range(7)] == [[0.0] * 4] * 7
    with pytest.raises(CriticError, match="100% of the last 8 critiques could not be read"):
        judged(judge)


def test_a_worker_has_one_judge_for_equal_settings() -> None:
    first, again = (shared_judge("verl_critics:critic", '{"positive": 2.0}', "exact", 0.2) for _ in range(2))
    other = shared_judge("verl_critics:critic", "{}", "exact", 0.2)
    assert first is again
    assert (first.reward.positive, other.reward.positive) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("absent:critic", "{}", "exact"), "absent"),
        (("m", '{"positve": 1}', "exact"), "positve"),
        (("m", "{}", "near"), "near"),
    ],
)
def test_wrong_settings_are_refused(settings: Sequence[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shared_judge(*settings, 0.2)


def test_a_row_of_verls_data_becomes_an_example() -> None:
    row = {
        "raw_prompt": [{"role": "user", "content": "Add."}],
        "reward_model": {"ground_truth": 4, "style": "rule"},
        "extra_info": {"index": 3, "tests": "assert add(1, 2) == 3"},
        "data_source": "mbpp",
    }
    assert example_of(row) == Example(
        [{"role": "user", "content": "Add."}], "4", "assert add(1, 2) == 3", {"index": 3, "data_source": "mbpp"}
    )
    bare = example_of({"raw_prompt": row["raw_prompt"]})
    assert (bare.reference, bare.tests, bare.meta) == (None, None, {"data_source": None})


FINE = {
    "algorithm": {"adv_estimator": "gae"},
    "trainer": {"use_v1": True},
    "reward": {"reward_model": {"enable": False}},
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"algorithm": {"adv_estimator": "grpo"}}, "algorithm.adv_estimator = grpo: verl adds the rewards"),
        ({"trainer": {"use_v1": False}}, "set trainer.use_v1=True"),
        ({"reward": {"reward_model": {"enable": True}}}, "reward.reward_model.enable = True"),
        ({"reward_model": {"enable": True}}, "reward.reward_model.enable = True"),
    ],
)
def test_settings_that_make_one_number_of_the_rewards_are_refused(changed: dict[str, Any], message: str) -> None:
    refuse_scalar_settings(FINE)
    refuse_scalar_settings(SimpleNamespace(algorithm=SimpleNamespace(adv_estimator="reinforce_plus_plus")))
    with pytest.raises(ConfigError, match=message):
        refuse_scalar_settings({**FINE, **changed})


def test_a_judge_hides_thoughts_from_the_critic_and_rewards_what_it_saw() -> None:
    seen = list[str]()

    def critic(examples: Any, responses: Any) -> Any:
        seen.extend(responses)
        return [Critique("", (Span(0, 3, "positive"),))] * len(responses)

    tokenizer = word_tokenizer(["so yes", "yes so"], ["</think>"])
    judge = OutsideJudge(critic, reward={}, match="exact", max_failure_rate=0.2)
    rollout = single_turn(tokenizer, Example("q"), tokenizer("so</think>yes so").input_ids, truncated=False)
    assert judge(tokenizer, [rollout]).rewards.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    judge.prompt_end = None
    assert judge(tokenizer, [rollout]).rewards.tolist() == [[1.0, 1.0, 0.0, 0.0]]  # "so<"
    assert seen == ["yes so", "so</think>yes so"]
