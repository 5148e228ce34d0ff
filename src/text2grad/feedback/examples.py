"""JSONL files → examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}} on each line.

A whole chat, {"messages": [...]}, is read too: its last assistant message is the reference, the messages before it are
the prompt. So are ShareGPT's "conversations" of {"from", "value"} with their "system", and content in parts of text.
Supervised fine-tuning learns demonstrations: examples with a reference, or chats. Each assistant message of a chat is
an answer to the messages before it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.feedback.record_files import Object, is_text, json_object, optional, read_lines, refuse_half_pairs, shown
from text2grad.files import json_lines, write_files
from text2grad.types import Example, Message

FIELDS = ("prompt", "reference", "tests", "meta")
WEIGHT = re.compile(r"(?:.*_)?(?:weight|train|training|trainable|learn|loss|mask)(?:_.*)?")  # for a message's loss
ENCODED = ("reference", "tests", "response", "feedback")
_SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "observation": "tool"}
_SPEAKERS |= {role: role for role in ("user", "assistant", "system", "tool")}


def read_examples(path: str | Path, *, unique_ids: bool = False) -> list[Example]:
    """Return the examples of a file of JSON lines or of Parquet; blank lines are skipped.

    A prompt is a text or a list of chat messages `{"role": ..., "content": ...}`. Other fields go into
    `meta`.

    Args:
        path: the file.
        unique_ids: refuse an "id" that two lines share.

    Raises:
        DataError: if the file cannot be read, is empty, or has a line that is not an example.
    """
    examples, seen = list[Example](), dict[object, int]()
    for number, where, line in read_lines(Path(path)):
        examples.append(to_example(json_object(line, where), where))
        name = examples[-1].meta.get("id")
        if unique_ids and isinstance(name, str | int) and (before := seen.setdefault(name, number)) != number:
            raise DataError(
                f"{where}: the id {name!r} belongs to line {before} already, so the two could not be told apart; "
                'change one of them, or leave "id" out'
            )
    if not examples:
        raise DataError(f'{path} holds no examples; each line is one, such as {{"prompt": "..."}}')
    return examples


def write_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write examples as JSONL, which `[data] train` in a recipe reads, atomically.

    Raises:
        DataError: if the file cannot be written, or the `meta` of an example is not JSON.
    """
    try:
        lines = json_lines({key: getattr(example, key) for key in FIELDS} for example in examples)
    except (TypeError, ValueError) as error:
        raise DataError(f"cannot write {path}: {error}") from error
    write_files(path.parent, {path.name: lines})


def digest_of_examples(examples: Iterable[Example]) -> str:
    """Return a hash of the contents of examples, in order; objects in `meta` that JSON lacks count by their type."""
    hashed = sha256()
    for example in examples:
        prompt = example.prompt if isinstance(example.prompt, str) else [dict(message) for message in example.prompt]
        content = [prompt, example.reference, example.tests, dict(example.meta)]
        hashed.update(json.dumps(content, default=lambda value: type(value).__qualname__).encode() + b"\n")
    return hashed.hexdigest()


class Turn(NamedTuple):
    """An answer to learn, and everything before it: a text, or the messages of a chat.

    A chat gives the answer's message, with its thoughts and calls, too, and every record its fields, such as "tools".
    """

    prompt: str | Sequence[Message]
    answer: str
    message: Message = MappingProxyType({})
    meta: Mapping[str, Any] = MappingProxyType({})


