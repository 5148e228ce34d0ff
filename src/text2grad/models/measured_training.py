"""Supervised training with held-out measurements and exact resume: `text2grad sft`, `text2grad reward`.

Rows of ids and labels → TRL's trainer, measured at the start, at regular steps and at the end → the best checkpoint.
Files of a run:

    checkpoints/checkpoint-200/     checkpoint of transformers' Trainer: weights, optimizer, schedule, random states
        text2grad.json              written last, so a checkpoint without it is incomplete
    metrics.jsonl                   one line per step, and one line per measurement ("eval/...")
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PrinterCallback, TrainerCallback

from text2grad.config import Interruption
from text2grad.costs import peak_memory
from text2grad.errors import CheckpointError, ConfigError, Interrupted, TrainingError
from text2grad.files import changed_since, flush, readable, sha256_of, to_json, write_atomically
from text2grad.models.fine_tuning import NO_LOSS, FineTuning, Row
from text2grad.models.launch import PLAIN, asks_for_fsdp
from text2grad.progress import Progress, note
from text2grad.types import Optimizer

METRICS_FILE = "metrics.jsonl"
MARK = "text2grad.json"  # file that completes a checkpoint: length of metrics.jsonl, costs so far, SHA-256 of the files
COSTS = ("seconds", "tokens", "peak_memory_bytes")
LOGGED = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "mean_token_accuracy": "token_accuracy"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements and checkpoints during a training."""

    directory: Path  # the run's directory
    section: str  # name of the recipe's section, for messages
    measure: Callable[[Any], dict[str, float]] | None  # the trainer → measurements; called on every process
    metric: str  # the measurement that selects the best checkpoint
    greater_is_better: bool
    every: int  # steps between measurements; each has a checkpoint
    keep: int = 2  # checkpoints on disk, at least the best and the last
    tracker: str = "none"


class SavedTraining(NamedTuple):
    """Steps of a training at its last checkpoint."""

    step: int
    steps: int
    best_step: int  # 0 before the first checkpoint
    epochs: float  # passes over the rows
    seconds: float  # wall time of training and measurements, summed over resumed processes
    tokens: int  # number of tokens read in training, summed likewise
    peak_memory_bytes: int  # largest peak of these processes


def check_batch_size(section: str, batch_size: int, accumulate: int, processes: int) -> None:
    """Refuse a batch that the processes and their micro-batches cannot share evenly.

    Raises:
        ConfigError: if they do not divide the batch; `section` of the recipe holds the settings.
    """
    parts = processes * accumulate
    if batch_size % parts:
        raise ConfigError(
            f"{section}.batch_size = {batch_size} is not divisible by {processes} processes × {section}.accumulate = "
            f"{accumulate}; choose a multiple of {parts}"
        )


def train_measured(make_trainer: Callable[..., Any], settings: FineTuning, evaluation: Evaluation) -> None:
    """Train a model in place; measure, save, and continue from the last checkpoint.

    Args:
        make_trainer: (directory, further arguments by name) → a trainer of transformers, as `supervised_trainer` does.
        settings: of the training.
        evaluation: when to measure and save.

    Raises:
        ConfigError: if the launcher saves sharded weights.
        TrainingError: if a logged loss is not finite.
        Interrupted: after SIGINT or SIGTERM, once the step under way is finished and saved.
    """
    last = last_saved(evaluation.directory)
    if last is not None and last.step >= last.steps:
        return
    resume_from = str(whole_checkpoint(evaluation.directory, last.step)) if last else None
    journal = _Journal(evaluation, settings.learning_rate, last)
    arguments = _arguments(evaluation, from_start=last is None)
    trainer = make_trainer(str(evaluation.directory / "checkpoints"), **arguments)
    _refuse_shards(trainer.accelerator, settings.optimizer, evaluation.section)
    trainer.add_callback(journal)
    trainer.evaluate = partial(_evaluate, trainer, evaluation)
    trainer.create_model_card = lambda *_, **__: None  # the run writes its own, once
    with journal.interruption, journal.display:
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=resume_from)
    if journal.interrupted is not None:
        raise journal.interrupted


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of a checkpoint in a run's directory."""
    return directory / "checkpoints" / f"checkpoint-{step}"


def whole_checkpoint(directory: Path, step: int) -> Path:
    """Return the path of a checkpoint, or raise a `CheckpointError` if a file is not what was written."""
    path = checkpoint_path(directory, step)
    with readable(path / MARK, _way_out(path), CheckpointError):
        written = json.loads((path / MARK).read_bytes()).get("sha256", {})
    if changed := changed_since(path, written):
        raise CheckpointError(f"cannot read checkpoint {path}: {changed}. {_way_out(path)}")
    return path


