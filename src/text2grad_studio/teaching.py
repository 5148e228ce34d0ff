"""Marked responses → a Text2Grad step on a LoRA adapter: a lesson, and a new version of the policy.

The advantages of a lesson are δ itself: A_t = +1 on marked tokens that are right, −1 on wrong ones, 0 elsewhere, so its
gradient is the NL-Gradient of Definition 1 (arXiv 2505.22338). The marked responses are old samples of an unknown
policy. So each round computes log π_old under the policy as it is then, and makes PPO's clipped epochs with it: a round
moves a marked token's probability by about the clip range, and the next round begins from there. Tokens without a mark
are held by a KL term to the policy before all lessons (`kl`), which is a loss, not a reward.

A lesson ends when the marked tokens have moved as far as their goals, in sum, or after `rounds`. The goal of a negative
token is `target` nats. A positive token cannot become more likely than certain: its goal is at most half of the way.

Shapes: B marked responses, T response tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor

from text2grad.align import encode, response_deltas
from text2grad.config import OptimConfig, PPOConfig
from text2grad.errors import ConfigError, DataError
from text2grad.models import (
    PolicyWithValue,
    Reference,
    Scores,
    collate,
    encode_prompts,
    half_precision,
    padding_id,
    stop_ids,
)
from text2grad.rl import MinibatchGradient, Optimizers, PieceSizes, PPOBatch, ppo_epochs, score_batch
from text2grad.types import Critique, Example, Rollout, Span

MOST_TOKENS = 4096  # most tokens of a forward pass, padding included
Settings = TypeVar("Settings")
UNCLIPPED = 1e9  # `max_ratio` skips no minibatch: the clip bounds each round


@dataclass(frozen=True, slots=True)
class Lesson:
    """Settings of a lesson.

    Attributes:
        lr: learning rate of the adapter.
        rounds: most rounds; each computes log π_old anew.
        epochs: passes over the marked responses per round.
        clip_range: ε of the clipped surrogate.
        target: nats by which marked tokens shall move; the lesson ends there.
        kl: weight of the KL term, per nat.
        rank: of a new LoRA adapter; its alpha is twice the rank.
        seed: of the adapter's first weights and the order of the minibatches.
    """

    lr: float = 5e-4
    rounds: int = 20
    epochs: int = 4
    clip_range: float = 0.2
    target: float = 2.0
    kl: float = 0.5
    rank: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: if a setting cannot be used.
        """
        positive = ("lr", "rounds", "epochs", "clip_range", "target", "rank")
        wrong = next((name for name in positive if not getattr(self, name) > 0), None)
        if wrong or not self.kl >= 0:
            name = wrong or "kl"
            raise ConfigError(f"{name} of a lesson is {'above' if wrong else 'at least'} 0, got {getattr(self, name)}")


class Correction(NamedTuple):
    """A marked response.

    Attributes:
        item: its digest.
        prompt: the prompt.
        response: the text.
        ids: the sampled token ids, if the policy's own; None encodes the text.
        spans: the marks.
    """

    item: str
    prompt: str
    response: str
    ids: Sequence[int] | None
    spans: Sequence[Span]


class Change(NamedTuple):
    """The effect of a lesson on one marked response: character range, δ and log-probs of each token."""

    item: str
    offsets: list[tuple[int, int]]
    delta: list[float]
    before: list[float]
    after: list[float]


class Taught(NamedTuple):
    """The result of a lesson.

    Attributes:
        rounds: that were made.
        positive: mean change of log p of the positive tokens, nats; None without such tokens.
        negative: the same of the negative tokens.
        unmarked: the same of the other tokens.
        kl: exact KL(π ‖ π before all lessons) per token, on the marked responses.
        changes: one per response.
    """

    rounds: int
    positive: float | None
    negative: float | None
    unmarked: float | None
    kl: float
    changes: list[Change]


