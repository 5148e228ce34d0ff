"""A response as text and its critique → the tokens of a tokenizer, each with its pseudo-reward.

    response, critique  →  ids [T], offsets [T]  →  spans in the decoded text  →  tokens of each span, δ [T]

Spans and δ refer to the decoded text. If it differs from the response only in white space, the spans are moved; if it
differs in any other character, the response gets no rewards.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from text2grad.align.delta import AlignSettings, pseudo_rewards, span_tokens
from text2grad.align.offsets import Range, token_offsets
from text2grad.types import Critique, Span


@dataclass(frozen=True, slots=True)
class TokenRewards:
    """The tokens of a response with a pseudo-reward on each.

    Attributes:
        response: the text that the critic read.
        critique: its critique; spans in characters of `response`.
        ids: the token ids [T].
        text: the decoded ids, without special tokens.
        offsets: the range of each token in `text` [T].
        spans: the critique's spans in characters of `text`; none if the critique failed.
        tokens: the indices of the tokens that each span marks.
        delta: δ of each token [T].
    """

    response: str
    critique: Critique
    ids: tuple[int, ...]
    text: str
    offsets: tuple[Range, ...]
    spans: tuple[Span, ...]
    tokens: tuple[tuple[int, ...], ...]
    delta: tuple[float, ...]


def label_tokens(
    tokenizer: Any, response: str, critique: Critique, settings: AlignSettings, *, ids: Sequence[int] | None = None
) -> TokenRewards | None:
    """Return the tokens and pseudo-rewards of a response; None if its tokens decode to another text.

    Args:
        tokenizer: the policy's tokenizer.
        response: the text that the critic read.
        critique: its critique; a failed critique gives δ = 0.
        settings: the settings of `pseudo_rewards`.
        ids: the sampled ids [T]; without them, the response is encoded.

    Raises:
        AlignmentError: if an id is not in the tokenizer's vocabulary, or a span ends after the response.
        ConfigError: if a setting has an unknown value.
    """
    ids = encode(tokenizer, response) if ids is None else tuple(ids)
    offsets = token_offsets(tokenizer, ids)
    text = tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""
    spans = move_spans(() if critique.failed else critique.spans, response, text)
    if spans is None:
        return None
    delta = pseudo_rewards(tokenizer, ids, spans, **asdict(settings), offsets=offsets)
    tokens = span_tokens(offsets, spans, mode=settings.mode)
    return TokenRewards(
        response, critique, ids, text, tuple(offsets), tuple(spans), tuple(map(tuple, tokens)), tuple(delta)
    )


def encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return the ids of a text; special tokens in it are encoded as text, halves of surrogate pairs as "?"."""
    whole = text.encode("utf-8", "replace").decode()
    encoded = tokenizer(whole, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return tuple(encoded["input_ids"])


def move_spans(spans: Iterable[Span], response: str, text: str) -> list[Span] | None:
    """Return spans of `response` as spans of `text`, which may differ from it in white space.

    The order of the visible characters maps one text to the other. A span keeps white space at its ends if both texts
    have the same white space there; otherwise it begins and ends with visible characters.

    Returns:
        The spans; None if the texts differ in another character.

    Example:
        >>> move_spans([Span(0, 3, "positive"), Span(3, 9, "negative")], " Hi, Lyon", "Hi , Lyon")
        [Span(start=0, end=2, label='positive'), Span(start=3, end=9, label='negative')]
    """
    if response == text:
        return list(spans)
    here, there = _visible(response), _visible(text)
    if [response[i] for i in here] != [text[i] for i in there]:
        return None
    moved = []
    for span in spans:
        start, end = (_move(at, (response, here), (text, there)) for at in (span.start, span.end))
        moved.append(Span(start[1], max(start[1], end[0]), span.label))
    return moved


def _visible(text: str) -> list[int]:
    """Return the indices of the characters that are not white space."""
    return [i for i, character in enumerate(text) if not character.isspace()]


def _move(at: int, here: tuple[str, Sequence[int]], there: tuple[str, Sequence[int]]) -> Range:
    """Return the range that a position between characters maps to: empty, or the white space that changed."""
    seen = bisect_left(here[1], at)
    (start, end), (low, high) = _gap(*here, seen), _gap(*there, seen)
    if here[0][start:end] == there[0][low:high]:
        return low + at - start, low + at - start
    return low, high


def _gap(text: str, visible: Sequence[int], seen: int) -> Range:
    """Return the range of the white space between visible characters `seen` − 1 and `seen`."""
    return visible[seen - 1] + 1 if seen else 0, visible[seen] if seen < len(visible) else len(text)
