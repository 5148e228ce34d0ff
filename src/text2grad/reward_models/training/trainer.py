"""Phase 2 at full size: TRL's trainer, measured by decoding held-out critiques, and resumed exactly.

    checkpoints/checkpoint-200/     what transformers' Trainer keeps: weights, optimizer, schedule, random states
        text2grad.json              written last: without it the checkpoint is none; how long metrics.jsonl was
    metrics.jsonl                   one line per step, and one per measurement ("eval/...")

Whether to stop early is told from the step and the best step alone, which every checkpoint has.
"""

import copy
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.config import Recipe
from text2grad.errors import ConfigError, TrainingError
from text2grad.files import flush, to_json, write_atomically
from text2grad.models import FineTuning, optimizers, recomputing
from text2grad.reward_models.agreement import Quality
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.training.held_out import HeldOut, span_f1

METRICS_FILE, MARK = "metrics.jsonl", "text2grad.json"
PLAIN = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")  # every process holds whole weights
LOGGED = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "mean_token_accuracy": "token_accuracy"}

Told = Callable[[int, int, dict[str, float]], None]  # step, of how many, measured


class Progress(NamedTuple):
    """How far a checkpoint is."""

    step: int
    steps: int
    best_step: int

    def finished(self, recipe: Recipe) -> bool:
        """True where no step is left, or none has been better for as long as the recipe waits."""
        settings = recipe.reward_model
        waited = self.step - self.best_step
        return self.step >= self.steps or bool(settings.patience and waited >= settings.patience * settings.eval_every)


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return where a run's checkpoint of a step is."""
    return directory / "checkpoints" / f"checkpoint-{step}"


def last_progress(directory: Path) -> Progress | None:
    """Return how far the newest whole checkpoint is, remove broken ones after it, and cut the metrics back to it."""
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
    return Progress(state["global_step"], state["max_steps"], state["best_global_step"])


def reward_trainer(
    model: Any,
    critic: GenerativeRewardModel,
    rows: Sequence[dict[str, list[int]]],
    held_out: HeldOut,
    recipe: Recipe,
    directory: Path,
    told: Told,
) -> Any:
    """Return TRL's trainer for a reward model, ready to `train(resume_from_checkpoint)`.

    Args:
        model: the causal language model, or one with an adapter.
        critic: the same model as a critic; its tokenizer is used.
        rows: ids and labels of what it learns from.
        held_out: what it is measured on.
        recipe: [reward_model] and [run].
        directory: of the run.
        told: called with each measurement, on the main process.

    Raises:
        ConfigError: if the batch cannot be shared evenly, or the launcher shards weights in a way that leaves no whole
            ones in the checkpoints.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl.trainer.sft_trainer import SFTTrainer

    class RewardTrainer(SFTTrainer):
        """Measures by decoding, and leaves the model card to us."""

        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            rank, processes = self.args.process_index, self.args.world_size
            if self.accelerator.distributed_type not in PLAIN:
                rank, processes = 0, 1  # each pass needs all processes at once, so that all decode the same
            thresholds = _thresholds(critic, recipe)
            if thresholds:
                mine = held_out.measure_votes(critic, thresholds, rank=rank, processes=processes)
            else:
                mine = [held_out.measure(critic, rank=rank, processes=processes)]
            qualities = _sum_over_processes(mine) if processes > 1 else mine
            best = max(range(len(mine)), key=lambda number: span_f1(qualities[number])["f1"])
            measured = span_f1(qualities[best]) | qualities[best].metrics()
            if thresholds:
                measured["vote_threshold"] = thresholds[best]
            if self.is_world_process_zero():
                _append(directory, self.state.global_step, {f"eval/{k}": v for k, v in measured.items()})
                told(self.state.global_step, self.state.max_steps, measured)
            self.control.should_evaluate = False
            return {"eval_f1": measured["f1"]}

        def create_model_card(self, *_: Any, **__: Any) -> None:
            return None

    tokenizer = copy.deepcopy(critic.tokenizer)  # TRL gives it a padding token
    how = FineTuning(1, learning_rate=recipe.reward_model.lr, optimizer=recipe.reward_model.optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        trainer = RewardTrainer(
            model,
            args=_arguments(recipe, directory),
            train_dataset=Dataset.from_list(list(rows)),
            processing_class=tokenizer,
            optimizers=optimizers(model, how),
        )
    _refuse_shards(trainer.accelerator, recipe)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_journal(recipe, directory))
    return trainer


def _arguments(recipe: Recipe, directory: Path) -> Any:
    """Return what TRL's trainer is told."""
    import torch
    from accelerate import PartialState
    from trl.trainer.sft_config import SFTConfig

    settings, shares = recipe.reward_model, PartialState().num_processes * recipe.reward_model.accumulate
    if settings.batch_size % shares:
        raise ConfigError(
            f"reward_model.batch_size = {settings.batch_size} cannot be shared evenly by "
            f"{PartialState().num_processes} processes × reward_model.accumulate = {settings.accumulate}; choose a "
            f"multiple of {shares}"
        )
    return SFTConfig(
        output_dir=str(directory / "checkpoints"),
        max_length=settings.max_tokens,
        packing=settings.packing,
        dataset_kwargs={"skip_prepare_dataset": not settings.packing},
        per_device_train_batch_size=settings.batch_size // shares,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        max_steps=-1 if settings.epochs else settings.steps,
        num_train_epochs=settings.epochs or 1,
        bf16=settings.bf16,
        use_cpu=not torch.accelerator.is_available(),
        ddp_find_unused_parameters=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=settings.eval_every,
        save_total_limit=max(2, recipe.run.keep_checkpoints),  # the best, and the last
        metric_for_best_model="f1",
        greater_is_better=True,
        report_to=recipe.run.tracker,
        disable_tqdm=True,
        dataloader_pin_memory=torch.accelerator.is_available(),
        seed=recipe.run.seed,
        data_seed=recipe.run.seed,
        **recomputing(SFTConfig, recipe.model.gradient_checkpointing),
    )


