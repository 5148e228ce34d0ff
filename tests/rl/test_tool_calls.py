"""Calls of tools in what a policy says: by transformers' parser where the template is known, else as JSON."""

from typing import Any

import pytest

import said
from text2grad.rl import tool_calls
from text2grad.rl.tool_calls import read_turn

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}]
ROME = {"name": "look", "arguments": {"place": "Rome", "days": 3}}
JSON = '{"name": "look", "arguments": {"place": "Rome", "days": 3}}'
XML = "<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
XML += "</function>\n</tool_call>"


def read(name: str, text: str, before: str = "") -> Any:
    made = said.tokenizer(name)
    return read_turn(made, made(text, add_special_tokens=False)["input_ids"], before, TOOLS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", f"<think>\nHm.\n</think>\n\n<tool_call>\n{JSON}\n</tool_call><|im_end|>"),
        ("qwen3_training", f"<think>\nHm.\n</think>\n\n<tool_call>\n{JSON}\n</tool_call><|im_end|>"),
        ("qwen3_5_think_training", f"<think>\nHm.\n</think>\n\n{XML}<|im_end|>"),
        ("nemotron_3_nano", f"Hm.\n</think>\n{XML}<|im_end|>"),
        ("glm4moe", "\n<think>Hm.</think>\n<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>Rome</arg_value>\n"
         "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call><|observation|>"),
        ("gemma4", '<|tool_call>call:look{place:<|"|>Rome<|"|>,days:3}<tool_call|><|tool_response>'),
        ("gptoss", '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.look<|channel|>commentary '
         'json<|message|>{"place": "Rome", "days": 3}<|call|>'),
        ("llama3_1", '{"name": "look", "parameters": {"place": "Rome", "days": 3}}<|eot_id|>'),
        ("llama3", JSON.replace("arguments", "parameters") + "<|eot_id|>"),  # not known to TRL
        ("smolvlm", f"I look.\n<tool_call>{JSON}</tool_call><end_of_utterance>"),
        ("smolvlm", f"[TOOL_CALLS][{JSON}]<end_of_utterance>"),
        ("smolvlm", '[TOOL_CALLS]look{"place": "Rome", "days": 3}<end_of_utterance>'),
        ("deepseekv3", "Hm.\n</think>\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
         '{"place": "Rome", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'),
    ],
)  # fmt: skip
def test_a_call_is_read_in_the_form_of_each_model(name: str, text: str) -> None:
    before = "<|im_start|>assistant\n<think>\n" if "nemotron" in name else ""
    turn, message, unreadable = read(name, text, before)
    assert (turn.tool_calls, unreadable) == ((ROME,), "")
    assert message["tool_calls"] == [{"type": "function", "function": ROME}]
    assert (turn.role, turn.sampled) == ("assistant", True)
    assert "<|im_end|>" not in turn.text
    assert ("Hm." in turn.thought) is ("Hm." in text)
    assert (turn.thought in turn.text) or name == "gptoss"


def test_an_answer_that_is_a_call_without_its_marks_is_one_and_words_beside_it_make_it_text() -> None:
    for bare in (JSON, f"```json\n{JSON}\n```\n", f" {JSON}<|im_end|>"):
        turn, message, unreadable = read("qwen3", bare)
        assert (turn.tool_calls, message["content"], unreadable) == ((ROME,), "", "")
    for text in (
        f"I call {JSON}",
        JSON.replace("look", "other"),
        f"{JSON} {JSON}",
        f"[{JSON}]",
        '{"name": "look"}',
        "3",
    ):
        turn, message, unreadable = read("qwen3", text)
        assert (turn.tool_calls, message["content"], unreadable) == ((), text, ""), text


def test_two_calls_are_two() -> None:
    both = f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{JSON}\n</tool_call>"
    for name in ("qwen3", "smolvlm"):
        assert read(name, both)[0].tool_calls == (ROME, ROME)
    assert read("smolvlm", f"[TOOL_CALLS][{JSON}, {JSON}]")[0].tool_calls == (ROME, ROME)


@pytest.mark.parametrize(
    "text",
    [
        "It is sunny.",
        '{"name": "Ann", "age": 3}',  # an answer in JSON
        f"I would say {JSON}.",
        f"<think>\n<tool_call>{JSON}</tool_call>\n</think>\n\nNo.",
        "",
        "{" * 50,
    ],
)
def test_an_answer_is_no_call(text: str) -> None:
    for name in ("smolvlm", "qwen3"):
        turn, message, unreadable = read(name, text)
        assert (turn.tool_calls, unreadable) == ((), "")
        assert "tool_calls" not in message


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "look", "arguments": {"place"\n</tool_call><|im_end|>',
        "<tool_call>look at Rome</tool_call><|im_end|>",
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "look", "arguments": [1]}\n</tool_call>',
        "<tool_call>" + '{"a":' * 3000,
    ],
)
def test_a_call_that_was_begun_and_cannot_be_read_says_so(text: str) -> None:
    for name in ("smolvlm", "qwen3"):
        turn, _, unreadable = read(name, text)
        assert turn.tool_calls == ()
        assert "cannot be read" in unreadable


def test_without_trl_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tool_calls._of_trl.cache_clear()
    monkeypatch.setattr(tool_calls, "is_installed", lambda module: False)
    assert read("qwen3", f"<tool_call>\n{JSON}\n</tool_call><|im_end|>")[0].tool_calls == (ROME,)
    tool_calls._of_trl.cache_clear()


def test_the_message_of_a_turn_renders_as_it_was_said() -> None:
    made = said.tokenizer("qwen3")
    text = f"<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{JSON}\n</tool_call><|im_end|>"
    _, message, _ = read("qwen3", text)
    whole = made.apply_chat_template([{"role": "user", "content": "?"}, message], tokenize=False)
    assert whole.rstrip("\n").endswith(f"<|im_start|>assistant\n{text}")
