"""Spans of a response → one pseudo-reward δ_t per sampled token (arXiv 2505.22338, section 3.3).

In: the sampled ids [T], and the critique's spans in characters of the decoded response. Out: by default δ [T] is

    δ_t = +1 in a positive span, −1 in a negative span, 0 elsewhere

Settings change this: the tokens that a span marks (`mode`), their weights (`weighting`), δ of a token in a positive and
a negative span (`overlap`), the sum of the weights of a span (`span_mass`), and the weight of a span by what is said
about it (`weights`).

A span on a character touches all tokens that hold bytes of this character. A token without text, such as an
end-of-sequence, is never touched: its δ is 0.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from text2grad.align.offsets import Range, id_list, token_offsets
from text2grad.align.weighting import Weigh, Weighting, resolve
from text2grad.errors import AlignmentError, ConfigError, check_known
from text2grad.types import LARGEST_REWARD, Span

Mode = Literal["strict", "contract", "expand"]
Overlap = Literal["cancel", "negative_wins", "last_wins"]
SpanMass = Literal["token", "span", "response"]
Weights = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class AlignSettings:
    """The settings of `pseudo_rewards`, which explains them."""

    mode: Mode = "expand"
    weighting: Weighting = "uniform"
    overlap: Overlap = "cancel"
    span_mass: SpanMass = "token"
    weights: Weights = field(default_factory=dict)

    @classmethod
    def of(cls, reward: Any) -> "AlignSettings":
        """Return the settings of the section [reward] of a recipe, or of anything with attributes of these names."""
        return cls(**{setting.name: getattr(reward, setting.name) for setting in fields(cls)})


DEFAULT = AlignSettings()
"""The paper's settings."""


def pseudo_rewards(
    tokenizer: Any,
    response_ids: Any,
    spans: Sequence[Span],
    *,
    mode: Mode = "expand",
    weighting: Weighting = "uniform",
    overlap: Overlap = "cancel",
    span_mass: SpanMass = "token",
    weights: Weights | None = None,
    offsets: Sequence[Range] | None = None,
    text: str | None = None,
) -> list[float]:
    """Return δ_t for each sampled token.

    Args:
        tokenizer: the policy's tokenizer.
        response_ids: the sampled ids [T]: a list, a tuple, or a one-dimensional array or tensor.
        spans: labelled ranges of `tokenizer.decode(response_ids, skip_special_tokens=True)`.
        mode: the tokens that a span marks, as in `span_tokens`.
        weighting: `uniform`, `linear_decay`, a name that is registered, or a function from the texts of a span's
            tokens to their weights in [0, 1] (see `weighting.py`). The concatenated texts are the text of these
            tokens: a character that several tokens share is in the text of the first.
        overlap: δ of a token in a positive and a negative span. `cancel`: 0; `negative_wins`; `last_wins`: the
            label of the last of these spans in `spans`, which in a located critique are sorted by place and label,
            not in the critic's order. Weights decide nothing here, and those of spans with the same label are not
            added: the largest counts. A span of weight 0 is none.
        span_mass: `token`: each token has its weight; `span`: the weights of a span are scaled to sum to 1;
            `response`: weights are divided by T. Then they are multiplied by the weight of the span.
        weights: "severity", "rater" or "category" → its names → their weights, as in `span_weight`.
        offsets: the result of `token_offsets(tokenizer, response_ids)`, if already computed.
        text: the decoded response, if already known; of several turns the joined texts, in which `offsets` count.

    Returns:
        T numbers in [−w, w] for the largest weight w of a span: in [−1, 1] without weights.

    Raises:
        ConfigError: if a setting has an unknown value, a weighting returns invalid weights, or a span is too heavy.
        AlignmentError: if a span ends after the response, an id is not in the vocabulary, or `offsets` has another
            length than `response_ids`.

    Example:
        >>> from tokenizers import Tokenizer, decoders, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> core = Tokenizer(models.WordLevel({"in": 0, "ĠLyon": 1, "s": 2, "Ġnow": 3}, unk_token="in"))
        >>> core.decoder = decoders.ByteLevel()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
        >>> pseudo_rewards(tokenizer, [0, 1, 2, 3], [Span(3, 8, "negative"), Span(9, 12, "positive")])
        [0.0, -1.0, -1.0, 1.0]
    """
    check_known("overlap", overlap, get_args(Overlap))
    check_known("span_mass", span_mass, get_args(SpanMass))
    weigh = resolve(weighting)
    ids = id_list(response_ids)
    ranges = token_offsets(tokenizer, ids) if offsets is None else offsets
    if len(ranges) != len(ids):
        raise AlignmentError(
            f"offsets has {len(ranges)} ranges for {len(ids)} response ids. Give what "
            "token_offsets(tokenizer, response_ids) returns, or leave offsets out"
        )
    sizes = [span_weight(span, weights or {}) for span in spans]
    marked = span_tokens(ranges, spans, mode=mode)
    tokens = [touched if size else [] for touched, size in zip(marked, sizes, strict=True)]
    if text is None:
        text = tokenizer.decode(ids, skip_special_tokens=True) if any(tokens) else ""
    of_tokens = [
        [size * weight for weight in _weights(weigh, _texts(text, ranges, touched), span_mass, len(ids))]
        for touched, size in zip(tokens, sizes, strict=True)
    ]
    return _merge(len(ids), spans, tokens, of_tokens, overlap)


