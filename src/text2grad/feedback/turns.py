"""Responses as critics see them: conversations turn by turn, and texts without thoughts; spans moved between these.

A thought is what `answer_parts` finds to be reasoning, or what a turn says is its thought. A critic that does not see
it cannot quote it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from numbers import Integral
from typing import Any

from text2grad.errors import AlignmentError
from text2grad.feedback.reasoning import Answer, answer_parts
from text2grad.types import Conversation, Span, Turn, tagged

Part = tuple[int | None, int, int]  # characters [start, end) of a turn, or of a single response


def sampled_texts(response: str) -> dict[int, str]:
    """Return the texts that the policy wrote by the numbers of their turns; none of a single response."""
    turns = response.turns if isinstance(response, Conversation) else ()
    return {number: turn.text for number, turn in enumerate(turns) if turn.sampled}


def numbered(response: str) -> tuple[str, str]:
    r"""Return the numbers of the policy's turns, and all turns between tags with number and speaker.

    Of a single response there are no numbers, and its text.

    Example:
        >>> numbered(Conversation([Turn("user", "Hi"), Turn("assistant", "Yes?", sampled=True)]))
        ('1', '<turn-0-user>\nHi\n</turn-0-user>\n\n<turn-1-assistant>\nYes?\n</turn-1-assistant>')
    """
    turns = enumerate(response.turns if isinstance(response, Conversation) else ())
    tags = [tagged(f"turn-{number}-{turn.role}", turn.text) for number, turn in turns]
    return ", ".join(map(str, sampled_texts(response))), "\n\n".join(tags) or response


def content_of(response: str, prompt_end: str | None = None) -> str:
    """Return what tells a response from others: its text, and if there is more, its turns and what critics see."""
    seen, turns = without_thoughts(response, prompt_end), turns_to_json(response)
    return "\0".join([response, *[seen] * (seen is not response), *map(json.dumps, turns)])


def turns_to_json(response: str) -> list[dict[str, Any]]:
    """Return the turns of a conversation as JSON data, without what is empty; none of a single response.

    Example:
        >>> turns_to_json(Conversation([Turn("user", "Hi"), Turn("assistant", "", sampled=True)]))
        [{'role': 'user', 'text': 'Hi'}, {'role': 'assistant', 'text': '', 'sampled': True}]
    """
    turns = []
    for turn in response.turns if isinstance(response, Conversation) else ():
        named = {each.name: getattr(turn, each.name) for each in fields(turn)}
        named["tool_calls"] = json.loads(json.dumps(turn.tool_calls, default=str), parse_constant=str)  # NaN: a word
        turns.append({name: part for name, part in named.items() if part or name in ("role", "text")})
    return turns


def flat_spans(response: str, spans: Sequence[Span]) -> list[Span]:
    """Return spans with their characters in the whole response; the inverse of `in_turns`.

    Raises:
        AlignmentError: if a span names no turn that the policy wrote, or ends after its text: none moves to another.
    """
    starts = response.starts() if isinstance(response, Conversation) else dict[int, int]()
    texts, flat = sampled_texts(response), list[Span]()
    for span in spans:
        if span.turn is not None and (span.turn not in texts or span.end > len(texts[span.turn])):
            there = f"{len(texts[span.turn])} characters there" if span.turn in texts else f"only turns {sorted(texts)}"
            raise AlignmentError(
                f"{span}: the policy wrote {there}. Name the turn that holds the quote, or count the quote as unmatched"
            )
        at = 0 if span.turn is None else starts[span.turn]
        flat.append(
            replace(span, start=at + span.start, end=at + span.end, turn=None) if span.turn is not None else span
        )
    return flat


def in_turns(response: str, spans: Iterable[Span]) -> tuple[tuple[Span, ...], list[str]]:
    """Return the spans that lie in turns of the policy, with their turns, and the others in words.

    A span of the whole is a piece in each turn that it covers; one that ends after the whole stays as it is. In a
    single response a turn counts for nothing.
    """
    if not isinstance(response, Conversation):
        return tuple(span if span.turn is None else replace(span, turn=None) for span in spans), []
    texts, kept, odd = sampled_texts(response), list[Span](), list[str]()
    for span in spans:
        turn = int(span.turn) if isinstance(span.turn, Integral) else -1
        if span.turn is None and span.end <= len(response):
            kept += _pieces(span, [(number, 0, len(text)) for number, text in texts.items()])
        elif span.turn is None or (turn in texts and span.end <= len(texts[turn])):
            kept.append(span if span.turn is None else replace(span, turn=turn))
        else:
            text = response.turns[turn].text if 0 <= turn < len(response.turns) else ""
            odd.append(f"turn {span.turn}: {text[span.start : span.end] or f'{span.start}–{span.end}'}")
    return tuple(kept), odd


def without_thoughts(response: str, prompt_end: str | None = "") -> str:
    """Return a response without its thoughts; the same object if it has none.

    Args:
        response: the response; of a conversation the turns that the policy wrote.
        prompt_end: the end of what stands before these texts, which may open a thought; None leaves thoughts in.

    Example:
        >>> without_thoughts("<think>5?</think>8"), without_thoughts("5?", "<think>"), without_thoughts("5?", None)
        ('8', '', '5?')
    """
    if prompt_end is None:
        return response
    if not isinstance(response, Conversation):
        return _seen(Turn("", response), prompt_end).text
    turns = tuple(_seen(turn, prompt_end) if turn.sampled else turn for turn in response.turns)
    return response if turns == response.turns else Conversation(turns)


def with_thoughts(seen: Iterable[Span], response: str, prompt_end: str | None, *, back: bool = False) -> Iterator[Span]:
    """Yield spans of `without_thoughts(response, prompt_end)` as spans of the response; with `back` the other way.

    A span over a thought becomes a piece on each side of it. Spans of a conversation have turns.
    """
    turns = response.turns if isinstance(response, Conversation) else (Turn("", response),)
    parts = [_outside(turn, prompt_end) for turn in turns]
    for span in seen:
        yield from _pieces(span, [(span.turn, *part) for part in parts[span.turn or 0]], back=back)


def _seen(turn: Turn, prompt_end: str) -> Turn:
    """Return a turn without its thought."""
    text, parts = turn.text, _outside(turn, prompt_end)
    whole = parts == [(0, len(text))]
    return replace(turn, thought="", text=text if whole else Answer("".join(text[start:end] for start, end in parts)))


def _outside(turn: Turn, prompt_end: str | None) -> list[tuple[int, int]]:
    """Return the ranges of a turn's text outside of its thought; a blank text is no thought."""
    text, start, size = turn.text, turn.text.find(turn.thought), len(turn.thought)
    parts = answer_parts(text, prompt_end or "") if text.strip() else [(0, len(text))]
    if start < 0 or not size:
        return parts
    around = [piece for low, high in parts for piece in ((low, min(high, start)), (max(low, start + size), high))]
    return [(low, high) for low, high in around if low < high]


def _pieces(span: Span, parts: Iterable[Part], *, back: bool = False) -> Iterator[Span]:
    """Return a span of joined parts as spans of the turns that they are parts of; with `back` the other way."""
    joined = 0
    for turn, start, end in parts:
        here, there = (start, joined) if back else (joined, start)
        low, high = max(span.start, here), min(span.end, here + end - start)
        if low < high:
            yield replace(span, start=low - here + there, end=high - here + there, turn=turn)
        joined += end - start
