"""Credit from the self-teacher: the policy that has read the critique of its response (SDPO, arXiv 2601.20802).

    ℓ_t = log π_T(y_t | x, c, y_<t) − log π_old(y_t | x, y_<t)                  T: the teacher, c: the critique's words
    self_teacher    A_t = ℓ_t
    gated           A_t = r_t |ℓ_t| / mean_{s: r_s ≠ 0} |ℓ_s|                    r: rewards of spans alone, ±1 as set

"gated" takes place and sign from the spans, and the size alone from the teacher: outside of spans A_t = 0, so an answer
that the words state is not taught there. The mean size on marked tokens is that of "spans" at γλ = 0. The teacher's
weights follow the policy's, θ_T ← θ_T + rate (θ − θ_T) after each step, or are the policy's.

Outcome, truncation and KL term stay rewards, with γ, λ and baseline of [ppo], and their advantages are added. There is
no value function. Shapes: B responses, T response tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from text2grad.align import added_tokens
from text2grad.models import context_of, encode_prompts, format_of
from text2grad.rl.rewards import Rewarded, token_rewards, whole_rewards
from text2grad.rl.start import PreparedRun
from text2grad.rl.step import phase
from text2grad.types import Critique, Example, Message, Rollout, tagged

SAME = 1e-4
"""Mean |ℓ_t| of marked tokens in nats up to which teacher and policy are the same: rounding in 32 bits is below it."""


@phase("score")
def credit_of(
    run: PreparedRun, rollouts: Sequence[Rollout], critiques: Sequence[Critique], rewarded: Rewarded, logp: Tensor
) -> tuple[Tensor, Tensor | None, dict[str, float]]:
    """Return the credit of judged rollouts as `ppo.credit` says; `logp` is log π_old, [B, T].

    Returns:
        The rewards that discount and baseline turn into advantages, [B, T]: with "spans" all. The teacher's advantages,
        [B, T]; None with "spans". And metrics of all processes: credit/log_ratio, mean |ℓ_t| in nats; credit/size, mean
        |A_t|; and the shares of responses with A_t = 0: credit/ungated_share, since the teacher is the policy on all
        marked tokens; credit/unheard_share, since the critique failed, has no words, or is too long.
    """
    kind, settings, batch = run.recipe.ppo.credit, run.recipe.reward, rewarded.batch
    if kind == "spans":
        return rewarded.rewards, None, {}
    taught = teacher_rollouts(run, rollouts, critiques)
    unheard = torch.tensor([own is rollout for own, rollout in zip(taught, rollouts, strict=True)], device=logp.device)
    silent = unheard[:, None] | ~batch.response_mask
    advantages = log_ratio = (teacher_logprobs(run, taught) - logp).masked_fill(silent, 0.0)
    ungated = torch.zeros_like(unheard)
    if kind == "gated":
        alone = settings.model_copy(update={"unlabelled": 0.0, "truncated": 0.0})
        judged, texts = [replace(critique, outcome=None) for critique in critiques], [r.response for r in rollouts]
        of_spans = token_rewards(alone, rewarded.deltas, judged, batch, responses=texts, offsets=rewarded.offsets)
        advantages, ungated = gated(log_ratio, of_spans.masked_fill(silent, 0.0))
    numbers = [log_ratio.abs(), advantages.abs(), batch.response_mask, ungated, unheard, torch.ones_like(unheard)]
    sums = torch.stack([number.double().sum() for number in numbers])
    size, moved, tokens, same, missed, rows = run.accelerator.reduce(sums, reduction="sum").tolist()
    metrics = {"credit/log_ratio": size / max(tokens, 1.0), "credit/size": moved / max(tokens, 1.0)}
    metrics |= {"credit/ungated_share": same / rows, "credit/unheard_share": missed / rows}
    return whole_rewards(critiques, batch, truncated=settings.truncated), advantages, metrics


def gated(log_ratio: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Return rewards of spans, each times the size of its token's log-ratio, and the responses without such a size.

    Args:
        log_ratio: ℓ_t in nats, [B, T].
        rewards: of spans alone, 0 on unmarked tokens and outside the mask, [B, T].

    Returns:
        A_t, [B, T]: of each response the mean of A_t / r_t over the marked tokens is 1. And True where a response has
        marked tokens, and on them |ℓ_t| is at most `SAME` on average, so that all its A_t are 0, bool [B].

    Example:
        >>> gated(torch.tensor([[3.0, -1.0, 9.0]]), torch.tensor([[1.0, -1.0, 0.0]]))
        (tensor([[ 1.5000, -0.5000,  0.0000]]), tensor([False]))
    """
    marked = rewards != 0
    sizes = log_ratio.abs() * marked
    means = sizes.sum(dim=1, keepdim=True) / marked.sum(dim=1, keepdim=True).clamp(min=1)
    differs = means > SAME
    return rewards * torch.where(differs, sizes / means, 0.0), marked.any(dim=1) & ~differs[:, 0]