def span_weight(span: Span, weights: Weights) -> float:
    """Return the weight of a span: its own, 1 without one, times those of its severity, rater and category.

    `weights` has values of these attributes in lower case and their weights, 1 for one that is missing.

    Raises:
        ConfigError: if the weight is not in [0, `LARGEST_REWARD`].

    Example:
        >>> span = Span(0, 4, "negative", severity="Minor", weight=2.0)
        >>> span_weight(span, {"severity": {"minor": 0.25}, "rater": {"ann": 3.0}})
        0.5
    """
    product = 1.0 if span.weight is None else float(span.weight)
    for attribute, known in weights.items():
        product *= known.get((getattr(span, attribute) or "").strip().casefold(), 1.0)
    if not 0 <= product <= LARGEST_REWARD:
        raise ConfigError(
            f"the weight of {span} is {product:g}, its own times those of reward.severity, reward.raters and "
            f"reward.categories; weights lie in [0, {LARGEST_REWARD:g}]. Choose smaller ones"
        )
    return product


def span_tokens(offsets: Sequence[Range], spans: Iterable[Span], *, mode: Mode = "expand") -> list[list[int]]:
    """Return the tokens that each span marks.

    Args:
        offsets: the character range of each token [T], from `token_offsets`.
        spans: labelled character ranges of the same text.
        mode: `expand`: every token that the span touches; `contract`: the tokens entirely inside it; `strict`: the
            tokens inside it if the span begins and ends at token boundaries, else none.

    Returns:
        The ascending indices of the tokens of each span; none for an empty span.

    Raises:
        ConfigError: if the mode is unknown.
        AlignmentError: if a span ends after the text.

    Example:
        >>> offsets = [(0, 2), (2, 7), (7, 8), (8, 8)]  # "in", " Lyon", "s", end of sequence
        >>> span_tokens(offsets, [Span(3, 8, "negative")])
        [[1, 2]]
        >>> span_tokens(offsets, [Span(3, 8, "negative")], mode="contract")
        [[2]]
    """
    check_known("mode", mode, get_args(Mode))
    solid = [k for k, (start, end) in enumerate(offsets) if start < end]  # the tokens that have text
    starts, ends = [offsets[k][0] for k in solid], [offsets[k][1] for k in solid]
    length = ends[-1] if ends else 0
    marked = []
    for span in spans:
        if span.end > length:
            raise AlignmentError(
                f"{span} reaches beyond its response, which has {length} characters. Spans count characters of "
                "tokenizer.decode(response_ids, skip_special_tokens=True), neither stripped nor encoded again"
            )
        first, stop = _bounds(starts, ends, span, mode)
        marked.append(solid[first:stop])
    return marked


def _bounds(starts: Sequence[int], ends: Sequence[int], span: Span, mode: Mode) -> Range:
    """Return the half-open range of the tokens that a span marks, among tokens with text."""
    if span.start == span.end:
        return 0, 0
    touched = bisect_right(ends, span.start), bisect_left(starts, span.end)
    if mode == "expand":
        return touched
    inside = bisect_left(starts, span.start), bisect_right(ends, span.end)
    return inside if mode == "contract" or inside == touched else (0, 0)


def _texts(text: str, ranges: Sequence[Range], tokens: Sequence[int]) -> list[str]:
    """Return the text of each token, with a shared character in the first token only."""
    texts, done = [], 0
    for start, end in (ranges[k] for k in tokens):
        texts.append(text[max(start, done) : end])
        done = end
    return texts


def _weights(weigh: Weigh, texts: list[str], span_mass: SpanMass, total: int) -> Sequence[float]:
    """Return the weights of one span's tokens, after a check of their number and range, scaled by `span_mass`."""
    weights = [float(weight) for weight in weigh(texts)] if texts else []
    if len(weights) != len(texts):
        raise ConfigError(f"the weighting gave {len(weights)} weights for {len(texts)} tokens; give one per token")
    for weight, text in zip(weights, texts, strict=True):
        if not 0 <= weight <= 1:
            raise ConfigError(f"the weighting gave {weight} for the token {text!r}; weights lie in [0, 1]")
    if span_mass == "token":
        return weights
    mass = total if span_mass == "response" else sum(weights) or 1.0
    return [weight / mass for weight in weights]


def _merge(
    total: int, spans: Sequence[Span], tokens: list[list[int]], weights: list[list[float]], overlap: Overlap
) -> list[float]:
    """Return δ [T] of all spans."""
    positive: dict[int, float] = {}
    negative: dict[int, float] = {}
    for span, touched, weight in zip(spans, tokens, weights, strict=True):
        own, other = (positive, negative) if span.label == "positive" else (negative, positive)
        if overlap == "last_wins":
            for t in touched:
                other.pop(t, None)
        marked: Iterable[tuple[int, float]] = zip(touched, weight, strict=True)
        if not own.keys().isdisjoint(touched):
            marked = [(t, max(w, own.get(t, w))) for t, w in marked]
        own.update(marked)
    delta = [0.0] * total
    for t, w in positive.items():
        delta[t] = w
    for t, w in negative.items():
        delta[t] = 0.0 if overlap == "cancel" and t in positive else 0.0 - w
    return delta
