"""One run → the numbers of analysis.json.

{"path", "seed", "settings": {"gamma", "lam", "placement", "baseline", "group"}, "steps", "responses", "tokens",
 "length": {"mean", "shortest", "longest"},
 "labelled_share", "spans_per_response", "faults_per_response", "span_tokens",
 "signals": {NAME: {"variance", "signal", "noise", "signal_to_noise", "autocorrelation": [by lag from 1 on],
                    "labels": {LABEL: {"tokens", "mean", "deviation"}}}},
 "ratio": {"value", "low", "high"; null without an interval of steps, or for infinity}, "predicted",
 "ratio_by_reward": the ratio, where the signal is what a line in the token's own reward explains
 "number_variance": {"measured", "predicted"}, in units of the variance if the rewards of tokens were independent
 "position_share": part of the variance of the spans' advantages that the place in the response explains
 "amplification": {"tokens_to_end", "factor"},
 "by_step": [{"step", "length", "labelled_share", "faults_per_response", NAME: {"variance", "signal_to_noise"}}],
 "update": see `update_effect`, or null where no update was logged}
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from evidence.analysis.explanation import MovedTokens
from evidence.analysis.formula import predicted_ratio, predicted_variance
from evidence.analysis.noise import (
    LABELS,
    Autocorrelation,
    Parts,
    autocorrelation,
    mean_autocorrelation,
    variance_parts,
)
from evidence.analysis.rollouts import Batch, Floats, batch_of, steps_of
from evidence.analysis.signals import SIGNALS, placed_rewards, signals
from evidence.analysis.update_effect import moved_tokens, update_effect
from text2grad.config import Recipe, recipe_of_run
from text2grad.progress import Progress
from text2grad.runs.reports.run_report import Run, read_run

DRAWS, FEWEST_STEPS = 2_000, 5  # of the interval of the ratio


@dataclass(slots=True)
class _Signal:
    """Sums over the steps of one signal."""

    parts: list[Parts] = field(default_factory=list)
    lags: list[Autocorrelation] = field(default_factory=list)
    sums: dict[str, Floats] = field(default_factory=lambda: {name: np.zeros(3) for name in LABELS})

    def add(self, advantages: Floats, batch: Batch) -> Parts:
        """Add a step and return its parts of the variance."""
        self.parts.append(variance_parts(advantages, batch.labels, batch.mask))
        self.lags.append(autocorrelation(advantages, batch.mask))
        for name, label in LABELS.items():
            own = advantages[batch.mask & (batch.labels == label)]
            self.sums[name] += [len(own), own.sum(), (own**2).sum()]
        return self.parts[-1]

    def result(self) -> dict[str, Any]:
        """Return the figures of all steps."""
        signal, noise = np.mean(self.parts, axis=0).tolist()
        return {
            "variance": signal + noise,
            "signal": signal,
            "noise": noise,
            "signal_to_noise": _ratio(signal, noise),
            "autocorrelation": mean_autocorrelation(self.lags),
            "labels": {name: _moments(*sums) for name, sums in self.sums.items()},
        }


@dataclass(slots=True)
class _Sums:
    """Sums over the steps of a run."""

    signals: dict[str, _Signal] = field(default_factory=lambda: {name: _Signal() for name in SIGNALS})
    lengths: Counter[int] = field(default_factory=Counter)
    labelled: int = 0
    to_end: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    by_reward: list[tuple[Parts, Parts]] = field(default_factory=list)
    faults: int = 0
    totals: list[tuple[float, float]] = field(default_factory=list)
    by_step: list[dict[str, Any]] = field(default_factory=list)
    moved: list[MovedTokens] = field(default_factory=list)
    groups: list[float] = field(default_factory=list)
    positions: Floats = field(default_factory=lambda: np.zeros((2, 0)))

    def add(self, batch: Batch, recipe: Recipe, factor: float) -> None:
        """Add a step."""
        self.lengths.update(batch.lengths.tolist())
        labels = batch.labels[batch.mask]
        self.labelled += int((labels != 0).sum())
        after = (batch.lengths[:, None] - 1 - np.arange(batch.mask.shape[1]))[batch.mask]
        self.to_end += after[labels != 0].tolist()
        for tokens, signs in zip(batch.span_tokens, batch.span_signs, strict=True):
            self.spans += zip(tokens, signs, strict=True)
        faults = sum(sign < 0 for row in batch.span_signs for sign in row)
        self.faults += faults
        rewards = placed_rewards(batch, recipe)
        total = rewards.sum(1)
        independent = float(rewards[batch.mask].var() * batch.lengths.mean()) if batch.mask.any() else 0.0
        self.totals.append((float(total.var()), independent))
        self.groups.append(len(batch.prompts) / len(set(batch.prompts.tolist())) if batch.grouped else 1.0)
        advantages = signals(batch, recipe, factor=factor)
        parts = {name: self.signals[name].add(one, batch) for name, one in advantages.items()}
        own = rewards[batch.mask]
        self.by_reward.append(
            (_linear(advantages["spans"][batch.mask], own), _linear(advantages["number"][batch.mask], own))
        )
        width = batch.mask.shape[1]
        self.positions = np.pad(self.positions, ((0, 0), (0, max(width - self.positions.shape[1], 0))))
        self.positions[:, :width] += [batch.mask.sum(0), (advantages["spans"] * batch.mask).sum(0)]
        self.by_step.append(
            {
                "step": batch.step,
                "length": float(batch.lengths.mean()),
                "labelled_share": float((labels != 0).mean()) if len(labels) else 0.0,
                "faults_per_response": faults / len(batch.mask),
                **{name: {"variance": sum(found), "signal_to_noise": _ratio(*found)} for name, found in parts.items()},
            }
        )
        if (moved := moved_tokens(batch, factor=factor)) is not None:
            self.moved.append(moved)

    def position_share(self) -> float | None:
        """Return the part of the variance of the spans' advantages that the place in the response explains."""
        counts, totals = self.positions[:, self.positions[0] > 0]
        between = float((totals**2 / counts).sum() / counts.sum() - (totals.sum() / counts.sum()) ** 2)
        return _ratio(between, float(np.sum(np.mean(self.signals["spans"].parts, axis=0))))


