"""AlpacaEval's length-controlled win rate (arXiv 2404.04475): each preference predicted for equal lengths.

    logit P(answer is preferred) = θ · tanh(Δ length / σ) + ψ · difficulty of the instruction + φ

θ, ψ and φ are fitted by logistic regression with an L1 penalty whose strength is chosen by 5-fold cross-validation,
on the preferences for the answers, and with little weight on those for two baselines whose lengths were changed on
purpose (df_gamed.csv), which hold the length effect to the effect of gaming. The prediction sets Δ length to 0.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from text2grad.errors import DataError, require

GAMED_WEIGHT = 0.2 / 2  # 0.2 for both gamed baselines together
FOLDS, PENALTY_SEED = 5, 123
_TINY = 1e-15
_COLUMNS = ("index", "preference", "std_delta_len", "not_gamed_baseline", "instruction_difficulty")


class GamedRows(NamedTuple):
    """Judgements of baselines with changed lengths."""

    features: np.ndarray  # tanh(Δ length / σ), difficulty, 1 for a model's own answers and 0 for gamed ones, [rows, 3]
    preferences: np.ndarray  # in [0, 1]; NaN where the judge gave no preference, [rows]
    difficulty: Mapping[int, float]  # instruction number → difficulty


def read_gamed(path: Path, questions: int) -> GamedRows:
    """Read df_gamed.csv: judgements of two baselines with lengths that were changed on purpose."""
    require("sklearn", extra="eval", purpose="the length-controlled win rate of AlpacaEval")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = [[line[name] for name in _COLUMNS] for line in csv.DictReader(file)]
        indices = [int(float(line[0])) for line in lines]
        known = [(float(line[1] or "nan"), math.tanh(float(line[2])), float(line[4])) for line in lines]
        own = np.array([line[3].strip().casefold() in ("true", "1", "1.0") for line in lines])
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not df_gamed.csv of tatsu-lab/alpaca_eval ({error!r}); it needs {_COLUMNS}"
        ) from error
    preferences, deltas, hard = np.array(known).reshape(-1, 3).T
    difficulty = dict(zip(indices[::-1], hard[::-1].tolist(), strict=True))  # the first row of each
    if missing := [number for number in range(questions) if number not in difficulty]:
        raise DataError(
            f"{path} lacks the difficulty of {len(missing)} of {questions} instructions, such as number {missing[0]}; "
            "take the file of the same data set"
        )
    return GamedRows(np.column_stack([deltas, hard, own]), preferences, difficulty)


def length_controlled(
    preferences: Sequence[float | None],
    baseline_lengths: Sequence[int],
    lengths: Sequence[int],
    instructions: Sequence[int],
    gamed: GamedRows,
) -> list[float]:
    """Return for each answer the predicted preference at equal lengths; lengths are in characters.

    A preference against the baseline is in [0, 1], None where the judge gave none; `instructions` are their numbers.
    """
    deltas = np.array(baseline_lengths, dtype=float) - np.array(lengths, dtype=float)
    spread = deltas.std(ddof=1) if len(deltas) > 1 else 0.0
    hard, ones = np.array([gamed.difficulty[number] for number in instructions]), np.ones(len(deltas))
    own = np.column_stack([np.tanh(deltas / spread) if spread else 0 * deltas, hard, ones])
    wanted = np.array([np.nan if value is None else value for value in preferences], dtype=float)
    features = np.concatenate([gamed.features, own])
    weights = np.where(features[:, 2] == 1, 1.0, GAMED_WEIGHT)
    known = np.concatenate([gamed.preferences, wanted])
    kept = ~np.isnan(known)
    model = _fit(features[kept], known[kept], weights[kept])
    return [float(chance) for chance in model.predict_proba(np.column_stack([0 * deltas, hard, ones]))[:, 1]]


def _fit(features: np.ndarray, preferences: np.ndarray, weights: np.ndarray) -> Any:
    """Return the logistic model; each row stands twice, as a win and as a loss with its probability as weight."""
    import sklearn
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import GroupKFold

    labels = np.repeat([1.0, 0.0], len(features))
    chances = np.concatenate([preferences, 1 - preferences])
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = make_scorer(_log_loss, response_method="predict_proba", greater_is_better=False)
        model = LogisticRegressionCV(
            cv=GroupKFold(n_splits=FOLDS),
            scoring=scorer.set_score_request(chance=True, row_weight=True),
            random_state=PENALTY_SEED,
            solver="liblinear",
            fit_intercept=False,
            l1_ratios=(1.0,),
            use_legacy_attributes=False,
        ).set_fit_request(sample_weight=True)
        twice = np.tile(weights, 2)
        groups = np.tile(np.arange(len(features)), 2)
        rows = np.tile(features, (2, 1))
        return model.fit(rows, labels, sample_weight=chances * twice, groups=groups, chance=chances, row_weight=twice)


def _log_loss(outcomes: np.ndarray, predicted: np.ndarray, *, chance: np.ndarray, row_weight: np.ndarray) -> float:
    """Return the weighted log loss against probabilities in place of labels."""
    wanted = np.where(outcomes == 1, chance, 1 - chance)
    inside = np.clip(predicted, _TINY, 1 - _TINY)
    return float(-np.mean((wanted * np.log(inside) + (1 - wanted) * np.log(1 - inside)) * row_weight))
