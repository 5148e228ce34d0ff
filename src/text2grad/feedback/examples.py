"""JSONL files → examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}} on each line.

A whole chat, {"messages": [...]}, is read too: its last assistant message is the reference, the messages before it are
the prompt. Supervised fine-tuning learns demonstrations: examples with a reference, or chats. Each assistant message of
a chat is an answer to the messages before it.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.feedback.record_files import Object, is_text, json_object, optional, read_lines, refuse_half_pairs, shown
from text2grad.files import json_lines, write_files
from text2grad.types import Example, Message

FIELDS = ("prompt", "reference", "tests", "meta")
ENCODED = ("reference", "tests", "response", "feedback")


def read_examples(path: str | Path, *, unique_ids: bool = False) -> list[Example]:
    """Return the examples of a JSONL file; blank lines are skipped.

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
    """An answer to learn, and everything before it: a text, or the messages of a chat."""

    prompt: str | Sequence[Message]
    answer: str


def chat_turns(messages: Any, where: str) -> list[Turn]:
    """Return each assistant message of a chat with the messages before it.

    Raises:
        DataError: if the value is no chat, or there is no assistant message to learn, or it is empty.
    """
    if not is_chat(messages):
        raise DataError(
            f'{where}: "messages" is a list of {{"role", "content"}} messages with texts, got {shown(messages)}'
        )
    turns = [Turn(messages[:row], m["content"]) for row, m in enumerate(messages) if m["role"] == "assistant"]
    if not turns:
        roles = ", ".join(sorted({repr(message["role"]) for message in messages}))
        raise DataError(f'{where}: no message has the role "assistant" (roles: {roles}), so there is nothing to learn')
    if not turns[0].prompt:
        raise DataError(f"{where}: the chat begins with an assistant message; a user message must come first")
    if not all(turn.answer.strip() for turn in turns):
        raise DataError(f"{where}: an assistant message is empty, and would teach to say nothing; remove the chat")
    return turns


def to_example(record: Any, where: str) -> Example:
    """Return the example of a dict with "prompt" or "messages"; `where` names it in errors.

    Raises:
        DataError: if it is none.
    """
    if isinstance(record, dict) and "messages" in record and "prompt" not in record:
        last = chat_turns(record["messages"], where)[-1]
        others = {key: value for key, value in record.items() if key != "messages"}
        record = {**others, "prompt": list(last.prompt), "reference": last.answer}
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
    """Return whether a value of JSON is a list of chat messages: objects with the texts "role" and "content"."""
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(isinstance(m, dict) and is_text(m.get("role")) and is_text(m.get("content")) for m in prompt)


def is_prompt(value: object) -> bool:
    """Return whether a value of JSON is a text or a list of chat messages."""
    return is_text(value) or is_chat(value)


class Demonstration(NamedTuple):
    """Answers to learn in one text or chat.

    Attributes:
        where: file and line, for messages.
        turns: the answers, each with everything before it.
    """

    where: str
    turns: tuple[Turn, ...]

    @property
    def prompt(self) -> str:
        """The prompt as `train` reads it: everything before the last answer, as text."""
        return Example(self.turns[-1].prompt).prompt_text


def read_demonstrations(paths: Sequence[str | Path]) -> list[Demonstration]:
    """Return the demonstrations of JSONL files, in order; blank lines are skipped.

    Raises:
        DataError: if a file cannot be read or has no demonstrations, or a line is none: it has no answer, or an empty
            answer.
    """
    demonstrations = []
    for path in paths:
        entries = list(read_lines(Path(path)))
        if not entries:
            raise DataError(
                f'{path} holds no demonstrations; each line is one, such as {{"prompt": "...", "reference": "..."}} '
                'or {"messages": [...]}'
            )
        demonstrations += [Demonstration(where, _turns(json_object(line, where), where)) for _, where, line in entries]
    return demonstrations


def _turns(record: Object, where: str) -> tuple[Turn, ...]:
    example = to_example(record, where)
    if "prompt" not in record:
        return tuple(chat_turns(record["messages"], where))
    if example.reference is None or not example.reference.strip():
        state = "no" if example.reference is None else "an empty"
        raise DataError(f'{where}: {state} "reference", so there is no answer to learn; add one, or remove the line')
    return (Turn(example.prompt, example.reference),)
