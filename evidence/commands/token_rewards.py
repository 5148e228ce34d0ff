"""A response as text and its critique → the tokens of a tokenizer, each with its pseudo-reward.

    response, critique  →  ids [T], offsets [T]  →  spans in the decoded text  →  tokens of each span, δ [T]

Spans and δ refer to the decoded text. If it differs from the response only in white space, the spans are moved; if it
differs in any other character, the response gets no rewards.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from text2grad.align import AlignSettings, Range, encode, move_spans, pseudo_rewards, span_tokens, token_offsets
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
