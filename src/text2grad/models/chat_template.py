"""Chats in a model's chat template: the prompt of an answer, the text that the template makes of it, and its end.

A template is a program of the model's authors: it may leave out calls of tools and thoughts, trim texts, change earlier
turns, and end a turn with any token. So each of these is asked of the template, by rendering.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from itertools import count, product, takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

from text2grad.align import added_tokens
from text2grad.errors import DataError
from text2grad.types import Example, Message

_OF_SERVERS = ("refusal", "reasoning_details", "thinking_blocks")  # of OpenAI, OpenRouter and LiteLLM
SAID = ("content", "reasoning_content", "reasoning", "thinking", "tool_calls", "function_call", *_OF_SERVERS)
"""The fields of a message that a template may render."""
_CALLS = {"tool_calls", "function_call"}
_MARKS = ("\ue0fd\ue0fc", "\ue0fc\ue0fd")  # private-use characters, which stand for texts


class LostToolsError(DataError):
    """A format leaves out calls of tools, or their results; what is left would be answered otherwise."""


class TurnEnd(NamedTuple):
    """The end of an answer."""

    text: str = ""  # the tokens that end it; nothing: the tokenizer's end of sequence
    behind: str = ""  # what the template renders behind it at the end of a chat, such as a line break
    is_rendered: bool = False  # with the answer; else it is the token that begins the next turn (GLM)


def turn_end(tokenizer: Any, meta: Mapping[str, Any] = MappingProxyType({})) -> TurnEnd:
    """Return the end of an answer in the chat template, which is asked once.

    Args:
        tokenizer: the model's, with a chat template.
        meta: the record of the chat: of several templates by name, its "tools" choose that for tools.
    """
    tools = _written(meta.get("tools")) if isinstance(tokenizer.chat_template, dict) else ""  # of several templates
    return _turn_end(tokenizer, len(tokenizer), str(tokenizer.chat_template), tools)


@lru_cache(maxsize=8)
def _turn_end(tokenizer: Any, _size: int, _template: str, tools: str) -> TurnEnd:
    roles, meta = ("system", "user", "assistant"), {"tools": tools}
    system, asked, said = ({"role": role, "content": _MARKS[role == "assistant"]} for role in roles)
    tail = then = ""
    for first in ([], [system]):
        chats = (Example([*first, asked, said, *more], meta=meta) for more in ([], [asked]))
        with suppress(DataError):  # of a template for other chats
            tail, then = (render(tokenizer, chat).partition(_MARKS[1])[2] for chat in chats)
            break
    tokens = any_of(tokenizer)
    if not (run := re.search(f"(?:{tokens})+", tail)):
        return TurnEnd(opener(tokenizer, then), tail)
    text = tail[: run.end()]
    for token in reversed(re.findall(tokens, run[0])[1:]):
        text = text if then.startswith(text) else text.removesuffix(token)
    return TurnEnd(text, tail[len(text) :], is_rendered=True)


def prompt_text(tokenizer: Any, example: Example, where: str = "the chat") -> str:
    """Return a prompt in the chat template, up to the beginning of the answer.

    An assistant message at the end of a prompt is one that was begun, and is continued, unless its "prefix" is false.

    Raises:
        DataError: if the template refuses the chat, or the prompt ends with a call of a tool.
    """
    *_, last = messages_of(example)
    if is_begun(last) and last.get("tool_calls"):
        raise DataError(f"the prompt of {where} ends with a call of a tool; add the tool's answer, or remove the call")
    how = "continue_final_message" if is_begun(last) else "add_generation_prompt"
    return render(tokenizer, example, where, **{how: True})


def answer_text(tokenizer: Any, example: Example, message: Message, end: TurnEnd) -> tuple[str, str]:
    """Return the text before an assistant message in the chat template, and the text of the message with its end.

    The text before it is its prompt. Where the template begins the message otherwise, as one does that opens a thought
    in each prompt and in no message, it is what the two have in common.

    Raises:
        DataError: if the template refuses the chat.
    """
    prompt, chat = prompt_text(tokenizer, example), messages_of(example)
    if is_begun(chat[-1]):
        begun = chat.pop()
        message = {**begun, **message, "content": f"{begun.get('content', '')}{message.get('content') or ''}"}
    marked = ({**message, **{name: mark for name in SAID[:4] if message.get(name)}} for mark in _MARKS)
    rendered = (render(tokenizer, replace(example, prompt=[*chat, each])) for each in (message, *marked))
    whole, before, start = next(rendered), prompt, len(prompt)
    if not whole.startswith(prompt):
        wholes, marks = [whole, *rendered], rf"{any_of(tokenizer)}|</?\w+>"
        before = _common(marks, [prompt, *wholes])
        start = len(before)
        if not re.fullmatch(rf"(?:{marks}|\s)*", prompt[start:]):  # the template changes earlier messages
            bare = _common(marks, [prompt, render(tokenizer, example)])
            head, opening, _ = _common(marks, wholes).rpartition(prompt[len(bare) :] or prompt)
            before, start = prompt, len(head + opening)
            if not opening:
                raise DataError("the chat template begins an answer otherwise than its prompt ends; take another model")
    text = whole[start:].removesuffix(end.behind)
    if not end.is_rendered:
        result = [{"role": "tool", "content": _MARKS[0]}] * any(map(message.get, _CALLS))
        then = render(tokenizer, replace(example, prompt=[*chat, message, *result]))
        text += opener(tokenizer, then.removeprefix(whole)) or end.text
    return before, text


def unrendered(message: Mapping[str, Any], text: str, before: str) -> list[str]:
    """Return the fields of a message of which its text has not every word, and "tools" if the text before lacks one."""
    message = _spelled({**message, "tool_calls": _read(message.get("tool_calls"))}, _read)
    tools = message["tools"] if isinstance(message["tools"], list) else []
    names = [tool.get("function", tool).get("name") for tool in tools if isinstance(tool, Mapping)]
    said = {name: (message.get(name), text) for name in SAID} | {"tools": (names, before)}
    return [name for name, (value, shown) in said.items() if not all(word in shown for word in _words(value))]


def _words(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        value = [part for name, part in value.items() if name not in ("id", "type", "index")]
    if isinstance(value, list):
        return [word for part in value for word in _words(part)]
    return [] if value is None or isinstance(value, bool) else re.findall(r"\w+", str(value))


def messages_of(example: Example) -> list[Message]:
    """Return the messages of a prompt, with calls read from JSON, without empty fields."""
    prompt = [{"role": "user", "content": example.prompt}] if isinstance(example.prompt, str) else example.prompt
    roles = {"function": "tool"}  # the older name
    given = [{**m, "role": roles.get(m["role"], m["role"]), "tool_calls": _read(m.get("tool_calls"))} for m in prompt]
    return [{name: value for name, value in message.items() if value not in (None, [])} for message in given]


def tools_of(example: Example) -> list[Any] | None:
    """Return the tools in the record of a prompt, also in JSON; None without."""
    tools = _read(example.meta.get("tools") or example.meta.get("functions"))
    return tools if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools) else None


def is_begun(message: Message) -> bool:
    """Return whether a message at the end of a prompt is one that the policy continues."""
    return message["role"] == "assistant" and message.get("prefix") is not False


def render(tokenizer: Any, example: Example, where: str = "the chat", **how: Any) -> str:
    """Return a chat in the template, with the tools and the "chat_template_kwargs" of its record.

    Of its spellings it is the first that shows each call and result of a tool, by a mark on it, and what users wrote.
    """
    if isinstance(own := _read(example.meta.get("chat_template_kwargs")), dict):
        if taken := own.keys() & (signature(tokenizer.apply_chat_template).parameters.keys() - {"documents"}):
            raise DataError(f'"chat_template_kwargs" of {where}: {min(taken)!r} is no variable of templates; remove it')
        how |= own
    chat, tools = messages_of(example), tools_of(example)
    wrapped = tools and [{"type": "function", "function": tool.get("function", tool)} for tool in tools]
    forms, texts, errors, marks = list[Any](), list[str](), list[Exception](), list[str]()
    for messages, of_tools in ((chat, tools), (_completed(chat), wrapped)):
        filled = [{"content": "", **message} for message in messages]
        parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in filled]
        forms += product((messages, filled, parts), (_read, _written), (of_tools,))
    asked = [m["content"].strip() for m in chat if m["role"] == "user" and isinstance(m.get("content"), str)]
    unseen = [_MARKS[0]] * ("tool_calls" not in str(tokenizer.chat_template) and any(_CALLS & m.keys() for m in chat))
    for messages, change, how["tools"] in forms:
        marks[:] = unseen
        both = [_spelled(messages, change), _spelled(messages, change, marks)][: 1 + bool(marks)]
        try:
            text, *shown = (str(tokenizer.apply_chat_template(each, tokenize=False, **how)) for each in both)
        except Exception as error:  # noqa: BLE001  any error of a program of others
            errors.append(error)
            continue
        texts.append("" if any(mark not in shown[0] for mark in marks) else text)
        if texts[-1] and all(content in text for content in asked):
            return text
    if any(texts) or (texts and not marks):
        return next(filter(None, texts), "")
    why = "it has no place for a call of a tool, or a result" if texts or unseen else errors[0]
    kind, way = (LostToolsError, "take another model") if marks else (DataError, 'set model.prompt_format = "plain"')
    roles = ", ".join(repr(message["role"]) for message in chat)
    raise kind(f"the tokenizer's chat template refuses {where} (roles {roles}): {why}. Change its messages, or {way}")


def _spelled(value: Any, change: Any, marks: list[str] | None = None) -> Any:
    """Return messages with the arguments of calls changed, and with marks, if asked, on calls' names and on results."""
    if not isinstance(value, Mapping):
        return [_spelled(part, change, marks) for part in value] if isinstance(value, list) else value
    is_call = "arguments" in value and "function" not in value
    own = {name: part if is_call else _spelled(part, change, marks) for name, part in value.items()}
    own |= {"arguments": change(own["arguments"] or {})} if is_call else {}
    key = "name" if is_call else "content" if own.get("role") == "tool" else ""
    if marks is not None and isinstance(said := own.get(key), str | list):
        marks.append(f"qx{len(marks)}xq")  # letters and digits, which templates keep
        own[key] = f"{said}{marks[-1]}" if isinstance(said, str) else [*said, {"type": "text", "text": marks[-1]}]
    return own