def chat_turns(record: Object, where: str) -> list[Turn]:
    """Return each assistant message of a chat with the messages before it.

    Raises:
        DataError: if the value is no chat, or there is no assistant message to learn, or it is empty.
    """
    if not is_chat(messages := record["messages"]):
        raise DataError(
            f'{where}: "messages" is a list of {{"role", "content"}} messages with texts, got {shown(messages)}'
        )
    answers = [row for row, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        roles = ", ".join(sorted({repr(message["role"]) for message in messages}))
        raise DataError(f'{where}: no message has the role "assistant" (roles: {roles}), so there is nothing to learn')
    if not answers[0]:
        raise DataError(f"{where}: the chat begins with an assistant message; a user message must come first")
    if not all(_text(messages[row]).strip() or _calls(messages[row]) for row in answers):
        raise DataError(f"{where}: an assistant message is empty, and would teach to say nothing; remove the chat")
    whole = {row + 1: [*messages[:row], {**messages[row], "prefix": False}] for row in answers}  # not to be continued
    return [Turn(whole.get(row, messages[:row]), _text(messages[row]), messages[row], record) for row in answers]


def _text(message: Message) -> Any:
    return message.get("content") or ""


def _calls(message: Message) -> Any:
    return message.get("tool_calls") or message.get("function_call")


def with_messages(record: Any) -> Any:
    """Return a record with its chat as a list of messages with texts, as far as it can be: see the module."""
    keys = ("prompt", "messages", "conversations", "conversation")
    key = next((key for key in keys if isinstance(record, dict) and key in record), "")
    if not key or not isinstance(chat := record[key], list):
        return record
    others, of_others = {name: value for name, value in record.items() if name != key}, key in keys[2:]
    if of_others and isinstance(system := others.pop("system", None), str):
        chat = [{"role": "system", "content": system}, *chat]
    return {**others, "messages" if of_others else key: list(map(_message, chat))}


def _message(given: Any) -> Any:
    """Return a message of ShareGPT, or with parts of text, with a role and a text; another value as it is."""
    if not isinstance(given, dict):
        return given
    role, content = _SPEAKERS.get(str(given.get("from"))), given.get("content", given.get("value"))
    if role:
        given = {"role": role} | {name: value for name, value in given.items() if name not in ("from", "value")}
    parts, kinds = content if isinstance(content, list) else [], ("text", "input_text", "output_text")
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type", "text") in kinds]
    if texts and len(texts) == len(parts) and all(map(is_text, texts)):
        content = "".join(map(str, texts))
    return given if content is None else {**given, "content": content}


def to_example(record: Any, where: str) -> Example:
    """Return the example of a dict with "prompt" or "messages"; `where` names it in errors.

    Raises:
        DataError: if it is none.
    """
    record = with_messages(record)
    if isinstance(record, dict) and "messages" in record and "prompt" not in record:
        last = chat_turns(record, where)[-1]
        others = {key: value for key, value in record.items() if key != "messages"}
        record = {**others, "prompt": list(last.prompt), "reference": last.answer or None}
    if not isinstance(record, dict) or "prompt" not in record:
        raise DataError(f'{where}: an example is an object with a "prompt", got {shown(record)}')
    chat = 'is a text or a list of {"role", "content"} messages,'
    prompt = optional(record, "prompt", where, is_prompt, chat)
    if not Example(prompt).prompt_text.strip():
        raise DataError(f'{where}: "prompt" is empty, so there is nothing to answer; write one, or remove the line')
    reference, tests = (
        optional(record, key, where, lambda text: isinstance(text, str | None), "is a text,")
        for key in ("reference", "tests")
    )
    meta = optional(record, "meta", where, lambda meta: isinstance(meta, dict | None), "is an object,") or {}
    extra = {key: value for key, value in record.items() if key not in FIELDS}
    example = Example(prompt, reference, tests, {**extra, **meta})
    texts = {key: text for key in ENCODED if isinstance(text := record.get(key), str)}
    refuse_half_pairs(where, prompt=example.prompt_text, **texts)
    return example


def is_chat(prompt: object) -> bool:
    """Return whether a value of JSON is a list of messages: a "role", and the text "content" or calls of tools."""
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(
        isinstance(m, dict) and is_text(m.get("role")) and is_text(_text(m) if _calls(m) else m.get("content"))
        for m in prompt
    )


def is_prompt(value: object) -> bool:
    """Return whether a value of JSON is a text or a list of chat messages."""
    return is_text(value) or is_chat(value)


class Demonstration(NamedTuple):
    """Answers to learn in one text or chat.

    Attributes:
        where: file and line, for messages.
        turns: the answers, each with everything before it.
        prompt: the prompt as `train` reads it: everything before the last answer, as text.
    """

    where: str
    turns: tuple[Turn, ...]
    prompt: str


def read_demonstrations(paths: Sequence[str | Path]) -> list[Demonstration]:
    """Return the demonstrations of files of JSON lines or of Parquet, in order; blank lines are skipped.

    Raises:
        DataError: if a file cannot be read or has no demonstrations, or a line is none: it has no answer, or an empty
            answer, or a weight that is neither 0 nor 1.
    """
    demonstrations = []
    for path in paths:
        entries = list(read_lines(Path(path)))
        if not entries:
            raise DataError(
                f'{path} holds no demonstrations; each line is one, such as {{"prompt": "...", "reference": "..."}} '
                'or {"messages": [...]}'
            )
        demonstrations += [_demonstration(json_object(line, where), where) for _, where, line in entries]
    return demonstrations


def _demonstration(record: Object, where: str) -> Demonstration:
    record = with_messages(record)
    example = to_example(record, where)
    if "prompt" not in record:
        turns = tuple(turn for turn in chat_turns(record, where) if _is_learned(turn.message, where))
        if not turns:
            raise DataError(f"{where}: every assistant message has the weight 0, so there is nothing to learn")
        return Demonstration(where, turns, example.prompt_text)
    if example.reference is None or not example.reference.strip():
        state = "no" if example.reference is None else "an empty"
        raise DataError(f'{where}: {state} "reference", so there is no answer to learn; add one, or remove the line')
    return Demonstration(where, (Turn(example.prompt, example.reference, meta=example.meta),), example.prompt_text)


def _is_learned(message: Message, where: str) -> bool:
    """Return whether a message has no weight of 0, by any of the names that trainers have for it."""
    weights = {name: value for name, value in message.items() if WEIGHT.fullmatch(name) and value is not None}
    for name in (name for name, weight in weights.items() if weight not in (0, 1) or name == "mask"):
        raise DataError(
            f'{where}: a message has "{name}": {shown(weights[name])}, and is learned as a whole or not at all; '
            'make it "weight": 1 or 0'
        )
    return all(weights.values())
