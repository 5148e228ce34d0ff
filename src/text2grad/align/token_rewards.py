"""A judged response -> its tokens, each with its pseudo-reward: one record of `text2grad align`.

Files hold responses as text, so this is the one place that encodes: there are no sampled ids to keep. Where a file
has the sampled ids, they are used as they are. Rewards stand on the text that the ids decode to. Where that differs
from the response in white space only, spans are moved along; where it differs in anything else (a character the
tokenizer does not know, a normalizer that changes letters), there is no honest place for a span, and the response is
left without rewards.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from text2grad.align.delta import Mode, Overlap, SpanMass, pseudo_rewards, span_tokens
from text2grad.align.offsets import Range, token_offsets
from text2grad.align.weighting import Weighting
from text2grad.feedback import Annotation, Judged, critique_record
from text2grad.types import Span


@dataclass(frozen=True, slots=True)
class AlignSettings:
    """How spans become rewards: the keyword arguments of `pseudo_rewards`."""

    mode: Mode = "expand"
    weighting: Weighting = "uniform"
    overlap: Overlap = "cancel"
    span_mass: SpanMass = "token"


@dataclass(frozen=True, slots=True)
class Labelled:
    """A response as tokens, with a pseudo-reward on each.

    Attributes:
        judged: the record it was made of.
        ids: the response's token ids [T].
        text: what they decode to, special tokens left out.
        offsets: where each token stands in `text` [T].
        spans: the critique's spans, in characters of `text`.
        tokens: the tokens that each span marks.
        delta: δ of each token [T].
    """

    judged: Judged
    ids: tuple[int, ...]
    text: str
    offsets: tuple[Range, ...]
    spans: tuple[Span, ...]
    tokens: tuple[tuple[int, ...], ...]
    delta: tuple[float, ...]

    @property
    def respaced(self) -> bool:
        """True where the tokens decode to other white space than the response has."""
        return self.text != self.judged.response

    def as_record(self) -> dict[str, Any]:
        """Return the record as JSON has it, of the shape of a run's rollouts; `read_judged` reads it too."""
        return {
            "record": self.judged.number,
            "prompt": self.judged.prompt,
            "response": self.text,
            "critique": critique_record(replace(self.judged.critique, spans=self.spans)),
            "ids": list(self.ids),
            "offsets": [list(pair) for pair in self.offsets],
            "delta": list(self.delta),
        }


def label_tokens(tokenizer: Any, judged: Judged, settings: AlignSettings) -> Labelled | None:
    """Return a response's tokens and rewards, or None where its tokens do not say the same text.

    Args:
        tokenizer: the policy's.
        judged: the response and its critique; a failed critique gives δ = 0.
        settings: how spans become rewards.

    Raises:
        AlignmentError: if the record's ids are not the tokenizer's.
        ConfigError: if a setting has no such value.
    """
    ids = judged.ids if judged.ids is not None else encode(tokenizer, judged.response)
    offsets = token_offsets(tokenizer, ids)
    text = tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""
    given = () if judged.critique.failed else judged.critique.spans
    spans = move_spans(given, judged.response, text)
    if spans is None:
        return None
    delta = pseudo_rewards(tokenizer, ids, spans, **asdict(settings), offsets=offsets)
    tokens = span_tokens(offsets, spans, mode=settings.mode)
    return Labelled(judged, ids, text, tuple(offsets), tuple(spans), tuple(map(tuple, tokens)), tuple(delta))


def encode(tokenizer: Any, response: str) -> tuple[int, ...]:
    """Return the ids of a text; what looks like a special token in it is text, too."""
    encoded = tokenizer(response, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return tuple(encoded["input_ids"])


def move_spans(spans: Iterable[Span], response: str, text: str) -> list[Span] | None:
    """Return spans of `response` as spans of `text`, which may differ from it in white space.

    White space that both have alike stays in a span; where it differs, a span begins and ends with the characters
    one can see. Their order alone tells where each went.

    Returns:
        None where the two differ in anything else.

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
    """Return where the characters are that are no white space."""
    return [i for i, character in enumerate(text) if not character.isspace()]


def _move(at: int, here: tuple[str, Sequence[int]], there: tuple[str, Sequence[int]]) -> Range:
    """Return where a place between characters went: one place, or the two ends of white space that changed."""
    seen = bisect_left(here[1], at)
    (start, end), (low, high) = _gap(*here, seen), _gap(*there, seen)
    if here[0][start:end] == there[0][low:high]:
        return low + at - start, low + at - start
    return low, high


def _gap(text: str, visible: Sequence[int], seen: int) -> Range:
    """Return the white space between the visible characters number `seen` − 1 and `seen`."""
    return visible[seen - 1] + 1 if seen else 0, visible[seen] if seen < len(visible) else len(text)


def span_reward(tokenizer: Any, annotation: Annotation) -> float:
    """Return Σ δ_t of an annotated response in a tokenizer's tokens: its judgement as one number."""
    encoded = tokenizer(annotation.response, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    return sum(pseudo_rewards(tokenizer, encoded["input_ids"], annotation.critique.spans, offsets=offsets))
