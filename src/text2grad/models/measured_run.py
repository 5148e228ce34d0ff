"""One supervised training in a directory of its own, from beginning to end: `text2grad sft`, `text2grad reward`.

run.json                settings, and a hash of the data; a resumed run compares them
metrics.jsonl           loss of each step, held-out measurements
checkpoints/            the best and the last
model/                  the best checkpoint, with LoRA an adapter
merged/                 with LoRA: the adapter merged into its base
results.json            counts, and the measurements before the training and of the best checkpoint
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from text2grad.config import Recipe, check_directory, check_world_size, open_run
from text2grad.costs import Cost, write_cost
from text2grad.errors import CheckpointError, ConfigError
from text2grad.files import published, to_json, write_atomically
from text2grad.models.adapters import with_lora
from text2grad.models.fine_tuning import FineTuning, Row, supervised_trainer
from text2grad.models.measured_training import (
    Evaluation,
    check_batch_size,
    last_saved,
    measured_at,
    train_measured,
    whole_checkpoint,
)
from text2grad.models.pretrained import load_policy, load_to_train, on_cpu
from text2grad.types import PromptFormat

MODEL, MERGED, RESULTS_FILE = "model", "merged", "results.json"


class MeasuredRun(ABC):
    """One training of a causal language model; everything that can be checked is checked before a file is written.

    Attributes:
        section: of the recipe with the settings of the training.
        metric: the measurement that selects the best checkpoint, and whether a large value is good.
        directory: of the run.
        path: the model that is trained.
        counts: numbers of examples and tokens.
        tokenizer, model, rows, max_tokens, prompt_format: what is trained, set by the subclass.
        measure: the trainer → measurements on held-out data, set by the subclass.
    """

    section: ClassVar[Literal["sft", "reward_model"]]
    metric: ClassVar[tuple[str, bool]]
    counts: dict[str, int]
    tokenizer: Any
    model: Any
    rows: Sequence[Row]
    max_tokens: int
    prompt_format: PromptFormat
    measure: Callable[[Any], dict[str, float]]

    def __init__(self, recipe: Recipe, *, resume: bool) -> None:
        """Check model, directory and batch; `resume` continues the run in the directory.

        Raises:
            ConfigError: if a setting is wrong, or the directory holds another run.
        """
        from accelerate import PartialState

        self.recipe, self.settings, self.resume = recipe, getattr(recipe, self.section), resume
        self.path, self.directory = self.settings.model or recipe.model.path, Path(self.settings.out or recipe.run.out)
        if not self.path:
            raise ConfigError(f"neither [{self.section}] model nor [model] path is set: name it with --model PATH")
        check_directory(self.directory, resume=resume)
        self.state = PartialState(cpu=on_cpu())
        self.is_main = bool(self.state.is_main_process)
        check_world_size(self.state.num_processes)
        check_batch_size(self.section, self.settings.batch_size, self.settings.accumulate, self.state.num_processes)
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)

    def load_model(self) -> Any:
        """Return the model to train: all weights, in 32 bits where the dtype is "auto", or a new adapter.

        Raises:
            ConfigError: if a dropout is given without an adapter, or as `load_to_train`.
            ModelError: as `load_to_train`.
        """
        of_model, dropout = self.recipe.model, self.settings.lora_dropout
        if dropout and not of_model.lora_r:
            raise ConfigError(
                f"lora_dropout = {dropout} is the dropout of a LoRA adapter, and model.lora_r = 0 trains none; leave "
                "it out, or set model.lora_r"
            )
        model = load_to_train(self.path, of_model)
        if not of_model.lora_r:
            return model
        torch.manual_seed(self.recipe.run.seed)
        targets = of_model.lora_targets
        return with_lora(model, r=of_model.lora_r, alpha=of_model.lora_alpha, targets=targets, dropout=dropout)

    def open(self, sections: Sequence[str], what: str, sha256: str) -> None:
        """Create the run's directory, or compare it with the run that is resumed.

        Args:
            sections: of the recipe whose settings decide the result.
            what: names the data in an error.
            sha256: hash of the data.

        Raises:
            ConfigError: if the directory holds another run.
            CheckpointError: if the run was started with other settings or data.
        """
        if self.is_main:
            open_run(
                self.directory,
                self.recipe,
                resume=self.resume,
                processes=self.state.num_processes,
                inputs={what: sha256},
                sections=sections,
            )
            last_saved(self.directory)
        self.state.wait_for_everyone()

    def run(self) -> Path:
        """Train, publish the best checkpoint, and return its directory; parts that are finished are skipped."""
        out = self.directory / MODEL
        if not out.exists():
            self._train()
        self.state.wait_for_everyone()
        if self.is_main:
            self._publish(out)
        self.state.wait_for_everyone()
        return out

    def results(self) -> dict[str, Any]:
        """Return results.json of a finished run, and the seconds of its training."""
        last = last_saved(self.directory)
        return {**json.loads((self.directory / RESULTS_FILE).read_bytes()), "seconds": last.seconds if last else 0.0}

    @abstractmethod
    def save(self, model: Any, out: Path, results: dict[str, Any], *, adapter: bool) -> None:
        """Save the best model, an adapter or whole weights, in a directory; `results` are those of results.json."""

    def _train(self) -> None:
        """Train, with measurements and checkpoints, from the last checkpoint."""
        same = {"steps", "batch_size", "optimizer", "epochs", "accumulate", "bf16"}
        settings = FineTuning(
            **self.settings.model_dump(include=same),
            max_tokens=self.max_tokens,
            learning_rate=self.settings.lr,
            seed=self.recipe.run.seed,
            prompt_format=self.prompt_format,
            gradient_checkpointing=self.recipe.model.gradient_checkpointing,
        )
        metric, greater_is_better = self.metric
        evaluation = Evaluation(
            self.directory,
            self.section,
            self.measure,
            metric=metric,
            greater_is_better=greater_is_better,
            every=self.settings.eval_every,
            keep=max(2, self.recipe.run.keep_checkpoints),
            tracker=self.recipe.run.tracker,
        )
        train_measured(
            partial(supervised_trainer, self.model, self.tokenizer, self.rows, settings), settings, evaluation
        )

    def _publish(self, out: Path) -> None:
        """Write the best checkpoint as an ordinary Hugging Face directory; an adapter merged into its base as well."""
        last = last_saved(self.directory)
        if last is None:
            raise CheckpointError(f"{self.directory} holds no checkpoint to publish; start the run again")
        results = {
            "counts": self.counts,
            "before": measured_at(self.directory, 0),
            "measured": measured_at(self.directory, last.best_step),
            "best_step": last.best_step,
            "steps": last.step,
            "epochs": last.epochs,
            "prompt_format": self.prompt_format,
        }
        best, lora = whole_checkpoint(self.directory, last.best_step), bool(self.recipe.model.lora_r)
        dtype, code = self.recipe.model.dtype if lora else "auto", self.recipe.model.trust_remote_code
        for path, adapter in ((self.directory / MERGED, False), (out, True)) if lora else ((out, False),):
            if path.exists():
                continue
            model = load_policy(str(best), dtype=dtype, trust_remote_code=code, merge=not adapter)
            with published(path) as temporary:
                self.save(model, temporary, results, adapter=adapter)
        name = self.section.replace("_", " ")
        write_cost(self.directory, Cost(name, last.seconds, last.tokens, 0, last.peak_memory_bytes, runs=1))
        write_atomically(self.directory / RESULTS_FILE, to_json(results))
