"""DPO (arXiv 2305.18290): the best and the worst response to each prompt → pairs → TRL's DPOTrainer.

The reference is the start of the run in every round. TRL gets the sampled ids and their log-probabilities under the
reference, so that no text is encoded again and no second model is held.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from datasets import Dataset
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from evidence.rivals.fitting import fit
from evidence.rivals.judged import Judged, groups
from evidence.rivals.settings import rival_of
from text2grad.models import FineTuning, is_peft
from text2grad.models.fine_tuning import training_arguments, with_padding
from text2grad.types import Rollout

if TYPE_CHECKING:
    from evidence.rivals.trainer import RivalTrainer

TRL_REFERENCE = "ref"  # the adapter that TRL adds to a model with adapters
LOGITS_BYTES = 2**30
"""Most bytes of the logits of one forward pass as float32; the loss holds several tensors of this size."""


class Pair(NamedTuple):
    """Two responses to one prompt."""

    chosen: Rollout
    rejected: Rollout


def pairs_of(judged: Sequence[Judged], group_size: int) -> tuple[list[Pair], int]:
    """Return the pair of the best and the worst response to each prompt by reward, and the number of ties.

    A prompt whose responses have equal rewards is a tie, and has no pair. Responses without a critique are left out.
    """
    pairs, ties = [], 0
    for group in groups(judged, group_size):
        if len(group) < 2:
            continue
        high, low = max(group, key=lambda one: one.reward), min(group, key=lambda one: one.reward)
        if high.reward == low.reward:
            ties += 1
        else:
            pairs.append(Pair(high.rollout, low.rollout))
    return pairs, ties


def learn_preferences(run: "RivalTrainer", judged: list[Judged]) -> dict[str, float]:
    """Train the policy on the pairs of a round."""
    pairs, ties = pairs_of(judged, run.recipe.rollout.group_size)
    counts = {"rival/pairs": float(len(pairs)), "rival/ties": float(ties)}
    if not pairs:
        return counts
    chosen, rejected = (_reference_logp(run, side) for side in zip(*pairs, strict=True))
    rows: list[dict[str, Any]] = [
        {
            "prompt_ids": list(pair.chosen.prompt_ids),
            "chosen_ids": list(pair.chosen.response_ids),
            "rejected_ids": list(pair.rejected.response_ids),
            "ref_chosen_logps": good,
            "ref_rejected_logps": bad,
        }
        for pair, good, bad in zip(pairs, chosen, rejected, strict=True)
    ]
    longest = max(len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in rows)

    def make_trainer(settings: FineTuning, directory: str) -> Any:
        pair_bytes = 2 * longest * run.model.policy.config.get_text_config().vocab_size * 4
        settings = replace(settings, accumulate=parts(settings.batch_size, settings.accumulate, pair_bytes))
        more: dict[str, Any] = {
            "beta": rival_of(run.recipe).dpo_beta,
            "precompute_ref_log_probs": True,
            "max_length": None,
        }
        more |= {"train_sampling_strategy": "random", "remove_unused_columns": False}
        arguments = training_arguments(DPOConfig, settings, directory, **more)
        data = Dataset.from_list(rows)
        tokenizer = with_padding(run.tokenizer, run.model.policy)
        return _PairTrainer(run.model.policy, args=arguments, train_dataset=data, processing_class=tokenizer)

    trainable = {name: p.requires_grad for name, p in run.model.policy.named_parameters()}
    metrics = fit(run, make_trainer, rows=len(rows), longest=longest)
    if is_peft(run.model.policy):
        run.model.policy.delete_adapter(TRL_REFERENCE)
    for name, parameter in run.model.policy.named_parameters():
        parameter.requires_grad_(trainable[name])
    return {**counts, **metrics}


def parts(batch_size: int, least: int, pair_bytes: int) -> int:
    """Return the fewest equal parts of a batch whose logits stay within `LOGITS_BYTES`; parts of one pair if none do.

    Args:
        batch_size: pairs of an optimizer step.
        least: least number of parts, a divisor of `batch_size`.
        pair_bytes: bytes of the logits of a pair as float32.

    Example:
        >>> parts(16, 1, 2**27)  # 8 pairs fit
        2
    """
    fitting = max(LOGITS_BYTES // pair_bytes, 1)
    return next(n for n in range(least, batch_size + 1) if batch_size % n == 0 and batch_size // n <= fitting)


class _PairTrainer(DPOTrainer):
    """TRL's trainer on pairs of token ids with log-probabilities of the reference, which it would make from text."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        return dataset


@torch.no_grad()
def _reference_logp(run: "RivalTrainer", rollouts: Sequence[Rollout]) -> list[float]:
    """Return log π_ref(y | x) of each response at temperature 1, at which TRL computes log π_θ."""
    batch = run.collate(rollouts)
    found = torch.zeros(len(rollouts))
    for index in batch.groups(run.sizes.micro_batch_tokens):
        scores = run.model.score(batch.rows(index), run.reference, temperature=1.0, kl="k1")
        found[index.cpu()] = scores.logp_ref.sum(dim=1).cpu()
    return found.tolist()
