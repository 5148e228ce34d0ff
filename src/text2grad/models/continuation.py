"""What a chat template writes between a turn that the policy sampled and the policy's next turn.

A conversation is never rendered again: what was sampled stays as it was, and what follows it, such as a tool's result
and the marks around it, is the text that the template writes behind a turn of this kind. A mark stands for the turn, so
its words, which many templates trim, rewrite or drop, play no part. The text is encoded as a whole; in what tools say a
space parts the special tokens that it spells, so no turn can be forged.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from text2grad.align import added_tokens, encode
from text2grad.errors import DataError
from text2grad.models.chat_template import (
    any_of,
    common,
    is_begun,
    messages_of,
    opener,
    prompt_text,
    render,
    unrendered,
)
from text2grad.progress import note
from text2grad.types import Example, Message

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


def continuation(
    tokenizer: Any,
    example: Example,
    calls: Sequence[Mapping[str, Any]],
    given: Sequence[Message],
    stop: int,
    *,
    room: float = float("inf"),
) -> tuple[list[Message], str, tuple[int, ...]] | None:
    """Return messages that follow a sampled turn, and what stands behind its last token up to the next turn.

    Args:
        tokenizer: the policy's, with a chat template.
        example: the prompt, and its record with the tools.
        calls: the calls of the turn, each with the "name" of the tool.
        given: the messages; all results of one turn together. The longest are cut, with a mark, until all have room.
        stop: the id that ended the turn. Where the template ends such a turn otherwise, its own end follows.
        room: the most ids.

    Returns:
        The messages, the text and its ids; None if there is no room even for empty messages.

    Raises:
        DataError: if the template has no place for these messages.
    """
    kept = [{**message, "content": message["content"].replace(_MARK, "")} for message in given]
    ending = tokenizer.decode([stop], skip_special_tokens=False)
    while True:
        behind, alone = _behind(tokenizer, example, calls, kept)
        text = behind.partition(ending)[2]
        if not text:
            ends = _ends(tokenizer, alone, behind)
            at = ends[-1].start() if ends else len(common(any_of(tokenizer), [alone, behind]))
            renamed = not ends and alone[at:].startswith(ending)  # such as <|return|>, which becomes <|end|>
            text = behind[at:].removeprefix(opener(tokenizer, behind[at:]) if renamed else "")
        ids = tuple(tokenizer(ending + text, add_special_tokens=False, verbose=False)["input_ids"])
        ids = ids[ids[:1] == (stop,) :]  # encoded behind a token, where no tokenizer adds a space
        if len(ids) <= room:
            return kept, text, ids
        longest = max(kept, key=lambda message: len(message["content"]))
        said = longest["content"].removesuffix(CUT)
        if not said or room <= 0:
            return None
        longest["content"] = said[: int(min(len(said) - 1, len(said) * room * 0.9 / len(ids)))] + CUT


def call_end(tokenizer: Any, example: Example) -> str:
    """Return the token that ends a turn with a call of a tool in a chat template; "" where it shows none.

    Raises:
        DataError: if the template has no place for results of tools.
    """
    behind, alone = _behind(tokenizer, example, [{"name": "look"}], [{"role": "tool", "name": "look", "content": "x"}])
    ends = _ends(tokenizer, alone, behind)
    return ends[-1][0] if ends else opener(tokenizer, behind.removeprefix(alone))


def check_tools(tokenizer: Any, example: Example) -> None:
    """Refuse a chat template that cannot work with tools; warn of one that shows none in its prompts.

    Raises:
        DataError: if it has no place for results.
    """
    call_end(tokenizer, example)
    if unrendered({"tools": example.meta["tools"]}, "", prompt_text(tokenizer, example)):
        note("the chat template shows no tools in prompts: tell the policy of them in words", warning=True)


def _ends(tokenizer: Any, alone: str, behind: str) -> list[re.Match[str]]:
    """Return the special tokens behind a turn at the end of a chat that stay when messages follow."""
    ends = re.finditer(any_of(tokenizer, special=True), alone)
    return [end for end in ends if behind.startswith(alone[: end.end()])]


def _behind(
    tokenizer: Any, example: Example, calls: Sequence[Mapping[str, Any]], given: Sequence[Message]
) -> tuple[str, str]:
    """Return what a template writes behind the words of a turn that messages follow, and behind one that ends a chat.

    A template that drops calls, or takes fewer at once, gets them as the text of the turn.
    """
    *chat, last = messages_of(example)
    chat += [] if is_begun(last) else [last]
    functions = [{"name": call["name"], "arguments": {"x": _MARK}} for call in calls]
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": f} for f in functions]}
    as_text = {"role": "assistant", "content": _MARK}

    def behind(turn: Message, *more: Message) -> str:
        chat_so_far = replace(example, prompt=[*chat, turn, *more])
        _, mark, text = render(tokenizer, chat_so_far, add_generation_prompt=bool(more)).rpartition(_MARK)
        if not mark:
            raise DataError("the chat template leaves out what the policy says; take another model")
        return text

    try:
        turn = turn if calls else as_text
        return behind(turn, *given), behind(turn)
    except DataError:
        return behind(as_text, *given), behind(as_text)
