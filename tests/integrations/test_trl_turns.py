"""TRL's completions as trajectories: critics see what the native trainer shows them, and environments count."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import said
from said import look
from small_trl import make_trainer
from text2grad.integrations.trl_turns import trajectory
from text2grad.rl.rewards import rewards_of
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Example, Given, Rollout

# TRL's own default
pytestmark = pytest.mark.filterwarnings(
    "ignore:.(is_)?gradient_checkpointing(_disable|_enable)?. is deprecated:FutureWarning"
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"place": "Rome"}}\n</tool_call><|im_end|>'
XML = "<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n</function>\n</tool_call><|im_end|>"
SPOKEN = {  # a call and an answer in the form of each model
    "qwen3_instruct_2507": (CALL, "Sunny.<|im_end|>"),
    "qwen3": (f"<think>\nI look.\n</think>\n\n{CALL}", "<think>\nFine.\n</think>\n\nSunny.<|im_end|>"),
    "qwen3_5_think": (f"I look.\n</think>\n\n{XML}", "Fine.\n</think>\n\nSunny.<|im_end|>"),
}
Say = Callable[[str], str]


def tokenizer(name: str) -> Any:
    made = said.tokenizer(name)
    made.eos_token = "<|im_end|>"
    return made


def scored(out: Path, made: Any, say: Say, critic: Any, row: dict[str, Any], **settings: Any) -> Any:
    """Return TRL's trainer after two responses to a row, whose turns `say` says."""
    batch = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 1000}
    model = tiny_llama(made, seed=1, width=16, layers=1, context=4000)
    trainer: Any = make_trainer(out, critic, rows=[row] * 2, tokenizer=made, model=model, **batch, **settings)

    def forced(prompts: Sequence[Sequence[int]], *_: Any, **__: Any) -> Any:
        return [encoded(made, say(made.decode(list(prompt)))) for prompt in prompts], None

    trainer._generate_single_turn = forced
    trainer.model.train()
    trainer._generate_and_score_completions([row] * 2)
    return trainer


def encoded(made: Any, text: str) -> list[int]:
    ids: list[int] = made(text, add_special_tokens=False)["input_ids"]
    return ids


def silent(seen: list[tuple[Example, Any]]) -> Any:
    """Return a critic that keeps what it sees."""

    def critic(examples: Sequence[Example], responses: Sequence[Any]) -> list[float]:
        seen.extend(zip(examples, responses, strict=True))
        return [0.5] * len(responses)

    return critic


@pytest.mark.parametrize("name", SPOKEN)
def test_critics_see_the_trajectories_that_the_native_trainer_shows_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(prompt: str) -> str:
        return SPOKEN[name][": sunny" in prompt]

    seen, seen_natively = list[tuple[Example, Any]](), list[tuple[Example, Any]]()
    row = {"prompt": [{"role": "user", "content": "Weather?"}], "city": "Rome"}
    trainer = scored(tmp_path / "trl", tokenizer(name), say, silent(seen), row, tools=[look])
    rollout, again = trainer.rollouts()
    assert rollout == again

    made = tokenizer(name)
    said.force(monkeypatch, made, say)
    run = said.trainer(tmp_path / "native", made, [row], silent(seen_natively), tools=[look])
    [native] = run.sample()
    run.criticize([native])
    assert rollout.response.turns == native.response.turns
    assert [turn.tool_calls for turn in native.response.turns].count(()) == 3
    assert (rollout.response_ids, rollout.truncated) == (native.response_ids, native.truncated)
    assert [given.place for given in rollout.given] == [given.place for given in native.given]
    assert rollout.given == native.given
    assert rollout.prompt_ids == native.prompt_ids
    (example, response), (native_example, native_response) = seen[0], seen_natively[0]
    assert response.turns == native_response.turns
    assert example == native_example


@pytest.mark.parametrize("turn", [0, 1])
def test_a_thought_that_the_template_opens_before_a_turn_is_hidden_though_it_has_no_end(
    turn: int, tmp_path: Path
) -> None:
    call, _ = SPOKEN["qwen3_5_think"]
    seen, row = list[tuple[Example, Any]](), {"prompt": [{"role": "user", "content": "Weather?"}]}

    def say(prompt: str) -> str:
        return "Hm, sunny.<|im_end|>" if turn == 0 or ": sunny" in prompt else call

    trainer = scored(tmp_path, tokenizer("qwen3_5_think"), say, silent(seen), row, tools=[look])
    assert trainer.rollouts()[0].response.turns[-1].thought == "Hm, sunny."
    assert seen[0][1].turns[-1].text == ""


class World:
    """Counts, and judges."""

    def reset(self, start: int, **row: Any) -> str:
        self.state = start
        return f" Begin at {start}."

    def step(self, by: int) -> str:
        """Go on.

        Args:
            by: How far.
        """
        self.state += by
        return f"now {self.state}"

    def get_reward(self) -> float:
        return float(self.state)

    async def get_feedback(self) -> list[Any]:
        """Say it."""
        return [None, {"feedback": "Said it.", "good_spans": ["now 2"]}]


STEP = '<tool_call>\n{"name": "step", "arguments": {"by": 2}}\n</tool_call><|im_end|>'
ROW = {"prompt": [{"role": "user", "content": "Go."}], "start": 0}


