"""Annotations of one or several tasks → tables 12, 14, 15 and 18 of the paper, counted on these annotations.

tokens     tokens of the given tokenizer. Spans: the critique as JSON with feedback and quotes, the training target of a
           reward model. Dense: a JSON list of every token and its label, [["Lyon", -1], ...], without feedback.
cost       an annotator reads prompt and response and writes the annotation; instructions are the same for both forms
           and are not counted. Prices are a setting.
support    word overlap of spans with the feedback (`word_overlap.py`).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evidence.commands.fidelity import share
from evidence.commands.token_rewards import TokenRewards
from evidence.commands.word_overlap import has_word_overlap
from text2grad.align import encode
from text2grad.feedback import CritiqueRecord
from text2grad.reward_models import critique_target
from text2grad.runs.critic_quality.evaluation import quartiles
from text2grad.runs.reports.html import Table
from text2grad.runs.reports.plots import COLOURS, INK, PAPER, Draw, style
from text2grad.types import LABELS, Label

HATCHES = ("", "///", "...")
FLAGGED = 20
"""Maximum number of listed spans without support."""

OUTCOMES = ("none", "negative", "zero", "positive")


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens that an annotator reads and writes; by default GPT-4o's list prices (table 14)."""

    read: float = 2.5
    written: float = 10.0

    def cost(self, read: int, written: int) -> float:
        """Return the cost of tokens in US dollars."""
        return (read * self.read + written * self.written) / 1e6


@dataclass(slots=True)
class Counts:
    """Counts over the annotations of one task."""

    numbers: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    lengths: dict[Label, list[int]] = field(default_factory=lambda: {label: [] for label in LABELS})
    flagged: list[str] = field(default_factory=list)

    def add(self, tokenizer: Any, record: CritiqueRecord, rewards: TokenRewards) -> None:
        """Count one response.

        Args:
            tokenizer: counts the tokens of prompt and annotation.
            record: the response and its critique, as read.
            rewards: the tokens and pseudo-rewards of the response.
        """
        critique = rewards.critique
        dense = [[tokenizer.decode([token]), 0] for token in rewards.ids]
        for place, delta in enumerate(rewards.delta):
            dense[place][1] = (delta > 0) - (delta < 0)
        for span, tokens in zip(rewards.spans, rewards.tokens, strict=True):
            self.lengths[span.label] += [len(tokens)] if tokens else []
            text = rewards.text[span.start : span.end]
            if not has_word_overlap(text, critique.feedback):
                self.numbers["unsupported"] += 1
                self.flagged += [f"{record.where}: {text}"] if len(self.flagged) < FLAGGED else []
        outcome = critique.outcome
        self.outcomes["none" if outcome is None else OUTCOMES[2 + (outcome > 0) - (outcome < 0)]] += 1
        self.numbers.update(
            responses=1,
            read=len(encode(tokenizer, record.prompt)) + len(rewards.ids),
            written=len(encode(tokenizer, critique_target(critique, record.response))),
            written_dense=len(encode(tokenizer, json.dumps(dense, ensure_ascii=False))),
            tokens=len(rewards.delta),
            tokens_labelled=sum(delta != 0 for delta in rewards.delta),
            spans=len(rewards.spans),
            unmatched=len(critique.unmatched),
        )

    def as_json(self, prices: Prices) -> dict[str, Any]:
        """Return the counts, shares and costs as JSON data."""
        n = self.numbers
        return {
            **{name: n[name] for name in _NUMBERS},
            "saved_share": 1 - share(n["written"], n["written_dense"]) if n["written_dense"] else 0.0,
            "cost_usd": prices.cost(n["read"], n["written"]),
            "cost_dense_usd": prices.cost(n["read"], n["written_dense"]),
            "unmatched_rate": share(n["unmatched"], n["unmatched"] + n["spans"]),
            "unsupported_share": share(n["unsupported"], n["spans"]),
            "spans_per_response": share(n["spans"], n["responses"]),
            "labelled_share": share(n["tokens_labelled"], n["tokens"]),
            "span_tokens": {label: quartiles(self.lengths[label]) for label in LABELS},
            "outcomes": {kind: self.outcomes[kind] for kind in OUTCOMES},
            "flagged": self.flagged,
        }


_NUMBERS = (
    "responses",
    "read",
    "written",
    "written_dense",
    "tokens",
    "tokens_labelled",
    "spans",
    "unmatched",
    "unsupported",
)