def analyse_run(path: Path, *, gamma: float | None = None, lam: float | None = None) -> tuple[Run, dict[str, Any]]:
    """Return a run and the numbers of its advantages and updates.

    Args:
        path: the run's directory; the run may be unfinished.
        gamma: γ of the spans; None takes the run's.
        lam: λ of the spans; None takes the run's.

    Raises:
        DataError: if the directory holds no run with rollouts.
    """
    recipe, run = recipe_of_run(path), read_run(path)
    gamma, lam = recipe.ppo.gamma if gamma is None else gamma, recipe.ppo.lam if lam is None else lam
    sums = _Sums()
    last = int(run.metrics[-1]["step"])
    with Progress(f"read {path.name}", len(run.metrics), unit="step") as progress:
        for step, records in steps_of(path, last=last):
            sums.add(batch_of(step, records), recipe, gamma * lam)
            progress.advance()
    responses, tokens = sum(sums.lengths.values()), sum(n * count for n, count in sums.lengths.items())
    group = round(float(np.mean(sums.groups)))
    span_tokens = _span_tokens(sums.spans, recipe)
    found = {name: one.result() for name, one in sums.signals.items()}
    settings = {
        "gamma": gamma,
        "lam": lam,
        "placement": recipe.reward.placement,
        "baseline": recipe.ppo.baseline if recipe.model.value != "none" or recipe.ppo.baseline != "value" else "none",
        "group": group,
    }
    return run, {
        "path": str(path),
        "seed": recipe.run.seed,
        "settings": settings,
        "steps": len(sums.by_step),
        "responses": responses,
        "tokens": tokens,
        "length": {
            "mean": tokens / max(responses, 1),
            "shortest": min(sums.lengths),
            "longest": max(sums.lengths),
        },
        "labelled_share": sums.labelled / max(tokens, 1),
        "spans_per_response": len(sums.spans) / max(responses, 1),
        "faults_per_response": sums.faults / max(responses, 1),
        "span_tokens": span_tokens,
        "signals": found,
        "ratio": _ratio_interval(sums.signals["spans"].parts, sums.signals["number"].parts),
        "ratio_by_reward": _ratio_of(np.mean([(*one, *other) for one, other in sums.by_reward], axis=0)),
        "predicted": _finite(predicted_ratio(sums.lengths, factor=gamma * lam, span_tokens=span_tokens, group=group)),
        "number_variance": {
            "measured": _ratio(*np.mean(sums.totals, axis=0).tolist()),
            "predicted": predicted_variance(sums.lengths, span_tokens=span_tokens),
        },
        "position_share": sums.position_share(),
        "amplification": _amplification(sums.to_end, gamma * lam),
        "by_step": sums.by_step,
        "update": update_effect(sums.moved, run.metrics),
    }


