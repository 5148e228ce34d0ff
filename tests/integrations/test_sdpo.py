"""Scripts for TRL's `SDPOTrainer` with another import: the same digits; words about a sample reach its own teacher."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl.experimental.sdpo import SDPOConfig, sdpo_trainer

import text2grad as t2g
from small_trl import make_trainer, yes_is_positive
from text2grad.errors import ConfigError
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Example

# TRL's own default
pytestmark = pytest.mark.filterwarnings(
    "ignore:.(is_)?gradient_checkpointing(_disable|_enable)?. is deprecated:FutureWarning"
)
TEXT = "please say yes or no ."
NAMES = [f"w{number}" for number in range(8)]
CHAT = [{"prompt": [{"role": "user", "content": TEXT}], "privileged_context": "w1"}] * 8


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def many_yes(completions: list[Any], **_: Any) -> list[float]:
    return [float(text_of(completion).split().count("yes")) for completion in completions]


def short(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [-0.1 * len(ids) if len(ids) > 2 else None for ids in completion_ids]


class TeacherPrompts(TrainerCallback):  # type: ignore[misc]
    """Keeps the texts that the teacher reads before its first token, and which samples it teaches."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.taught: list[bool] = []

    def on_teacher_context_built(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        teacher_input_ids: Any,
        completion_mask: Any,
        self_distillation_mask: Any,
        processing_class: Any,
        **_: Any,
    ) -> None:
        prompts = teacher_input_ids[:, : -completion_mask.shape[1]]
        self.texts += processing_class.batch_decode(prompts)
        self.taught += self_distillation_mask.bool().tolist()


def sdpo(out: Path, func: Any, *, kind: Any = t2g.SDPOTrainer, **settings: Any) -> Any:
    """Return a trainer whose templates have no words of their own."""
    tokenizer = word_tokenizer([TEXT, "maybe later", *NAMES])
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    templates = {
        "reprompt_template": "{prompt}{solution}{feedback}",
        "solution_template": "{successful_previous_attempt}",
        "feedback_template": " .{feedback_raw}",
    }
    defaults = {"teacher_model_kind": "live", "max_steps": 1, "include_environment_feedback": True, **templates}
    return make_trainer(out, func, kind=kind, config=SDPOConfig, tokenizer=tokenizer, **{**defaults, **settings})


