"""Metrics of a step, computed from the records of its responses. The name of each KL metric says its unit.

reward/per_response      mean Σ_t r_t before the KL term;  reward/nonzero_share: responses with a reward that is not 0
delta/positive_share     share of tokens with δ > 0;  likewise negative_share, labelled_share
delta/cornered_share     of the prompts with several responses: see `cornered_share`; absent where no prompt has them
kl/per_token             Σ KL / Σ tokens, nats;  kl/per_sequence: mean Σ_t KL_t, nats
critic/failure_rate      critiques that could not be read;  critic/unmatched_rate: quotes not found
turns/mean               turns of the policy per response, empty and cut ones too; where it is a conversation
seconds/PART             wall time of a part of the step;  tokens/prompt, tokens/generated: of the rollouts (what a
                         policy was given between its turns counts as prompt);
                         tokens/critic_prompt, tokens/critic_generated: of a critic that counts them
memory/peak_bytes        most memory of the process, or of tensors on an accelerator, which also has memory/PART
tools/turns, tools/calls  of all responses, with tools;  tools/failed, tools/unreadable: calls that failed, or could not
                         be read;  tools/cut: results that were cut;  tools/no_room: responses that lacked room;
                         tools/rewritten: turns behind which the template would render the chat otherwise than it was
length/reward_correlation  Pearson's r of length and reward: near 1 means that the reward grows with length
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from text2grad.errors import CriticError
from text2grad.feedback import critique_to_json, turns_to_json
from text2grad.models import Scores
from text2grad.types import FAILED_STATUSES, Critique, Rollout

Offsets = Sequence[tuple[int, int]]
Record = dict[str, Any]


def response_records(
    step: int,
    rollouts: Sequence[Rollout],
    critiques: Sequence[Critique],
    deltas: Sequence[Sequence[float]],
    offsets: Sequence[Offsets],
    tokens: dict[str, Tensor],
) -> list[Record]:
    """Return one JSON-ready record per response of a step, with δ, characters and further numbers of each token.

    `tokens` has these numbers by name, each [B, T].
    """
    columns = {name: values.tolist() for name, values in tokens.items()}
    records = []
    for row, (rollout, critique) in enumerate(zip(rollouts, critiques, strict=True)):
        length = len(rollout.response_ids)
        records.append(
            {
                "step": step,
                "prompt": rollout.example.prompt_text,
                "response": rollout.response,
                **({"turns": turns} if (turns := turns_to_json(rollout.response)) else {}),
                "truncated": rollout.truncated,
                "critique": critique_to_json(critique),
                "ids": list(rollout.response_ids),
                "offsets": [list(pair) for pair in offsets[row]],
                "delta": [round(x, 4) for x in deltas[row]],
                **{name: [round(x, 5) for x in values[row][:length]] for name, values in columns.items()},
            }
        )
    return records


def step_metrics(
    records: Sequence[Record],
    scores: Scores,
    returns: Tensor,
    mask: Tensor,
    gather: Callable[[Tensor], Tensor] = lambda columns: columns,
) -> dict[str, float]:
    """Return the metrics of one step.

    Args:
        records: one per response of all processes.
        scores: this process's scores, for the entropy and the value function's fit.
        returns: this process's value targets, [B, T].
        mask: True on response tokens, bool [B, T].
        gather: joins the columns of all processes, [3, N].
    """
    entropy, values, targets = gather(torch.stack([x[mask] for x in (scores.entropy, scores.values, returns)]))
    lengths = np.array([len(r["ids"]) for r in records], dtype=float)
    rewards = np.array([sum(r["reward"]) for r in records])
    kl = np.array([sum(r["kl"]) for r in records])
    delta = np.concatenate([r["delta"] for r in records]) if lengths.sum() else np.zeros(1)
    spans, unmatched = (sum(len(r["critique"][name]) for r in records) for name in ("spans", "unmatched"))
    cornered, talks = cornered_share(records), any("turns" in r for r in records)
    turns = [sum(turn.get("sampled", False) for turn in r["turns"]) if "turns" in r else 1 for r in records]
    return {
        "reward/per_response": float(rewards.mean()),
        "reward/nonzero_share": float(np.mean([any(r["reward"]) for r in records])),
        "delta/positive_share": float((delta > 0).mean()),
        "delta/negative_share": float((delta < 0).mean()),
        "delta/labelled_share": float((delta != 0).mean()),
        "kl/per_token": float(kl.sum() / max(lengths.sum(), 1.0)),
        "kl/per_sequence": float(kl.mean()),
        "entropy/per_token": float(entropy.mean()) if entropy.numel() else 0.0,
        "value/explained_variance": explained_variance(values, targets),
        "critic/failure_rate": float(np.mean([r["critique"]["status"] in FAILED_STATUSES for r in records])),
        "critic/unmatched_rate": unmatched / max(unmatched + spans, 1),
        "length/mean": float(lengths.mean()),
        "length/truncated_share": float(np.mean([r["truncated"] for r in records])),
        "length/reward_correlation": correlation(lengths, rewards),
        **({} if cornered is None else {"delta/cornered_share": cornered}),
        **({"turns/mean": float(np.mean(turns))} if talks else {}),
    }


def cornered_share(records: Sequence[Record]) -> float | None:
    """Return the share of prompts with several responses that all take the same way to a negative token; None of none.

    No response leaves the others before their first negative token or at it. Where all that the policy samples is
    judged alike, Σ π(a) ∇ log π(a) = 0: the marks say what is wrong, and there is nothing to move to.

    Example:
        >>> alike = [{"prompt": "x", "ids": [token, 7], "delta": [-1.0, 0.0]} for token in (3, 4)]
        >>> cornered_share(alike), cornered_share([*alike, {"prompt": "x", "ids": [5], "delta": [0.0]}])
        (1.0, 0.0)
    """
    ways = defaultdict[str, list[list[int] | None]](list)  # to the first negative token of each response
    for record in records:
        at = next((t for t, value in enumerate(record["delta"]) if value < 0), None)
        ways[record["prompt"]].append(None if at is None else record["ids"][:at])
    several = [own for own in ways.values() if len(own) > 1]
    cornered = [own[0] is not None and own.count(own[0]) == len(own) for own in several]
    return sum(cornered) / len(cornered) if cornered else None


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return 1 − Var(R − V)/Var(R): 1 is a perfect value function, 0 is no better than a constant."""
    if returns.numel() < 2 or float(returns.var()) == 0.0:
        return 0.0
    return 1.0 - float((returns - values).var() / returns.var())