def _way_out(path: Path) -> str:
    """Return what to do about a checkpoint that cannot be read."""
    return f"Restore it from a copy, or remove {path}, and --resume goes on from the checkpoint before it"


def last_saved(directory: Path) -> SavedTraining | None:
    """Return the state of the last complete checkpoint, or None.

    Incomplete checkpoints are removed, and metrics.jsonl is truncated to its length at that checkpoint.

    Raises:
        CheckpointError: if the state of that checkpoint cannot be read.
    """
    checkpoints = sorted((directory / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    while checkpoints and not (checkpoints[-1] / MARK).exists():
        shutil.rmtree(checkpoints.pop())
    metrics, last = directory / METRICS_FILE, checkpoints[-1] if checkpoints else None
    written, costs = 0, dict[str, Any]()
    if last:
        with readable(last / MARK, _way_out(last), CheckpointError):
            mark = json.loads((last / MARK).read_bytes())
            written, costs = int(mark["metrics_bytes"]), {name: mark[name] for name in COSTS}
    if metrics.exists() and metrics.stat().st_size > written:
        os.truncate(metrics, written)
    if not last:
        return None
    with readable(last / "trainer_state.json", _way_out(last), CheckpointError):
        state = json.loads((last / "trainer_state.json").read_bytes())
        steps = (state["global_step"], state["max_steps"], state["best_global_step"] or 0)
        return SavedTraining(*steps, epochs=state["epoch"], **costs)


def measured_at(directory: Path, step: int) -> dict[str, float]:
    """Return the last measurements of a step; empty if there were none."""
    measured: dict[str, float] = {}
    for line in map(json.loads, (directory / METRICS_FILE).read_bytes().splitlines()):
        values = {name[5:]: value for name, value in line.items() if name.startswith("eval/")}
        measured = values if line["step"] == step and values else measured
    return measured


def _arguments(evaluation: Evaluation, *, from_start: bool) -> dict[str, Any]:
    """Return the arguments of a trainer for logs, measurements and checkpoints.

    The order of the rows is random instead of by length: transformers' order by length comes from torch's global
    random state, and a resumed training would not repeat it.
    """
    measured = evaluation.measure is not None
    return {
        "train_sampling_strategy": "random",
        "warmup_steps": 0.05,
        "eval_on_start": from_start and measured,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": evaluation.every,
        "save_total_limit": evaluation.keep,
        "metric_for_best_model": evaluation.metric if measured else None,
        "greater_is_better": evaluation.greater_is_better,
        "report_to": evaluation.tracker,
    }


def held_out_loss(trainer: Any, rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of −log p over all labelled tokens, in nats, and its exponential, the perplexity.

    Each process computes its share of the batches; the result is the same on all.
    """
    import torch
    from accelerate.utils import gather_object
    from transformers import DataCollatorForSeq2Seq

    size, processes = trainer.args.per_device_train_batch_size, trainer.args.world_size
    ordered = sorted(rows, key=lambda row: len(row["input_ids"]))
    batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    mine = batches[trainer.args.process_index :: processes]
    rounds = -(-len(batches) // processes)  # a forward pass may need all processes at once
    collate = DataCollatorForSeq2Seq(trainer.processing_class, label_pad_token_id=NO_LOSS)
    was_training, sums = trainer.model.training, []
    trainer.model.eval()
    for number in range(rounds):
        counted = number < len(mine)
        batch = collate(mine[number] if counted else batches[0]).to(trainer.args.device)
        tokens = int((batch["labels"][:, 1:] != NO_LOSS).sum())
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss = float(trainer.compute_loss(trainer.model, batch))
        if counted:
            sums.append((loss * tokens, tokens))
    trainer.model.train(was_training)
    losses, counts = zip(*gather_object(sums), strict=True)
    loss = math.fsum(losses) / sum(counts)
    if not math.isfinite(loss):
        raise TrainingError(f"the held-out loss is {loss} at step {trainer.state.global_step}; lower the learning rate")
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def share_of_process(trainer: Any) -> tuple[int, int]:
    """Return the number of this process and of all processes that share work; (0, 1) where weights are sharded.

    With sharded weights each forward pass needs all processes at once, so all do the same work.
    """
    whole = trainer.accelerator.distributed_type in PLAIN
    return (trainer.args.process_index, trainer.args.world_size) if whole else (0, 1)


def _evaluate(trainer: Any, evaluation: Evaluation, *_: Any, **__: Any) -> dict[str, float]:
    """Measure, log the measurements, and return the metric that selects the best checkpoint."""
    assert evaluation.measure is not None  # else no measurement is requested
    measured = evaluation.measure(trainer)
    if trainer.is_world_process_zero():
        step = trainer.state.global_step
        _append(evaluation.directory, step, {f"eval/{name}": value for name, value in measured.items()})
        shown = "   ".join(f"{name} {value:.4g}" for name, value in measured.items() if not name.startswith("gap"))
        note(f"held out, step {step:,} of {trainer.state.max_steps:,}   {shown}")
    trainer.control.should_evaluate = False
    return {f"eval_{evaluation.metric}": measured[evaluation.metric]}


class _Journal(TrainerCallback):
    """Requests measurements, writes metrics.jsonl and completes checkpoints."""

    def __init__(self, evaluation: Evaluation, learning_rate: float, last: SavedTraining | None) -> None:
        self.evaluation, self.learning_rate = evaluation, learning_rate
        self.begun = time.monotonic() - (last.seconds if last else 0.0)
        self.tokens = self.tokens_before = last.tokens if last else 0
        self.peak_before = last.peak_memory_bytes if last else 0
        self.interruption = Interruption()
        self.interrupted: Interrupted | None = None
        self.display = ExitStack()  # holds the progress, whose total is known once the training begins

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        name, main = self.evaluation.section.replace("_", " "), state.is_world_process_zero
        progress = Progress(name, state.max_steps, done=state.global_step, enabled=main)
        self.progress = self.display.enter_context(progress)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from accelerate.utils import gather_object

        received = [number for number in gather_object([self.interruption.received]) if number is not None]
        if received and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
            step, steps = state.global_step, state.max_steps
            self.interrupted = Interrupted(received[0], f"stopped after step {step} of {steps}, which is saved")
        if state.global_step % self.evaluation.every == 0 or state.global_step >= state.max_steps:
            control.should_evaluate, control.should_save = self.evaluation.measure is not None, True

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        logs = more["logs"]
        self.tokens = self.tokens_before + int(logs.get("num_tokens", self.tokens - self.tokens_before))
        if "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise TrainingError(
                f"the loss of step {state.global_step} is {logs['loss']}; lower {self.evaluation.section}.lr = "
                f"{self.learning_rate} and start again in another directory"
            )
        if state.is_world_process_zero:
            metrics = {name: logs[key] for key, name in LOGGED.items() if key in logs}
            _append(self.evaluation.directory, state.global_step, metrics)
        self.progress.advance(loss=logs["loss"], lr=logs["learning_rate"])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from accelerate import PartialState

        directory = self.evaluation.directory
        path = checkpoint_path(directory, state.global_step)
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            flush(path)
            costs = (time.monotonic() - self.begun, self.tokens, max(self.peak_before, peak_memory()))
            length = (directory / METRICS_FILE).stat().st_size
            costs_so_far = dict(zip(COSTS, costs, strict=True))
            files = {file.name: sha256_of(file) for file in path.iterdir() if file.is_file()}
            mark = {"section": self.evaluation.section, "metrics_bytes": length, **costs_so_far, "sha256": files}
            write_atomically(path / MARK, to_json(mark))


def _append(directory: Path, step: int, metrics: dict[str, float]) -> None:
    with (directory / METRICS_FILE).open("ab") as file:
        file.write(to_json({"step": step, **metrics}) + b"\n")


def _refuse_shards(accelerator: Any, optimizer: Optimizer, section: str) -> None:
    """Refuse launchers whose checkpoints would not hold whole weights."""
    kind, state = accelerator.distributed_type, accelerator.state
    if kind in PLAIN:
        if asks_for_fsdp():
            raise ConfigError(
                f"accelerate's configuration asks for FSDP (ACCELERATE_USE_FSDP), and accelerate made {kind} of it, "
                "which shards nothing (it does so on a CPU and without a launcher); launch plain data parallelism with "
                "torchrun"
            )
        return
    if optimizer != "adamw":
        raise ConfigError(
            f"accelerate was launched with {kind}, which shards weights, and optimizer = {optimizer} needs whole "
            f'matrices; set {section}.optimizer = "adamw"'
        )
    if kind == "FSDP":
        way_out = "--fsdp_version 2 and --fsdp_state_dict_type FULL_STATE_DICT"
        whole = state.fsdp_plugin.fsdp_version == 2 and "FULL_STATE_DICT" in str(state.fsdp_plugin.state_dict_type)
    else:
        way_out = "--zero3_save_16bit_model true"
        sharded = getattr(state.deepspeed_plugin, "zero_stage", 0) == 3
        option = "stage3_gather_16bit_weights_on_model_save"
        whole = not sharded or accelerator.deepspeed_config["zero_optimization"].get(option)
    if not whole:
        raise ConfigError(
            f"accelerate was launched with {kind} and sharded checkpoints, and the best checkpoint must hold whole "
            f"weights; launch it with {way_out}"
        )
