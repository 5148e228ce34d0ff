"""Token rewards → counts and shares of the losses between critique and tokens: the report of `evidence align`.

unmatched rate      quotes that the response does not contain / all quotes and spans
labelled share      tokens with δ ≠ 0 / tokens; also by sign
contested tokens    tokens in a positive and in a negative span
clean spans         spans whose tokens hold no other character except white space: no other word is rewarded
spans without token spans that mark no token: empty spans, and spans that `contract` or `strict` leave without one
respaced            responses whose tokens decode to different white space; their spans were moved
not aligned         responses whose tokens decode to another text; they have no rewards

A share with denominator zero is 0.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, get_args

from evidence.commands.token_rewards import TokenRewards
from text2grad.align.delta import span_tokens
from text2grad.runs.critic_quality.evaluation import quartiles
from text2grad.types import LABELS, Label, Span, Status

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Counts over critiques.

    Attributes:
        aligned: responses with rewards.
        respaced: aligned responses whose white space changed.
        not_aligned: responses without rewards, because their tokens decode to another text.
        skipped: records that could not be used.
        tokens: tokens of the aligned responses.
        tokens_by_label: tokens with δ > 0 and with δ < 0.
        contested_tokens: tokens in spans of both labels.
        spans_by_label: spans of the aligned responses.
        clean_spans: spans whose tokens hold no other character except white space.
        spans_without_token: spans that mark no token.
        unmatched: quotes that were not found in the response.
        statuses: critiques by status.
        span_tokens: quartiles of the tokens per span, over spans that mark a token; None if there are none.
    """

    aligned: int
    respaced: int
    not_aligned: int
    skipped: int
    tokens: int
    tokens_by_label: Mapping[Label, int]
    contested_tokens: int
    spans_by_label: Mapping[Label, int]
    clean_spans: int
    spans_without_token: int
    unmatched: int
    statuses: Mapping[Status, int]
    span_tokens: tuple[float, float, float] | None

    @property
    def spans(self) -> int:
        """Spans of both labels."""
        return sum(self.spans_by_label.values())

    @property
    def rates(self) -> dict[str, float]:
        """The shares of the module's docstring, and spans per response."""
        positive, negative = (self.tokens_by_label[label] for label in LABELS)
        return {
            "unmatched_rate": share(self.unmatched, self.unmatched + self.spans),
            "labelled_share": share(positive + negative, self.tokens),
            "positive_share": share(positive, self.tokens),
            "negative_share": share(negative, self.tokens),
            "contested_share": share(self.contested_tokens, self.tokens),
            "spans_per_response": share(self.spans, self.aligned),
            "clean_spans_share": share(self.clean_spans, self.spans),
        }

    def as_json(self) -> dict[str, Any]:
        """Return counts and shares as JSON data."""
        return {**asdict(self), "spans": self.spans, **self.rates}

    def rows(self) -> list[Row]:
        """Return the names and values that the reports print."""
        rates, by = self.rates, self.tokens_by_label
        lengths = "–" if self.span_tokens is None else " · ".join(f"{q:g}" for q in self.span_tokens)
        return [
            ("responses aligned", f"{self.aligned:,}" + _if(self.respaced, ", {:,} of them respaced")),
            ("responses not aligned", f"{self.not_aligned:,}"),
            *([("records skipped", f"{self.skipped:,}")] if self.skipped else []),
            ("critiques", ", ".join(f"{count:,} {status}" for status, count in self.statuses.items() if count) or "0"),
            ("spans", f"{self.spans:,} ({', '.join(f'{self.spans_by_label[label]:,} {label}' for label in LABELS)})"),
            ("spans per response", f"{rates['spans_per_response']:.2f}"),
            ("clean spans", _percent(self.clean_spans, self.spans)),
            ("spans without token", f"{self.spans_without_token:,}"),
            ("tokens per span, quartiles", lengths),
            ("quotes not found", _percent(self.unmatched, self.unmatched + self.spans)),
            ("tokens", f"{self.tokens:,}"),
            ("tokens labelled", _percent(by["positive"] + by["negative"], self.tokens)),
            ("positive tokens", _percent(by["positive"], self.tokens)),
            ("negative tokens", _percent(by["negative"], self.tokens)),
            ("contested tokens", _percent(self.contested_tokens, self.tokens)),
        ]


@dataclass(slots=True)
class Tally:
    """Running counts, so that files of any length fit into memory."""

    counts: Counter[str] = field(default_factory=Counter)
    token_labels: Counter[Label] = field(default_factory=Counter)
    span_labels: Counter[Label] = field(default_factory=Counter)
    statuses: Counter[Status] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)

    def skip(self) -> None:
        """Count a record that could not be used."""
        self.counts["skipped"] += 1

    def leave_out(self) -> None:
        """Count a response that has no rewards."""
        self.counts["not_aligned"] += 1

    def add(self, rewards: TokenRewards) -> None:
        """Count a response that has rewards."""
        critique, delta = rewards.critique, rewards.delta
        touched = span_tokens(rewards.offsets, rewards.spans, mode="expand")
        self.statuses[critique.status] += 1
        self.token_labels["positive"] += sum(x > 0 for x in delta)
        self.token_labels["negative"] += sum(x < 0 for x in delta)
        self.span_labels.update(span.label for span in rewards.spans)
        self.lengths += [len(tokens) for tokens in rewards.tokens if tokens]
        self.counts.update(
            aligned=1,
            respaced=int(rewards.text != rewards.response),
            tokens=len(delta),
            contested_tokens=len(_marked(rewards, "positive") & _marked(rewards, "negative")),
            clean_spans=sum(map(partial(_is_clean, rewards), rewards.spans, touched)),
            spans_without_token=sum(not tokens for tokens in rewards.tokens),
            unmatched=len(critique.unmatched),
        )

    def report(self) -> Fidelity:
        """Return the counts so far."""
        counts = (
            "aligned respaced not_aligned skipped tokens contested_tokens clean_spans spans_without_token unmatched"
        )
        marked = quartiles(self.lengths)
        return Fidelity(
            **{name: self.counts[name] for name in counts.split()},
            tokens_by_label={label: self.token_labels[label] for label in LABELS},
            spans_by_label={label: self.span_labels[label] for label in LABELS},
            statuses={status: self.statuses[status] for status in get_args(Status)},
            span_tokens=None if marked is None else (marked[0], marked[1], marked[2]),
        )


def _marked(rewards: TokenRewards, label: Label) -> set[int]:
    """Return the tokens in spans of one label."""
    pairs = zip(rewards.spans, rewards.tokens, strict=True)
    return {token for span, tokens in pairs if span.label == label for token in tokens}


def _is_clean(rewards: TokenRewards, span: Span, touched: Sequence[int]) -> bool:
    """Return True if the tokens that a span touches hold no other character except white space."""
    if not touched:
        return False
    first, last = rewards.offsets[touched[0]], rewards.offsets[touched[-1]]
    return not (rewards.text[first[0] : span.start] + rewards.text[span.end : last[1]]).strip()


def share(part: float, whole: float) -> float:
    """Return part / whole; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def _percent(part: int, whole: int) -> str:
    """Return a share with its counts, such as `1.2 % (12 of 1,000)`."""
    return f"{100 * share(part, whole):.1f} % ({part:,} of {whole:,})"


def _if(count: int, words: str) -> str:
    """Return words about a count; empty if it is 0."""
    return words.format(count) if count else ""
