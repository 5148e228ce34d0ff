"""AlpacaEval's length-controlled win rate (arXiv 2404.04475): each preference predicted for equal lengths.

    logit P(answer is preferred) = θ · tanh(Δ length / σ) + ψ · difficulty of the instruction + φ

θ, ψ and φ are fitted by logistic regression with an L1 penalty whose strength is chosen by 5-fold cross-validation,
on the preferences for the answers, and with little weight on those for two baselines whose lengths were changed on
purpose (df_gamed.csv), which hold the length effect to that of gaming. The prediction sets Δ length to 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

GAMED_WEIGHT = 0.2 / 2  # 0.2 for both gamed baselines together
FOLDS, PENALTY_SEED = 5, 123
_TINY = 1e-15


@dataclass(frozen=True, slots=True)
class GamedRows:
    """Judgements of baselines with changed lengths.

    Attributes:
        features: tanh(Δ length / σ), difficulty, 1 for a model's own answers and 0 for gamed ones, [rows, 3].
        preferences: in [0, 1]; NaN where the judge gave none, [rows].
        weights: of the rows, [rows].
        difficulty: of each instruction by its number.
    """

    features: np.ndarray
    preferences: np.ndarray
    weights: np.ndarray
    difficulty: Mapping[int, float]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, float, float, bool, float]]) -> "GamedRows":
        """Take rows of instruction, preference, standardized Δ length, not gamed, and difficulty."""
        found = list(rows)
        difficulty: dict[int, float] = {}
        for index, _, _, _, hard in found:
            difficulty.setdefault(index, hard)
        features = np.array([[math.tanh(delta), hard, float(own)] for _, _, delta, own, hard in found]).reshape(-1, 3)
        preferences = np.array([one[1] for one in found], dtype=float)
        weights = np.array([1.0 if own else GAMED_WEIGHT for _, _, _, own, _ in found])
        return cls(features, preferences, weights, difficulty)

    def digest(self) -> str:
        """Return a hash of the rows."""
        return sha256(self.features.tobytes() + self.preferences.tobytes()).hexdigest()[:16]


def length_controlled(
    preferences: Sequence[float | None],
    baseline_lengths: Sequence[int],
    lengths: Sequence[int],
    instructions: Sequence[int],
    gamed: GamedRows,
) -> list[float]:
    """Return for each answer the predicted preference at equal lengths.

    Args:
        preferences: for each answer against the baseline, in [0, 1]; None where the judge gave none.
        baseline_lengths: characters of the baseline's outputs.
        lengths: characters of the answers.
        instructions: numbers of the instructions, for their difficulty.
        gamed: the judgements of gamed baselines.
    """
    deltas = np.array(baseline_lengths, dtype=float) - np.array(lengths, dtype=float)
    spread = deltas.std(ddof=1) if len(deltas) > 1 else 0.0
    standard = deltas / spread if spread else np.zeros(len(deltas))
    hard = np.array([gamed.difficulty[number] for number in instructions])
    own = np.column_stack([np.tanh(standard), hard, np.ones(len(hard))])
    wanted = np.array([np.nan if one is None else one for one in preferences], dtype=float)
    features = np.concatenate([gamed.features, own])
    known = np.concatenate([gamed.preferences, wanted])
    weights = np.concatenate([gamed.weights, np.ones(len(own))])
    kept = ~np.isnan(known)
    model = _fit(features[kept], known[kept], weights[kept])
    level = np.column_stack([np.zeros(len(hard)), hard, np.ones(len(hard))])
    return [float(one) for one in model.predict_proba(level)[:, 1]]


def _fit(features: np.ndarray, preferences: np.ndarray, weights: np.ndarray) -> Any:
    """Return the logistic model; each row stands twice, as a win and as a loss with its probability as weight."""
    import sklearn
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import GroupKFold

    rows = np.concatenate([features, features])
    labels = np.concatenate([np.ones(len(features)), np.zeros(len(features))])
    chances = np.concatenate([preferences, 1 - preferences])
    own = np.concatenate([weights, weights])
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = make_scorer(_log_loss, response_method="predict_proba", greater_is_better=False)
        scorer = scorer.set_score_request(chance=True, row_weight=True)
        model = LogisticRegressionCV(
            cv=GroupKFold(n_splits=FOLDS),
            scoring=scorer,
            random_state=PENALTY_SEED,
            solver="liblinear",
            fit_intercept=False,
            **_l1(sklearn.__version__),
        )
        model.set_fit_request(sample_weight=True)
        groups = np.tile(np.arange(len(features)), 2)
        return model.fit(rows, labels, sample_weight=chances * own, groups=groups, chance=chances, row_weight=own)


def _l1(version: str) -> dict[str, Any]:
    """Return the arguments of scikit-learn for an L1 penalty; `penalty` is deprecated since 1.8."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (1, 8):
        return {"penalty": "l1"}
    return {"l1_ratios": (1.0,), "use_legacy_attributes": False}


def _log_loss(outcomes: np.ndarray, predicted: np.ndarray, *, chance: np.ndarray, row_weight: np.ndarray) -> float:
    """Return the weighted log loss against probabilities in place of labels."""
    wanted = np.where(outcomes == 1, chance, 1 - chance)
    inside = np.clip(predicted, _TINY, 1 - _TINY)
    return float(-np.mean((wanted * np.log(inside) + (1 - wanted) * np.log(1 - inside)) * row_weight))
