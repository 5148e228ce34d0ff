"""A reward model that learned from annotations, in one call."""

from collections.abc import Sequence
from typing import Any

from text2grad.feedback.records import Annotation
from text2grad.models.fine_tuning import FineTuning, OnStep
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel


def train_reward_model(
    model: Any,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
    **format: Any,
) -> tuple[GenerativeRewardModel, int]:
    """Return the reward model, and how many annotations are too long to be learned."""
    usual = {"outcomes": False, "prompt_format": settings.prompt_format}
    reward_model = GenerativeRewardModel(model, tokenizer, CritiqueFormat(**{**usual, **format}))
    return reward_model, reward_model.train_further(annotations, settings, on_step=on_step)
