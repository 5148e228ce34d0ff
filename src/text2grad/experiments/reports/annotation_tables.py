"""Annotations of one or several tasks → tables 12, 14, 15 and 18 of the paper, counted on these annotations.

tokens     tokens of the given tokenizer. Spans: the critique as JSON with feedback and quotes, the training target of a
           reward model. Dense: a JSON list of every token and its label, [["Lyon", -1], ...], without feedback.
cost       an annotator reads prompt and response and writes the annotation; instructions are the same for both forms
           and are not counted. Prices are a setting.
support    word overlap of spans with the feedback (`feedback/word_overlap.py`).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from text2grad.align import TokenRewards, encode, quartiles, share
from text2grad.experiments.reports.html import Table
from text2grad.experiments.reports.plots import COLOURS, GRID, INK, to_png
from text2grad.feedback import CritiqueRecord, has_word_overlap
from text2grad.reward_models import critique_target
from text2grad.types import LABELS, Label

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


def paper_tables(tasks: Mapping[str, Counts], prices: Prices) -> list[Table]:
    """Return the tables, with one row per task.

    Args:
        tasks: the counts of each task by its name.
        prices: the prices of tokens.
    """
    found = {name: counts.as_json(prices) for name, counts in tasks.items()}
    per = {name: max(one["responses"], 1) for name, one in found.items()}
    usd = f"USD at {prices.read:g} per million tokens read and {prices.written:g} written"
    return [
        Table(
            "Tokens written per response (table 12 of the paper)",
            ("task", "responses", "a label per token", "words and spans", "saved"),
            [
                (
                    name,
                    f"{one['responses']:,}",
                    f"{one['written_dense'] / per[name]:.1f}",
                    f"{one['written'] / per[name]:.1f}",
                    _percent(one["saved_share"]),
                )
                for name, one in found.items()
            ],
        ),
        Table(
            f"Cost of annotation (table 14), {usd}",
            ("task", "tokens read", "written", "per response", "in all", "in all, a label per token"),
            [
                (
                    name,
                    f"{one['read']:,}",
                    f"{one['written']:,}",
                    f"{one['cost_usd'] / per[name]:.5f}",
                    f"{one['cost_usd']:.4f}",
                    f"{one['cost_dense_usd']:.4f}",
                )
                for name, one in found.items()
            ],
        ),
        Table(
            "Fidelity of spans (table 15)",
            ("task", "spans", "quotes not found", "without support", "spans per response", "tokens labelled"),
            [
                (
                    name,
                    f"{one['spans']:,}",
                    f"{_percent(one['unmatched_rate'])} ({one['unmatched']:,})",
                    f"{_percent(one['unsupported_share'])} ({one['unsupported']:,})",
                    f"{one['spans_per_response']:.2f}",
                    _percent(one["labelled_share"]),
                )
                for name, one in found.items()
            ],
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


def as_text(tables: Sequence[Table]) -> str:
    """Return tables as plain text with aligned columns."""
    blocks = []
    for table in tables:
        rows = [list(table.columns), *map(list, table.rows)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(table.columns))]
        lines = [
            "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        blocks.append("\n".join([table.caption, *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def tables_png(tasks: Mapping[str, Counts], prices: Prices) -> bytes:
    """Return tokens written, cost, shares and span lengths of each task as a PNG file."""
    from matplotlib.figure import Figure

    found = [counts.as_json(prices) for counts in tasks.values()]
    figure = Figure(figsize=(13, 3.4 + 0.2 * len(tasks)), dpi=110, layout="constrained", facecolor="white")
    tokens, shares, lengths = figure.subplots(1, 3)
    per = [max(one["responses"], 1) for one in found]
    _bars(
        tokens,
        list(tasks),
        {
            "a label per token": [one["written_dense"] / n for one, n in zip(found, per, strict=True)],
            "words and spans": [one["written"] / n for one, n in zip(found, per, strict=True)],
        },
        "tokens written per response",
    )
    _bars(
        shares,
        list(tasks),
        {
            "tokens labelled": [100 * one["labelled_share"] for one in found],
            "quotes not found": [100 * one["unmatched_rate"] for one in found],
            "spans without support": [100 * one["unsupported_share"] for one in found],
        },
        "percent",
    )
    _bars(
        lengths,
        list(tasks),
        {f"{label}, median": [(one["span_tokens"][label] or [0, 0, 0])[1] for one in found] for label in LABELS},
        "tokens per span",
    )
    return to_png(figure)


def _bars(axis: Any, names: Sequence[str], series: Mapping[str, Sequence[float]], title: str) -> None:
    """Draw horizontal bars, one group per task."""
    height = 0.8 / len(series)
    for k, (label, values) in enumerate(series.items()):
        places = [n + (k - (len(series) - 1) / 2) * height for n in range(len(names))]
        bars = axis.barh(places, values, height * 0.92, color=COLOURS[k], label=label)
        axis.bar_label(bars, fmt=lambda x: f"{x:,.0f}" if x >= 100 else f"{x:.3g}", padding=2, fontsize=8, color=INK)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=10.5, color=INK)
    axis.grid(axis="x", color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.margins(x=0.15)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.legend(
        frameon=False, fontsize=8, labelcolor=INK, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(series)
    )


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
