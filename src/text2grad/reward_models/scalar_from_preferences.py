"""A scalar reward model from preferences: −log σ(r(x, y_chosen) − r(x, y_rejected)), by TRL's RewardTrainer.

Only differences are learned, so the numbers have no zero and no unit. Afterwards they are given both: over the
responses that it learned from, chosen and rejected, they have mean 0 and deviation 1, the scale on which
`reward.outcome` stands.
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, NamedTuple

from text2grad.errors import DataError, TrainingError
from text2grad.feedback import Preference
from text2grad.models import (
    FineTuning,
    as_it_was,
    context_of,
    optimizers,
    recomputing,
    train_quietly,
    training_arguments,
)
from text2grad.reward_models.scalar import ScalarRewardModel, format_of, scalar_head_on, scored_ids
from text2grad.types import Critique, Example

STANDARDIZED_ON = 2_000  # pairs, the first of those that it learned from


class PreferenceReport(NamedTuple):
    """What became of the preferences.

    Attributes:
        learned_from: pairs that it was trained on.
        alike: pairs whose two responses are the same, which say nothing.
        too_long: pairs left out because one of the two is longer than the limit, or than the context.
        held_out: pairs that it was measured on.
        accuracy: share of those where the chosen response got the higher number; equal numbers count half. None where
            nothing was held out.
    """

    learned_from: int
    alike: int
    too_long: int
    held_out: int
    accuracy: float | None


def train_scalar_from_preferences(
    start: str | Path,
    tokenizer: Any,
    preferences: Sequence[Preference],
    how: FineTuning,
    *,
    held_out: Sequence[Preference] = (),
    prompt_format: Literal["auto", "plain", "chat"] = "auto",
    trust_remote_code: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> tuple[ScalarRewardModel, PreferenceReport]:
    """Train a scalar reward model on preferences.

    Args:
        start: directory or hub name of the causal language model whose trunk it starts from; the head is new.
        tokenizer: its tokenizer.
        preferences: what is learned from.
        how: steps, pairs of a step, learning rate; pairs with a response beyond `max_tokens` are left out and counted.
        held_out: what the accuracy is measured on.
        prompt_format: "chat" by the tokenizer's chat template, "plain" as it stands, "auto" chat where there is one.
        trust_remote_code: run code that comes with the model.
        on_step: called with the number of steps made.

    Raises:
        DataError: if no pair is left to learn from.
        ModelError: if there is no model to start from.
        TrainingError: if it learned to give every response the same number.
    """
    if tokenizer.pad_token is None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    model = scalar_head_on(start, tokenizer, seed=how.seed, trust_remote_code=trust_remote_code)
    judge = ScalarRewardModel(
        model, tokenizer, prompt_format=format_of(tokenizer) if prompt_format == "auto" else prompt_format
    )
    different = [one for one in preferences if one.chosen != one.rejected]
    rows, kept = _rows(judge, different, how.max_tokens)
    if not kept:
        raise DataError(
            f"none of {len(preferences)} preferences can be learned from: {len(preferences) - len(different)} are of "
            f"two responses that are the same, {len(different)} are longer than max_tokens = {how.max_tokens}"
        )
    _train(model, tokenizer, rows, how, on_step)
    model.eval()
    _standardize(judge, kept[:STANDARDIZED_ON])
    _, measured = _rows(judge, held_out, context_of(model))
    alike, too_long = len(preferences) - len(different), len(different) - len(kept)
    accuracy = pair_accuracy(judge, measured)
    return judge, PreferenceReport(len(kept), alike, too_long, len(measured), accuracy)


def pair_accuracy(judge: ScalarRewardModel, preferences: Sequence[Preference]) -> float | None:
    """Return how often the chosen response gets the higher number, equal ones counting half; None of no pairs."""
    chosen, rejected = _scores(judge, preferences)
    wins = [(a > b) + 0.5 * (a == b) for a, b in zip(chosen, rejected, strict=True)]
    return fmean(wins) if wins else None


def _rows(
    judge: ScalarRewardModel, preferences: Sequence[Preference], limit: float
) -> tuple[list[dict[str, list[int]]], list[Preference]]:
    """Return the pairs as ids, and the pairs, those left out of which one response is longer than the limit."""
    limit = min(limit, context_of(judge.model))
    asked = [Example(one.prompt) for one in preferences]
    chosen = scored_ids(judge.tokenizer, asked, [one.chosen for one in preferences], judge.prompt_format)
    rejected = scored_ids(judge.tokenizer, asked, [one.rejected for one in preferences], judge.prompt_format)
    fits = [row for row, pair in enumerate(zip(chosen, rejected, strict=True)) if max(map(len, pair)) <= limit]
    return [{"chosen_ids": chosen[row], "rejected_ids": rejected[row]} for row in fits], [
        preferences[row] for row in fits
    ]


def _train(
    model: Any, tokenizer: Any, rows: list[dict[str, list[int]]], how: FineTuning, on_step: Callable[[int], None] | None
) -> None:
    from datasets import Dataset
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    with tempfile.TemporaryDirectory() as scratch, as_it_was(model):
        told = {**training_arguments(how, scratch), "train_sampling_strategy": "random"}  # it knows no length of pairs
        trainer = RewardTrainer(
            model,
            args=RewardConfig(max_length=None, bf16=False, **told, **recomputing(RewardConfig, False)),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            optimizers=optimizers(model, how),
        )
        train_quietly(trainer, on_step)
    model.zero_grad(set_to_none=True)


def _standardize(judge: ScalarRewardModel, preferences: Sequence[Preference]) -> None:
    """Give the numbers mean 0 and deviation 1 over these responses."""
    scores = [score for part in _scores(judge, preferences) for score in part]
    mean, deviation = fmean(scores), pstdev(scores)
    if not deviation > 0:
        raise TrainingError(
            f"the reward model gives all {len(scores)} responses the number {mean:g}; choose another learning rate"
        )
    judge.mean, judge.deviation = -mean / deviation, 1 / deviation


def _scores(judge: ScalarRewardModel, preferences: Sequence[Preference]) -> tuple[list[float], list[float]]:
    """Return the numbers of the chosen responses and those of the rejected."""
    asked = [Example(one.prompt) for one in preferences]
    chosen = judge(asked, [one.chosen for one in preferences])
    rejected = judge(asked, [one.rejected for one in preferences])
    return _numbers(chosen), _numbers(rejected)


def _numbers(critiques: Sequence[Critique]) -> list[float]:
    return [critique.outcome for critique in critiques if critique.outcome is not None]
