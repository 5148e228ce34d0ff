"""The sampled ids of a turn → its text, its thought, and the calls of tools that it makes.

Calls are read by the response template of the tokenizer, or the one that TRL has for its chat template; else as objects
of JSON with a name and arguments, alone (Llama) or between any marks (Hermes, Mistral). With a template, too, an answer
that is one call of a known tool in JSON and nothing else is a call: small models leave out the marks. What stands
inside of a thought is no call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from text2grad.errors import is_installed
from text2grad.feedback import answer_parts
from text2grad.models import any_of
from text2grad.types import Message, Turn

_BEGUN = re.compile(r"<\|?tool_call|\[TOOL_CALLS\]|<function=|<｜tool▁call▁begin｜>|to=functions\.")
_FENCED = re.compile(r"\s*```(?:json)?\s(.*)```\s*", re.DOTALL)
_NAME = re.compile(r"([\w.-]+)\s*(?:\[ARGS\]|```json)?\s*\Z")  # before the arguments: Mistral, DeepSeek


def read_turn(
    tokenizer: Any, ids: Sequence[int], before: str, tools: Sequence[Mapping[str, Any]]
) -> tuple[Turn, Message, str]:
    """Return a sampled turn, the same as a message for a chat template, and why a call that it began cannot be read.

    `before` is the text of the chat in the template, which may have begun a thought; `tools` are their JSON schemas.
    """
    raw, text = (tokenizer.decode(list(ids), skip_special_tokens=skip) for skip in (False, True))
    special = any_of(tokenizer, special=True)
    said = re.sub(rf"(?:{special})\Z", "", raw)
    parts = answer_parts(said, before)
    answer, edges = "".join(said[start:end] for start, end in parts), [0, *sum(parts, ()), len(said)]
    thought = "".join(said[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)).strip()
    message, unreadable = None, "a call was begun, and cannot be read"
    try:
        message = _parsed(tokenizer, raw, before, tools)
    except Exception as error:  # noqa: BLE001  any error of a parser of others
        unreadable = f"a call cannot be read: {error}"
    if message is None:
        inner = re.sub(r"\A\W*(?:<[^<>]*>|\[THINK\])|(?:</[^<>]*>|\[/THINK\])\W*\Z", "", thought)
        message = {**_read(answer), "reasoning_content": inner}
    if not message["tool_calls"]:
        message |= _bare_call(answer, tools)
    calls = tuple(call["function"] for call in message["tool_calls"])
    message = {name: value for name, value in message.items() if value or name == "content"} | {"role": "assistant"}
    turn = Turn("assistant", text, True, re.sub(special, "", thought), calls)
    return turn, message, unreadable if not calls and _BEGUN.search(answer) else ""


def _parsed(tokenizer: Any, raw: str, before: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return a turn as transformers parses it; None without a response template."""
    template = getattr(tokenizer, "response_template", None) or _of_trl(str(tokenizer.chat_template))
    if template is None:
        return None
    message = tokenizer.parse_response(raw, template, prefix=before, tools=list(tools))
    calls = [_checked({"arguments": {}, **call["function"]}) for call in message.get("tool_calls") or ()]
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


@lru_cache(maxsize=8)
def _of_trl(template: str) -> Any:
    """Return the response template that TRL has for a chat template, also for one that it changed to train; or None."""
    if is_installed("trl"):
        from trl import chat_template_utils

        known = {name: text for name, text in vars(chat_template_utils).items() if name.endswith("_chat_template")}
        for name in (name for name, text in known.items() if isinstance(text, str) and template.endswith(text)):
            stock: Any = SimpleNamespace(chat_template=known.get(name.replace("_training_", "_")))
            with suppress(ValueError):  # TRL has none for this one
                return chat_template_utils.add_response_schema(stock).response_template
    return None


def _read(answer: str) -> dict[str, Any]:
    """Return an answer as a message with the calls that can be read."""
    calls, at, begun = list[Any](), 0, _BEGUN.search(answer)
    end = begun.start() if begun else len(answer) - len(answer.lstrip())
    while (at := answer.find("{", at)) >= 0 and (begun or at == end or calls):
        try:
            value, after = json.JSONDecoder(strict=False).raw_decode(answer, at)
            name = None if {"arguments", "parameters"} & value.keys() else _NAME.search(answer, end, at)
            calls.append(_checked({"name": name[1], "arguments": value} if name else value))
            at = after
        except (ValueError, RecursionError):
            at += 1
    return {"content": answer[:end] if calls else answer, "tool_calls": calls}


def _bare_call(answer: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an answer that is one call of a known tool in JSON, fenced or not, as a message; nothing for others."""
    known = {tool.get("function", tool).get("name") for tool in tools}
    with suppress(ValueError, RecursionError, AttributeError):  # no JSON, or no object
        call = _checked(json.loads(bare[1] if (bare := _FENCED.fullmatch(answer)) else answer))
        return {"content": "", "tool_calls": [call]} if call["function"]["name"] in known else {}
    return {}


def _checked(call: Any) -> dict[str, Any]:
    """Return a call in the form of chat templates; refuse one without name and arguments."""
    arguments = call.get("arguments", call.get("parameters"))
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
        raise ValueError('a call has a "name" and "arguments"')
    return {"type": "function", "function": {"name": call["name"], "arguments": arguments}}