def _journal(recipe: Recipe, directory: Path) -> Any:
    """Return a callback of transformers' Trainer that measures, writes metrics down and completes checkpoints."""
    from transformers import TrainerCallback

    class Journal(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % recipe.reward_model.eval_every == 0 or state.global_step >= state.max_steps:
                control.should_evaluate = control.should_save = True

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            logs = more["logs"]
            if "loss" not in logs:
                return
            if not math.isfinite(logs["loss"]):
                raise TrainingError(
                    f"the loss of step {state.global_step} is {logs['loss']}; lower reward_model.lr = "
                    f"{recipe.reward_model.lr} and start again in another directory"
                )
            if state.is_world_process_zero:
                _append(directory, state.global_step, {ours: logs[k] for k, ours in LOGGED.items() if k in logs})

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            path = checkpoint_path(directory, state.global_step)
            _wait_for_everyone()
            if state.is_world_process_zero:
                flush(path)
                write_atomically(path / MARK, to_json({"metrics_bytes": (directory / METRICS_FILE).stat().st_size}))
            progress = Progress(state.global_step, state.max_steps, state.best_global_step)
            control.should_training_stop |= progress.finished(recipe)

    return Journal()


def _append(directory: Path, step: int, metrics: dict[str, float]) -> None:
    with (directory / METRICS_FILE).open("ab") as file:
        file.write(to_json({"step": step, **metrics}) + b"\n")


def _thresholds(critic: GenerativeRewardModel, recipe: Recipe) -> list[float]:
    """Return every share of the votes that may decide, where the recipe leaves it to the held-out annotations."""
    if critic.votes == 1 or recipe.critic.vote_threshold is not None:
        return []
    return [number / critic.votes for number in range(1, critic.votes + 1)]


def _sum_over_processes(qualities: Sequence[Quality]) -> list[Quality]:
    """Return the counts of all processes together."""
    from accelerate.utils import gather_object

    totals = [Quality()] * len(qualities)
    for counts in gather_object([[tuple(quality) for quality in qualities]]):
        totals = [total.merged(Quality(*more)) for total, more in zip(totals, counts, strict=True)]
    return totals


def _wait_for_everyone() -> None:
    from accelerate import PartialState

    PartialState().wait_for_everyone()


def _refuse_shards(accelerator: Any, recipe: Recipe) -> None:
    """Refuse launchers under which a checkpoint would hold no whole weights."""
    kind = accelerator.distributed_type
    if kind in PLAIN:
        return
    if recipe.reward_model.optimizer != "adamw":
        raise ConfigError(
            f"accelerate was launched with {kind}, which shards weights; optimizer = muon needs whole ones"
        )
    plugin = accelerator.state.fsdp_plugin if kind == "FSDP" else None
    if plugin is not None:
        if getattr(plugin, "fsdp_version", 1) == 2 and "FULL_STATE_DICT" in str(plugin.state_dict_type):
            return
        raise ConfigError(
            "accelerate was launched with FSDP 1 or with sharded checkpoints; launch it with --fsdp_version 2 and "
            "--fsdp_state_dict_type FULL_STATE_DICT, so that the best weights can be kept whole"
        )
    stage3 = getattr(accelerator.state.deepspeed_plugin, "zero_stage", 0) == 3
    if stage3 and not accelerator.deepspeed_config["zero_optimization"].get(
        "stage3_gather_16bit_weights_on_model_save"
    ):
        raise ConfigError(
            "accelerate was launched with DeepSpeed ZeRO 3 and sharded checkpoints; launch it with "
            "--zero3_save_16bit_model true, so that the best weights can be kept whole"
        )
