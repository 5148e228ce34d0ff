"""Critiques of sampled responses → δ on each sampled token (section 3.3)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from text2grad.align.delta import DEFAULT, AlignSettings, pseudo_rewards
from text2grad.align.offsets import Range, token_offsets
from text2grad.align.pieces import spelling
from text2grad.align.prefixes import with_empty
from text2grad.feedback import StepRule, split_steps
from text2grad.types import Critique, Rollout


def response_deltas(
    tokenizer: Any, rollouts: Sequence[Rollout], critiques: Sequence[Critique], settings: AlignSettings = DEFAULT
) -> tuple[list[list[float]], list[list[Range]]]:
    """Return δ [T] of each response, and the character ranges [T] of its sampled tokens.

    Args:
        tokenizer: the policy's tokenizer.
        rollouts: the responses.
        critiques: one per response; a failed critique gives δ = 0.
        settings: the settings of `pseudo_rewards`.
    """
    deltas, all_offsets = [], []
    for rollout, critique in zip(rollouts, critiques, strict=True):
        offsets = policy_offsets(tokenizer, rollout.response_ids)
        spans = () if critique.failed else critique.spans
        deltas.append(pseudo_rewards(tokenizer, rollout.response_ids, spans, **asdict(settings), offsets=offsets))
        all_offsets.append(offsets)
    return deltas, all_offsets


def step_ends(response: str, offsets: Sequence[tuple[int, int]], rule: StepRule) -> list[int]:
    r"""Return the index of the last token of each token's line, sentence or clause, [T].

    A token belongs to the step in which it begins, also if it ends in the next one, as `"}\n"` does. White space before
    a step belongs to it; an end of sequence, or text after the last step, belongs to the last step.

    Args:
        response: the decoded response.
        offsets: character range of each sampled token [T].
        rule: the steps, see `split_steps`.

    Example:
        >>> step_ends("Red. Blue", [(0, 3), (3, 4), (4, 9), (9, 9)], "sentences")
        [1, 1, 3, 3]
    """
    ends = [end for _, end in split_steps(response, rule)]
    steps = [min(bisect_right(ends, start), max(len(ends) - 1, 0)) for start, _ in offsets]
    last = {step: token for token, step in enumerate(steps)}
    return [last[step] for step in steps]


def policy_offsets(tokenizer: Any, ids: Sequence[int]) -> list[Range]:
    """Return the character range of each sampled id.

    The embedding of many models has more rows than the tokenizer has tokens: behind the last token, or where the ids
    have a gap. A policy can sample such an id. The id adds no text, so its range is empty.
    """
    tokens = {i for i in set(ids) if spelling(tokenizer, i) is not None}
    known = [place for place, i in enumerate(ids) if i in tokens]
    ranges = token_offsets(tokenizer, [ids[place] for place in known])
    return with_empty(dict(zip(known, ranges, strict=True)), len(ids))
