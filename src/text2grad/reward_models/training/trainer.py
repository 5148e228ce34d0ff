"""The trainer of the generative reward model, for the quickstart, for [refresh] and for `text2grad reward`.

    annotations → rows of ids and labels → `train_reward_model` → the reward model, trained in place

`text2grad reward` trains with `train_measured` of `models`; `measurement` decodes the critiques of held-out responses.
"""

from collections.abc import Callable, Sequence
from typing import Any

from text2grad.feedback import Annotation
from text2grad.models import FineTuning, OnStep, context_of, share_of_process, train_on_rows
from text2grad.progress import note
from text2grad.reward_models.agreement import Agreement
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.training.held_out import HeldOutSet, span_f1
from text2grad.reward_models.writing import has_outcomes


def train_reward_model(
    model: Any,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
    **changes: Any,
) -> tuple[GenerativeRewardModel, int]:
    """Train a causal language model in place to write the critiques of annotations; failed critiques are skipped.

    `on_step` is called with the number of finished steps after each step. `changes` are attributes of
    `CritiqueFormat`, whose prompt format is that of the settings; `outcomes` says whether an annotation has one.

    Returns:
        The reward model, and the number of annotations left out because they are longer than `settings.max_tokens` or
        than the model's context.

    Raises:
        ModelError: if the model could not write critiques; before training.
        DataError: if no annotation is left.
    """
    usual = {"outcomes": has_outcomes(annotations), "prompt_format": settings.prompt_format}
    reward_model = GenerativeRewardModel(model, tokenizer, CritiqueFormat(**{**usual, **changes}))
    max_tokens = int(min(settings.max_tokens, context_of(model)))
    rows, too_long = reward_model.training_rows(annotations, max_tokens=max_tokens)
    train_on_rows(model, tokenizer, rows, settings, on_step=on_step)
    return reward_model, too_long


def measurement(
    reward_model: GenerativeRewardModel, held_out: HeldOutSet, thresholds: Sequence[float] = ()
) -> Callable[[Any], dict[str, float]]:
    """Return the function that decodes held-out critiques during a training and compares them with the annotators'.

    Args:
        reward_model: the model in training.
        held_out: the responses.
        thresholds: vote thresholds to choose from; empty takes the reward model's own.
    """

    def measure(trainer: Any) -> dict[str, float]:
        rank, processes = share_of_process(trainer)
        if trainer.is_world_process_zero():
            note(f"critiques of {len(held_out.annotations):,} held-out responses at step {trainer.state.global_step:,}")
        if thresholds:
            agreements = held_out.measure_votes(reward_model, thresholds, rank=rank, processes=processes)
        else:
            agreements = [held_out.measure(reward_model, rank=rank, processes=processes)]
        if processes > 1:
            agreements = _sum_over_processes(agreements)
        best = max(range(len(agreements)), key=lambda number: span_f1(agreements[number])["f1"])
        measured = span_f1(agreements[best]) | agreements[best].metrics()
        return measured | ({"vote_threshold": thresholds[best]} if thresholds else {})

    return measure


def _sum_over_processes(agreements: Sequence[Agreement]) -> list[Agreement]:
    """Return the counts of all processes together."""
    from accelerate.utils import gather_object

    totals = [Agreement()] * len(agreements)
    for counts in gather_object([[tuple(agreement) for agreement in agreements]]):
        totals = [total.merged(Agreement(*more)) for total, more in zip(totals, counts, strict=True)]
    return totals
