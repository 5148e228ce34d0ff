"""`text2grad sft` from beginning to end: demonstrations → a fine-tuned policy.

run.json, data.json     settings, and a hash of the demonstrations; a resumed run compares them
metrics.jsonl           loss of each step, held-out loss
checkpoints/            the best and the last
model/                  the best checkpoint: a Hugging Face directory, or an adapter
merged/                 with LoRA: the adapter merged into its base
results.json            counts and the held-out loss before the training and of the best checkpoint
"""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from text2grad.config import Recipe, check_directory, check_world_size, open_run
from text2grad.costs import Cost, write_cost
from text2grad.errors import CheckpointError, ConfigError, DataError
from text2grad.feedback import Demonstration, hold_out, read_demonstrations
from text2grad.files import published, to_json, write_atomically
from text2grad.models import (
    NO_LOSS,
    Evaluation,
    FineTuning,
    OnMeasured,
    Row,
    check_batch_size,
    check_ids,
    check_same_data,
    checkpoint_path,
    context_of,
    conversation_rows,
    format_of,
    held_out_loss,
    last_saved,
    load_tokenizer,
    load_trainable,
    load_trained,
    measured_at,
    on_cpu,
    policy_config,
    supervised_trainer,
    train_measured,
)
from text2grad.progress import Progress, note
from text2grad.runs.run_examples import held_out_prompts

MODEL, MERGED, RESULTS_FILE = "model", "merged", "results.json"
SECTIONS = ("model", "sft", "run")  # sections of the recipe whose settings decide the result