def in_world(prompt: str) -> str:
    return "It is now 2.<|im_end|>" if "now 2" in prompt else STEP


def test_what_an_environment_says_has_the_rewards_of_the_native_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    made, critic = tokenizer("qwen3_instruct_2507"), silent([])
    trainer = scored(tmp_path / "trl", made, in_world, critic, ROW, environment_factory=World)
    assert trainer.reward_func_names == ["critic", "World", "get_feedback"]
    assert trainer.reward_weights.tolist() == [1.0, 1.0, 1.0]
    assert "get_feedback" not in made.decode(trainer.prompt_ids[0])
    assert [schema["function"]["name"] for schema in trainer.schemas] == ["step"]

    made = tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, in_world)
    run = said.trainer(tmp_path / "native", made, [ROW], critic, environment_factory=World)
    rollouts = run.sample()
    expected = rewards_of(run.recipe.reward, made, rollouts, run.criticize(rollouts)).rewards
    [rollout, _] = trainer.rollouts()
    assert rollout.response.turns == rollouts[0].response.turns
    assert rollout.prompt_ids == rollouts[0].prompt_ids
    rewards = trainer.token_rewards[0][trainer.response_mask[0]]
    torch.testing.assert_close(rewards, expected[0], atol=1e-6, rtol=0)
    assert rewards.sum() == 2.5 + len("now 2")  # the critic's 0.5, the environment's 2, and 1 on each letter's token
    assert [critique.feedback for critique in trainer.judged[2].critiques] == ["Said it."] * 2


def test_the_policy_cannot_call_what_judges_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    call = STEP.replace('"step", "arguments": {"by": 2}', '"get_feedback", "arguments": {}')
    made = tokenizer("qwen3_instruct_2507")

    def say(prompt: str) -> str:
        return "It is now 2.<|im_end|>" if "now 2" in prompt else STEP if "not found" in prompt else call

    class Other(World):
        async def get_feedback(self) -> None:  # type: ignore[override]
            """Say nothing."""

    trainer = scored(tmp_path, made, say, silent([]), ROW, environment_factory=Other)
    [rollout, _] = trainer.rollouts()
    assert [turn.text for turn in rollout.response.turns if turn.role == "tool"] == [
        "{'error': 'Tool get_feedback not found.'}",
        "now 2",
    ]


def test_an_environment_without_tools_judges_responses_of_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judge:
        def reset(self, **row: Any) -> None:
            self.row = row

        def get_feedback(self) -> list[str]:
            """Say it."""
            return ['{"feedback": "So.", "good_spans": ["Sunny"]}']

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    made = tokenizer("qwen3_instruct_2507")
    trainer = scored(tmp_path, made, lambda prompt: "Sunny.<|im_end|>", silent([]), ROW, environment_factory=Judge)
    assert trainer.token_rewards.tolist() == [[1.0] * 5 + [0.0, 0.5]] * 2


def test_a_call_without_an_answer_truncates_a_response(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "Weather?"}]}
    settings = {"tools": [look], "max_tool_calling_iterations": 1, "reward": {"truncated": -1.0}}
    made = tokenizer("qwen3_instruct_2507")
    trainer = scored(tmp_path, made, lambda prompt: CALL, silent([]), row, **settings)
    [rollout, _] = trainer.rollouts()
    assert (len(rollout.given), rollout.truncated) == (1, True)
    assert trainer.token_rewards.sum(dim=1).tolist() == [-0.5, -0.5]  # the critic's 0.5


def made_by_hand(own: list[int], *, last: str = " or") -> Rollout:
    made = word_tokenizer(["please say yes or no ."])
    ids = made("please say yes or").input_ids
    example, ends = Example("no", meta={"tools": []}), {made.convert_tokens_to_ids(last)}
    return trajectory(made, example, [5], ids, own, "please say yes or", ends=ends)


def test_what_a_function_of_the_user_writes_between_turns_is_a_turn_of_the_environment() -> None:
    rollout = made_by_hand([0, 1, 0, 1])
    turns = [(turn.role, turn.text, turn.sampled) for turn in rollout.response.turns]
    assert turns == [
        ("user", "no", False),
        ("environment", "please", False),
        ("assistant", " say", True),
        ("environment", " yes", False),
        ("assistant", " or", True),
    ]
    assert [given.place for given in rollout.given] == [0, 1]
    assert all(isinstance(given, Given) and len(given.ids) == 1 for given in rollout.given)
    assert not rollout.truncated
    assert made_by_hand([0, 1, 0, 1], last=" no").truncated
    assert made_by_hand([1, 1, 1, 0]).truncated  # its last id was given


def test_a_turn_is_read_with_all_that_stands_before_it() -> None:
    made = word_tokenizer(["please\nsay yes", " say"], ["<think>"])
    ids = made("please</s>\n<think> say yes").input_ids
    rollout = trajectory(made, Example("no", meta={"tools": []}), [5], ids, [1, 0, 0, 0, 1, 1], "", ends=[])
    assert [turn.text for turn in rollout.response.turns] == ["no", "please", "\n<think>", " say yes"]
    assert rollout.response.turns[3].thought == "say yes"
