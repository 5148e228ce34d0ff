"""What a reward model learns from and what it is measured on: annotation files → rows of ids, and held-out responses.

Held out are whole prompts, or responses of which others to the same prompt may be learned from.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from text2grad.align import AlignSettings, label_tokens
from text2grad.config import RewardModelConfig
from text2grad.errors import DataError
from text2grad.feedback import (
    Annotation,
    Critic,
    annotation_to_json,
    ask,
    read_annotations,
    split_by_prompt,
    vote,
)
from text2grad.files import to_json
from text2grad.reward_models.agreement import Quality, compare
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.types import Critique, Example

KEYS: dict[str, Callable[[Annotation], str]] = {
    "prompts": lambda one: one.prompt,
    "responses": lambda one: f"{one.prompt}\n{one.response}",
}
"""What learned and held-out annotations have not in common, by `reward_model.unseen`."""


class Shares(NamedTuple):
    """Annotations to learn from, annotations to be measured on, and how many were left out of the first."""

    train: list[Annotation]
    held_out: list[Annotation]
    shared_prompts: int  # annotations of prompts, or of responses, that a held-out file has, too
    failed: int  # those whose critique could not be read; they teach and measure nothing

    def digest(self) -> str:
        """Return a hash of every annotation, by which a resumed run knows its data again."""
        records = [[annotation_to_json(one) for one in part] for part in (self.train, self.held_out)]
        return hashlib.sha256(to_json(records)).hexdigest()


def read_shares(settings: RewardModelConfig, seed: int) -> Shares:
    """Read annotations and share them out.

    Raises:
        DataError: if there are none, or either part holds no span.
    """
    if not settings.annotations:
        raise DataError(
            "there are no annotations to learn from; name files that `text2grad import` or `text2grad annotate` wrote "
            "by --annotations FILE.jsonl, or in the recipe as reward_model.annotations"
        )
    read = [one for path in settings.annotations for one in read_annotations(path)]
    usable = [one for one in read if not one.critique.failed]
    shared, key = 0, KEYS[settings.unseen]
    if settings.held_out_file:
        held_out = [one for one in read_annotations(settings.held_out_file) if not one.critique.failed]
        known = set(map(key, held_out))
        train = [one for one in usable if key(one) not in known]
        shared = len(usable) - len(train)
    else:
        train, held_out = split_by_prompt(usable, settings.held_out, seed, key=key)
    for name, part in (("annotations to learn from", train), ("held-out annotations", held_out)):
        if not any(one.critique.spans for one in part):
            raise DataError(
                f"the {len(part)} {name} hold no span ({', '.join(settings.annotations)}), so there is nothing to "
                "quote; read feedback with spans by `text2grad import`, or hold out another share of it with "
                "reward_model.held_out"
            )
    return Shares(train, held_out[: settings.eval_limit], shared, len(read) - len(usable))


class HeldOut:
    """Held-out responses with the δ of their tokens by the annotator, to measure a critic on.

    Attributes:
        annotations: those whose tokens say the same text as the response.
        unaligned: how many do not.
    """

    def __init__(self, tokenizer: Any, annotations: Sequence[Annotation]) -> None:
        """Take responses and find the δ of their tokens.

        Raises:
            DataError: if the tokens of none say the same text as its response.
        """
        self.tokenizer = tokenizer
        found = [(one, self._delta(one, one.critique)) for one in annotations]
        self.annotations = [one for one, delta in found if delta is not None]
        self.deltas = [delta for _, delta in found if delta is not None]
        self.unaligned = len(found) - len(self.annotations)
        if not any(map(any, self.deltas)):
            raise DataError(
                f"no span of {len(found)} held-out responses can be found in the tokenizer's tokens: it changes the "
                f"text of {self.unaligned} of them. Take a tokenizer that gives every text back as it was."
            )

    def measure(self, critic: Critic, *, rank: int = 0, processes: int = 1) -> Quality:
        """Return the counts of every `processes`-th response, from number `rank` on."""
        some = self.annotations[rank::processes]
        critiques = ask(critic, [Example(one.prompt) for one in some], [one.response for one in some], match="exact")
        return self._compare(some, self.deltas[rank::processes], critiques)

    def measure_votes(
        self, critic: GenerativeRewardModel, thresholds: Sequence[float], *, rank: int = 0, processes: int = 1
    ) -> list[Quality]:
        """Return likewise what the votes of a critic come to at each vote_threshold; it draws them once."""
        some, true = self.annotations[rank::processes], self.deltas[rank::processes]
        drawn = critic.draw([Example(one.prompt) for one in some], [one.response for one in some])
        return [
            self._compare(some, true, [vote(d, one.response, threshold=a) for d, one in zip(drawn, some, strict=True)])
            for a in thresholds
        ]

    def _compare(
        self, some: Sequence[Annotation], true: Sequence[tuple[float, ...]], critiques: Sequence[Critique]
    ) -> Quality:
        found = [self._delta(*pair) or () for pair in zip(some, critiques, strict=True)]
        return compare(found, true, critiques)

    def _delta(self, annotation: Annotation, critique: Critique) -> tuple[float, ...] | None:
        rewards = label_tokens(self.tokenizer, annotation.response, critique, AlignSettings())
        return rewards.delta if rewards else None


def span_f1(quality: Quality) -> dict[str, float]:
    """Return token-level F1 of positive and negative tokens, and of both together; 0 where nothing is right.

    A label that neither the critic nor the annotator gives to any token is left out.

    Example:
        >>> span_f1(Quality(blamed_both=2, blamed=3, blamed_true=5))
        {'f1': 0.5, 'f1/negative': 0.5}
    """
    praised = (quality.praised_both, quality.praised + quality.praised_true)
    blamed = (quality.blamed_both, quality.blamed + quality.blamed_true)
    both = (praised[0] + blamed[0], praised[1] + blamed[1])
    counts = {"f1": both, "f1/positive": praised, "f1/negative": blamed}
    return {name: 2 * right / total for name, (right, total) in counts.items() if total}