def rollouts_of(policy: Any, tokenizer: Any, corrections: Sequence[Correction], *, prompt_format: str) -> list[Rollout]:
    """Return marked responses as rollouts in the policy's tokens.

    Ids of a record are taken if they decode to its text; else the text is encoded.

    Raises:
        DataError: if a response has no token.
    """
    examples = [Example(correction.prompt) for correction in corrections]
    prompts = encode_prompts(tokenizer, examples, prompt_format=prompt_format)
    rollouts = []
    for correction, example, prompt in zip(corrections, examples, prompts, strict=True):
        own = _own_ids(tokenizer, correction)
        ids = own if own is not None else _encoded(tokenizer, correction)
        if not ids:
            raise DataError(f"the response {correction.response!r} has no token; a lesson needs some text")
        text = tokenizer.decode(ids, skip_special_tokens=True)
        rollouts.append(Rollout(example, prompt, tuple(ids), text, truncated=True))
    return rollouts


def _own_ids(tokenizer: Any, correction: Correction) -> list[int] | None:
    known = correction.ids is not None and all(token < len(tokenizer) for token in correction.ids)
    if not known or tokenizer.decode(list(correction.ids or ()), skip_special_tokens=True) != correction.response:
        return None
    return list(correction.ids or ())


def _encoded(tokenizer: Any, correction: Correction) -> list[int]:
    """Return the ids of a text, as they follow a prompt: without the tokens that a tokenizer adds around a text.

    Special tokens that the text spells are encoded as text.

    Raises:
        DataError: if decoding does not give the text back, so that marks would lie elsewhere.
    """
    ids = list(encode(tokenizer, correction.response))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if text != correction.response:
        raise DataError(
            f"the policy's tokenizer changes the response {correction.response[:60]!r} into {text[:60]!r}; marks on it "
            "cannot be moved. Mark a response of this policy"
        )
    return ids


def teach(
    policy: Any,
    tokenizer: Any,
    corrections: Sequence[Correction],
    lesson: Lesson,
    *,
    prompt_format: str = "auto",
    on_round: Callable[[int, float], None] = lambda number, moved: None,
) -> Taught:
    """Train the policy's adapter on marked responses, in place.

    Args:
        policy: a causal language model with a LoRA adapter; its base is the policy before all lessons.
        tokenizer: the policy's.
        corrections: the marked responses.
        lesson: settings.
        prompt_format: as in `encode_prompts`.
        on_round: called after each round with its number and the part of the target that is reached, in nats.

    Raises:
        DataError: if no token is marked.
        TrainingError: if a loss or a gradient is not finite.
    """
    marked = MarkedTokens(policy, tokenizer, corrections, prompt_format=prompt_format)
    loop = _Rounds(policy, marked, lesson)
    goals = torch.where(marked.delta > 0, (-marked.before / 2).clamp(max=lesson.target), lesson.target)
    goals = goals * (marked.delta != 0)  # [B, T]
    number, scores = 0, marked.scores()
    for number in range(1, lesson.rounds + 1):
        loop.round(number, scores)
        scores = marked.scores()
        gained = float(((scores.logp - marked.before) * marked.delta.sign()).sum())
        moved = lesson.target * gained / float(goals.sum().clamp(min=1e-6))
        on_round(number, moved)
        if moved >= lesson.target:
            break
    return marked.taught(number)


