"""Critiques of sampled responses → δ on each sampled token (section 3.3).

Of a response in several turns each turn is decoded for itself, and characters count in the joined texts.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from text2grad.align.delta import DEFAULT, AlignSettings, pseudo_rewards
from text2grad.align.offsets import Range, token_offsets
from text2grad.align.pieces import spelling
from text2grad.align.prefixes import with_empty
from text2grad.errors import AlignmentError
from text2grad.feedback import StepRule, flat_spans, split_steps
from text2grad.types import Conversation, Critique, Rollout


def response_deltas(
    tokenizer: Any, rollouts: Sequence[Rollout], critiques: Sequence[Critique], settings: AlignSettings = DEFAULT
) -> tuple[list[list[float]], list[list[Range]]]:
    """Return δ [T] of each response, and the character ranges [T] of its sampled tokens.

    Args:
        tokenizer: the policy's tokenizer.
        rollouts: the responses.
        critiques: one per response; a failed critique gives δ = 0.
        settings: the settings of `pseudo_rewards`.

    Raises:
        AlignmentError: if a span names no turn that the policy wrote or ends after its text, or the text of a
            `Conversation` is not that of its ids; also as `pseudo_rewards`.
    """
    deltas, all_offsets = [], []
    for rollout, critique in zip(rollouts, critiques, strict=True):
        offsets, text = list[Range](), ""
        for ids in rollout.sampled_turns():
            offsets += [(len(text) + start, len(text) + end) for start, end in policy_offsets(tokenizer, ids)]
            text += tokenizer.decode(list(ids), skip_special_tokens=True)
        if isinstance(rollout.response, Conversation) and text != rollout.response:
            raise AlignmentError(
                f"the turns of a conversation say {str(rollout.response)!r}, and their sampled ids {text!r}. The text "
                "of a turn is tokenizer.decode(ids, skip_special_tokens=True) of its own ids, between two `given`"
            )
        spans = [] if critique.failed else flat_spans(rollout.response, critique.spans)
        how = {**asdict(settings), "offsets": offsets, "text": text}
        deltas.append(pseudo_rewards(tokenizer, rollout.response_ids, spans, **how))
        all_offsets.append(offsets)
    return deltas, all_offsets


def step_ends(response: str, offsets: Sequence[Range], rule: StepRule, turns: Sequence[int] = ()) -> list[int]:
    r"""Return the index of the last token of each token's line, sentence or clause, [T].

    A token belongs to the step in which it begins, also if it ends in the next one, as `"}\n"` does. White space before
    a step belongs to it; an end of sequence, or text after the last step, belongs to the last step.

    Args:
        response: the decoded response.
        offsets: character range of each sampled token [T].
        rule: the steps, see `split_steps`.
        turns: the tokens that end a turn: a step ends there, too.

    Example:
        >>> step_ends("Red. Blue", [(0, 3), (3, 4), (4, 9), (9, 9)], "sentences")
        [1, 1, 3, 3]
    """
    ends: list[int] = []
    for first, stop in pairwise(sorted({0, *(last + 1 for last in turns), len(offsets)})):
        begin = offsets[first][0]
        of_turn = [begin + end for _, end in split_steps(response[begin : offsets[stop - 1][1]], rule)]
        steps = [min(bisect_right(of_turn, start), max(len(of_turn) - 1, 0)) for start, _ in offsets[first:stop]]
        last = {step: token for token, step in enumerate(steps, start=first)}
        ends += [last[step] for step in steps]
    return ends


def policy_offsets(tokenizer: Any, ids: Sequence[int]) -> list[Range]:
    """Return the character range of each sampled id.

    The embedding of many models has more rows than the tokenizer has tokens: behind the last token, or where the ids
    have a gap. A policy can sample such an id. The id adds no text, so its range is empty.
    """
    tokens = {i for i in set(ids) if spelling(tokenizer, i) is not None}
    known = [place for place, i in enumerate(ids) if i in tokens]
    ranges = token_offsets(tokenizer, [ids[place] for place in known])
    return with_empty(dict(zip(known, ranges, strict=True)), len(ids))