def teacher_rollouts(run: PreparedRun, rollouts: Sequence[Rollout], critiques: Sequence[Critique]) -> list[Rollout]:
    """Return rollouts with the teacher's prompts, the same object where there are no words, or no room for them."""
    tokenizer, wanted, room = run.tokenizer, run.recipe.model.prompt_format, context_of(run.model.policy)
    chat = format_of(tokenizer, wanted) == "chat"
    words = [_as_text(tokenizer, "" if critique.failed else critique.feedback.strip()) for critique in critiques]
    told = [with_feedback(r.example, said, chat=chat) for r, said in zip(rollouts, words, strict=True)]
    taught = list(rollouts)
    for row, ids in enumerate(encode_prompts(tokenizer, told, prompt_format=wanted)):
        length = len(ids) + len(taught[row].response_ids) + sum(len(given.ids) for given in taught[row].given)
        if told[row] is not taught[row].example and length <= room:
            taught[row] = replace(taught[row], prompt_ids=ids)
    return taught


def with_feedback(example: Example, words: str, *, chat: bool) -> Example:
    """Return a prompt with a paragraph of feedback, between tags that it does not contain; itself without words.

    In a chat it ends the last message of the user, so it is no turn and no other role says it; a chat without such a
    message stays as it is. In a plain text it stands first, since the response goes on with the end.

    Example:
        >>> print(with_feedback(Example("Where?"), "Name it.", chat=False).prompt)
        Feedback on an earlier answer:
        <feedback>
        Name it.
        </feedback>
        <BLANKLINE>
        Where?
    """
    quoted, prompt = f"Feedback on an earlier answer:\n{tagged('feedback', words)}\n\n", example.prompt
    if words and not chat:
        return replace(example, prompt=quoted + example.joined_text)
    turns: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    for at in reversed(range(len(turns) if words else 0)):
        if turns[at].get("role") == "user":
            content = f"{turns[at].get('content') or ''}\n\n{quoted}Answer again, and heed the feedback."
            return replace(example, prompt=[*turns[:at], {**turns[at], "content": content}, *turns[at + 1 :]])
    return example


def _as_text(tokenizer: Any, words: str) -> str:
    """Return words that spell no added token of the tokenizer: a space parts off the first character of each."""
    tokens = {token.content for token in added_tokens(tokenizer).values() if len(token.content.strip()) > 1}
    pattern, words = "|".join(map(re.escape, tokens)) or "(?!)", words.encode("utf-8", "replace").decode()
    while re.search(pattern, words):
        words = re.sub(pattern, lambda token: f"{token[0][0]} {token[0][1:]}", words)
    return words


@torch.no_grad()
def teacher_logprobs(run: PreparedRun, rollouts: Sequence[Rollout]) -> Tensor:
    """Return log π_T(y_t) at the temperature of the rollouts in nats, [B, T], zero outside the mask."""
    batch, temperature = run.collate(rollouts), {"temperature": run.recipe.rollout.temperature}

    def in_pieces() -> Tensor:
        logp = torch.zeros(batch.response_mask.shape, device=batch.ids.device)
        read, groups = run.sizes.pieces(batch)
        for index in groups:
            part = functional_call(run.model, run.teacher, (read.rows(index),), temperature).logp
            logp[index, : part.shape[1]] = part
        return logp

    logp = run.sizes.in_micro_batches(batch, in_pieces)
    if run.sharding is not None:
        run.sharding.reshard()  # frees the weights that the output layer gathered
    return logp
