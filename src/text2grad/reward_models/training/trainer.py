"""The trainer of the generative reward model, for the quickstart, for [refresh] and for `text2grad reward`.

    annotations → rows of ids and labels → `train_reward_model` or `train` → the reward model, trained in place

With an `Evaluation`, `train` decodes critiques of held-out responses at regular steps, keeps the best checkpoint, stops
early and resumes exactly:

    checkpoints/checkpoint-200/     checkpoint of transformers' Trainer: weights, optimizer, schedule, random states
        text2grad.json              written last, so a checkpoint without it is incomplete; the length of metrics.jsonl
    metrics.jsonl                   one line per step, and one line per measurement ("eval/...")

Early stopping depends only on the step and the best step, which every checkpoint holds.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainerCallback

from text2grad.config import Interruption
from text2grad.errors import ConfigError, Interrupted, TrainingError
from text2grad.feedback import Annotation
from text2grad.files import flush, to_json, write_atomically
from text2grad.models import FineTuning, OnStep, Row, context_of, run_trainer, supervised_trainer, train_on_rows
from text2grad.reward_models.agreement import Agreement
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.training.examples import training_rows
from text2grad.reward_models.training.held_out import HeldOutSet, span_f1
from text2grad.types import Optimizer

METRICS_FILE, MARK = "metrics.jsonl", "text2grad.json"
PLAIN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")  # every process holds whole weights
LOGGED = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "mean_token_accuracy": "token_accuracy"}

OnMeasured = Callable[[int, int, dict[str, float]], None]  # step, number of steps, measurements


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements and checkpoints during a training."""

    directory: Path  # of the run
    held_out: HeldOutSet
    every: int  # steps between measurements; each has a checkpoint
    patience: int = 0  # measurements without a better F1 after which training stops; 0 never stops early
    keep: int = 2  # checkpoints on disk, at least the best and the last
    tracker: str = "none"
    thresholds: Sequence[float] = ()  # vote thresholds to choose from; empty takes the reward model's own
    on_measured: OnMeasured = lambda *_: None  # called on the main process


class Progress(NamedTuple):
    """Steps of a training at its last checkpoint."""

    step: int
    steps: int
    best_step: int  # 0 before the first measurement

    def finished(self, evaluation: Evaluation) -> bool:
        """True where no step is left, or `patience` measurements in a row were no better."""
        patience = evaluation.patience * evaluation.every
        return self.step >= self.steps or bool(patience and self.step - self.best_step >= patience)


def train_reward_model(
    model: Any,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
    **options: Any,
) -> tuple[GenerativeRewardModel, int]:
    """Train a causal language model in place to write the critiques of annotations; failed critiques are skipped.

    `on_step` is called with the number of finished steps after each step. `options` are keyword arguments of
    `GenerativeRewardModel`; `write_feedback` and `form` select the text to learn.

    Returns:
        The reward model, and the number of annotations left out because they are longer than `settings.max_tokens` or
        than the model's context.

    Raises:
        ConfigError: if `constrain` is True and decoding cannot be constrained to `form`.
        ModelError: if the model could not write critiques; before training.
        DataError: if no annotation is left.
    """
    reward_model = GenerativeRewardModel(model, tokenizer, prompt_format=settings.prompt_format, **options)
    max_tokens = int(min(settings.max_tokens, context_of(model)))
    rows, too_long = training_rows(reward_model, annotations, max_tokens=max_tokens)
    train(reward_model, rows, settings, on_step=on_step)
    return reward_model, too_long