class MarkedTokens:
    """Marked responses in the policy's tokens, and how far their log-probs move.

    Attributes:
        batch: the responses.
        delta: δ of the marks, [B, T].
        before: log π of the response tokens when this was made, [B, T].
    """

    def __init__(self, policy: Any, tokenizer: Any, corrections: Sequence[Correction], *, prompt_format: str) -> None:
        """Score the responses under the policy as it is.

        Raises:
            DataError: if no token is marked, or a response cannot be encoded.
        """
        rollouts = rollouts_of(policy, tokenizer, corrections, prompt_format=prompt_format)
        critiques = [Critique("", tuple(correction.spans)) for correction in corrections]
        self.corrections = corrections
        self.deltas, self.offsets = response_deltas(tokenizer, rollouts, critiques)
        pad = padding_id(policy, tokenizer, stop_ids(policy, tokenizer, ()))
        self.batch = collate(rollouts, pad_id=pad, device=policy.device)
        mask = self.batch.response_mask  # [B, T]
        self.delta = torch.zeros(mask.shape, device=mask.device)  # [B, T]
        for row, values in enumerate(self.deltas):
            self.delta[row, : len(values)] = torch.tensor(values, device=mask.device)
        if not self.delta.any():
            raise DataError("no token is marked: a mark lies between tokens. Mark at least one whole word")
        self.model, self.reference = PolicyWithValue(policy, value="none"), Reference(policy, base=True)
        self.sizes = PieceSizes(micro_batch_tokens=MOST_TOKENS)
        self.before = self.logp()

    def logp(self) -> Tensor:
        """Return log π of the response tokens, [B, T]."""
        return self.scores().logp

    def scores(self, kl: Literal["k1", "full"] = "k1") -> Scores:
        """Return the scores of the responses under the policy as it is now."""
        return score_batch(self.model, self.reference, self.batch, self.sizes, temperature=1.0, kl=kl)

    def taught(self, rounds: int) -> Taught:
        """Return the result: the changes since this was made."""
        after, mask, delta = self.logp(), self.batch.response_mask, self.delta

        def mean(chosen: Tensor) -> float | None:
            return float((after - self.before)[chosen & mask].mean()) if (chosen & mask).any() else None

        changes = []
        for row, (correction, values) in enumerate(zip(self.corrections, self.deltas, strict=True)):
            pair = ([round(x, 5) for x in logp[row, : len(values)].tolist()] for logp in (self.before, after))
            changes.append(Change(correction.item, list(self.offsets[row]), [float(x) for x in values], *pair))
        kl = float(self.scores(kl="full").kl[mask].mean())
        return Taught(rounds, mean(delta > 0), mean(delta < 0), mean(delta == 0), kl, changes)


class _Rounds:
    """The rounds of a lesson: score the responses under the present policy, then make PPO's epochs."""

    def __init__(self, policy: Any, marked: MarkedTokens, lesson: Lesson) -> None:
        self.marked, self.lesson = marked, lesson
        accelerator = Accelerator(mixed_precision="no", cpu=policy.device.type == "cpu")
        self.optimizers = Optimizers(
            marked.model.policy_parameters(),
            [],
            OptimConfig(lr=lesson.lr, schedule="constant"),
            total_steps=lesson.rounds,
        )
        self.gradient = MinibatchGradient(
            marked.model,
            accelerator,
            PPOConfig(clip_range=lesson.clip_range, vf_coef=0.0, epochs=lesson.epochs),
            temperature=1.0,
            sizes=marked.sizes,
            half_precision=half_precision(policy),
        )

    def round(self, number: int, scores: Scores) -> None:
        """Make the epochs of a round; `scores` come from the present policy."""
        batch, delta = self.marked.batch, self.marked.delta
        # one minibatch per epoch holds all responses, so a mean over marked tokens is δ · (all tokens / marked tokens)
        scale = float(batch.response_mask.sum()) / float((delta != 0).sum())
        self.optimizers.begin(number - 1)
        ppo_epochs(
            self.gradient,
            self.optimizers,
            PPOBatch(batch, scores, delta * scale, torch.zeros_like(delta), kl_coef=self.lesson.kl),
            max_ratio=UNCLIPPED,
            seed=self.lesson.seed + number,
        )


def settings_from(settings: Settings, given: Any, *, name: str) -> Settings:
    """Return settings in which the values that a page sends replace the defaults.

    Raises:
        ConfigError: if a setting is unknown or no number; `name` says whose it is.
    """
    known: Any = settings
    for key, value in dict(given).items():
        if key not in known.__dataclass_fields__ or not isinstance(value, int | float):
            names = ", ".join(known.__dataclass_fields__)
            raise ConfigError(f"{name} has no setting {key} = {value!r}; it has {names}")
        known = replace(known, **{key: type(getattr(known, key))(value)})
    completed: Settings = known
    return completed
