"""Annotation files → training split and held-out set, and the agreement of a critic with the held-out set."""

import hashlib
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from text2grad.align import text_delta
from text2grad.config import Recipe
from text2grad.errors import DataError
from text2grad.feedback import Annotation, Critic, annotation_to_json, ask, hold_out, read_annotations, vote
from text2grad.files import to_json
from text2grad.models import share_of_process
from text2grad.progress import note
from text2grad.reward_models.agreement import Agreement, compare
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import inputs_of
from text2grad.types import Critique

ALL = slice(None)


class Split(NamedTuple):
    """Annotations to train on, annotations to measure on, and the numbers of annotations in neither."""

    train: list[Annotation]
    held_out: list[Annotation]
    shared_prompts: int  # left out of `train`: their prompt is in the held-out file
    failed: int  # left out of both: their critique could not be parsed

    def digest(self) -> str:
        """Return a SHA-256 of all annotations; a resumed run compares it."""
        records = [[annotation_to_json(annotation) for annotation in part] for part in (self.train, self.held_out)]
        return hashlib.sha256(to_json(records)).hexdigest()


def read_split(recipe: Recipe) -> Split:
    """Read the annotations of a recipe's [reward_model], and split them by prompt.

    Raises:
        DataError: if there are no annotations, or one of the two parts has no span.
    """
    data = recipe.reward_model
    if not data.annotations:
        raise DataError(
            "there are no annotations to train on; name files that `text2grad feedback import` or `text2grad annotate` "
            "wrote with --annotations FILE.jsonl, or in the recipe as reward_model.annotations"
        )
    read = partial(read_annotations, to_encode=True, prompt_end=recipe.critic.asking()["prompt_end"])
    annotations = [annotation for path in data.annotations for annotation in read(path)]
    usable = _usable(annotations)
    train, test, shared = hold_out(usable, data.held_out, recipe.run.seed, read=lambda path: _usable(read(path)))
    for name, part in (("annotations to train on", train), ("held-out annotations", test)):
        if not any(annotation.critique.spans for annotation in part):
            raise DataError(
                f"the {len(part)} {name} ({', '.join(data.annotations)}) have no span, so there is nothing to quote; "
                "ground their words with `text2grad annotate`, import feedback with spans with `text2grad feedback "
                "import`, or change reward_model.held_out"
            )
    return Split(train, test, shared, len(annotations) - len(usable))


def _usable(annotations: Sequence[Annotation]) -> list[Annotation]:
    return [annotation for annotation in annotations if not annotation.critique.failed]


class HeldOutSet:
    """Held-out responses with the annotator's δ on each token.

    Attributes:
        annotations: the annotations whose tokens decode to the response's text.
        deltas: δ of each, one number per token.
        unaligned: number of annotations whose tokens do not.
    """

    def __init__(self, tokenizer: Any, annotations: Sequence[Annotation]) -> None:
        """Compute δ of each response from the annotator's spans.

        Raises:
            DataError: if no span can be placed on the tokens.
        """
        self.tokenizer = tokenizer
        pairs = [(annotation, self._delta(annotation, annotation.critique)) for annotation in annotations]
        self.annotations = [annotation for annotation, delta in pairs if delta is not None]
        self.deltas = [delta for _, delta in pairs if delta is not None]
        self.unaligned = len(pairs) - len(self.annotations)
        if not any(map(any, self.deltas)):
            raise DataError(
                f"no span of {len(pairs)} held-out responses can be placed on the tokenizer's tokens (decoding changes "
                f"the text of {self.unaligned}), so no agreement can be measured. Hold out more "
                "(reward_model.held_out), measure on more of them (reward_model.eval_limit), or use a tokenizer that "
                "decodes every text unchanged."
            )

    def measure(self, critic: Critic, part: slice = ALL) -> Agreement:
        """Return a critic's agreement on a part of the responses."""
        asked = inputs_of(self.annotations[part])
        return self._compare(ask(critic, *asked, match="exact", prompt_end=None), part)  # `read_split` hid thoughts

    def measure_votes(
        self, critic: GenerativeRewardModel, thresholds: Sequence[float], part: slice = ALL
    ) -> list[Agreement]:
        """Sample the critic's votes once and return the agreement at each vote threshold; see `measure`."""
        examples, responses = inputs_of(self.annotations[part])
        samples = list(zip(critic.draw(examples, responses), responses, strict=True))
        votes = ([vote(*sample, threshold=threshold) for sample in samples] for threshold in thresholds)
        return [self._compare(critiques, part) for critiques in votes]

    def measure_in_training(
        self, reward_model: GenerativeRewardModel, thresholds: Sequence[float], trainer: Any
    ) -> dict[str, float]:
        """Decode the held-out critiques, each process its share, and return the rates at the best vote threshold.

        Without thresholds to choose from the reward model keeps its own.
        """
        from accelerate.utils import gather_object

        rank, processes = share_of_process(trainer)
        part = slice(rank, None, processes)
        if trainer.is_world_process_zero():
            note(f"critiques of {len(self.annotations):,} held-out responses at step {trainer.state.global_step:,}")
        votes = self.measure_votes(reward_model, thresholds, part) if thresholds else []
        agreements = votes or [self.measure(reward_model, part)]
        if processes > 1:
            agreements = [reduce(Agreement.merged, counts) for counts in zip(*gather_object([agreements]), strict=True)]
        measured = [agreement.metrics() for agreement in agreements]
        best = max(range(len(measured)), key=lambda number: measured[number]["f1"])
        return measured[best] | ({"vote_threshold": thresholds[best]} if thresholds else {})

    def _compare(self, critiques: Sequence[Critique], part: slice) -> Agreement:
        pairs = zip(self.annotations[part], critiques, strict=True)
        return compare([self._delta(*pair) or () for pair in pairs], self.deltas[part], critiques)

    def _delta(self, annotation: Annotation, critique: Critique) -> list[float] | None:
        return text_delta(self.tokenizer, annotation.response, critique)
