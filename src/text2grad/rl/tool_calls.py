"""The sampled ids of a turn → its text, its thought, and the calls of tools that it makes.

Calls are read by the response template of the tokenizer, or the one that TRL has for its chat template; else in the
forms of most models: JSON in `<tool_call>` (Hermes, Qwen), behind a name (Mistral, DeepSeek), or alone (Llama). What
stands inside of a thought is no call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from text2grad.errors import is_installed
from text2grad.feedback import answer_parts
from text2grad.models import any_of
from text2grad.types import Message

_BLOCK = re.compile(
    r"<tool_call>(?P<hermes>.*?)(?:</tool_call>|\Z)|\[TOOL_CALLS\](?P<mistral>.*?)(?=\[TOOL_CALLS\]|\Z)|"
    r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<deepseek>.*?)(?:<｜tool▁call▁end｜>|\Z)|"
    r"\A\s*(?:<\|python_tag\|>)?\s*(?P<llama>\{.*\})\s*\Z",
    re.DOTALL,
)
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\]|```json)?\s*(\{.*\})\s*(?:```)?\s*\Z", re.DOTALL)
_BEGUN = re.compile(r"<\|?tool_call|\[TOOL_CALLS\]|<function=|<｜tool▁call▁begin｜>|to=functions\.")


class SampledTurn(NamedTuple):
    """What a sampled turn says.

    Attributes:
        text: its ids decoded without special tokens.
        thought: the part of the text that is reasoning.
        calls: each with the "name" of a tool and its "arguments".
        unreadable: why a call that was begun cannot be read; else empty.
        message: the turn as a message for a chat template.
    """

    text: str
    thought: str
    calls: tuple[Mapping[str, Any], ...]
    unreadable: str
    message: Message


def read_turn(tokenizer: Any, ids: Sequence[int], before: str, tools: Sequence[Mapping[str, Any]]) -> SampledTurn:
    """Return what a sampled turn says.

    Args:
        tokenizer: the policy's.
        ids: the sampled ids.
        before: the text of the chat in the template, which may have begun a thought.
        tools: the JSON schemas of the tools.
    """
    raw, text = (tokenizer.decode(list(ids), skip_special_tokens=skip) for skip in (False, True))
    special = any_of(tokenizer, special=True)
    said = re.sub(rf"(?:{special})\Z", "", raw)
    parts = answer_parts(said, before)
    answer, edges = "".join(said[start:end] for start, end in parts), [0, *sum(parts, ()), len(said)]
    thought = "".join(said[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)).strip()
    unreadable = "a call was begun, and cannot be read"
    try:
        message = _parsed(tokenizer, raw, before, tools)
    except Exception as error:  # noqa: BLE001  any error of a parser of others
        message, unreadable = None, f"a call cannot be read: {error}"
    if message is None:
        inner = re.sub(r"\A\W*(?:<[^<>]*>|\[THINK\])|(?:</[^<>]*>|\[/THINK\])\W*\Z", "", thought)
        message = {**_read(answer), "reasoning_content": inner}
    calls = tuple(call["function"] for call in message["tool_calls"])
    unreadable = unreadable if not calls and _BEGUN.search(answer) else ""
    message = {name: value for name, value in message.items() if value or name == "content"}
    return SampledTurn(text, re.sub(special, "", thought), calls, unreadable, {**message, "role": "assistant"})


def _parsed(tokenizer: Any, raw: str, before: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return a turn as transformers parses it; None without a response template."""
    template = getattr(tokenizer, "response_template", None) or _of_trl(str(tokenizer.chat_template))
    if template is None:
        return None
    message = tokenizer.parse_response(raw, template, prefix=before, tools=list(tools))
    calls = [_checked(call.get("function", call)) for call in message.get("tool_calls") or ()]
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


@lru_cache(maxsize=8)
def _of_trl(template: str) -> Any:
    """Return the response template that TRL has for a chat template, also for one that it changed to train; or None."""
    if is_installed("trl"):
        from trl import chat_template_utils

        known = {name: text for name, text in vars(chat_template_utils).items() if name.endswith("_chat_template")}
        for name, text in known.items():
            if isinstance(text, str) and template.endswith(text):
                stock = SimpleNamespace(chat_template=known.get(name.replace("_training_", "_")))
                with suppress(ValueError, AttributeError):  # TRL has none for this one
                    return chat_template_utils.add_response_schema(stock).response_template
    return None


def _read(answer: str) -> dict[str, Any]:
    """Return an answer as a message with the calls that can be read."""
    calls = list[Any]()
    for block in _BLOCK.finditer(answer):
        text, bare = block[block.lastgroup or 0], block.lastgroup == "llama"  # an answer may be JSON and no call
        with suppress(ValueError, RecursionError):
            named = _NAMED.match(text)
            read = {"name": named[1], "arguments": named[2]} if named else json.loads(text)
            calls += [_checked(call, whole=bare) for call in (read if isinstance(read, list) else [read])]
    return {"content": _BLOCK.sub("", answer).strip() if calls else answer, "tool_calls": calls}


def _checked(call: Any, *, whole: bool = False) -> dict[str, Any]:
    """Return a call with a name and arguments, which a `whole` one has, in the form of chat templates.

    Raises:
        ValueError: if it has none.
    """
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError('a call is an object with a "name" and "arguments"')
    arguments = call.get("arguments", call.get("parameters", None if whole else {}))
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" of a call is an object')
    return {"type": "function", "function": {"name": call["name"], "arguments": arguments}}