class SFTRun:
    """One fine-tuning of a policy; everything that can be checked is checked before a file is written.

    Attributes:
        counts: numbers of demonstrations and tokens.
        directory: of the run.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        """Read the demonstrations, load the model, and create or open the run's directory.

        Args:
            recipe: sft.model or [model] names the model to train, [sft] sets the training, model.prompt_format the
                form of the prompts.
            resume: continue the run in `sft.out`.

        Raises:
            ConfigError: if a setting is missing, or the directory holds another run.
            DataError: if the demonstrations cannot be used.
            ModelError: if the model cannot be loaded, or its tokenizer has no end of sequence or chat template.
            CheckpointError: if the run was started with other settings or demonstrations.
        """
        from accelerate import PartialState

        self.path = recipe.sft.model or recipe.model.path
        if not self.path:
            raise ConfigError("neither [sft] model nor [model] path is set: name the model with --model PATH")
        self.recipe, self.directory = recipe, Path(recipe.sft.out)
        check_directory(self.directory, resume=resume)
        self.state = PartialState(cpu=on_cpu())
        check_world_size(self.state.num_processes)
        check_batch_size("sft", recipe.sft.batch_size, recipe.sft.accumulate)
        self.is_main = bool(self.state.is_main_process)
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        learned, held_out, shared = read_demonstration_split(recipe)
        config = policy_config(self.path, trust_remote_code=recipe.model.trust_remote_code)
        self.tokenizer = load_tokenizer(self.path, trust_remote_code=recipe.model.trust_remote_code)
        prompts = [(demonstration.where, demonstration.turns[0].prompt) for demonstration in (*learned, *held_out)]
        self.prompt_format = format_of(self.tokenizer, recipe.model.prompt_format, prompts)
        encoded = self._encode(learned, "demonstrations")
        encoded_held_out = self._encode(held_out[: recipe.sft.eval_limit], "held-out demonstrations")
        limit = int(min(recipe.sft.max_tokens, context_of(config)))
        fitting, fitting_held_out = _fitting(encoded, limit), _fitting(encoded_held_out, limit)
        self.rows = [row for rows in fitting for row in rows]
        self.held_out = [row for rows in fitting_held_out for row in rows]
        of_model = recipe.model.model_dump(
            include={"dtype", "lora_r", "lora_alpha", "lora_targets", "trust_remote_code"}
        )
        self.model = load_trainable(self.path, **of_model, lora_dropout=recipe.sft.lora_dropout, seed=recipe.run.seed)
        check_ids(self.model, [row["input_ids"] for row in (*self.rows, *self.held_out)])
        self.counts = {
            "learned": len(fitting),
            "tokens": sum(len(row["input_ids"]) for row in self.rows),
            "target_tokens": sum(label != NO_LOSS for row in self.rows for label in row["labels"]),
            "too_long": len(encoded) - len(fitting),
            "shared_prompts": shared,
            "held_out": len(fitting_held_out),
            "held_out_too_long": len(encoded_held_out) - len(fitting_held_out),
        }
        if self.is_main:
            processes = self.state.num_processes
            open_run(self.directory, recipe, resume=resume, processes=processes, sections=SECTIONS)
            digest = hashlib.sha256(f"{_digest(encoded)} {_digest(encoded_held_out)}".encode()).hexdigest()
            check_same_data(self.directory / "data.json", {**self.counts, "sha256": digest}, "demonstrations")
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
        return self.directory / MERGED if self.recipe.model.lora_r else out

    def results(self) -> dict[str, Any]:
        """Return results.json of a finished run, and the seconds of its training."""
        last = last_saved(self.directory)
        return {**json.loads((self.directory / RESULTS_FILE).read_bytes()), "seconds": last.seconds if last else 0.0}

    def _encode(self, demonstrations: Sequence[Demonstration], name: str) -> list[list[Row]]:
        """Return the rows of each demonstration."""
        encoded = []
        shown = self.is_main and len(demonstrations) > 5_000  # these take a second or two
        with Progress(f"tokenize {name}", len(demonstrations), unit="demonstration", enabled=shown) as progress:
            for demonstration in demonstrations:
                try:
                    encoded.append(conversation_rows(self.tokenizer, demonstration.turns, self.prompt_format))
                except DataError as error:
                    raise DataError(f"{demonstration.where}: {error}") from error
                progress.advance()
        if self.is_main:
            _warn_of_special_tokens(self.tokenizer, demonstrations)
        return encoded

    def _train(self, on_measured: OnMeasured) -> None:
        """Train, with measurements and checkpoints, from the last checkpoint."""
        sft, model, run = self.recipe.sft, self.recipe.model, self.recipe.run
        same = {"steps", "batch_size", "max_tokens", "optimizer", "epochs", "accumulate", "bf16"}
        settings = FineTuning(
            **sft.model_dump(include=same),
            learning_rate=sft.lr,
            seed=run.seed,
            gradient_checkpointing=model.gradient_checkpointing,
        )
        evaluation = Evaluation(
            self.directory,
            "sft",
            lambda trainer: held_out_loss(trainer, self.held_out),
            metric="loss",
            greater_is_better=False,
            every=sft.eval_every,
            keep=max(2, run.keep_checkpoints),
            tracker=run.tracker,
            on_measured=on_measured,
        )
        make_trainer = partial(supervised_trainer, self.model, self.tokenizer, self.rows, settings)
        train_measured(make_trainer, settings, evaluation)

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
        settings, merged = self.recipe.model, self.directory / MERGED
        for path in (merged, out) if settings.lora_r else (out,):
            if path.exists():
                continue
            model = load_trained(
                checkpoint_path(self.directory, last.best_step),
                self.path,
                adapter=bool(settings.lora_r),
                merged=path == merged,
                dtype=settings.dtype,
                trust_remote_code=settings.trust_remote_code,
            )
            with published(path) as temporary:
                model.save_pretrained(temporary)
                self.tokenizer.save_pretrained(temporary)
        write_cost(self.directory, Cost("sft", last.seconds, last.tokens, 0, last.peak_memory_bytes, runs=1))
        write_atomically(self.directory / RESULTS_FILE, to_json(results))


def read_demonstration_split(recipe: Recipe) -> tuple[list[Demonstration], list[Demonstration], int]:
    """Return demonstrations to train on, held-out demonstrations, and the number removed for a held-out prompt.

    Prompts that [data] holds out for the evaluations of `train` are never trained on. Without a file in `sft.held_out`
    they are the held-out demonstrations; if there are none, `sft.held_out` is the share.

    Raises:
        ConfigError: if the recipe names no demonstrations.
        DataError: if a file cannot be used, or a part has no demonstration.
    """
    settings, data = recipe.sft, recipe.data
    files = list(settings.data) or ([data.train] if data.train else [])
    if not files:
        raise ConfigError(
            "neither [sft] data nor [data] train is set: name a JSONL file of demonstrations with --data FILE"
        )
    demonstrations = read_demonstrations(files)
    evaluated = held_out_prompts(recipe)
    learned = [demonstration for demonstration in demonstrations if demonstration.prompt not in evaluated]
    held_out = [demonstration for demonstration in demonstrations if demonstration.prompt in evaluated]
    if isinstance(settings.held_out, str) or not held_out:
        learned, held_out, _ = hold_out(
            learned, settings.held_out, recipe.run.seed, read=lambda path: read_demonstrations([path])
        )
    shared = len(demonstrations) - len(learned) if isinstance(settings.held_out, str) else 0
    if not learned or not held_out:
        raise DataError(
            f"the {len(demonstrations)} demonstrations of {', '.join(files)} leave {len(learned)} to train on and "
            f"{len(held_out)} to measure on: the two have no prompt in common. Add demonstrations of other prompts, or "
            "name a file in sft.held_out"
        )
    return learned, held_out, shared


def _warn_of_special_tokens(tokenizer: Any, demonstrations: Sequence[Demonstration]) -> None:
    """Warn of answers that spell special tokens, such as an end of sequence that was added to them."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special and token.content]
    spelled = [
        (demonstration.where, texts[0])
        for demonstration in demonstrations
        if (texts := [text for _, answer in demonstration.turns for text in special if text in answer])
    ]
    if spelled:
        where, text = spelled[0]
        note(
            f"{len(spelled)} of {len(demonstrations)} demonstrations spell a special token in an answer, the first "
            f"{text!r} in {where}; it is learned as the characters that it has. Each answer gets an end of sequence; "
            "none has to be in the files",
            warning=True,
        )


def _digest(encoded: Sequence[Sequence[Row]]) -> str:
    """Return a hash of the ids of all rows."""
    return hashlib.sha256(b"".join(to_json([row["input_ids"] for row in rows]) for rows in encoded)).hexdigest()


def _fitting(encoded: Sequence[list[Row]], limit: int) -> list[list[Row]]:
    """Return the demonstrations of at most `limit` tokens in each row; a longer demonstration is left out whole.

    Raises:
        DataError: if none fits.
    """
    fitting = [rows for rows in encoded if max(len(row["input_ids"]) for row in rows) <= limit]
    if not fitting:
        raise DataError(
            f"all {len(encoded)} demonstrations of a part have more than {limit} tokens (sft.max_tokens, or the "
            "model's context); raise sft.max_tokens, or shorten them"
        )
    return fitting
