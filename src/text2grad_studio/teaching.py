"""What a new version does to the words that a person marked.

A lesson itself is `text2grad.runs.give_lesson`: a version is its adapter, on the version that it began from.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any, NamedTuple

from torch import no_grad

from text2grad.align import response_deltas
from text2grad.errors import DataError
from text2grad.feedback import item_of
from text2grad.models import PolicyWithValue, Reference, collate, padding_id, stop_ids
from text2grad.rl import PieceSizes, score_batch
from text2grad.runs import Judged

MOST_TOKENS = 4096  # most tokens of a forward pass, padding included
BEHIND = 16  # tokens behind the last marked one that are read


class Change(NamedTuple):
    """What a version changed in one marked response: character range, δ and log-probs of each token."""

    item: str
    offsets: list[tuple[int, int]]
    delta: list[float]
    before: list[float]
    after: list[float]


class Taught(NamedTuple):
    """What a version changed in the marked responses.

    Attributes:
        positive: mean change of log p of positive words, nats: neighbouring tokens together; None without any.
        negative: the same of negative words.
        unmarked: mean change of log p of the other tokens.
        kl: exact KL(π ‖ π before the lesson) per token, on the marked responses.
        changes: one per response.
    """

    positive: float | None
    negative: float | None
    unmarked: float | None
    kl: float
    changes: list[Change]


def measured(policy: Any, tokenizer: Any, answers: Sequence[Judged]) -> Taught:
    """Return what a policy's adapter changes in marked responses, up to `BEHIND` tokens behind the last mark.

    Raises:
        DataError: if no token is marked.
    """
    rollouts, critiques = [own.rollout for own in answers], [own.critique for own in answers]
    deltas, offsets = response_deltas(tokenizer, rollouts, critiques)
    if not any(map(any, deltas)):
        raise DataError("no token is marked: a mark lies between tokens. Mark at least one whole word")
    pad = padding_id(policy, tokenizer, stop_ids(policy, tokenizer, ()))
    deltas = [
        values[: max((at + 1 for at, value in enumerate(values) if value), default=0) + BEHIND] for values in deltas
    ]
    read = [replace(r, response_ids=r.response_ids[: len(d)]) for r, d in zip(rollouts, deltas, strict=True)]
    batch = collate(read, pad_id=pad, device=policy.device)
    model, reference = PolicyWithValue(policy, value="none"), Reference(policy, base=True)
    sizes = PieceSizes(micro_batch_tokens=MOST_TOKENS)
    with no_grad():
        scores = score_batch(model, reference, batch, sizes, temperature=1.0, kl="full")

    changes, moved = [], dict[bool | None, list[float]]()
    for row, (own, values) in enumerate(zip(rollouts, deltas, strict=True)):
        before, after = (logp[row, : len(values)].tolist() for logp in (scores.logp_ref, scores.logp))
        tokens = [
            (value > 0 if value else None, new - old) for value, new, old in zip(values, after, before, strict=True)
        ]
        for label, run in groupby(tokens, key=itemgetter(0)):
            by = [change for _, change in run]
            moved.setdefault(label, []).extend(by if label is None else [sum(by)])
        logps = ([round(x, 5) for x in logp] for logp in (before, after))
        item = item_of(own.example.prompt_text, own.response)
        changes.append(Change(item, list(offsets[row][: len(values)]), [float(x) for x in values], *logps))
    positive, negative, unmarked = (fmean(moved[label]) if label in moved else None for label in (True, False, None))
    return Taught(positive, negative, unmarked, float(scores.kl[batch.response_mask].mean()), changes)