def trained(kind: Any, out: Path, func: Any, **settings: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the log without the entries of the clock and of critics, and the weights."""
    trainer = sdpo(out, func, kind=kind, **settings)
    trainer.train()
    left_out = ("runtime", "per_second", "time")
    logs = [
        {name: value for name, value in log.items() if not name.endswith(left_out) and "critic/" not in name}
        for log in trainer.state.log_history
    ]
    return logs, trainer.model.state_dict()


def assert_equal(left: tuple[Any, Any], right: tuple[Any, Any]) -> None:
    # the name of a reward function stands in the log
    assert repr(left[0]).replace("said", "many_yes") == repr(right[0])
    assert left[1].keys() == right[1].keys()
    assert all(torch.equal(left[1][name], right[1][name]) for name in left[1])


SCRIPTS: dict[str, dict[str, Any]] = {
    "defaults": {"include_environment_feedback": False},
    "conversations, a column of feedback, evaluation": {
        "rows": CHAT,
        "eval_dataset": Dataset.from_list(CHAT),
        "eval_strategy": "steps",
        "eval_steps": 2,
        "per_device_eval_batch_size": 8,
    },
    "LoRA, EMA, top-k, policy loss, two functions": {
        "reward_funcs": [many_yes, short],
        "reward_weights": [1.0, 0.5],
        "peft_config": LoraConfig(r=2, target_modules="all-linear"),
        "teacher_model_kind": "ema",
        "distillation_mode": "topk_logits",
        "distillation_topk": 3,
        "distillation_weight": 0.5,
        "success_reward_threshold": 0.5,
        "num_iterations": 2,
    },
}


@pytest.mark.parametrize(
    "name", [name if "column" in name else pytest.param(name, marks=pytest.mark.thorough) for name in SCRIPTS]
)
def test_a_script_gets_trls_digits(name: str, tmp_path: Path) -> None:
    settings = {"max_steps": 3, **SCRIPTS[name]}
    func = settings.pop("reward_funcs", many_yes)
    theirs, ours = (
        trained(kind, tmp_path / kind.__module__, func, **settings)
        for kind in (sdpo_trainer.SDPOTrainer, t2g.SDPOTrainer)
    )
    assert_equal(ours, theirs)
    assert any(log.get("self_distillation/reprompt_sample_fraction") for log in theirs[0])


def test_words_are_the_feedback_that_a_column_would_hold(tmp_path: Path) -> None:
    def said(completions: list[Any], **_: Any) -> list[Any]:
        return [(number, "w1") for number in many_yes(completions)]

    rows = [{"prompt": row["prompt"]} for row in CHAT]
    theirs = trained(sdpo_trainer.SDPOTrainer, tmp_path / "theirs", many_yes, rows=CHAT, max_steps=2)
    assert_equal(trained(t2g.SDPOTrainer, tmp_path / "ours", said, rows=rows, max_steps=2), theirs)
    # without words the teacher reads nothing more than the student, and the loss is another one
    silent = trained(t2g.SDPOTrainer, tmp_path / "silent", many_yes, rows=rows, max_steps=2)
    assert silent[0][0]["loss"] != theirs[0][0]["loss"]


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_the_teacher_of_a_sample_reads_the_words_about_it_and_no_others(chat: bool, tmp_path: Path) -> None:
    def said(completions: list[Any], **_: Any) -> list[Any]:
        return [(0.0, name) for name in NAMES]

    def more(completions: list[Any], **_: Any) -> list[Any]:
        return [Critique("maybe later") if number == 5 else 0.0 for number in range(8)]

    rows = CHAT if chat else [{"prompt": TEXT, "privileged_context": "w1"}] * 8
    seen = TeacherPrompts()
    trainer = sdpo(tmp_path, [said, more], rows=rows, callbacks=[seen])
    trainer.train()
    words = [[name for name in NAMES if name in text] for text in seen.texts]
    assert words == [[name] for name in NAMES]
    assert [number for number, text in enumerate(seen.texts) if "maybe later" in text] == [5]
    assert all(seen.taught)
    # two line breaks stand between the words of two functions; a chat ends with a blank
    assert [text.count("<unk>") for text in seen.texts] == [chat + 2 * (number == 5) for number in range(8)]
    log = trainer.state.log_history[0]
    assert log["self_distillation/feedback_used_fraction"] == 1.0
    assert (log["critic/failure_rate"], log["critic/positive_spans"]) == (0.0, 0.0)


MISSING: dict[str, Callable[[float], Any]] = {
    "empty": lambda number: (number, ""),
    "blank critique": lambda number: Critique(" \n", outcome=number),
    "unreadable": lambda number: Critique("w2", outcome=number, status="timed_out"),
}


@pytest.mark.parametrize("form", MISSING)
def test_an_empty_critique_is_trls_missing_feedback(form: str, tmp_path: Path) -> None:
    def said(completions: list[Any], **_: Any) -> list[Any]:
        return [MISSING[form](number) for number in many_yes(completions)]

    rows = [{"prompt": row["prompt"]} for row in CHAT]
    theirs = trained(sdpo_trainer.SDPOTrainer, tmp_path / "theirs", many_yes, rows=rows)
    settings = {"rows": CHAT, "max_failure_rate": 1.0}  # the column is not read
    assert_equal(trained(t2g.SDPOTrainer, tmp_path / "ours", said, **settings), theirs)
    # some have words, others none: TRL teaches those with words
    seen = TeacherPrompts()
    mixed = [(0.0, "w3") if number % 2 else MISSING[form](0.0) for number in range(8)]
    sdpo(tmp_path / "mixed", lambda completions, **_: mixed, callbacks=[seen], **settings).train()
    assert seen.taught == [False, True] * 4
    assert ["w3" in text for text in seen.texts] == seen.taught
    assert not any("w1" in text or "w2" in text for text in seen.texts)


def test_a_batch_without_words_reads_the_column(tmp_path: Path) -> None:
    calls: list[int] = []

    def said(completions: list[Any], **_: Any) -> list[Any]:
        calls.append(len(completions))
        return [(0.0, "w4") if len(calls) == 2 else 0.0] * len(completions)

    seen = TeacherPrompts()
    sdpo(tmp_path, said, rows=CHAT, callbacks=[seen], max_steps=3).train()
    assert ["w1" in text for text in seen.texts] == [True] * 8 + [False] * 8 + [True] * 8
    assert ["w4" in text for text in seen.texts] == [False] * 8 + [True] * 8 + [False] * 8


def test_a_text2grad_critic_is_a_reward_function_whose_spans_make_the_number(tmp_path: Path) -> None:
    seen, counts = TeacherPrompts(), list[float]()

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        critiques = yes_is_positive(examples, responses)
        counts.extend(sum(1.0 if span.label == "positive" else -1.0 for span in each.spans) for each in critiques)
        return [Critique(name, each.spans) for name, each in zip(NAMES, critiques, strict=True)]

    settings = {"reward": {"positive": 2.0, "negative": -2.0}, "use_successful_as_teacher": False}
    trainer = sdpo(tmp_path, critic, callbacks=[seen], **settings)
    trainer.train()
    assert [name in text for name, text in zip(NAMES, seen.texts, strict=True)] == [True] * 8
    mean = trainer.state.log_history[0]["self_distillation/reward_mean"]
    assert mean == pytest.approx(2 * sum(counts) / 8)  # each span is a word of ±2
    assert any(counts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"include_environment_feedback": False}, "include_environment_feedback = False"),
        ({"distillation_weight": 0.0}, r"distillation_weight = 0\.0"),
    ],
)
def test_settings_under_which_nobody_reads_the_words_are_refused_at_the_first_words(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sdpo(tmp_path, lambda completions, **_: ["Words."] * len(completions), **settings).train()
    sdpo(tmp_path, many_yes, **settings).train()  # numbers lose nothing
