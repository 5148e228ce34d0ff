"""A response as text → its tokens, and the places of its spans in the text that they decode to."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from text2grad.align.delta import pseudo_rewards
from text2grad.align.offsets import Range, token_offsets
from text2grad.types import Critique, Span


def text_delta(tokenizer: Any, response: str, critique: Critique) -> list[float] | None:
    """Return δ of each token of a response that is given as text, with the paper's settings and the spans' own weights.

    If its tokens decode to other white space, the spans are moved; if they decode to another text, there is no δ.

    Raises:
        AlignmentError: if a span ends after the response.
    """
    ids = encode(tokenizer, response)
    text = tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""
    spans = move_spans(() if critique.failed else critique.spans, response, text)
    return None if spans is None else pseudo_rewards(tokenizer, ids, spans)


def encode(tokenizer: Any, text: str, *, split_special_tokens: bool = True) -> tuple[int, ...]:
    """Return the ids of a text; special tokens in it are encoded as text, halves of surrogate pairs as "?"."""
    return tuple(_encoded(tokenizer, text, split_special_tokens)["input_ids"])


def _encoded(tokenizer: Any, text: str, split_special_tokens: bool, **how: Any) -> Any:
    whole = text.encode("utf-8", "replace").decode()
    as_text = partial(tokenizer, whole, add_special_tokens=False, verbose=False, **how)
    try:
        return as_text(split_special_tokens=True) if split_special_tokens else as_text()
    except ValueError:  # mistral-common's tokenizers refuse to split what they never read in a text
        return as_text()


def text_offsets(
    tokenizer: Any, text: str, *, split_special_tokens: bool = True
) -> tuple[tuple[int, ...], list[Range] | None]:
    """Return the ids of a text, as `encode` does, and the characters of the text that each id spells.

    Where the ids decode to another text, as after lower-casing, the ranges are the tokenizer's own, in which spaces may
    be missing; None from a tokenizer in Python alone, which has none.
    """
    ids = encode(tokenizer, text, split_special_tokens=split_special_tokens)
    decoded = tokenizer.decode(list(ids), skip_special_tokens=False) if ids else ""
    places = token_offsets(tokenizer, ids, skip_special_tokens=False)
    moved = move_spans([Span(*place, "positive") for place in places], decoded, text)
    if moved is not None:
        return ids, [(span.start, span.end) for span in moved]
    if not getattr(tokenizer, "is_fast", False):
        return ids, None
    return ids, list(_encoded(tokenizer, text, split_special_tokens, return_offsets_mapping=True)["offset_mapping"])


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
        moved.append(replace(span, start=start[1], end=max(start[1], end[0])))
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
