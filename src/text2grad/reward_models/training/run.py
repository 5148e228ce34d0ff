"""`text2grad reward`: annotations → a reward model with its model card (section 3.4), in the files of a `MeasuredRun`.

held_out.jsonl          the held-out annotations, for `text2grad evaluate critic`
model/, merged/         have reward_model.json and README.md, too
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.feedback import Annotation, write_annotations
from text2grad.files import write_atomically
from text2grad.models import NO_LOSS, MeasuredRun, check_ids, context_of, format_of, load_tokenizer
from text2grad.progress import note
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import decoding_of
from text2grad.reward_models.training.card import model_card
from text2grad.reward_models.training.held_out import HeldOutSet, read_split
from text2grad.reward_models.writing import FORMS, has_outcomes

HELD_OUT_FILE = "held_out.jsonl"


def reward_directory(recipe: Recipe) -> Path:
    """Return the directory of the recipe's reward model."""
    return Path(recipe.reward_model.out or recipe.run.out)


def finished_file(directory: Path, name: str) -> Path:
    """Return the path of a file or directory that `text2grad reward` wrote into its directory.

    Raises:
        ConfigError: if it is not there.
    """
    if not (directory / name).exists():
        raise ConfigError(f"{directory / name} does not exist; train the reward model with `text2grad reward` first")
    return directory / name


class RewardRun(MeasuredRun):
    """One training of a reward model; everything that can be checked is checked before a file is written."""

    section, metric = "reward_model", ("f1", True)

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        """Read the annotations, load the model, and create or open the run's directory.

        [model] or reward_model.model of the recipe names the model to train, [reward_model] sets the training, [critic]
        the decoding. `resume` continues the run in its directory.

        Raises:
            ConfigError: if a setting is missing, or the directory holds another run.
            DataError: if the annotations cannot be used.
            ModelError: if the model cannot be loaded, or its tokenizer cannot write critiques.
            CheckpointError: if the run was started with other settings or annotations.
        """
        super().__init__(recipe, resume=resume)
        split = read_split(recipe)
        self.tokenizer = load_tokenizer(self.path, trust_remote_code=recipe.model.trust_remote_code)
        self.prompt_format = format_of(self.tokenizer, recipe.model.prompt_format)
        self.model = self.load_model()
        self.outcomes = has_outcomes(split.train)
        self.reward_model = self._reward_model(self.model)
        self.max_tokens = int(min(recipe.reward_model.max_tokens, context_of(self.model)))
        self.rows, too_long = self.reward_model.training_rows(split.train, max_tokens=self.max_tokens)
        check_ids(self.model, [row["input_ids"] for row in self.rows])
        held_out = HeldOutSet(self.tokenizer, split.held_out[: recipe.reward_model.eval_limit])
        votes = self.reward_model.format.votes
        thresholds = [number / votes for number in range(1, votes + 1)] if votes > 1 else ()
        self.measure = partial(held_out.measure_in_training, self.reward_model, thresholds)
        self.counts = {
            "learned": len(self.rows),
            "target_tokens": sum(label != NO_LOSS for row in self.rows for label in row["labels"]),
            "too_long": too_long,
            "unreadable": split.failed,
            "shared_prompts": split.shared_prompts,
            "held_out": len(held_out.annotations) + held_out.unaligned,
            "unaligned": held_out.unaligned,
        }
        if self.is_main:
            _note_lost_outcomes(recipe, split.train)
        self.open(("model", "reward_model", "critic", "run"), "annotations", split.digest())
        if self.is_main:
            write_annotations(self.directory / HELD_OUT_FILE, split.held_out)

    def _reward_model(self, model: Any, vote_threshold: float | None = None) -> GenerativeRewardModel:
        """Return the model as a critic that decodes as [critic] says, or with the best vote threshold found."""
        format = CritiqueFormat(
            **self.recipe.reward_model.model_dump(include={"form", "write_feedback", "max_new_tokens"}),
            outcomes=self.outcomes,
            prompt_format=self.prompt_format,
            vote_threshold=vote_threshold or 0.5,
        )
        format = replace(format, **decoding_of(self.recipe, format))
        return GenerativeRewardModel(model, self.tokenizer, format)

    def save(self, model: Any, out: Path, results: dict[str, Any], *, adapter: bool) -> None:
        """Save a reward model with the best vote threshold, and its card."""
        self._reward_model(model, results["measured"].get("vote_threshold")).save(out)
        card = model_card(results, self.reward_model.format, self.recipe, adapter=adapter)
        write_atomically(out / "README.md", card.encode())


def _note_lost_outcomes(recipe: Recipe, annotations: Sequence[Annotation]) -> None:
    """Tell that annotations have outcomes which the form of the targets leaves out."""
    outcomes = sum(annotation.critique.outcome is not None for annotation in annotations)
    if outcomes and not FORMS[recipe.reward_model.form].outcome:
        note(
            f"{outcomes} of {len(annotations)} annotations have an outcome for the whole response, which the form "
            f'{recipe.reward_model.form!r} leaves out; reward_model.form = "labelled_spans" teaches them',
            warning=True,
        )