def _span_tokens(spans: Sequence[tuple[int, int]], recipe: Recipe) -> float:
    """Return the mean tokens of the span of a token, at least 1; each weighs as the square of its reward."""
    if not spans:
        return 1.0
    tokens, signs = np.array(spans, dtype=float).T
    weights = tokens * np.where(signs > 0, recipe.reward.positive, recipe.reward.negative) ** 2
    return float((weights * tokens).sum() / weights.sum()) if weights.sum() else 1.0


def _linear(advantages: Floats, rewards: Floats) -> Parts:
    """Return the part of the variance of advantages that a line in the token's own reward explains, and the rest."""
    if len(rewards) < 2 or rewards.var() == 0:
        return Parts(0.0, float(advantages.var()) if len(advantages) else 0.0)
    signal = float(np.cov(advantages, rewards, bias=True)[0, 1] ** 2 / rewards.var())
    return Parts(signal, max(float(advantages.var()) - signal, 0.0))


def _ratio_interval(spans: Sequence[Parts], number: Sequence[Parts]) -> dict[str, float | None]:
    """Return the ratio of the signal-to-noise ratios, with a bootstrap interval of 95 % over steps.

    In a resample in which the number tells labels not apart at all the ratio is infinite. A bound that is infinite is
    None.
    """
    parts = np.array([(*one, *other) for one, other in zip(spans, number, strict=True)])
    value = _ratio_of(parts.mean(0))
    if len(parts) < FEWEST_STEPS or value is None:
        return {"value": value, "low": None, "high": None}
    drawn = np.random.default_rng(0).integers(0, len(parts), size=(DRAWS, len(parts)))
    draws = [_ratio_or_infinity(parts[rows].mean(0)) for rows in drawn]
    kept = np.array([one for one in draws if one is not None])
    how: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(kept).all() else "inverted_cdf"
    low, high = np.quantile(kept, [0.025, 0.975], method=how).tolist() if len(kept) else (np.inf, np.inf)
    return {"value": value, "low": _finite(low), "high": _finite(high)}


def _ratio_or_infinity(parts: Floats) -> float | None:
    """Return the ratio, infinity where labels explain nothing of the number alone, or None where it is undefined."""
    spans, number = _ratio(parts[0], parts[1]), _ratio(parts[2], parts[3])
    return float("inf") if spans and number == 0.0 else _ratio_of(parts)


def _ratio_of(parts: Floats) -> float | None:
    spans, number = _ratio(parts[0], parts[1]), _ratio(parts[2], parts[3])
    return spans / number if spans is not None and number else None


def _ratio(top: float, bottom: float) -> float | None:
    """Return the quotient, at least 0, or None where nothing is to be divided by."""
    return max(float(top / bottom), 0.0) if bottom > 1e-12 else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _moments(count: float, total: float, squares: float) -> dict[str, float | int | None]:
    if not count:
        return {"tokens": 0, "mean": None, "deviation": None}
    mean = total / count
    return {"tokens": int(count), "mean": float(mean), "deviation": float(max(squares / count - mean**2, 0.0) ** 0.5)}


def _amplification(to_end: Sequence[int], factor: float) -> Mapping[str, float | None]:
    """Return Appendix A's α = (γλ)^−(T−k) at the median distance of labelled tokens from the end."""
    if not to_end:
        return {"tokens_to_end": None, "factor": None}
    distance = float(np.median(to_end))
    with np.errstate(divide="ignore", over="ignore"):
        return {"tokens_to_end": distance, "factor": _finite(float(np.float64(factor) ** -distance))}