_CELLS: tuple[Mapping[str, str], ...] = (
    {
        "responses": "{responses:,}",
        "a label per token": "{each[written_dense]:.1f}",
        "words and spans": "{each[written]:.1f}",
        "saved": "{percent[saved_share]:.1f} %",
    },
    {
        "tokens read": "{read:,}",
        "written": "{written:,}",
        "per response": "{each[cost_usd]:.5f}",
        "in all": "{cost_usd:.4f}",
        "in all, a label per token": "{cost_dense_usd:.4f}",
    },
    {
        "spans": "{spans:,}",
        "quotes not found": "{percent[unmatched_rate]:.1f} % ({unmatched:,})",
        "without support": "{percent[unsupported_share]:.1f} % ({unsupported:,})",
        "spans per response": "{spans_per_response:.2f}",
        "tokens labelled": "{percent[labelled_share]:.1f} %",
    },
)
"""Column → cell, for tables 12, 14 and 15; "each" is per response."""


def paper_tables(tasks: Mapping[str, Counts], prices: Prices) -> list[Table]:
    """Return the tables, with one row per task, from the counts of each task by its name."""
    found = {name: counts.as_json(prices) for name, counts in tasks.items()}
    captions = (
        "Tokens written per response (table 12 of the paper)",
        f"Cost of annotation (table 14), USD at {prices.read:g} per million tokens read and {prices.written:g} written",
        "Fidelity of spans (table 15)",
    )
    return [
        *(
            Table(caption, ("task", *cells), [(name, *_row(one, cells)) for name, one in found.items()])
            for caption, cells in zip(captions, _CELLS, strict=True)
        ),
        Table(
            "Tokens per span (table 18)",
            ("task", "label", "Q1", "Q2", "Q3"),
            [
                (name, label, *(f"{q:g}" for q in one["span_tokens"][label] or ()))
                for name, one in found.items()
                for label in LABELS
                if one["span_tokens"][label]
            ],
        ),
        Table(
            "Outcomes of whole responses",
            ("task", *OUTCOMES),
            [(name, *(f"{one['outcomes'][kind]:,}" for kind in OUTCOMES)) for name, one in found.items()],
        ),
    ]


def _row(one: Mapping[str, Any], cells: Mapping[str, str]) -> list[str]:
    numbers = {name: value for name, value in one.items() if isinstance(value, int | float)}
    each = {name: value / max(one["responses"], 1) for name, value in numbers.items()}
    percent = {name: 100 * value for name, value in numbers.items()}
    return [cell.format(**numbers, each=each, percent=percent) for cell in cells.values()]


def task_panels(tasks: Mapping[str, Counts], prices: Prices) -> list[Draw]:
    """Return panels of tokens written, shares and span lengths of each task."""
    found = [counts.as_json(prices) for counts in tasks.values()]
    per = [max(one["responses"], 1) for one in found]
    tokens = {"a label per token": "written_dense", "words and spans": "written"}
    shares = {
        "tokens labelled": "labelled_share",
        "quotes not found": "unmatched_rate",
        "spans without support": "unsupported_share",
    }
    lengths = {f"{label}, median": [(one["span_tokens"][label] or [0, 0, 0])[1] for one in found] for label in LABELS}
    panels: dict[str, Mapping[str, Sequence[float]]] = {
        "tokens written per response": {
            label: [one[name] / n for one, n in zip(found, per, strict=True)] for label, name in tokens.items()
        },
        "percent": {label: [100 * one[name] for one in found] for label, name in shares.items()},
        "tokens per span": lengths,
    }
    return [partial(_bars, names=list(tasks), series=series, title=title) for title, series in panels.items()]


def panel_size(tasks: Mapping[str, Counts]) -> tuple[float, float]:
    """Return width and height of a panel in inches."""
    return 4.4, 3.4 + 0.2 * len(tasks)


def _bars(axis: Any, *, names: Sequence[str], series: Mapping[str, Sequence[float]], title: str) -> None:
    """Draw horizontal bars, one group per task."""
    height = 0.8 / len(series)
    for k, (label, values) in enumerate(series.items()):
        places = [n + (k - (len(series) - 1) / 2) * height for n in range(len(names))]
        bars = axis.barh(
            places, values, height * 0.92, facecolor=COLOURS[k], hatch=HATCHES[k], edgecolor=PAPER, label=label
        )
        axis.bar_label(bars, fmt=lambda x: f"{x:,.0f}" if x >= 100 else f"{x:.3g}", padding=2, fontsize=8, color=INK)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    style(axis, title, grid="x")
    axis.margins(x=0.15)
    axis.legend(
        frameon=False, fontsize=8, labelcolor=INK, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(series)
    )
