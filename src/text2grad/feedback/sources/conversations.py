"""Logs of chats: what the user says next is feedback in words on the answer before it, by the rules of `next_message`.

A record is a chat: OpenAI's "messages", ShareGPT's "conversations", WildChat's and LMSYS's "conversation", TRL's
"prompt" and "completion". An answer with feedback becomes an annotation without spans, and without an outcome
unless `labels` give its kind a number. The prompt in its line is all messages before, with calls of tools and their
results; "kind" and "rule" say why it is feedback, and "tools" are those of the record. Other answers are counted with
the reason. Chats may be personal: errors and counts name the place and no text, and addresses and times are left out.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from text2grad.feedback.examples import with_messages
from text2grad.feedback.record_files import Object, keys_of, refuse_half_pairs, shown
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import WORDS_ONLY, Item, Loss, Row
from text2grad.feedback.sources.next_message import rule_of
from text2grad.types import Critique, Example

NO_FEEDBACK = "answers before another question or task: no feedback"
NO_MESSAGE = "answers that no message follows"
NO_TEXT = "answers without text, in which nothing could be good or poor"
THOUGHTS = "answers with thoughts, which the annotation lacks: its words are about the answer"
OTHER_LANGUAGE = "answers before a message in another language than English, as the log says: the rules are English"

_THOUGHTS = {"reasoning_content", "reasoning", "thinking"}
_FIELDS = ("role", "content", "name", "tool_calls", "function_call", "tool_call_id", *sorted(_THOUGHTS))
_MEDIA = ("image", "images", "audio", "audios", "video", "videos")
_ALIASES = {"function": "tool", "developer": "system"}
# Who speaks after whom; messages of the system stand anywhere
_FOLLOWED = {"nobody": "user", "user": "assistant", "assistant": "user", "call": "tool", "tool": "tool or assistant"}
_ENGLISH = re.compile(r"(?:en|eng|english|unknown|und|nolang)?(?![a-z])", re.IGNORECASE)


def read_conversations(row: Row) -> Iterator[Item]:
    """Yield an item for each answer of a chat: an annotation, or the reason why it is none."""
    given = _messages(row)
    messages = [{key: message[key] for key in _FIELDS if message.get(key) is not None} for message in given]
    tools = {"tools": row.record["tools"]} if row.record.get("tools") else {}
    asked, answer = "", 0
    for place, (role, words) in enumerate((message["role"], message.get("content", "")) for message in messages):
        if role == "user" and answer:
            before, response = messages[:answer], messages[answer].get("content", "")
            is_read = _ENGLISH.match(str(given[place].get("language") or row.get("language") or ""))
            kind, _, rule = (
                rule_of(words, asked, response).partition(": ") if is_read and response.strip() else [""] * 3
            )
            made, losses = None, [NO_FEEDBACK if response.strip() else NO_TEXT] if is_read else [OTHER_LANGUAGE]
            if kind:
                line = {"prompt": before, "kind": kind, "rule": rule} | tools
                critique = Critique(words, outcome=row.outcome(kind) if row.options.labels else None)
                made = Annotation(Example(before).prompt_text, response, critique, line)
                losses = [WORDS_ONLY, *[THOUGHTS] * (not _THOUGHTS.isdisjoint(messages[answer]))]
            yield Item(made, tuple(Loss(reason, f"message {place + 1}") for reason in losses))
        asked, answer = (words, 0) if role == "user" else (asked, place if role == "assistant" else answer)
    if answer:
        yield Item(None, (Loss(NO_MESSAGE, f"message {answer + 1}"),))


def _messages(row: Row) -> list[Object]:
    """Return the messages of a chat, each with a role and a text, after checking who speaks after whom."""
    spare = "prompt" if isinstance(row.record.get("prompt"), str) else ""  # the first message once more
    record: Any = with_messages({key: value for key, value in row.record.items() if key != spare})
    chat = record.get("messages", record.get("prompt"))
    if isinstance(chat, list) and isinstance(completion := record.get("completion"), list):
        chat = [*chat, *with_messages({"messages": completion})["messages"]]
    if not isinstance(chat, list) or not chat or not all(isinstance(message, dict) for message in chat):
        raise row.bad(f'a chat is a list of messages in "messages" or "conversations", got {keys_of(row.record)}')
    last = "nobody"
    for number, message in enumerate(chat, start=1):
        role, content = message.get("role"), message.get("content") or message.get("refusal") or ""
        speaker = _ALIASES.get(str(role), role)
        if speaker not in ("system", "user", "assistant", "tool"):
            raise row.bad(f"message {number} has the role {shown(role)}; known are system, user, assistant and tool")
        if not isinstance(content, str) or any(holder.get(key) for holder in (message, row.record) for key in _MEDIA):
            raise row.bad(f"message {number} holds, or has beside it, what is no text; images and sound cannot be read")
        is_call = speaker == "assistant" and (message.get("tool_calls") or message.get("function_call"))
        message["content"] = content or (None if is_call else "")
        if speaker == "system":
            continue
        if speaker not in _FOLLOWED[last].split(" or "):
            raise row.bad(f"message {number} is of the {speaker}, but after {last} speaks the {_FOLLOWED[last]}")
        last = "call" if is_call else speaker
    refuse_half_pairs(row.where, messages=json.dumps(chat, ensure_ascii=False))
    return chat
