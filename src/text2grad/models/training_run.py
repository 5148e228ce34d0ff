"""What `text2grad sft` and `text2grad reward` do in a run's directory: check, train, publish the best checkpoint.

run.json, data.json     settings, and a hash of the data; a resumed run compares them
metrics.jsonl           loss of each step, held-out measurements
checkpoints/            the best and the last
model/                  the best checkpoint: a Hugging Face directory, or an adapter
merged/                 with LoRA: the adapter merged into its base
results.json            counts, and the measurements before the training and of the best checkpoint
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from text2grad.config import Recipe, check_directory, check_world_size, open_run
from text2grad.costs import Cost, write_cost
from text2grad.errors import CheckpointError, ConfigError
from text2grad.files import published, to_json, write_atomically
from text2grad.models.adapters import load_lora, with_lora
from text2grad.models.fine_tuning import FineTuning, Row, supervised_trainer
from text2grad.models.measured_training import (
    Evaluation,
    OnMeasured,
    check_batch_size,
    check_same_data,
    checkpoint_path,
    last_saved,
    measured_at,
    train_measured,
)
from text2grad.models.pretrained import dtype_to_train, load_policy, on_cpu, refuse_second_adapter
from text2grad.types import PromptFormat

MODEL, MERGED, RESULTS_FILE = "model", "merged", "results.json"


class TrainingRun:
    """One supervised training of a model in its directory; everything is checked before a file is written.

    A subclass names its section of the recipe, and sets the other attributes from its data.

    Attributes:
        section: "sft" or "reward_model".
        sections: the sections of the recipe whose settings decide the result.
        tokenizer: the model's.
        model: the model in training.
        rows: what it learns.
        measure: the trainer → measurements.
        metric: the measurement that selects the best checkpoint, the largest where `greater_is_better`.
        counts: numbers of examples and tokens.
        prompt_format: the form of the prompts.
        is_main: whether this process writes files.
    """

    section: str
    sections: Sequence[str]
    tokenizer: Any
    model: Any
    rows: Sequence[Row]
    measure: Callable[[Any], dict[str, float]]
    metric: str
    greater_is_better: bool
    counts: Mapping[str, int]
    prompt_format: PromptFormat

    def __init__(self, recipe: Recipe, *, resume: bool) -> None:
        """Check settings, directory and processes.

        Raises:
            ConfigError: if a setting is missing, or the directory holds another run.
        """
        from accelerate import PartialState

        self.recipe, self.training, self.resume = recipe, getattr(recipe, self.section), resume
        self.path = self.training.model or recipe.model.path
        if not self.path:
            raise ConfigError(f"neither [{self.section}] model nor [model] path is set: name it with --model PATH")
        self.directory = Path(self.training.out or recipe.run.out)
        check_directory(self.directory, resume=resume)
        self.state = PartialState(cpu=on_cpu())
        self.is_main = bool(self.state.is_main_process)
        check_world_size(self.state.num_processes)
        check_batch_size(self.section, self.training.batch_size, self.training.accumulate)
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)

    def load_model(self) -> Any:
        """Load the model to train: all weights, in 32 bits where the dtype is "auto", or a new adapter.

        Raises:
            ConfigError: if a dropout is given without an adapter, or the path holds an adapter and `lora_r` is above 0.
            ModelError: if the model cannot be loaded.
        """
        settings, dropout = self.recipe.model, self.training.lora_dropout
        if dropout and not settings.lora_r:
            raise ConfigError(
                f"lora_dropout = {dropout} is the dropout of a LoRA adapter, and model.lora_r = 0 trains none; leave "
                "it out, or set model.lora_r"
            )
        refuse_second_adapter(self.path, settings.lora_r)
        dtype = dtype_to_train(settings.dtype, settings.lora_r)
        model = load_policy(self.path, dtype=dtype, trust_remote_code=settings.trust_remote_code)
        if not settings.lora_r:
            return model
        torch.manual_seed(self.recipe.run.seed)
        targets = settings.lora_targets
        return with_lora(model, r=settings.lora_r, alpha=settings.lora_alpha, targets=targets, dropout=dropout)

    def open(self, digest: str, what: str) -> None:
        """Create the run's directory, or compare it with a run that is resumed, by the digest of its data.

        Raises:
            CheckpointError: if the run was started with other settings or data.
        """
        if self.is_main:
            processes = self.state.num_processes
            open_run(self.directory, self.recipe, resume=self.resume, processes=processes, sections=self.sections)
            check_same_data(self.directory / "data.json", {**self.counts, "sha256": digest}, what)
            last_saved(self.directory)
        self.state.wait_for_everyone()

    def run(self, on_measured: OnMeasured = lambda *_: None) -> Path:
        """Train, publish the best checkpoint, and return its directory; parts that are finished are skipped.

        Args:
            on_measured: called with step, number of steps and measurements after each measurement.
        """
        out = self.directory / MODEL
        if not out.exists():
            self._train(on_measured)
        self.state.wait_for_everyone()
        if self.is_main:
            self._publish(out)
        self.state.wait_for_everyone()
        return out

    def results(self) -> dict[str, Any]:
        """Return results.json of a finished run, and the seconds of its training."""
        last = last_saved(self.directory)
        return {**json.loads((self.directory / RESULTS_FILE).read_bytes()), "seconds": last.seconds if last else 0.0}

    def save(self, model: Any, directory: Path, results: Mapping[str, Any], *, adapter: bool) -> None:
        """Write the trained model, or its adapter alone, into a directory."""
        raise NotImplementedError

    def _train(self, on_measured: OnMeasured) -> None:
        """Train, with measurements and checkpoints, from the last checkpoint."""
        run, same = self.recipe.run, {"steps", "batch_size", "max_tokens", "optimizer", "epochs", "accumulate", "bf16"}
        settings = FineTuning(
            **self.training.model_dump(include=same),
            learning_rate=self.training.lr,
            seed=run.seed,
            gradient_checkpointing=self.recipe.model.gradient_checkpointing,
        )
        evaluation = Evaluation(
            self.directory,
            self.section,
            self.measure,
            metric=self.metric,
            greater_is_better=self.greater_is_better,
            every=self.training.eval_every,
            keep=max(2, run.keep_checkpoints),
            tracker=run.tracker,
            on_measured=on_measured,
        )
        make_trainer = partial(supervised_trainer, self.model, self.tokenizer, self.rows, settings)
        train_measured(make_trainer, settings, evaluation)

    def _publish(self, out: Path) -> None:
        """Write the best checkpoint, costs and results; with LoRA, the merged model, too."""
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
        best, merged = checkpoint_path(self.directory, last.best_step), self.directory / MERGED
        for path in (merged, out) if self.recipe.model.lora_r else (out,):
            if not path.exists():
                with published(path) as temporary:
                    adapter = bool(self.recipe.model.lora_r) and path == out
                    self.save(self._trained(best, merged=path == merged), temporary, results, adapter=adapter)
        phase = self.section.replace("_", " ")
        write_cost(self.directory, Cost(phase, last.seconds, last.tokens, 0, last.peak_memory_bytes, runs=1))
        write_atomically(self.directory / RESULTS_FILE, to_json(results))

    def _trained(self, checkpoint: Path, *, merged: bool) -> Any:
        """Load the weights of a checkpoint, of an adapter onto its base."""
        settings = self.recipe.model
        code = settings.trust_remote_code
        if not settings.lora_r:
            return load_policy(str(checkpoint), trust_remote_code=code)
        base = load_policy(self.path, dtype=settings.dtype, trust_remote_code=code)
        model = load_lora(base, str(checkpoint))
        return model.merge_and_unload() if merged else model