def train(
    reward_model: GenerativeRewardModel,
    rows: Sequence[Row],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
    evaluation: Evaluation | None = None,
) -> None:
    """Train a reward model on `training_rows`; with an evaluation, measure, save and continue from its last checkpoint.

    Raises:
        ConfigError: if processes and micro-batches do not divide the batch, or the launcher saves sharded weights.
        TrainingError: if a logged loss is not finite.
        Interrupted: after SIGINT or SIGTERM, once the step under way is finished and saved.
    """
    if evaluation is None:
        train_on_rows(reward_model.model, reward_model.tokenizer, rows, settings, on_step=on_step)
        return
    last = last_progress(evaluation.directory)
    if last is None or not last.finished(evaluation):
        resume_from = str(checkpoint_path(evaluation.directory, last.step)) if last else None
        journal = _Journal(evaluation, settings.learning_rate)
        trainer = evaluated_trainer(reward_model, rows, settings, evaluation)
        trainer.add_callback(journal)
        run_trainer(trainer, on_step, resume_from=resume_from)
        if journal.interrupted is not None:
            raise journal.interrupted


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of a checkpoint in a run's directory."""
    return directory / "checkpoints" / f"checkpoint-{step}"


def last_progress(directory: Path) -> Progress | None:
    """Return the progress of the last complete checkpoint, or None.

    Incomplete checkpoints are removed, and metrics.jsonl is truncated to its length at that checkpoint.
    """
    checkpoints = sorted((directory / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    while checkpoints and not (checkpoints[-1] / MARK).exists():
        shutil.rmtree(checkpoints.pop())
    metrics, size = directory / METRICS_FILE, 0
    if checkpoints:
        size = json.loads((checkpoints[-1] / MARK).read_bytes())["metrics_bytes"]
    if metrics.exists() and metrics.stat().st_size > size:
        os.truncate(metrics, size)
    if not checkpoints:
        return None
    state = json.loads((checkpoints[-1] / "trainer_state.json").read_bytes())
    return Progress(state["global_step"], state["max_steps"], state["best_global_step"] or 0)


def evaluated_trainer(
    reward_model: GenerativeRewardModel, rows: Sequence[Row], settings: FineTuning, evaluation: Evaluation
) -> Any:
    """Return TRL's SFTTrainer with held-out measurements, logs and checkpoints.

    The order of the rows is random instead of by length: transformers' order by length comes from torch's global
    random state, and a resumed training would not repeat it.
    """
    import torch
    from accelerate import PartialState

    processes = PartialState().num_processes
    parts = processes * settings.accumulate
    if settings.batch_size % parts:
        raise ConfigError(
            f"reward_model.batch_size = {settings.batch_size} is not divisible by {processes} processes × "
            f"reward_model.accumulate = {settings.accumulate}; choose a multiple of {parts}"
        )
    trainer = supervised_trainer(
        reward_model.model,
        reward_model.tokenizer,
        rows,
        settings,
        str(evaluation.directory / "checkpoints"),
        per_device_train_batch_size=settings.batch_size // parts,
        train_sampling_strategy="random",
        warmup_steps=0.05,
        use_cpu=not torch.accelerator.is_available(),
        ddp_find_unused_parameters=False,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=evaluation.every,
        save_total_limit=evaluation.keep,
        metric_for_best_model="f1",
        greater_is_better=True,
        report_to=evaluation.tracker,
    )
    _refuse_shards(trainer.accelerator, settings.optimizer)
    trainer.evaluate = partial(_evaluate, trainer, reward_model, evaluation)
    trainer.create_model_card = lambda *_, **__: None  # `model_card` writes it, once
    return trainer


def _evaluate(
    trainer: Any, reward_model: GenerativeRewardModel, evaluation: Evaluation, *_: Any, **__: Any
) -> dict[str, float]:
    """Decode held-out critiques, log the measurements, and return the metric that selects the best checkpoint."""
    rank, processes = trainer.args.process_index, trainer.args.world_size
    if trainer.accelerator.distributed_type not in PLAIN:
        rank, processes = 0, 1  # each forward pass needs all processes at once, so all decode the same responses
    thresholds = evaluation.thresholds
    if thresholds:
        agreements = evaluation.held_out.measure_votes(reward_model, thresholds, rank=rank, processes=processes)
    else:
        agreements = [evaluation.held_out.measure(reward_model, rank=rank, processes=processes)]
    if processes > 1:
        agreements = _sum_over_processes(agreements)
    best = max(range(len(agreements)), key=lambda number: span_f1(agreements[number])["f1"])
    measured = span_f1(agreements[best]) | agreements[best].metrics()
    if thresholds:
        measured["vote_threshold"] = thresholds[best]
    if trainer.is_world_process_zero():
        step = trainer.state.global_step
        _append(evaluation.directory, step, {f"eval/{name}": value for name, value in measured.items()})
        evaluation.on_measured(step, trainer.state.max_steps, measured)
    trainer.control.should_evaluate = False
    return {"eval_f1": measured["f1"]}


class _Journal(TrainerCallback):
    """Requests measurements, writes metrics.jsonl and completes checkpoints."""

    def __init__(self, evaluation: Evaluation, learning_rate: float) -> None:
        self.evaluation, self.learning_rate = evaluation, learning_rate
        self.interruption = Interruption()
        self.interrupted: Interrupted | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.interruption.__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.interruption.__exit__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from accelerate.utils import gather_object

        received = [number for number in gather_object([self.interruption.received]) if number is not None]
        if received and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
            step, steps = state.global_step, state.max_steps
            self.interrupted = Interrupted(received[0], f"stopped after step {step} of {steps}, which is saved")
        if state.global_step % self.evaluation.every == 0 or state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        logs = more["logs"]
        if "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise TrainingError(
                f"the loss of step {state.global_step} is {logs['loss']}; lower reward_model.lr = {self.learning_rate} "
                "and start again in another directory"
            )
        if state.is_world_process_zero:
            _append(
                self.evaluation.directory, state.global_step, {ours: logs[k] for k, ours in LOGGED.items() if k in logs}
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        from accelerate import PartialState

        directory = self.evaluation.directory
        path = checkpoint_path(directory, state.global_step)
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            flush(path)
            write_atomically(path / MARK, to_json({"metrics_bytes": (directory / METRICS_FILE).stat().st_size}))
        progress = Progress(state.global_step, state.max_steps, state.best_global_step or 0)
        control.should_training_stop |= progress.finished(self.evaluation)


def _append(directory: Path, step: int, metrics: dict[str, float]) -> None:
    with (directory / METRICS_FILE).open("ab") as file:
        file.write(to_json({"step": step, **metrics}) + b"\n")


def _sum_over_processes(agreements: Sequence[Agreement]) -> list[Agreement]:
    """Return the counts of all processes together."""
    from accelerate.utils import gather_object

    totals = [Agreement()] * len(agreements)
    for counts in gather_object([[tuple(agreement) for agreement in agreements]]):
        totals = [total.merged(Agreement(*more)) for total, more in zip(totals, counts, strict=True)]
    return totals


def _refuse_shards(accelerator: Any, optimizer: Optimizer) -> None:
    """Refuse launchers whose checkpoints would not hold whole weights."""
    kind = accelerator.distributed_type
    if kind in PLAIN:
        return
    if optimizer != "adamw":
        raise ConfigError(
            f"accelerate was launched with {kind}, which shards weights, and optimizer = {optimizer} needs whole "
            'matrices; set reward_model.optimizer = "adamw"'
        )
    plugin = accelerator.state.fsdp_plugin if kind == "FSDP" else None
    if plugin is not None:
        if getattr(plugin, "fsdp_version", 1) == 2 and "FULL_STATE_DICT" in str(plugin.state_dict_type):
            return
        raise ConfigError(
            "accelerate was launched with FSDP 1 or with sharded checkpoints, and the best checkpoint must hold whole "
            "weights; launch it with --fsdp_version 2 and --fsdp_state_dict_type FULL_STATE_DICT"
        )
    stage3 = getattr(accelerator.state.deepspeed_plugin, "zero_stage", 0) == 3
    if stage3 and not accelerator.deepspeed_config["zero_optimization"].get(
        "stage3_gather_16bit_weights_on_model_save"
    ):
        raise ConfigError(
            "accelerate was launched with DeepSpeed ZeRO 3 and sharded checkpoints, and the best checkpoint must hold "
            "whole weights; launch it with --zero3_save_16bit_model true"
        )
