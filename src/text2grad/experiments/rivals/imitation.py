"""Imitation of the best answers: rejection sampling with fine-tuning (`sft_best`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from text2grad.experiments.rivals.fitting import fit
from text2grad.experiments.rivals.judged import Judged, best
from text2grad.models import NO_LOSS, FineTuning, Row, supervised_trainer
from text2grad.types import Rollout

if TYPE_CHECKING:
    from text2grad.experiments.rivals.runner import RivalTrainer


def imitate_best(run: "RivalTrainer", judged: list[Judged]) -> dict[str, float]:
    """Fine-tune the policy on the best of its own responses."""
    kept = best(judged, run.recipe.rival.keep, run.recipe.rollout.group_size)
    return imitate(run, [one.rollout for one in kept])


def imitate(run: "RivalTrainer", answers: Sequence[Rollout]) -> dict[str, float]:
    """Fine-tune the policy on answers, and return metrics."""
    counts = {"rival/imitated": float(len(answers))}
    if not answers:
        return counts
    rows = [supervised_ids(answer) for answer in answers]

    def make_trainer(settings: FineTuning, directory: str) -> Any:
        return supervised_trainer(run.model.policy, run.tokenizer, rows, settings, directory)

    longest = max(len(row["input_ids"]) for row in rows)
    return {**counts, **fit(run, make_trainer, rows=len(rows), longest=longest)}


def supervised_ids(answer: Rollout) -> Row:
    """Return the ids of prompt and answer, with labels on the answer; a truncated answer teaches no end."""
    prompt, response = list(answer.prompt_ids), list(answer.response_ids)
    return {"input_ids": [*prompt, *response], "labels": [*[NO_LOSS] * len(prompt), *response]}
