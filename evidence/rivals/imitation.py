"""Imitation of the best answers, by fine-tuning.

sft_best   the best of the policy's own responses (rejection sampling, expert iteration)
ilf        the best of its responses after a refinement with their critiques (arXiv 2303.16755)
"""

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from evidence.baselines.trainers import rows_trainer
from evidence.rivals.fitting import fit
from evidence.rivals.judged import Judged, best
from evidence.rivals.refiners import log_refinements, refine
from evidence.rivals.settings import rival_of
from text2grad.models import FineTuning, Row, row_of_ids
from text2grad.types import Rollout

if TYPE_CHECKING:
    from evidence.rivals.trainer import RivalTrainer

KEEP_SAMPLED, KEEP_REFINED = 0.25, 1.0  # where rival.keep is left out


def imitate_best(run: "RivalTrainer", judged: list[Judged]) -> dict[str, float]:
    """Fine-tune the policy on the best of its own responses."""
    kept = best(judged, rival_of(run.recipe).keep or KEEP_SAMPLED, run.recipe.rollout.group_size)
    return imitate(run, [one.rollout for one in kept])


def imitate_refined(run: "RivalTrainer", judged: list[Judged]) -> dict[str, float]:
    """Refine the responses of a round with their critiques, and fine-tune the policy on the best refinements.

    The critic judges the refinements, unless all are kept.
    """
    recipe, rollouts = run.recipe, [one.rollout for one in judged]
    refined = refine(run, rollouts, [one.critique for one in judged])
    changed = sum(new.response != old.response for old, new in zip(rollouts, refined, strict=True))
    metrics = {"rival/refined": float(changed)}
    keep = rival_of(recipe).keep or KEEP_REFINED
    if keep == 1.0:
        answers = [one._replace(rollout=new) for one, new in zip(judged, refined, strict=True)]
    else:
        answers = run.judge(refined)
        metrics["rival/more_critiques"] = float(len(refined))
        metrics["rival/refined_reward"] = fmean(one.reward for one in answers)
    after = [] if keep == 1.0 else [one.reward for one in answers]
    log_refinements(run, judged, refined, after)
    kept = best(answers, keep, recipe.rollout.group_size)
    return {**metrics, **imitate(run, [one.rollout for one in kept])}


def imitate(run: "RivalTrainer", answers: Sequence[Rollout]) -> dict[str, float]:
    """Fine-tune the policy on answers, and return metrics."""
    counts = {"rival/imitated": float(len(answers))}
    if not answers:
        return counts
    rows = [supervised_ids(answer) for answer in answers]

    def make_trainer(settings: FineTuning, directory: str) -> Any:
        return rows_trainer(run.model.policy, run.tokenizer, rows, settings, directory)

    longest = max(len(row["input_ids"]) for row in rows)
    return {**counts, **fit(run, make_trainer, rows=len(rows), longest=longest)}


def supervised_ids(answer: Rollout) -> Row:
    """Return the ids of prompt and answer, with labels on the answer; a truncated answer teaches no end."""
    return row_of_ids(answer.prompt_ids, answer.response_ids)
