"""Scripts for TRL's `GRPOTrainer` with another import: the same digits; functions that say words; shares of groups."""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl.trainer import grpo_trainer

import text2grad as t2g
from small_trl import make_trainer, tool_tokenizer, weather
from text2grad.config import PPOConfig, RewardConfig
from text2grad.integrations.trl import WITH_SPANS
from text2grad.rl.advantages import advantages_over_baseline
from text2grad.rl.rewards import rewards_of
from text2grad.types import Critique, Example, Span

# TRL's own default
pytestmark = pytest.mark.filterwarnings(
    "ignore:.(is_)?gradient_checkpointing(_disable|_enable)?. is deprecated:FutureWarning"
)
TEXT = "please say yes or no ."
CHAT = [{"prompt": [{"role": "user", "content": TEXT}]}] * 8


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def many_yes(completions: list[Any], **_: Any) -> list[float]:
    return [float(text_of(completion).split().count("yes")) for completion in completions]


def of_the_prompt(prompts: list[Any], completions: list[Any], log_metric: Any, **_: Any) -> list[float | None]:
    log_metric("prompt_words", len(text_of(prompts[0]).split()))
    return [None if "maybe" in text_of(completion) else 0.5 for completion in completions]


async def short(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [-0.1 * len(ids) for ids in completion_ids]


class HalvedRate(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        optimizer.param_groups[0]["lr"] /= 2


SCRIPTS: dict[str, dict[str, Any]] = {
    "one function": {},
    "functions, weights, None, async": {
        "reward_funcs": [many_yes, of_the_prompt, short],
        "reward_weights": [1.0, 0.5, 2.0],
    },
    "conversations": {"rows": CHAT},
    "LoRA": {"peft_config": LoraConfig(r=2, target_modules="all-linear")},
    "callback": {"callbacks": [HalvedRate()]},
    "evaluation": {
        "eval_dataset": Dataset.from_list([{"prompt": TEXT}] * 8),
        "eval_strategy": "steps",
        "eval_steps": 2,
        "num_generations_eval": 2,
        "per_device_eval_batch_size": 8,
    },
    "iterable data": {"stream": True},
    "DAPO, batch scale, KL to the model below LoRA": {
        "loss_type": "dapo",
        "scale_rewards": "batch",
        "beta": 0.1,
        "epsilon_high": 0.28,
        "peft_config": LoraConfig(r=2, target_modules="all-linear"),
    },
    "Dr. GRPO": {"loss_type": "dr_grpo", "scale_rewards": False, "num_iterations": 2},
    "tools": {"rows": CHAT, "tools": [weather], "stops": ["maybe"], "max_completion_length": 24},
    "normalized sums": {"multi_objective_aggregation": "normalize_then_sum", "mask_truncated_completions": True},
}
FAST = {"functions, weights, None, async", "conversations", "evaluation", "tools"}


def trained(kind: Any, out: Path, resume_from: str | None = None, **settings: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the log without the clock's entries, and the weights."""
    tokenizer = tool_tokenizer()
    if "tools" not in settings:
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
        tokenizer.response_template = None
    rows = settings.pop("rows", [{"prompt": TEXT}, {"prompt": "yes or no ."}] * 8)
    if settings.pop("stream", False):
        settings["data"] = IterableDataset.from_generator(lambda: iter(rows))
    settings = {"reward_funcs": many_yes, "max_steps": 3, "tokenizer": tokenizer, "rows": rows, **settings}
    trainer = make_trainer(out, kind=kind, **settings)
    trainer.train(resume_from_checkpoint=resume_from)
    timed = ("runtime", "per_second", "time")
    logs = [{k: v for k, v in log.items() if not k.endswith(timed)} for log in trainer.state.log_history]
    return logs, trainer.model.state_dict()


def assert_equal(left: tuple[Any, Any], right: tuple[Any, Any]) -> None:
    assert repr(left[0]) == repr(right[0])  # NaN, too
    assert left[1].keys() == right[1].keys()
    assert all(torch.equal(left[1][name], right[1][name]) for name in left[1])


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in SCRIPTS]
)
def test_a_script_gets_trls_digits(name: str, tmp_path: Path) -> None:
    theirs = trained(grpo_trainer.GRPOTrainer, tmp_path / "theirs", **SCRIPTS[name])
    assert_equal(trained(t2g.GRPOTrainer, tmp_path / "ours", **SCRIPTS[name]), theirs)
    assert not any(WITH_SPANS in log for log in theirs[0])
    assert theirs[0][0].get("tools/call_frequency", 1) > 0


@pytest.mark.thorough
def test_a_resumed_script_gets_trls_digits_in_a_later_epoch_too(tmp_path: Path) -> None:
    rows = [{"prompt": " ".join(["yes"] * length)} for length in range(1, 9)]  # epochs of 4 steps
    settings = {"rows": rows, "max_steps": 7, "save_strategy": "steps", "save_steps": 5}
    kinds = {"theirs": grpo_trainer.GRPOTrainer, "ours": t2g.GRPOTrainer}
    for name, kind in kinds.items():
        trained(kind, tmp_path / name, **settings)
    theirs, ours = (
        trained(kind, tmp_path / name, str(tmp_path / name / "checkpoint-5"), **settings)
        for name, kind in kinds.items()
    )
    assert_equal(ours, theirs)


FORMS: dict[str, Callable[[str], Any]] = {
    "words": lambda text: '{"feedback": "So.", "negative": ["maybe"]}',
    "number and words": lambda text: (3.0, '{"feedback": "So.", "negative": ["maybe"]}'),
    "dict": lambda text: {"feedback": "So.", "negative": ["maybe"]},
    "critique": lambda text: Critique(
        "So.", tuple(Span(at, at + 5, "negative") for at in [text.find("maybe")] if at >= 0), outcome=3.0
    ),
}


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("form", FORMS)
def test_words_in_every_form_reach_the_tokens_that_they_quote(form: str, chat: bool, tmp_path: Path) -> None:
    def func(completions: list[Any], **_: Any) -> list[Any]:
        return [FORMS[form](text_of(completion)) for completion in completions]

    settings: dict[str, Any] = {"reward_weights": [2.0, 1.0], "max_steps": 1}
    trainer = make_trainer(tmp_path, [func, many_yes], **settings)
    ids = [trainer.processing_class(text).input_ids for text in ("please maybe yes .", "no")]
    texts = ["please maybe yes .", "no"]
    given = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
    numbers = trainer._calculate_rewards([{"prompt": TEXT}] * 2, [TEXT] * 2, given, ids)
    number = {"words": [-1.0, 0.0], "dict": [-1.0, 0.0]}.get(form, [3.0, 3.0])  # without a number the sum of the δ
    assert numbers.tolist() == [[number[0], 1.0], [number[1], 0.0]]
    last = 2 * 3.0 if 3.0 in number else 0.0
    # -1 on "maybe" times the weight 2; on the last token the other function's count of "yes", and 2 · 3 of the number
    assert trainer.token_rewards is not None
    assert trainer.token_rewards.tolist() == [[0.0, -2.0, 0.0, 1.0 + last], [last, 0.0, 0.0, 0.0]]


def test_spans_of_a_completion_that_trl_has_stripped_find_their_place(tmp_path: Path) -> None:
    def func(completions: list[Any], **_: Any) -> list[Any]:
        return [Critique("So.", (Span(0, 3, "positive"),))] * len(completions)

    trainer = make_trainer(tmp_path, func)
    ids = [trainer.processing_class(text).input_ids for text in ("maybe later yes", "no no")]
    given = [[{"role": "assistant", "content": text}] for text in ("yes", "no")]  # without what came before
    trainer._calculate_rewards([{"prompt": TEXT}] * 2, [TEXT] * 2, given, ids)
    assert trainer.token_rewards is not None
    # "no" stands twice in the second response: no place can be told, and the critique counts as unreadable
    assert trainer.token_rewards.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert trainer.judged[0].critiques[1].status == "unparsable"


def test_spans_lie_on_the_policys_tokens_and_none_on_those_of_a_tool(tmp_path: Path) -> None:
    answers = [
        (2.0, '{"feedback": "So.", "positive": ["please"], "negative": ["yes no", "or"]}'),
        (3.0, '{"feedback": "So.", "positive": ["yes"]}'),
    ]

    def func(completions: list[Any], **_: Any) -> list[Any]:
        return answers

    def five(completions: list[Any], **_: Any) -> list[float]:
        return [5.0] * len(completions)

    trainer = make_trainer(tmp_path, [func, five], reward={"span_mass": "span"})
    encode = trainer.processing_class
    ids = [encode(text).input_ids for text in ("please yes or yes yes no", "please yes")]
    trainer.own, trainer.prompt_ids = [[1, 1, 0, 0, 1, 1], [1, 0]], [encode(TEXT).input_ids] * 2
    turns = [("assistant", "please yes"), ("tool", "or yes"), ("assistant", "yes no")]
    completions = [[{"role": role, "content": text} for role, text in each] for each in (turns, turns[:2])]

    def numbers() -> Any:
        return trainer._calculate_rewards([{"prompt": TEXT}] * 2, [TEXT] * 2, completions, ids)

    assert numbers().tolist() == [[2.0, 5.0], [3.0, 5.0]]
    assert trainer.token_rewards is not None
    # A span has the mass 1: on "please", and half of -1 each on " yes" and " no". The numbers 2 + 5 and 3 + 5 stand on
    # the policy's last token. "or", and in the second response "yes", were written by a tool.
    assert trainer.token_rewards.tolist() == [[1.0, 0.0, 0.0, 0.0, -0.5, 6.5], [8.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    logged = trainer._pending_metrics
    assert (logged["critic/positive_spans"], logged["critic/negative_spans"]) == ([0.5], [0.5])
    table = json.loads(trainer._pending_extra_logs["critique_spans"][0])
    assert (table["response"], table["unmatched"]) == ("please yes yes no", ["or"])
    assert [turn["text"] for turn in table["turns"]] == [TEXT, "please yes", "or yes", " yes no"]
    assert [(span["turn"], span["start"], span["end"]) for span in table["spans"]] == [(1, 0, 6), (3, 1, 7)]
    answers = ['{"feedback": "So.", "positive": ["please"]}', '{"feedback": "So.", "positive": ["yes"]}']
    assert numbers()[:, 0].tolist() == [1.0, 0.0]  # without numbers the sum over the policy's tokens
    assert logged["critic/positive_spans"] == [0.5, 0.5]


def test_a_training_with_tools_shows_turns_and_has_the_advantages_of_the_native_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def critic(examples: Sequence[Example], responses: Sequence[Any]) -> list[Critique]:
        said = [
            [
                Span(word.start(), word.end(), "positive", number)
                for number, turn in enumerate(response.turns)
                for word in re.finditer("yes", turn.text * turn.sampled)
            ]
            for response in responses
        ]
        return [Critique("So.", tuple(spans), outcome=-0.5) for spans in said]

    settings = {**SCRIPTS["tools"], "max_steps": 1, "tokenizer": tool_tokenizer(), "scale_rewards": "group"}
    settings |= {"per_device_train_batch_size": 32, "max_completion_length": 16}
    trainer = make_trainer(tmp_path, critic, gamma=0.5, reward={"truncated": -0.25}, **settings)
    scored, score = list[Any](), trainer._generate_and_score_completions

    def kept(inputs: Any) -> Any:
        scored.append(score(inputs))
        return scored[-1]

    monkeypatch.setattr(trainer, "_generate_and_score_completions", kept)
    trainer.train()
    tokenizer, mask, rollouts = trainer.processing_class, trainer.response_mask, trainer.rollouts()
    yes = tokenizer.convert_tokens_to_ids(" yes")
    assert trainer.own is not None
    assert trainer.token_rewards is not None
    called = {"name": "weather", "arguments": {}}
    for row, (rollout, own) in enumerate(zip(rollouts, trainer.own, strict=True)):
        ids = trainer.ids[row]
        assert rollout.response_ids == tuple(token for token, written in zip(ids, own, strict=True) if written)
        assert sum((given.ids for given in rollout.given), ()) == tuple(
            token for token, written in zip(ids, own, strict=True) if not written
        )
        roles = [(turn.role, turn.sampled) for turn in rollout.response.turns]
        turns = [("assistant", True), ("tool", False)] * len(rollout.given) + [("assistant", True)] * own[-1]
        assert roles == [("user", False), *turns]
        for before, turn in pairwise(rollout.response.turns):
            if turn.role == "tool":
                assert (turn.text, turn.name, before.tool_calls) == (weather(), "weather", (called,))
        marked = [float(token == yes and bool(written)) for token, written in zip(ids, own, strict=True)]
        last = max(place for place, written in enumerate(own) if written)
        marked[last] -= 0.5 + 0.25 * rollout.truncated
        assert trainer.token_rewards[row].tolist() == marked + [0.0] * (mask.shape[1] - len(marked))
    assert any(rollout.given for rollout in rollouts)
    assert {rollout.truncated for rollout in rollouts} == {False, True}

    rewarded = rewards_of(RewardConfig(truncated=-0.25), tokenizer, rollouts, trainer.judged[0].critiques)
    ppo = PPOConfig(baseline="group", whiten="group", gamma=0.5, lam=1.0)
    values = torch.zeros_like(rewarded.rewards)
    native = advantages_over_baseline(ppo, rewarded.rewards, values, rewarded.batch, group_size=4).advantages
    assert native.abs().max() > 0.1
    learned = scored[0]["advantages"][:, : mask.shape[1]]
    torch.testing.assert_close(learned[mask], native[rewarded.batch.response_mask], atol=1e-6, rtol=0)
    assert learned[~mask].abs().max() == 0
    log = trainer.state.log_history[0]
    spans = sum(len(critique.spans) for critique in trainer.judged[0].critiques)
    assert log["critic/positive_spans"] == spans / len(rollouts) > 0


def test_the_package_that_old_versions_of_transformers_need_for_tools_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo_trainer, "_SUPPORTS_RESPONSE_TEMPLATE", False)
    monkeypatch.setattr(grpo_trainer, "is_jmespath_available", lambda: False)
    with pytest.raises(ImportError, match="pip install jmespath"):
        make_trainer(tmp_path, many_yes, tools=[weather], tokenizer=tool_tokenizer())


def test_the_share_of_groups_that_only_words_can_teach(tmp_path: Path) -> None:
    def func(completions: Sequence[str], **_: Any) -> list[Any]:
        return [(1.0, '{"feedback": "So.", "positive": ["yes"]}')] * len(completions)

    trainer = make_trainer(tmp_path, func, num_generations=2, per_device_train_batch_size=4)
    ids = [
        trainer.processing_class(text).input_ids for text in ("please yes no", "please no yes", "no or no", "no or no")
    ]
    texts = trainer.processing_class.batch_decode(ids)
    trainer.numbers = trainer._calculate_rewards([{"prompt": TEXT}] * 4, [TEXT] * 4, texts, ids)
    # Every number is 1, so one number teaches nothing in both groups. Returns of the first are (2, 2, 1) and (2, 2, 2),
    # which differ from their mean; all of the second are 1.
    whole, rewards = torch.ones(4, 3, dtype=torch.long), trainer.token_rewards
    assert trainer._advantages(rewards, {"completion_mask": whole})[1] == 0.5
    # The loss has no token of the first group.
    half = torch.tensor([[0], [0], [1], [1]])
    assert trainer._advantages(rewards, {"completion_mask": half * whole})[1] == 0.0
    trainer.numbers = torch.tensor([[1.0], [2.0], [1.0], [1.0]])
    assert trainer._advantages(rewards, {"completion_mask": whole})[1] == 0.0  # the first group has two numbers


def test_a_batch_without_words_has_trls_advantages(tmp_path: Path) -> None:
    calls: list[int] = []

    def func(completions: list[str], **_: Any) -> list[Any]:
        calls.append(len(completions))
        return [(1.0, "Good.") if len(calls) == 2 else 1.0] * len(completions)

    trainer = make_trainer(tmp_path, func, max_steps=3)
    trainer.train()
    said = [WITH_SPANS in log for log in trainer.state.log_history if "loss" in log]
    assert said == [False, True, False]


def test_a_text2grad_critic_is_a_reward_function(tmp_path: Path) -> None:
    seen: list[str] = []

    class Judge:
        def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[float]:
            seen.extend(str(example.prompt) for example in examples)
            return [float(len(response)) for response in responses]

    trainer = make_trainer(tmp_path, [Judge(), partial(many_yes)], max_steps=1)
    trainer.train()
    assert len(seen) == 8
    assert {"rewards/Judge/mean", "rewards/many_yes/mean"} <= trainer.state.log_history[0].keys()
