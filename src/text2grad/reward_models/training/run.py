"""`text2grad reward` from beginning to end: annotations → a reward model with its model card (section 3.4).

run.json, data.json     settings, and a hash of the annotations; a resumed run compares them
held_out.jsonl          the held-out annotations, for `text2grad evaluate critic`
metrics.jsonl           loss of each step, held-out measurements
checkpoints/            the best and the last
model/                  the best checkpoint: a Hugging Face directory or an adapter, reward_model.json, README.md
merged/                 with LoRA: the same model with the adapter merged into its base
results.json            counts and the measurements of the best checkpoint
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from text2grad.config import Recipe, check_directory, check_world_size, open_run
from text2grad.costs import Cost, write_cost
from text2grad.errors import CheckpointError, ConfigError
from text2grad.feedback import Annotation, write_annotations
from text2grad.files import published, to_json, write_atomically
from text2grad.models import (
    NO_LOSS,
    Evaluation,
    FineTuning,
    OnMeasured,
    OnStep,
    check_batch_size,
    check_ids,
    check_same_data,
    checkpoint_path,
    context_of,
    format_of,
    last_saved,
    load_tokenizer,
    load_trainable,
    load_trained,
    measured_at,
    on_cpu,
    supervised_trainer,
    train_measured,
)
from text2grad.progress import note
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import format_from_recipe
from text2grad.reward_models.training.card import base_of, model_card
from text2grad.reward_models.training.held_out import HeldOutSet, Split, measurement, read_split
from text2grad.reward_models.writing import FORMS, has_outcomes

MODEL, MERGED, RESULTS_FILE, HELD_OUT_FILE = "model", "merged", "results.json", "held_out.jsonl"
SECTIONS = ("model", "reward_model", "critic", "run")  # sections of the recipe whose settings decide the result


def train_reward_model(
    model: Any,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
    **changes: Any,
) -> tuple[GenerativeRewardModel, int]:
    """Train a causal language model in place to write the critiques of annotations; failed critiques are skipped.

    `on_step` is called with the number of finished steps after each step. `changes` are attributes of
    `CritiqueFormat`, whose prompt format is that of the settings; `outcomes` says whether an annotation has one.

    Returns:
        The reward model, and the number of annotations left out because they are longer than `settings.max_tokens` or
        than the model's context.

    Raises:
        ModelError: if the model could not write critiques; before training.
        DataError: if no annotation is left.
    """
    usual = {"outcomes": has_outcomes(annotations), "prompt_format": settings.prompt_format}
    reward_model = GenerativeRewardModel(model, tokenizer, CritiqueFormat(**{**usual, **changes}))
    return reward_model, reward_model.train_further(annotations, settings, on_step=on_step)


def reward_directory(recipe: Recipe) -> Path:
    """Return the directory of the recipe's reward model."""
    return Path(recipe.reward_model.out or recipe.run.out)


def held_out_file(directory: Path) -> Path:
    """Return the file of held-out annotations that `text2grad reward` wrote into its directory.

    Raises:
        ConfigError: if it is not there.
    """
    return _finished(directory / HELD_OUT_FILE)


def trained_model(directory: Path) -> Path:
    """Return the directory of the reward model that `text2grad reward` wrote.

    Raises:
        ConfigError: if it is not finished.
    """
    return _finished(directory / MODEL)


def _finished(path: Path) -> Path:
    if not path.exists():
        raise ConfigError(f"{path} does not exist; train the reward model with `text2grad reward` first")
    return path


