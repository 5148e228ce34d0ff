"""A scalar reward model from preferences, with TRL's RewardTrainer: loss −log σ(r(x, y_chosen) − r(x, y_rejected)).

The loss fixes only differences. So r is standardized afterwards: mean 0 and standard deviation 1 over chosen and
rejected training responses, the scale on which `reward.outcome` is a factor.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, NamedTuple

from evidence.baselines.preference_files import Preference
from evidence.baselines.scalar import (
    ScalarRewardModel,
    new_scalar_model,
    scored_ids,
    train_classifier,
)
from text2grad.errors import DataError, TrainingError
from text2grad.models.fine_tuning import FineTuning, OnStep, optimizers, training_arguments
from text2grad.models.measured_training import Evaluation, measured_at
from text2grad.models.pretrained import context_of
from text2grad.models.prompts import check_ids, format_of
from text2grad.types import Critique, Example

STANDARDIZED_ON = 2_000  # the first training pairs


class PreferenceReport(NamedTuple):
    """Counts of the preferences, and the held-out accuracy."""

    learned_from: int  # training pairs
    alike: int  # pairs left out: the two responses are equal
    too_long: int  # pairs left out: a response is longer than the limit or than the context
    held_out: int  # held-out pairs
    accuracy: float | None  # share of held-out pairs whose chosen response has the higher reward; ties count half
    before: float | None = None  # the same before the training; None where it was not measured


def train_scalar_from_preferences(
    start: str | Path,
    tokenizer: Any,
    preferences: Sequence[Preference],
    settings: FineTuning,
    *,
    held_out: Sequence[Preference] = (),
    prompt_format: Literal["auto", "plain", "chat"] = "auto",
    trust_remote_code: bool = False,
    on_step: OnStep | None = None,
    evaluation: Evaluation | None = None,
) -> tuple[ScalarRewardModel, PreferenceReport]:
    """Train a scalar reward model on preferences.

    Args:
        start: directory or hub name of the causal language model whose trunk is the start; the output layer is new.
        tokenizer: its tokenizer.
        preferences: training pairs.
        settings: of the training; `batch_size` counts pairs, and pairs with a response longer than `max_tokens` are
            left out.
        held_out: pairs for the accuracy.
        prompt_format: "chat" uses the tokenizer's chat template, "plain" does not, "auto" does if there is one.
        trust_remote_code: run code that comes with the model.
        on_step: called with the number of finished steps after each step.
        evaluation: where to save and continue from, and when to measure; its `measure` is replaced by the accuracy.

    Raises:
        DataError: if no training pair is left.
        ModelError: if there is no model to start from.
        TrainingError: if the trained model gives all responses the same reward.
    """
    if tokenizer.pad_token is None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    model = new_scalar_model(start, tokenizer, seed=settings.seed, trust_remote_code=trust_remote_code)
    scorer = ScalarRewardModel(
        model, tokenizer, prompt_format=format_of(tokenizer) if prompt_format == "auto" else prompt_format
    )
    different = [pair for pair in preferences if pair.chosen != pair.rejected]
    rows, kept = _rows(scorer, different, settings.max_tokens)
    if not kept:
        raise DataError(
            f"no training pair is left of {len(preferences)} preferences: {len(preferences) - len(different)} have two "
            f"equal responses, {len(different)} are longer than max_tokens = {settings.max_tokens}"
        )
    _, measured = _rows(scorer, held_out, context_of(model))
    if evaluation is not None and measured:
        evaluation = replace(evaluation, measure=lambda _: {"accuracy": pair_accuracy(scorer, measured) or 0.0})
    _train(model, tokenizer, rows, settings, on_step, evaluation)
    _standardize(scorer, kept[:STANDARDIZED_ON])
    alike, too_long = len(preferences) - len(different), len(different) - len(kept)
    accuracy = pair_accuracy(scorer, measured)
    before = measured_at(evaluation.directory, 0).get("accuracy") if evaluation else None
    return scorer, PreferenceReport(len(kept), alike, too_long, len(measured), accuracy, before)


def pair_accuracy(scorer: ScalarRewardModel, preferences: Sequence[Preference]) -> float | None:
    """Return the share of pairs whose chosen response has the higher reward, ties count half; None without pairs."""
    chosen, rejected = _scores(scorer, preferences)
    wins = [(a > b) + 0.5 * (a == b) for a, b in zip(chosen, rejected, strict=True)]
    return fmean(wins) if wins else None


def _rows(
    scorer: ScalarRewardModel, preferences: Sequence[Preference], limit: float
) -> tuple[list[dict[str, list[int]]], list[Preference]]:
    """Return ids and preferences of the pairs whose responses both fit the limit and the model's context."""
    limit = min(limit, context_of(scorer.model))
    examples = [Example(pair.prompt) for pair in preferences]
    chosen = scored_ids(scorer.tokenizer, examples, [pair.chosen for pair in preferences], scorer.prompt_format)
    rejected = scored_ids(scorer.tokenizer, examples, [pair.rejected for pair in preferences], scorer.prompt_format)
    fits = [row for row, pair in enumerate(zip(chosen, rejected, strict=True)) if max(map(len, pair)) <= limit]
    return [{"chosen_ids": chosen[row], "rejected_ids": rejected[row]} for row in fits], [
        preferences[row] for row in fits
    ]


def _train(
    model: Any,
    tokenizer: Any,
    rows: list[Any],
    settings: FineTuning,
    on_step: OnStep | None,
    evaluation: Evaluation | None,
) -> None:
    from datasets import Dataset
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    check_ids(model, [ids for row in rows for ids in row.values()])

    def make_trainer(directory: str, **more: Any) -> Any:
        more = {**more, "train_sampling_strategy": "random"}  # a pair has no length to sort by
        return RewardTrainer(
            model,
            args=training_arguments(RewardConfig, settings, directory, max_length=None, **more),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            optimizers=optimizers(model, settings),
        )

    train_classifier(make_trainer, model, settings, on_step, evaluation)


def _standardize(scorer: ScalarRewardModel, preferences: Sequence[Preference]) -> None:
    """Scale the reward to mean 0 and standard deviation 1 over these responses."""
    scores = [score for part in _scores(scorer, preferences) for score in part]
    mean, deviation = fmean(scores), pstdev(scores)
    if not deviation > 0:
        raise TrainingError(
            f"the reward model gives all {len(scores)} responses the reward {mean:g}; choose another learning rate"
        )
    scorer.mean, scorer.deviation = -mean / deviation, 1 / deviation


def _scores(scorer: ScalarRewardModel, preferences: Sequence[Preference]) -> tuple[list[float], list[float]]:
    """Return the rewards of the chosen and of the rejected responses."""
    examples = [Example(pair.prompt) for pair in preferences]
    chosen = scorer(examples, [pair.chosen for pair in preferences])
    rejected = scorer(examples, [pair.rejected for pair in preferences])
    return _numbers(chosen), _numbers(rejected)


def _numbers(critiques: Sequence[Critique]) -> list[float]:
    return [critique.outcome for critique in critiques if critique.outcome is not None]