def correlation(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """Return Pearson's r, or 0 where either does not vary."""
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


WARNED_STEPS = (1, 3, 10, 30, 100, 300, 1000)  # after which a run may be warned of its critic
FAILURE_WINDOW = 100  # least number of latest critiques to which critic.max_failure_rate applies
MOST_CORNERED = 0.5  # share of cornered prompts, on average over the steps so far, above which a run is warned
ALL_FAILED = 8  # a run stops if none of so many first critiques could be read


class FailureRate:
    """The share of a critic's last 100 critiques (or last batch, if that is more) that could not be read."""

    def __init__(self, limit: float, batch_size: int) -> None:
        """Take the share of failures above which a run stops, and the number of critiques per step."""
        self.limit = limit
        self.statuses: deque[str] = deque(maxlen=max(FAILURE_WINDOW, batch_size))

    def count(self, statuses: Iterable[str]) -> None:
        """Add the statuses of some critiques."""
        self.statuses.extend(statuses)

    @property
    def rate(self) -> float:
        """The share of failures, 0 before the first critique."""
        return sum(status in FAILED_STATUSES for status in self.statuses) / max(len(self.statuses), 1)

    @property
    def too_many(self) -> bool:
        """True when more than the limit of the last 100 critiques failed, or all of the first 8 or more."""
        enough = FAILURE_WINDOW if self.rate < 1.0 else ALL_FAILED
        return len(self.statuses) >= enough and self.rate > self.limit

    def error(self, way_out: str) -> CriticError:
        """Return the error that stops a run."""
        return CriticError(
            f"{self.rate:.0%} of the last {len(self.statuses)} critiques could not be read (max_failure_rate is "
            f"{self.limit:.0%}). {way_out}"
        )


def said_nothing(metrics: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the critic's words changed no advantage in steps, given by their metrics; False for no step."""
    names = "delta/labelled_share", "reward/nonzero_share", "credit/size"
    return bool(metrics) and not any(line.get(name) for line in metrics for name in names)


def warning_of_silence(metrics: Sequence[Mapping[str, float]]) -> str:
    """Return a warning of a critic that said nothing from the first step on; else nothing."""
    if not said_nothing(metrics):
        return ""
    count = "the first step" if len(metrics) == 1 else f"the first {len(metrics)} steps"
    return (
        f"the critic labelled no token in {count}: every reward is 0, and the policy learns nothing. Look at its "
        "critiques (quotes that the response does not contain are counted as critic/unmatched_rate)"
    )


def warning_of_corners(metrics: Sequence[Mapping[str, float]]) -> str:
    """Return a warning where most prompts have nothing to move to, on average over the steps so far; else nothing."""
    shares = [line["delta/cornered_share"] for line in metrics if "delta/cornered_share" in line]
    share = sum(shares) / max(len(shares), 1)
    if share <= MOST_CORNERED:
        return ""
    return (
        f"for {share:.0%} of the prompts every response goes the same way into a negative token, so the policy has "
        "nothing to move to (delta/cornered_share). Sample more responses to a prompt (rollout.group_size) or at a "
        "higher rollout.temperature, say in the prompt what the critic wants, or begin with `text2grad sft` on "
        "demonstrations"
    )