class RewardRun:
    """One training of a reward model; everything that can be checked is checked before a file is written."""

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
        from accelerate import PartialState

        self.recipe, self.directory, self.path = recipe, reward_directory(recipe), base_of(recipe)
        check_directory(self.directory, resume=resume)
        self.state = PartialState(cpu=on_cpu())
        check_world_size(self.state.num_processes)
        check_batch_size("reward_model", recipe.reward_model.batch_size, recipe.reward_model.accumulate)
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        split = read_split(recipe)
        self.tokenizer = load_tokenizer(self.path, trust_remote_code=recipe.model.trust_remote_code)
        self.prompt_format = format_of(self.tokenizer, recipe.model.prompt_format)
        model = self._model()
        self.outcomes = has_outcomes(split.train)
        self.reward_model = self._reward_model(model)
        self.settings = self._settings()
        self.rows, too_long = self.reward_model.training_rows(split.train, max_tokens=self.settings.max_tokens)
        check_ids(model, [row["input_ids"] for row in self.rows])
        held_out = HeldOutSet(self.tokenizer, split.held_out[: recipe.reward_model.eval_limit])
        self.evaluation = self._evaluation(held_out)
        self.counts = {
            "learned": len(self.rows),
            "target_tokens": sum(label != NO_LOSS for row in self.rows for label in row["labels"]),
            "too_long": too_long,
            "unreadable": split.failed,
            "shared_prompts": split.shared_prompts,
            "held_out": len(held_out.annotations) + held_out.unaligned,
            "unaligned": held_out.unaligned,
        }
        self.is_main = bool(self.state.is_main_process)
        if self.is_main:
            self._open(split, resume)
        self.state.wait_for_everyone()

    def run(self, on_measured: OnMeasured = lambda *_: None) -> Path:
        """Train, publish the best checkpoint, and return its directory; parts that are finished are skipped.

        `on_measured` is called with step, number of steps and measurements after each measurement.
        """
        out = self.directory / MODEL
        if not out.exists():
            evaluation = replace(self.evaluation, on_measured=on_measured)
            of_model = (self.reward_model.model, self.tokenizer, self.rows, self.settings)
            train_measured(partial(supervised_trainer, *of_model), self.settings, evaluation)
        self.state.wait_for_everyone()
        if self.is_main:
            self._publish(out)
        self.state.wait_for_everyone()
        return out

    def results(self) -> dict[str, Any]:
        """Return results.json of a finished run, and the seconds of its training."""
        last = last_saved(self.directory)
        return {**json.loads((self.directory / RESULTS_FILE).read_bytes()), "seconds": last.seconds if last else 0.0}

    def _open(self, split: Split, resume: bool) -> None:
        """Create the run's directory with its held-out annotations, or compare it with a run that is resumed."""
        _note_lost_outcomes(self.recipe, split.train)
        open_run(self.directory, self.recipe, resume=resume, processes=self.state.num_processes, sections=SECTIONS)
        check_same_data(self.directory / "data.json", {**self.counts, "sha256": split.digest()}, "annotations")
        write_annotations(self.directory / HELD_OUT_FILE, split.held_out)
        last_saved(self.directory)

    def _settings(self) -> FineTuning:
        same = {"steps", "batch_size", "optimizer", "epochs", "accumulate", "bf16"}
        settings = self.recipe.reward_model
        return FineTuning(
            **settings.model_dump(include=same),
            max_tokens=int(min(settings.max_tokens, context_of(self.reward_model.model))),
            learning_rate=settings.lr,
            seed=self.recipe.run.seed,
            prompt_format=self.prompt_format,
            gradient_checkpointing=self.recipe.model.gradient_checkpointing,
        )

    def _evaluation(self, held_out: HeldOutSet) -> Evaluation:
        """Return when to measure; each number of votes is a candidate for the threshold."""
        settings, run, votes = self.recipe.reward_model, self.recipe.run, self.reward_model.format.votes
        thresholds = [number / votes for number in range(1, votes + 1)] if votes > 1 else ()
        return Evaluation(
            self.directory,
            "reward_model",
            measurement(self.reward_model, held_out, thresholds),
            metric="f1",
            greater_is_better=True,
            every=settings.eval_every,
            keep=max(2, run.keep_checkpoints),
            tracker=run.tracker,
        )

    def _model(self) -> Any:
        """Return the model to train."""
        same = {"dtype", "lora_r", "lora_alpha", "lora_targets", "trust_remote_code"}
        dropout, seed = self.recipe.reward_model.lora_dropout, self.recipe.run.seed
        return load_trainable(self.path, **self.recipe.model.model_dump(include=same), lora_dropout=dropout, seed=seed)

    def _reward_model(self, model: Any, vote_threshold: float | None = None) -> GenerativeRewardModel:
        """Return the model as a critic that decodes as [critic] says, or with the best vote threshold found."""
        critic = self.recipe.critic
        format = format_from_recipe(
            self.recipe,
            **self.recipe.reward_model.model_dump(include={"form", "write_feedback", "max_new_tokens"}),
            outcomes=self.outcomes,
            prompt_format=self.prompt_format,
            votes=critic.votes or 1,
            vote_threshold=vote_threshold or 0.5,
        )
        return GenerativeRewardModel(model, self.tokenizer, format)

    def _publish(self, out: Path) -> None:
        """Write the best checkpoint as a reward model with its card; with LoRA, the merged model, too."""
        last = last_saved(self.directory)
        if last is None:
            raise CheckpointError(f"{self.directory} holds no checkpoint to publish; start the run again")
        measured, before = measured_at(self.directory, last.best_step), measured_at(self.directory, 0)
        results = {"counts": self.counts, "before": before, "measured": measured}
        results |= {"best_step": last.best_step, "steps": last.step, "prompt_format": self.prompt_format}
        best = checkpoint_path(self.directory, last.best_step)
        adapter, how = (
            bool(self.recipe.model.lora_r),
            self.recipe.model.model_dump(include={"dtype", "trust_remote_code"}),
        )
        for path, whole in ((self.directory / MERGED, True), (out, False)) if adapter else ((out, True),):
            if path.exists():
                continue
            model = load_trained(best, self.path, adapter=adapter, merged=whole, **how)
            with published(path) as temporary:
                self._reward_model(model, measured.get("vote_threshold")).save(temporary)
                card = model_card(results, self.reward_model.format, self.recipe, adapter=not whole)
                write_atomically(temporary / "README.md", card.encode())
        write_cost(self.directory, Cost("reward model", last.seconds, last.tokens, 0, last.peak_memory_bytes, runs=1))
        write_atomically(self.directory / RESULTS_FILE, to_json(results))


def _note_lost_outcomes(recipe: Recipe, annotations: Sequence[Annotation]) -> None:
    """Tell that annotations have outcomes which the form of the targets leaves out."""
    outcomes = sum(annotation.critique.outcome is not None for annotation in annotations)
    if outcomes and not FORMS[recipe.reward_model.form].outcome:
        note(
            f"{outcomes} of {len(annotations)} annotations have an outcome for the whole response, which the form "
            f'{recipe.reward_model.form!r} leaves out; reward_model.form = "labelled_spans" teaches them',
            warning=True,
        )