def _completed(chat: list[Message]) -> list[Message]:
    """Return a chat with all that templates ask for: ids of nine characters (Mistral's), and the names of results."""
    whole, waiting, ids = list[Any](), dict[Any, dict[str, Any]](), (f"{number:09}" for number in count())
    for m in chat:
        given = [call for call in m.get("tool_calls") or [m.get("function_call")] if isinstance(call, dict)]
        inner = [call["function"] if isinstance(call.get("function"), dict) else call for call in given]
        calls = [{"type": "function", **c, "function": f, "id": next(ids)} for c, f in zip(given, inner, strict=True)]
        waiting |= {call.get("id", own["id"]): own for call, own in zip(given, calls, strict=True)}
        whole.append({**m, **({"tool_calls": calls, "function_call": None} if calls else {})})
        if m["role"] == "tool" and (call := waiting.pop(m.get("tool_call_id", next(iter(waiting), 0)), None)):
            whole[-1] |= {"tool_call_id": call["id"], "name": call["function"].get("name")}
    return whole


def _read(value: Any) -> Any:
    """Return the object or list that a text spells in JSON; else the value."""
    with suppress(ValueError, TypeError):
        value = read if isinstance(read := json.loads(value), dict | list) else value
    return value


def _written(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def any_of(tokenizer: Any, *, special: bool = False) -> str:
    """Return a pattern of the tokens, or special tokens, that were added to a tokenizer, the longest first."""
    return _any_of(tokenizer, len(tokenizer), special)


@lru_cache(maxsize=8)
def _any_of(tokenizer: Any, _size: int, special: bool) -> str:
    tokens = (token for token in added_tokens(tokenizer).values() if token.content and token.special >= special)
    return "|".join(re.escape(text) for text in sorted((token.content for token in tokens), key=len)[::-1]) or "(?!)"


def opener(tokenizer: Any, text: str) -> str:
    """Return the special token that begins a text, or nothing."""
    token = re.match(any_of(tokenizer, special=True), text)
    return token[0] if token else ""


def _common(marks: str, texts: Sequence[str]) -> str:
    """Return what texts begin with, without a mark that only some have."""
    size = sum(1 for _ in takewhile(lambda column: len({*column}) == 1, zip(*texts, strict=False)))
    return texts[0][: next((mark.start() for mark in re.finditer(marks, texts[0]) if mark.end() > size), size)][:size]
