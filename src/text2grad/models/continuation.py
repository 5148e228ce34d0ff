"""What a chat template writes between a turn that the policy sampled and the policy's next turn.

What was sampled stays as it was, and what follows it, such as a tool's result and the marks around it, is the text that
the template writes behind a turn of this kind. A mark stands for the turn, since many templates trim, rewrite or drop
its words. The text is encoded as a whole; a space parts the special tokens that a tool spells, so none forges a turn.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from text2grad.align import added_tokens, encode
from text2grad.errors import DataError
from text2grad.models.chat_template import any_of, is_begun, messages_of, opener, prompt_text, render, unrendered
from text2grad.progress import note
from text2grad.types import Example, Message

Calls = Sequence[Mapping[str, Any]]
CUT = "… [cut]"
"""Ends a text that has no room."""
_MARK = "qxendxq"  # letters, which templates keep


def plain_text(tokenizer: Any, text: str) -> str:
    """Return a text that spells no added token of a tokenizer: a space parts off the first character of each."""
    tokens = {token.content for token in added_tokens(tokenizer).values() if len(token.content.strip()) > 1}
    pattern, text = "|".join(map(re.escape, tokens)) or "(?!)", text.encode("utf-8", "replace").decode()
    while re.search(pattern, text):
        text = re.sub(pattern, lambda token: f"{token[0][0]} {token[0][1:]}", text)
    control = {number for number, token in added_tokens(tokenizer).items() if token.special} - {tokenizer.unk_token_id}
    hidden = control & {*encode(tokenizer, text, split_special_tokens=False)}  # spelled in wide characters, say
    return " ".join(text) if hidden else text


def told_more(tokenizer: Any, example: Example, text: str) -> Example:
    """Return a prompt with a text at the end of its last user message; of its last one where no user speaks."""
    chat = [dict(message) for message in messages_of(example)]
    last = next((message for message in reversed(chat) if message["role"] == "user"), chat[-1])
    last["content"] = f"{last.get('content') or ''}{plain_text(tokenizer, text)}"
    return replace(example, prompt=chat)


def continue_chat(
    tokenizer: Any, example: Example, calls: Calls, given: Sequence[Message], stop: int, *, room: float = float("inf")
) -> tuple[list[dict[str, Any]], str, tuple[int, ...]] | None:
    """Return messages that follow a turn with calls, and text and ids from its last id, `stop`, to the next turn.

    The messages are all results of the turn. The longest are cut, with a mark, until there are at most `room` ids; the
    result is None if that is too little for empty ones. Where the template ends a turn otherwise, its end follows.

    Raises:
        DataError: if the template has no place for these messages.
    """
    kept = [{**message, "content": plain_text(tokenizer, message["content"]).replace(_MARK, "")} for message in given]
    ending = tokenizer.decode([stop], skip_special_tokens=False)
    while True:
        behind, alone = _behind(tokenizer, example, calls, kept)
        end = _end(tokenizer, behind, alone)
        text = behind.partition(ending)[2] or behind[behind.find(end) :]
        ids = tuple(tokenizer(ending + text, add_special_tokens=False, verbose=False)["input_ids"])
        ids = ids[ids[:1] == (stop,) :]  # encoded behind a token, where no tokenizer adds a space
        longest = max(kept, key=lambda message: len(message["content"]))
        said = longest["content"].removesuffix(CUT)
        if len(ids) <= room:
            return kept, text, ids
        if not said or room <= 0:
            return None
        longest["content"] = said[: int(min(len(said) - 1, len(said) * room * 0.9 / len(ids)))] + CUT


def call_end(tokenizer: Any, example: Example) -> str:
    """Return the token that ends a turn with a call in a chat template, "" where it shows none; warn of hidden tools.

    Raises:
        DataError: if the template has no place for results of tools.
    """
    if unrendered({"tools": example.meta.get("tools")}, "", prompt_text(tokenizer, example)):
        note("the chat template shows no tools in prompts: tell the policy of them in words", warning=True)
    result = {"role": "tool", "name": "look", "content": "x"}
    return _end(tokenizer, *_behind(tokenizer, example, [{"name": "look"}], [result]))


def _end(tokenizer: Any, behind: str, alone: str) -> str:
    """Return the token that ends a turn: the last special one that stays when messages follow, or what begins these."""
    ends = re.finditer(any_of(tokenizer, special=True), alone)
    shared = [end[0] for end in ends if behind.startswith(alone[: end.end()])]
    return shared[-1] if shared else opener(tokenizer, behind.removeprefix(alone))


def _behind(tokenizer: Any, example: Example, calls: Calls, given: Sequence[Message]) -> tuple[str, str]:
    """Return what a template writes behind the words of a turn that messages follow, and behind one that ends a chat.

    A template that drops calls, or takes fewer at once, gets them as the text of the turn.
    """
    chat = messages_of(example)
    chat = chat[:-1] if is_begun(chat[-1]) else chat
    functions = [{"type": "function", "function": {"name": call["name"], "arguments": {"x": _MARK}}} for call in calls]

    def behind(turn: Message, more: Sequence[Message]) -> str:
        whole = render(tokenizer, replace(example, prompt=[*chat, turn, *more]), add_generation_prompt=bool(more))
        if _MARK not in whole:
            raise DataError("the chat template leaves out what the policy says; take another model")
        return whole.rpartition(_MARK)[2]

    as_text = {"role": "assistant", "content": _MARK}
    try:
        turn = {"role": "assistant", "content": "", "tool_calls": functions} if calls else as_text
        return behind(turn, given), behind(turn, [])
    except DataError:
        return behind(as_text, given), behind(as_text, [])
